// What a contribution does to its cell: rules 27.7 to 27.14 of docs/spec.
//
// State is in registers, with an entry for each cell; each pass accesses each register once.
// `lease` first decides whether the packet claims the cell: if so, everything else is written. The
// front defines what an access does (Lease, Held, Words, Check, Flags, Lane).

control Cell(inout headers_t h, inout metadata_t m) {
    Lease() lease;
    Held() held;
    Words() round;
    Words() call;
    Check() check;
    Flags() flags;
    Lanes() lanes;

    action to(bit<8> step) { m.step = step; }

    table steps {
        key = { RULE_KEY }
        actions = { to; }
        const entries = {
            (_, HELD_LOST, _, _, _, _): to(STEP_LOST);
            (PASS_RESULT, HELD_SAME, CALL_SAME, _, _, _): to(STEP_SECOND);
            (PASS_RESULT, _, _, _, _, _): to(STEP_STALE);
            (PASS_FIRST, HELD_SAME, CALL_SAME, CALL_SAME, _, 0): to(STEP_COMPLETE);
            RULES(to(STEP_START), to(STEP_AGAIN), to(STEP_ADD), NoAction())
        }
        const default_action = to(STEP_PASS);
        size = 64;
    }

    apply {
        lease.apply(m);
        held.apply(m);
        round.apply(m, h.switchml.epoch, h.switchml.round, m.combiner.round);
        call.apply(m, h.switchml.fingerprint, m.combiner.place, m.call);
        check.apply(h, m);
        flags.apply(h, m);
        steps.apply();
        lanes.apply(h, m);
    }
}
