// The aggregator on bmv2's simple_switch, for trying the rules out: docs/tofino.md.
//
// simple_switch runs ingress in one thread, so accesses to registers need no lock.

#include <core.p4>
#include <v1model.p4>

#include "include/protocol.p4"
#include "include/codes.p4"
#include "include/headers.p4"
#include "include/rules.p4"

// Entries of a register: two sets for each slot.
#define SETS 16384

// Contributions are verified (rule 7.11), and a maximum's check word is made in egress (rule 3.4).
#define MAXIMUM_FLAGS FLAG_CHECKED

#define IS_FIRST (m.pass == PASS_FIRST || m.pass == PASS_EMPTY)

// ---- State of a set, a register for each part ----

// Whose turn it is (rule 24.5). Only a packet's first pass begins a round.
control Tag(in headers_t h, inout metadata_t m) {
    register<bit<32>>(SETS) rounds;

    apply {
        bit<32> round;
        rounds.read(round, (bit<32>) m.index);
        if (m.pass == PASS_NONE || m.pass >= PASS_TURNED_AWAY) {
            m.held = 0;
        } else if (round == h.switchml.round) {
            m.held = HELD_SAME;
        } else if (IS_FIRST && round == m.previous) {
            m.held = HELD_BEFORE;
            rounds.write((bit<32>) m.index, h.switchml.round);
        } else {
            m.held = HELD_OTHER;
        }
    }
}

// The ranks that are in. Who would be the last one without payload does not join, and takes itself
// for one that is in already (rule 8.13).
control Seen(inout metadata_t m) {
    register<bit<32>>(SETS) ranks;

    apply {
        if (IS_FIRST && m.held == HELD_BEFORE) {
            ranks.write((bit<32>) m.index, m.own);
        } else if (IS_FIRST && m.held == HELD_SAME) {
            ranks.read(m.seen, (bit<32>) m.index);
            if (m.pass == PASS_EMPTY && m.seen == m.rest) {
                m.seen = m.own;
            } else {
                ranks.write((bit<32>) m.index, m.seen | m.own);
            }
        }
    }
}

// What the ranks called: fingerprint and shape.
control Call(in headers_t h, inout metadata_t m) {
    register<bit<40>>(SETS) calls;

    apply {
        bit<40> call;
        if (IS_FIRST && m.held == HELD_BEFORE) {
            calls.write((bit<32>) m.index, h.switchml.fingerprint ++ m.shape);
        } else if (IS_FIRST && m.held == HELD_SAME) {
            calls.read(call, (bit<32>) m.index);
            if (call == h.switchml.fingerprint ++ m.shape) {
                m.call = CALL_SAME;
            }
        }
    }
}

