// Part of the aggregator's control: packets of more lanes than one pass can add up.
//
// A **part** is 64 lanes of a packet, or the last 32. Each part has sets of its own, PART_STRIDE
// entries after those of the part before, and is served as a packet would be. A pass takes one part
// off the frame, and the frame comes in once more with the rest. The last part decides for the
// packet, and has its check word, flags and number of missing ranks: who is in there went through
// all parts before, so if all ranks are in the last part, they are in each.
//
// - A frame that gets lost between two passes is sent again by its rank. It skips no part, but
//   counts only where its rank is not in yet.
// - Only the first part must hold the round before the packet's. Later parts follow it, whatever
//   they held: packets may not have had them for many rounds. Frames of a slot come to a part in
//   the order in which they left the one before, so no later packet has been there.
// - What is of another call at one part changes nothing at those after it. They are only taken off,
//   for the answer to be short.
// - On Tofino, parts may be in several pipelines, as the ports to recirculate by choose. Each has
//   its own registers, so a part's sets are where its frames go.
// - A complete round is read from the last part to the first, because a frame grows in front only:
//   in two passes for each part, as for any packet.

#define PART_STRIDE (ENTRIES / PARTS)

    action onward(bit<8> next) {
        once_more(next);
        h.pass.index = m.index + PART_STRIDE;
        h.pass.part = m.part + 1;
        h.pass.blocks = m.blocks - 2;
        h.low.setInvalid();
        h.high.setInvalid();
        TO_LATER_PART
    }

    action to_earlier() {
        once_more(PASS_QUERY | PART_EARLIER);
        h.pass.index = m.index - PART_STRIDE;
        h.pass.part = m.part - 1;
        h.pass.blocks = 2;
        TO_EARLIER_PART
    }

// The last part has at most two blocks.
#define ONWARD(pass, step, next)                                                 \
    (pass | PART_NOT_LAST, step, _, 3): onward(next);                            \
    (pass | PART_NOT_LAST, step, _, 4): onward(next);                            \
    (pass | PART_NOT_LAST, step, _, _): onward(next | PART_NOT_LAST);

    table parts {
        key = {
            m.pass: ternary;
            m.step: ternary;
            m.part: ternary;
            m.blocks: ternary;
        }
        actions = { stale; lost; onward; to_earlier; NoAction; }
        const entries = {
            (_, STEP_LOST, _, _): lost();
            (PASS_FIRST | PART_NOT_LAST, STEP_STALE, _, _): stale();
            ONWARD(PASS_FIRST, STEP_MISMATCH, PASS_REFUSED)
            ONWARD(PASS_FIRST, _, PASS_FIRST)
            ONWARD(PASS_REFUSED, _, PASS_REFUSED)
            ONWARD(PASS_ABORTED, _, PASS_ABORTED)
            (_, STEP_SECOND, 1, _): to_earlier();
            (_, STEP_SECOND, 2, _): to_earlier();
            (_, STEP_SECOND, 3, _): to_earlier();
        }
        const default_action = NoAction();
        size = 16;
    }
