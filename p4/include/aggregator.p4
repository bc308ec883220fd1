// A frame's way: admission, its slot, the answer; or the plain switch, if it is not for the
// aggregator.
//
// Tables are filled by the control plane. The front defines how frames leave it: DROP, TO_PORT,
// THROUGH_EGRESS_TO_PORT, TO_GROUP, FLOOD, ONCE_MORE; LEARN tells the control plane of a HELLO.

// The number of endpoints that the aggregator answers to.
#define ENDPOINTS MAX_JOBS

control Aggregator(inout headers_t h, inout metadata_t m, ARCHITECTURE_PARAMETERS) {
    Slot() slot;

#include "envelope.p4"

    // ---- Admission of contributions: rule 7.5, rule 7.9, rule 7.10 ----

    // `base`: the set of slot 0 of the job for the round's parity. `own`: the rank's bit. `rest`:
    // the bits of all other ranks. `others`: the number of other ranks.
    action admit(index_t base, bit<32> own, bit<32> rest, bit<8> others) {
        m.pass = m.first;
        m.index = base + h.switchml.slot;
        m.own = own;
        m.rest = rest;
        m.others = others;
        m.previous = h.switchml.round - 2;
    }

    // Of an aborted job; or without payload, of a job's only rank, which completes each round (rule
    // 24.9).
    action turn_away() { m.pass = m.first | PASS_TURNED_AWAY; }

    // Contributions. Each member has two entries, for even and for odd rounds. The mask of `slot`
    // gives the number of the job's slots, a power of two.
    table members {
        key = {
            m.is_contribution: ternary;
            m.bad_ip_checksum: ternary;
            h.switchml.flags: ternary @name("flags");
            h.switchml.job: ternary @name("job");
            h.switchml.epoch: ternary @name("epoch");
            h.switchml.rank: ternary @name("rank");
            h.switchml.slot: ternary @name("slot");
            h.switchml.round[0:0]: ternary @name("parity");
            m.port: ternary @name("port");
            h.ethernet.src: ternary @name("mac");
            h.ipv4.src: ternary @name("address");
            h.ipv4.dst: ternary @name("aggregator");
            h.udp.src: ternary @name("udp_port");
        }
        actions = { admit; turn_away; NoAction; }
        const default_action = NoAction();
        size = 2 * MAX_MEMBERS;
    }

    action resume() {
        m.pass = h.pass.kind;
        m.index = h.pass.index;
        m.others = h.pass.others;
        m.is_answer = 1;
#ifdef PARTS
        m.blocks = h.pass.blocks;
        m.own = h.pass.own;
        m.previous = h.switchml.round;
#endif
    }

    // The flags that a RESULT of this contribution alone would have (rule 8.11). CHECKED is missing
    // for maxima if nothing can sum their lanes, and without payload, so that a sum's set has
    // CHECKED once it has lanes.
    action with_flags(bit<8> value) { m.flags = value; }

    table own_flags {
        key = {
            h.ipv4.ecn: ternary;
            h.switchml.flags: ternary;
            h.switchml.op: ternary;
        }
        actions = { with_flags; }
        const entries = {
            (ECN_CE, FLAG_EMPTY &&& FLAG_EMPTY, _): with_flags(FLAG_CE);
            (_, FLAG_EMPTY | FLAG_CE &&& FLAG_EMPTY | FLAG_CE, _): with_flags(FLAG_CE);
            (_, FLAG_EMPTY &&& FLAG_EMPTY, _): with_flags(0);
            (ECN_CE, _, OP_MAX): with_flags(MAXIMUM_FLAGS | FLAG_CE);
            (_, FLAG_CE &&& FLAG_CE, OP_MAX): with_flags(MAXIMUM_FLAGS | FLAG_CE);
            (_, _, OP_MAX): with_flags(MAXIMUM_FLAGS);
            (ECN_CE, _, _): with_flags(FLAG_CHECKED | FLAG_CE);
            (_, FLAG_CE &&& FLAG_CE, _): with_flags(FLAG_CHECKED | FLAG_CE);
        }
        const default_action = with_flags(FLAG_CHECKED);
        size = 16;
    }

    // ---- Answers: section 9 ----

    // Rule 5.1.
    action swap_ends() {
        bit<48> mac = h.ethernet.dst;
        h.ethernet.dst = h.ethernet.src;
        h.ethernet.src = mac;
        bit<32> address = h.ipv4.dst;
        h.ipv4.dst = h.ipv4.src;
        h.ipv4.src = address;
        bit<16> port = h.udp.dst;
        h.udp.dst = h.udp.src;
        h.udp.src = port;
    }

    action control_reply(bit<8> kind, bit<32> first, bit<32> second) {
        h.switchml.kind = kind;
        h.switchml.op = OP_SUM;
        h.switchml.flags = FLAG_CHECKED;
        h.switchml.lanes = CONTROL_REPLY_LANES;
        h.control_reply.setValid();
        h.control_reply.first = first;
        h.control_reply.second = second;
        h.low.setInvalid();
        h.high.setInvalid();
        h.pass.setInvalid();
        h.udp.len = CONTROL_REPLY_UDP_BYTES;
        h.ipv4.total_len = 20 + CONTROL_REPLY_UDP_BYTES;
        swap_ends();
        finish_ip();
        THROUGH_EGRESS_TO_PORT(m.port)
    }

    action started() {
        m.outcome = OUTCOME_STARTED;
        DROP
    }

    action added() {
        m.outcome = OUTCOME_ADDED;
        DROP
    }

    action stale() {
        m.outcome = OUTCOME_STALE;
        DROP
    }

    action complete() {
        m.outcome = OUTCOME_COMPLETED;
        h.switchml.kind = KIND_RESULT;
        h.switchml.flags = m.union | m.flags;
        h.switchml.rank = EVERYONE;
        h.switchml.aux = 0;
        finish_ip();
        once_more(PASS_RESULT);
    }

    action replay() {
        m.outcome = OUTCOME_REPLAYED;
        h.switchml.kind = KIND_RESULT;
        h.switchml.flags = m.union;
        swap_ends();
        finish_ip();
        once_more(PASS_QUERY);
    }

    action pending() {
        m.outcome = OUTCOME_PENDING;
        control_reply(KIND_PENDING, 0, m.seen);
    }

    // The rank that started the round is not known here (rule 24.5).
    action mismatch() {
        m.outcome = OUTCOME_MISMATCH;
        control_reply(KIND_REJECT, REJECT_MISMATCH, h.switchml.rank ++ h.switchml.rank);
    }

    // Rule 9.2.
    action room() {
        m.outcome = OUTCOME_ROOM;
        h.switchml.kind = KIND_ROOM;
        h.switchml.flags = h.switchml.flags | m.flags;
        swap_ends();
        finish_ip();
        TO_PORT(m.port)
    }

    // Rule 7.12.
    action aborted() {
        m.outcome = OUTCOME_ABORTED;
        control_reply(KIND_REJECT, REJECT_ABORTED, 0);
    }

    action queried() { h.pass.kind = PASS_RESULT; ONCE_MORE }

    action deliver() {
        h.pass.setInvalid();
        TO_PORT(m.port)
    }

    table verdict {
        key = {
            m.step: ternary;
            m.missing: ternary;
            m.pass: ternary;
            h.switchml.rank: ternary;
        }
        actions = {
            started; added; stale; complete; replay; pending; mismatch; room; aborted; queried;
            deliver; lost; NoAction;
        }
        const entries = {
            (STEP_SECOND, _, _, EVERYONE): NoAction();
            (STEP_SECOND, _, _, _): deliver();
            (STEP_FIRST, _, _, _): queried();
            (STEP_MAX, _, QUERY, _): queried();
            (STEP_START, 0, _, _): complete();
            (STEP_ADD, 0, _, _): complete();
            (STEP_MAX, 0, _, _): complete();
            (STEP_START, _, _, _): started();
            (STEP_ADD, _, _, _): added();
            (STEP_MAX, _, _, _): added();
            (STEP_START_EMPTY, _, _, _): started();
            (STEP_ADD_EMPTY, _, _, _): added();
            (STEP_ROOM, _, _, _): room();
            (STEP_AGAIN, 0, _, _): replay();
            (STEP_AGAIN, _, _, _): pending();
            (STEP_MISMATCH, _, _, _): mismatch();
            (STEP_ABORTED, _, _, _): aborted();
            (STEP_LOST, _, _, _): lost();
        }
        const default_action = stale();
        size = 32;
    }

    action to_group(group_t group, bit<48> mac, bit<32> address, bit<16> udp_port) {
        h.pass.setInvalid();
        h.ethernet.src = h.ethernet.dst;
        h.ethernet.dst = mac;
        h.ipv4.src = h.ipv4.dst;
        h.ipv4.dst = address;
        h.udp.src = h.udp.dst;
        h.udp.dst = udp_port;
        TO_GROUP(group)
    }

    action vacant() { DROP }

    // The destination of a RESULT to all (rule 5.2).
    table jobs {
        key = { h.switchml.job: exact @name("job"); }
        actions = { to_group; vacant; }
        const default_action = vacant();
        size = MAX_JOBS;
    }

    // Rule 7.8.
    action greet() {
        m.is_member = 1;
        m.outcome = OUTCOME_HELLO;
        swap_ends();
        finish_ip();
        TO_PORT(m.port)
    }

#include "admission.p4"
#ifdef ROCE
#include "roce.p4"
#endif
#ifdef PARTS
#include "parts.p4"
#define UNLESS_PARTS_FOLLOW if (parts.apply().miss)
#else
#define UNLESS_PARTS_FOLLOW
#endif

    apply {
        if (h.pass.isValid()) {
            resume();
#ifdef ROCE
        } else if (m.is_message == 1) {
            members_by_roce.apply();
            queue_pairs.apply();
#endif
        } else {
            members.apply();
        }
        aggregators.apply();
        if (m.pass == PASS_NONE) {
            forgeries.apply();
        }
        own_flags.apply();
        slot.apply(h, m);
        if (m.pass != PASS_NONE) {
            UNLESS_PARTS_FOLLOW {
                verdict.apply();
                if (m.step == STEP_SECOND && h.switchml.rank == EVERYONE) {
                    jobs.apply();
                }
                if (h.ipv4.ecn == ECN_CE) {
                    h.ipv4.ecn = ECN_ECT0;
                }
            }
        } else if (m.outcome == OUTCOME_SPOOFED) {
            nowhere();
        } else if (m.is_ours == 1 && m.lost == 1) {
            lost();
        } else if (m.is_ours == 1) {
            if (m.is_hello == 1 && m.bad_ip_checksum == 0) {
#ifdef ROCE
                if (m.is_message == 1) {
                    bindings_by_roce.apply();
                } else {
                    bindings.apply();
                }
                if (m.is_member == 0) {
#else
                if (bindings.apply().miss) {
#endif
                    newcomers.apply();
                }
            }
            if (m.is_member == 0) {
                refusals.apply();
            } else if (h.ipv4.ecn == ECN_CE) {
                h.ipv4.ecn = ECN_ECT0;
                h.switchml.flags = h.switchml.flags | FLAG_CE;
            }
        } else {
            if (m.outcome > OUTCOME_SPOOFED) {
                not_ours();
            }
            stations.apply();
        }
    }
}