// How many ranks are missing.
control Missing(inout headers_t h, inout metadata_t m) {
    register<bit<8>>(SETS) counts;

    action start() {
        m.missing = m.others;
        counts.write((bit<32>) m.index, m.missing);
    }

    action join() {
        bit<8> old;
        counts.read(old, (bit<32>) m.index);
        m.missing = old - 1;
        counts.write((bit<32>) m.index, m.missing);
    }

    action read() { counts.read(m.missing, (bit<32>) m.index); }

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

// The check words, added up (rule 8.12).
control Check(inout headers_t h, inout metadata_t m) {
    register<bit<32>>(SETS) sums;

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
    register<bit<8>>(SETS) unions;

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
    register<bit<32>>(SETS) firsts;
    register<bit<32>>(SETS) seconds;
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

#include "include/slot.p4"

// ---- Ingress ----

// The check word of the packet as it is, if it stands for that many contributions (rule 3.1).
control CheckWord(in headers_t h, in bit<32> contributions, out bit<32> word) {
    apply {
        bit<32> salt = (h.switchml.job ++ h.switchml.lanes) * SALT_JOB_LANES
            + h.switchml.epoch * SALT_EPOCH
            + (8w0 ++ h.switchml.slot ++ h.switchml.op) * SALT_SLOT_OP
            + h.switchml.round * SALT_ROUND
            + h.switchml.fingerprint * SALT_FINGERPRINT;
        word = contributions * salt;
        if (h.control_reply.isValid()) {
            word = word + h.control_reply.first + h.control_reply.second;
        }
        if (h.low.isValid()) {
            word = word + h.low.v0 + h.low.v1 + h.low.v2 + h.low.v3 + h.low.v4 + h.low.v5
                + h.low.v6 + h.low.v7 + h.low.v8 + h.low.v9 + h.low.v10 + h.low.v11
                + h.low.v12 + h.low.v13 + h.low.v14 + h.low.v15 + h.low.v16 + h.low.v17
                + h.low.v18 + h.low.v19 + h.low.v20 + h.low.v21 + h.low.v22 + h.low.v23
                + h.low.v24 + h.low.v25 + h.low.v26 + h.low.v27 + h.low.v28 + h.low.v29
                + h.low.v30 + h.low.v31;
        }
        if (h.high.isValid()) {
            word = word + h.high.v0 + h.high.v1 + h.high.v2 + h.high.v3 + h.high.v4 + h.high.v5
                + h.high.v6 + h.high.v7 + h.high.v8 + h.high.v9 + h.high.v10 + h.high.v11
                + h.high.v12 + h.high.v13 + h.high.v14 + h.high.v15 + h.high.v16 + h.high.v17
                + h.high.v18 + h.high.v19 + h.high.v20 + h.high.v21 + h.high.v22 + h.high.v23
                + h.high.v24 + h.high.v25 + h.high.v26 + h.high.v27 + h.high.v28 + h.high.v29
                + h.high.v30 + h.high.v31;
        }
    }
}

struct learn_t {
    bit<16> job;
    bit<32> epoch;
    bit<16> rank;
    port_t port;
    bit<48> mac;
    bit<32> address;
    bit<16> udp_port;
}

#define RECIRCULATED 4

#define ARCHITECTURE_PARAMETERS inout standard_metadata_t standard
#define DROP mark_to_drop(standard);
#define TO_PORT(port) standard.egress_spec = port;
#define TO_GROUP(group) standard.mcast_grp = group;
#define FLOOD(group) standard.mcast_grp = group;
#define CONTROL_REPLY_TO_PORT(port) standard.egress_spec = port;
// Egress recirculates what has a pass header, whatever the port.
#define ONCE_MORE standard.egress_spec = m.again;
#define LEARN \
    digest<learn_t>(1, { \
        h.switchml.job, h.switchml.epoch, h.switchml.rank, \
        m.port, h.ethernet.src, h.ipv4.src, h.udp.src });

#include "include/aggregator.p4"

parser FrameParser(
    packet_in packet,
    out headers_t h,
    inout metadata_t m,
    inout standard_metadata_t standard)
{
// See CheckFrame.
#define IPV4_EXTRACTED

    state start {
        m.port = standard.ingress_port;
        transition select(standard.instance_type) {
            RECIRCULATED: again;
            default: ethernet;
        }
    }

#include "include/parser.p4"
}

#define IPV4_FIELDS { \
    h.ipv4.version_ihl, h.ipv4.dscp, h.ipv4.ecn, h.ipv4.total_len, h.ipv4.id, h.ipv4.fragment, \
    h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst }

control CheckFrame(inout headers_t h, inout metadata_t m) {
    apply { verify_checksum(h.udp.isValid(), IPV4_FIELDS, h.ipv4.checksum, HashAlgorithm.csum16); }
}

control FrameIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t standard) {
    CheckWord() check_word;
    Aggregator() aggregator;
    counter(256, CounterType.packets) outcomes;

    apply {
        m.bad_ip_checksum = standard.checksum_error;
        // What comes again was a contribution: it is not judged twice.
        if (m.is_contribution == 1) {
            bit<32> right;
            check_word.apply(h, 1, right);
            if (right != h.switchml.check) {
                m.is_contribution = 0;
                m.outcome = OUTCOME_BAD_CHECK;
            }
        }
        aggregator.apply(h, m, standard);
        // Further passes of a frame are not counted again.
        if (m.pass == PASS_NONE || m.outcome != OUTCOME_NOT_OURS) {
            outcomes.count((bit<32>) m.outcome);
        }
    }
}

// ---- Egress: check words of control replies and maxima; the plain switch sends nothing back ----

control FrameEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t standard) {
    CheckWord() check_word;

    apply {
        if (h.pass.isValid()) {
            recirculate_preserving_field_list(0);
        } else if (h.control_reply.isValid()) {
            check_word.apply(h, 1, h.switchml.check);
        } else if (m.step == STEP_SECOND && h.switchml.op == OP_MAX) {
            check_word.apply(h, 1 + (bit<32>) m.others, h.switchml.check);
        } else if (m.is_answer == 0 && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);
        }
    }
}

control SumFrame(inout headers_t h, inout metadata_t m) {
    apply { update_checksum(m.is_answer == 1, IPV4_FIELDS, h.ipv4.checksum, HashAlgorithm.csum16); }
}

control FrameDeparser(packet_out packet, in headers_t h) {
    apply { packet.emit(h); }
}

V1Switch(
    FrameParser(), CheckFrame(), FrameIngress(),
    FrameEgress(), SumFrame(), FrameDeparser()) main;
