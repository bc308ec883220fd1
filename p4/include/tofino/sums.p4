// The sums of a combination of contributions, a register for each part. The role's rules decide
// when to add.

// The check words, added up (rule 8.12).
control Check(inout headers_t h, in metadata_t m) {
    Register<bit<32>, index_t>(ENTRIES) sums;
    RegisterAction<bit<32>, index_t, bit<32>>(sums) start = {
        void apply(inout bit<32> sum, out bit<32> now) {
            sum = h.switchml.check;
            now = sum;
        }
    };
    RegisterAction<bit<32>, index_t, bit<32>>(sums) join = {
        void apply(inout bit<32> sum, out bit<32> now) {
            sum = sum + h.switchml.check;
            now = sum;
        }
    };
    RegisterAction<bit<32>, index_t, bit<32>>(sums) read = {
        void apply(inout bit<32> sum, out bit<32> now) { now = sum; }
    };
    action do_start() { h.switchml.check = start.execute(m.index); }
    action do_join() { h.switchml.check = join.execute(m.index); }
    action do_read() { h.switchml.check = read.execute(m.index); }
    table rules {
        key = { RULE_KEY }
        actions = { do_start; do_join; do_read; NoAction; }
        const entries = {
            RULES(do_start(), do_read(), do_join(), do_join())
            EMPTY_RULES(do_start(), NoAction(), do_join())
        }
        const default_action = NoAction();
        size = 128;
    }
    apply { rules.apply(); }
}

// The flags of the RESULT: congestion that any rank saw (rule 8.11).
control Flags(in headers_t h, inout metadata_t m) {
    Register<bit<8>, index_t>(ENTRIES) unions;
    RegisterAction<bit<8>, index_t, bit<8>>(unions) start = {
        void apply(inout bit<8> flags) { flags = m.flags; }
    };
    RegisterAction<bit<8>, index_t, bit<8>>(unions) join = {
        void apply(inout bit<8> flags, out bit<8> before) {
            before = flags;
            flags = flags | m.flags;
        }
    };
    RegisterAction<bit<8>, index_t, bit<8>>(unions) read = {
        void apply(inout bit<8> flags, out bit<8> before) { before = flags; }
    };
    action do_start() { start.execute(m.index); }
    action do_join() { m.union = join.execute(m.index); }
    action do_read() { m.union = read.execute(m.index); }
    table rules {
        key = { RULE_KEY }
        actions = { do_start; do_join; do_read; NoAction; }
        const entries = {
            RULES(do_start(), do_read(), do_join(), do_join())
            EMPTY_RULES(do_start(), NoAction(), do_join())
        }
        const default_action = NoAction();
        size = 128;
    }
    apply { rules.apply(); }
}

struct pair_t {
    bit<32> first;
    bit<32> second;
}

// Two lanes: one of the packet's first block, one of its second. An access gives back one of them.
control Lane(in metadata_t m, inout bit<32> first, inout bit<32> second) {
    Register<pair_t, index_t>(ENTRIES) pairs;
    RegisterAction<pair_t, index_t, bit<32>>(pairs) start = {
        void apply(inout pair_t pair, out bit<32> now) {
            pair.first = first;
            pair.second = second;
            now = pair.first;
        }
    };
    RegisterAction<pair_t, index_t, bit<32>>(pairs) add = {
        void apply(inout pair_t pair, out bit<32> now) {
            pair.first = pair.first + first;
            pair.second = pair.second + second;
            now = pair.first;
        }
    };
    RegisterAction<pair_t, index_t, bit<32>>(pairs) maximum = {
        void apply(inout pair_t pair, out bit<32> now) {
            pair.first = (bit<32>) max((int<32>) pair.first, (int<32>) first);
            pair.second = (bit<32>) max((int<32>) pair.second, (int<32>) second);
            now = pair.first;
        }
    };
    RegisterAction<pair_t, index_t, bit<32>>(pairs) read_second = {
        void apply(inout pair_t pair, out bit<32> now) { now = pair.second; }
    };
    action do_start() { first = start.execute(m.index); }
    action do_add() { first = add.execute(m.index); }
    action do_maximum() { first = maximum.execute(m.index); }
    action do_read_second() { second = read_second.execute(m.index); }
    table steps {
        key = { LANE_KEY }
        actions = { do_start; do_add; do_maximum; do_read_second; NoAction; }
        const entries = { LANE_STEPS(do_start(), do_add(), do_maximum(), do_read_second()) }
        const default_action = NoAction();
        size = 8;
    }
    apply { steps.apply(); }
}
