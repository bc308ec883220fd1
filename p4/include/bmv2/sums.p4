// The sums of a combination of contributions, a register for each part. The role's rules decide
// when to add.

// The check words, added up (rule 8.12).
control Check(inout headers_t h, inout metadata_t m) {
    register<bit<32>>(ENTRIES) sums;

    action start() {
        h.switchml.check = h.switchml.check;
        sums.write((bit<32>) m.index, h.switchml.check);
    }

    action join() {
        bit<32> old;
        sums.read(old, (bit<32>) m.index);
        h.switchml.check = old + h.switchml.check;
        sums.write((bit<32>) m.index, h.switchml.check);
    }

    action read() { sums.read(h.switchml.check, (bit<32>) m.index); }

    table rules {
        key = { RULE_KEY }
        actions = { start; join; read; NoAction; }
        const entries = {
            RULES(start(), read(), join(), join())
            EMPTY_RULES(start(), NoAction(), join())
        }
        const default_action = NoAction();
    }

    apply { rules.apply(); }
}

// The flags of the RESULT: congestion that any rank saw (rule 8.11).
control Flags(inout headers_t h, inout metadata_t m) {
    register<bit<8>>(ENTRIES) unions;

    action start() { unions.write((bit<32>) m.index, m.flags); }

    action join() {
        unions.read(m.union, (bit<32>) m.index);
        unions.write((bit<32>) m.index, m.union | m.flags);
    }

    action read() { unions.read(m.union, (bit<32>) m.index); }

    table rules {
        key = { RULE_KEY }
        actions = { start; join; read; NoAction; }
        const entries = {
            RULES(start(), read(), join(), join())
            EMPTY_RULES(start(), NoAction(), join())
        }
        const default_action = NoAction();
    }

    apply { rules.apply(); }
}

// Two lanes: one of the packet's first block, one of its second. As on Tofino, an access gives back
// one of them.
control Lane(in metadata_t m, inout bit<32> first, inout bit<32> second) {
    register<bit<32>>(ENTRIES) firsts;
    register<bit<32>>(ENTRIES) seconds;
    bit<32> a;
    bit<32> b;

    action store() {
        firsts.write((bit<32>) m.index, first);
        seconds.write((bit<32>) m.index, second);
    }

    action add() {
        firsts.read(a, (bit<32>) m.index);
        seconds.read(b, (bit<32>) m.index);
        first = a + first;
        firsts.write((bit<32>) m.index, first);
        seconds.write((bit<32>) m.index, b + second);
    }

    action maximum() {
        firsts.read(a, (bit<32>) m.index);
        seconds.read(b, (bit<32>) m.index);
        first = (int<32>) a < (int<32>) first ? first : a;
        firsts.write((bit<32>) m.index, first);
        seconds.write((bit<32>) m.index, (int<32>) b < (int<32>) second ? second : b);
    }

    action read_second() { seconds.read(second, (bit<32>) m.index); }

    table steps {
        key = { LANE_KEY }
        actions = { store; add; maximum; read_second; NoAction; }
        const entries = { LANE_STEPS(store(), add(), maximum(), read_second()) }
        const default_action = NoAction();
    }

    apply { steps.apply(); }
}
