// The effect of a packet on its slot: section 8 of docs/spec, with less state, as rule 24.5
// allows.
//
// State lies in registers (rule 24.7), with an entry for each set of each slot, and one access to
// each per pass. What an access does is the front's to say (Tag, Seen, Call, Missing, Check, Flags,
// Lane); when it happens is said here and in `rules.p4`.

// The lowest lane: the neutral element of a maximum.
#define LOWEST 0x80000000

control Slot(inout headers_t h, inout metadata_t m) {
    Tag() tag;
    Seen() seen;
    Call() call;
    Missing() missing;
    Check() check;
    Flags() flags;
    Lanes() lanes;

    action to(bit<8> step) { m.step = step; }

    table steps {
        key = { RULE_KEY }
        actions = { to; }
        const entries = {
            (_, HELD_LOST, _, _, _, _): to(STEP_LOST);
            (PASS_ABORTED, _, _, _, _, _): to(STEP_ABORTED);
            (PASS_ROOM, _, _, _, _, _): to(STEP_ROOM);
            (QUERY, HELD_SAME, _, OP_SUM, _, _): to(STEP_FIRST);
            (QUERY, HELD_SAME, _, OP_MAX, _, _): to(STEP_MAX);
            (PASS_RESULT, HELD_SAME, _, _, _, _): to(STEP_SECOND);
            RULES(to(STEP_START), to(STEP_AGAIN), to(STEP_ADD), to(STEP_MAX))
            EMPTY_RULES(to(STEP_START_EMPTY), to(STEP_ROOM), to(STEP_ADD_EMPTY))
            (FIRST, HELD_SAME, _, _, _, _): to(STEP_MISMATCH);
            MORE_STEPS
        }
        const default_action = to(STEP_STALE);
        size = 128;
    }

    // Values that change nothing when they are combined, so that combining reads the lanes.
    action zeros() {
        h.low.v0 = 0; h.high.v0 = 0; h.low.v1 = 0; h.high.v1 = 0;
        h.low.v2 = 0; h.high.v2 = 0; h.low.v3 = 0; h.high.v3 = 0;
        h.low.v4 = 0; h.high.v4 = 0; h.low.v5 = 0; h.high.v5 = 0;
        h.low.v6 = 0; h.high.v6 = 0; h.low.v7 = 0; h.high.v7 = 0;
        h.low.v8 = 0; h.high.v8 = 0; h.low.v9 = 0; h.high.v9 = 0;
        h.low.v10 = 0; h.high.v10 = 0; h.low.v11 = 0; h.high.v11 = 0;
        h.low.v12 = 0; h.high.v12 = 0; h.low.v13 = 0; h.high.v13 = 0;
        h.low.v14 = 0; h.high.v14 = 0; h.low.v15 = 0; h.high.v15 = 0;
        h.low.v16 = 0; h.high.v16 = 0; h.low.v17 = 0; h.high.v17 = 0;
        h.low.v18 = 0; h.high.v18 = 0; h.low.v19 = 0; h.high.v19 = 0;
        h.low.v20 = 0; h.high.v20 = 0; h.low.v21 = 0; h.high.v21 = 0;
        h.low.v22 = 0; h.high.v22 = 0; h.low.v23 = 0; h.high.v23 = 0;
        h.low.v24 = 0; h.high.v24 = 0; h.low.v25 = 0; h.high.v25 = 0;
        h.low.v26 = 0; h.high.v26 = 0; h.low.v27 = 0; h.high.v27 = 0;
        h.low.v28 = 0; h.high.v28 = 0; h.low.v29 = 0; h.high.v29 = 0;
        h.low.v30 = 0; h.high.v30 = 0; h.low.v31 = 0; h.high.v31 = 0;
    }

    action lowest() {
        h.low.v0 = LOWEST; h.high.v0 = LOWEST; h.low.v1 = LOWEST; h.high.v1 = LOWEST;
        h.low.v2 = LOWEST; h.high.v2 = LOWEST; h.low.v3 = LOWEST; h.high.v3 = LOWEST;
        h.low.v4 = LOWEST; h.high.v4 = LOWEST; h.low.v5 = LOWEST; h.high.v5 = LOWEST;
        h.low.v6 = LOWEST; h.high.v6 = LOWEST; h.low.v7 = LOWEST; h.high.v7 = LOWEST;
        h.low.v8 = LOWEST; h.high.v8 = LOWEST; h.low.v9 = LOWEST; h.high.v9 = LOWEST;
        h.low.v10 = LOWEST; h.high.v10 = LOWEST; h.low.v11 = LOWEST; h.high.v11 = LOWEST;
        h.low.v12 = LOWEST; h.high.v12 = LOWEST; h.low.v13 = LOWEST; h.high.v13 = LOWEST;
        h.low.v14 = LOWEST; h.high.v14 = LOWEST; h.low.v15 = LOWEST; h.high.v15 = LOWEST;
        h.low.v16 = LOWEST; h.high.v16 = LOWEST; h.low.v17 = LOWEST; h.high.v17 = LOWEST;
        h.low.v18 = LOWEST; h.high.v18 = LOWEST; h.low.v19 = LOWEST; h.high.v19 = LOWEST;
        h.low.v20 = LOWEST; h.high.v20 = LOWEST; h.low.v21 = LOWEST; h.high.v21 = LOWEST;
        h.low.v22 = LOWEST; h.high.v22 = LOWEST; h.low.v23 = LOWEST; h.high.v23 = LOWEST;
        h.low.v24 = LOWEST; h.high.v24 = LOWEST; h.low.v25 = LOWEST; h.high.v25 = LOWEST;
        h.low.v26 = LOWEST; h.high.v26 = LOWEST; h.low.v27 = LOWEST; h.high.v27 = LOWEST;
        h.low.v28 = LOWEST; h.high.v28 = LOWEST; h.low.v29 = LOWEST; h.high.v29 = LOWEST;
        h.low.v30 = LOWEST; h.high.v30 = LOWEST; h.low.v31 = LOWEST; h.high.v31 = LOWEST;
    }

    table neutral {
        key = {
            m.pass: exact;
            h.switchml.op: exact;
        }
        actions = { zeros; lowest; NoAction; }
        const entries = {
            (PASS_QUERY, OP_SUM): zeros();
            (PASS_QUERY, OP_MAX): lowest();
#ifdef PARTS
            (PASS_QUERY | PART_EARLIER, OP_SUM): zeros();
            (PASS_QUERY | PART_EARLIER, OP_MAX): lowest();
#endif
        }
        const default_action = NoAction();
        size = 4;
    }

    apply {
#ifdef PARTS
        if (m.pass == PASS_QUERY | PART_EARLIER) {
            h.low.setValid();
            h.high.setValid();
        }
#endif
        tag.apply(h, m);
        neutral.apply();
        seen.apply(m);
        call.apply(h, m);
        missing.apply(h, m);
#ifdef PARTS
        // The check word counts once, with the last part.
        if ((m.pass & PART_NOT_LAST) == 0) {
            check.apply(h, m);
        }
#else
        check.apply(h, m);
#endif
        flags.apply(h, m);
        steps.apply();
        lanes.apply(h, m);
    }
}
