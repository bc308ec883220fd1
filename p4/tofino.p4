// The aggregator on Tofino 1: docs/tofino.md.

#include <core.p4>
#include <tna.p4>

#include "include/protocol.p4"
#include "include/codes.p4"
#include "include/headers.p4"
#include "include/rules.p4"

// Entries of a register: two sets for each slot.
#define SETS 20480

// No stage is left to sum a maximum's lanes for its check word (rule 24.4).
#define MAXIMUM_FLAGS 8w0

// ---- State of a set, a register for each part ----

// Whose turn it is (rule 24.5). Only a packet's first pass begins a round.
control Tag(in headers_t h, inout metadata_t m) {
    Register<bit<32>, index_t>(SETS) rounds;
    RegisterAction<bit<32>, index_t, bit<8>>(rounds) advance = {
        void apply(inout bit<32> round, out bit<8> held) {
            bool same = round == h.switchml.round;
            // A difference is not taken modulo 2^32 here, so there is none.
            bool before = round == m.previous;
            held = this.predicate(same, before);
            if (before) { round = h.switchml.round; }
        }
    };
    RegisterAction<bit<32>, index_t, bit<8>>(rounds) compare = {
        void apply(inout bit<32> round, out bit<8> held) {
            bool same = round == h.switchml.round;
            held = this.predicate(same);
        }
    };
    action do_advance() { m.held = advance.execute(m.index); }
    action do_compare() { m.held = compare.execute(m.index); }
    table pass {
        key = { m.pass: exact; }
        actions = { do_advance; do_compare; NoAction; }
        const entries = {
            PASS_FIRST: do_advance();
            PASS_EMPTY: do_advance();
            PASS_QUERY: do_compare();
            PASS_RESULT: do_compare();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply { pass.apply(); }
}

// The ranks that are in.
control Seen(inout metadata_t m) {
    Register<bit<32>, index_t>(SETS) ranks;
    RegisterAction<bit<32>, index_t, bit<32>>(ranks) start = {
        void apply(inout bit<32> seen, out bit<32> seen_before) {
            seen = m.own;
            seen_before = 0;
        }
    };
    RegisterAction<bit<32>, index_t, bit<32>>(ranks) join = {
        void apply(inout bit<32> seen, out bit<32> seen_before) {
            seen_before = seen;
            seen = seen | m.own;
        }
    };
    // Who would be the last one without payload does not join, and takes itself for one that is in
    // already (rule 8.13).
    RegisterAction<bit<32>, index_t, bit<32>>(ranks) join_empty = {
        void apply(inout bit<32> seen, out bit<32> seen_before) {
            if (seen == m.rest) {
                seen_before = seen | m.own;
            } else {
                seen_before = seen;
                seen = seen | m.own;
            }
        }
    };
    action do_start() { start.execute(m.index); }
    action do_join() { m.seen = join.execute(m.index); }
    action do_join_empty() { m.seen = join_empty.execute(m.index); }
    table held {
        key = {
            m.pass: exact;
            m.held: exact;
        }
        actions = { do_start; do_join; do_join_empty; NoAction; }
        const entries = {
            (PASS_FIRST, HELD_BEFORE): do_start();
            (PASS_FIRST, HELD_SAME): do_join();
            (PASS_EMPTY, HELD_BEFORE): do_start();
            (PASS_EMPTY, HELD_SAME): do_join_empty();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply { held.apply(); }
}

struct call_t {
    bit<32> fingerprint;
    bit<32> shape;
}

// What the ranks called.
control Call(in headers_t h, inout metadata_t m) {
    Register<call_t, index_t>(SETS) calls;
    RegisterAction<call_t, index_t, bit<8>>(calls) start = {
        void apply(inout call_t call, out bit<8> same) {
            same = 0;
            call.fingerprint = h.switchml.fingerprint;
            call.shape = (bit<32>) m.shape;
        }
    };
    RegisterAction<call_t, index_t, bit<8>>(calls) compare = {
        void apply(inout call_t call, out bit<8> same) {
            bool same_fingerprint = call.fingerprint == h.switchml.fingerprint;
            bool same_shape = call.shape == (bit<32>) m.shape;
            same = this.predicate(same_fingerprint, same_shape);
        }
    };
    action do_start() { start.execute(m.index); }
    action do_compare() { m.call = compare.execute(m.index); }
    table held {
        key = {
            m.pass: exact;
            m.held: exact;
        }
        actions = { do_start; do_compare; NoAction; }
        const entries = {
            (PASS_FIRST, HELD_BEFORE): do_start();
            (PASS_FIRST, HELD_SAME): do_compare();
            (PASS_EMPTY, HELD_BEFORE): do_start();
            (PASS_EMPTY, HELD_SAME): do_compare();
        }
        const default_action = NoAction();
        size = 4;
    }
    apply { held.apply(); }
}

// How many ranks are missing.
control Missing(in headers_t h, inout metadata_t m) {
    Register<bit<8>, index_t>(SETS) counts;
    RegisterAction<bit<8>, index_t, bit<8>>(counts) start = {
        void apply(inout bit<8> missing, out bit<8> now) {
            missing = m.others;
            now = missing;
        }
    };
    RegisterAction<bit<8>, index_t, bit<8>>(counts) join = {
        void apply(inout bit<8> missing, out bit<8> now) {
            missing = missing - 1;
            now = missing;
        }
    };
    RegisterAction<bit<8>, index_t, bit<8>>(counts) read = {
        void apply(inout bit<8> missing, out bit<8> now) { now = missing; }
    };
    action do_start() { m.missing = start.execute(m.index); }
    action do_join() { m.missing = join.execute(m.index); }
    action do_read() { m.missing = read.execute(m.index); }
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

// The check words, added up (rule 8.12).
control Check(inout headers_t h, in metadata_t m) {
    Register<bit<32>, index_t>(SETS) sums;
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
    Register<bit<8>, index_t>(SETS) unions;
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
    Register<pair_t, index_t>(SETS) pairs;
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

#include "include/slot.p4"

// ---- Ingress ----

// Of each pipeline. All ranks of a job must be at one of them: registers belong to a pipeline.
#define RECIRCULATION_PORT 9w68 &&& 9w0x7F
#define LEARN_DIGEST 1
// Neither a group's, nor the one that the chip prunes for by default, 0.
#define NO_NODE 16w0xFFFF
// Of a chip: 0 to 287.
#define EXCLUSION_IDS 288

#define ARCHITECTURE_PARAMETERS                              \
    inout ingress_intrinsic_metadata_for_deparser_t deparser, \
    inout ingress_intrinsic_metadata_for_tm_t manager
#define DROP deparser.drop_ctl = 1;
#define TO_PORT(port) manager.ucast_egress_port = port; manager.bypass_egress = 1;
#define TO_GROUP(group)              \
    manager.mcast_grp_a = group;     \
    manager.rid = NO_NODE;           \
    manager.bypass_egress = 1;
// Nodes have the number of their group. No copy of the frame's node goes to the ports of its
// exclusion id.
#define FLOOD(group)                 \
    manager.mcast_grp_a = group;     \
    manager.rid = group;             \
    manager.bypass_egress = 1;
// Through egress, which makes the check word.
#define CONTROL_REPLY_TO_PORT(port) manager.ucast_egress_port = port;
#define ONCE_MORE manager.ucast_egress_port = m.again; manager.bypass_egress = 1;
#define LEARN deparser.digest_type = LEARN_DIGEST;

#include "include/aggregator.p4"

parser IngressParser(
    packet_in packet,
    out headers_t h,
    out metadata_t m,
    out ingress_intrinsic_metadata_t intrinsic)
{
    Checksum() ip_checksum;
#define IPV4_EXTRACTED                     \
    ip_checksum.add(h.ipv4);               \
    m.bad_ip_checksum = (bit<1>) ip_checksum.verify();

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        m = {
            0, 0, 0, 0, 0, 0, 0, 0, 0, intrinsic.ingress_port,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
        transition select(intrinsic.ingress_port) {
            RECIRCULATION_PORT: again;
            default: ethernet;
        }
    }

#include "include/parser.p4"
}

// Nothing is mirrored. But the chip looks at the containers of both fields, the second being the
// compiler's own session number, and takes what another field left there for a request to mirror.
// Zeros, which the parser sets, are a request of the type 0, which the compiler has an entry for;
// there is none for NOT_MIRRORED.
#define NOT_MIRRORED 1
@pa_no_overlay("ingress", "ig_intr_md_for_dprsr.mirror_type")
@pa_no_overlay("ingress", "$tmp2")
control Ingress(
    inout headers_t h,
    inout metadata_t m,
    in ingress_intrinsic_metadata_t intrinsic,
    in ingress_intrinsic_metadata_from_parser_t parsed,
    inout ingress_intrinsic_metadata_for_deparser_t deparser,
    inout ingress_intrinsic_metadata_for_tm_t manager)
{
    Aggregator() aggregator;
    Counter<bit<64>, bit<8>>(256, CounterType_t.PACKETS) outcomes;

    action exclude(bit<9> id) { manager.level2_exclusion_id = id; }

    // Each port has an exclusion id, of which there are fewer than numbers of ports: a frame that
    // is flooded does not go back.
    table exclusions {
        key = { intrinsic.ingress_port: exact @name("port"); }
        actions = { exclude; NoAction; }
        const default_action = NoAction();
        size = EXCLUSION_IDS;
    }

    apply {
        exclusions.apply();
        deparser.mirror_type = NOT_MIRRORED;
        aggregator.apply(h, m, deparser, manager);
        // Further passes of a frame are not counted again.
        if (m.pass == PASS_NONE || m.outcome != OUTCOME_NOT_OURS) {
            outcomes.count(m.outcome);
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

control IngressDeparser(
    packet_out packet,
    inout headers_t h,
    in metadata_t m,
    in ingress_intrinsic_metadata_for_deparser_t deparser)
{
    Checksum() ip_checksum;
    Digest<learn_t>() learn;

    apply {
        if (deparser.digest_type == LEARN_DIGEST) {
            learn.pack({
                h.switchml.job, h.switchml.epoch, h.switchml.rank,
                m.port, h.ethernet.src, h.ipv4.src, h.udp.src });
        }
        if (m.is_answer == 1) {
            h.ipv4.checksum = ip_checksum.update({
                h.ipv4.version_ihl, h.ipv4.dscp, h.ipv4.ecn, h.ipv4.total_len,
                h.ipv4.id, h.ipv4.fragment, h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst });
        }
        packet.emit(h);
    }
}

// ---- Egress: check words of control replies (rule 3.1) ----

struct egress_headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    udp_t udp;
    switchml_t switchml;
    control_reply_t control_reply;
}

struct egress_metadata_t {
    bit<32> salt0;
    bit<32> salt1;
    bit<32> salt2;
    bit<32> salt3;
}

parser EgressParser(
    packet_in packet,
    out egress_headers_t h,
    out egress_metadata_t m,
    out egress_intrinsic_metadata_t intrinsic)
{
    state start {
        packet.extract(intrinsic);
        m = { 0, 0, 0, 0 };
        packet.extract(h.ethernet);
        packet.extract(h.ipv4);
        packet.extract(h.udp);
        packet.extract(h.switchml);
        packet.extract(h.control_reply);
        transition accept;
    }
}

// Adds to `salt` what one byte of the header adds to it: there is no product of a field and a
// number, but there are tables.
control Salt(in bit<8> byte, inout bit<32> salt)(bit<64> factor) {
    action add(bit<32> value) { salt = salt + value; }
#define SALT_1(n) n: add((factor * (n))[31:0]);
#define SALT_4(n) SALT_1(n) SALT_1(n + 1) SALT_1(n + 2) SALT_1(n + 3)
#define SALT_16(n) SALT_4(n) SALT_4(n + 4) SALT_4(n + 8) SALT_4(n + 12)
#define SALT_64(n) SALT_16(n) SALT_16(n + 16) SALT_16(n + 32) SALT_16(n + 48)
    table products {
        key = { byte: exact; }
        actions = { add; NoAction; }
        const entries = { SALT_64(0) SALT_64(64) SALT_64(128) SALT_64(192) }
        const default_action = NoAction();
        size = 256;
    }
    apply { products.apply(); }
}

control Egress(
    inout egress_headers_t h,
    inout egress_metadata_t m,
    in egress_intrinsic_metadata_t intrinsic,
    in egress_intrinsic_metadata_from_parser_t parsed,
    inout egress_intrinsic_metadata_for_deparser_t deparser,
    inout egress_intrinsic_metadata_for_output_port_t port)
{
    Salt((bit<64>) SALT_JOB_LANES << 16) job0;
    Salt((bit<64>) SALT_JOB_LANES << 24) job1;
    Salt((bit<64>) SALT_EPOCH) epoch0;
    Salt((bit<64>) SALT_EPOCH << 8) epoch1;
    Salt((bit<64>) SALT_EPOCH << 16) epoch2;
    Salt((bit<64>) SALT_EPOCH << 24) epoch3;
    Salt((bit<64>) SALT_SLOT_OP << 8) slot0;
    Salt((bit<64>) SALT_SLOT_OP << 16) slot1;
    Salt((bit<64>) SALT_ROUND) round0;
    Salt((bit<64>) SALT_ROUND << 8) round1;
    Salt((bit<64>) SALT_ROUND << 16) round2;
    Salt((bit<64>) SALT_ROUND << 24) round3;
    Salt((bit<64>) SALT_FINGERPRINT) fingerprint0;
    Salt((bit<64>) SALT_FINGERPRINT << 8) fingerprint1;
    Salt((bit<64>) SALT_FINGERPRINT << 16) fingerprint2;
    Salt((bit<64>) SALT_FINGERPRINT << 24) fingerprint3;

    apply {
        // Four sums side by side, for fewer stages. The lanes of a control reply are 2, its op is
        // 0.
        m.salt0 = h.control_reply.first;
        m.salt1 = h.control_reply.second;
        m.salt2 = SALT_JOB_LANES + SALT_JOB_LANES;
        job0.apply(h.switchml.job[7:0], m.salt0);
        job1.apply(h.switchml.job[15:8], m.salt1);
        epoch0.apply(h.switchml.epoch[7:0], m.salt2);
        epoch1.apply(h.switchml.epoch[15:8], m.salt3);
        epoch2.apply(h.switchml.epoch[23:16], m.salt0);
        epoch3.apply(h.switchml.epoch[31:24], m.salt1);
        slot0.apply(h.switchml.slot[7:0], m.salt2);
        slot1.apply(h.switchml.slot[15:8], m.salt3);
        round0.apply(h.switchml.round[7:0], m.salt0);
        round1.apply(h.switchml.round[15:8], m.salt1);
        round2.apply(h.switchml.round[23:16], m.salt2);
        round3.apply(h.switchml.round[31:24], m.salt3);
        fingerprint0.apply(h.switchml.fingerprint[7:0], m.salt0);
        fingerprint1.apply(h.switchml.fingerprint[15:8], m.salt1);
        fingerprint2.apply(h.switchml.fingerprint[23:16], m.salt2);
        fingerprint3.apply(h.switchml.fingerprint[31:24], m.salt3);
        m.salt0 = m.salt0 + m.salt1;
        m.salt2 = m.salt2 + m.salt3;
        h.switchml.check = m.salt0 + m.salt2;
    }
}

control EgressDeparser(
    packet_out packet,
    inout egress_headers_t h,
    in egress_metadata_t m,
    in egress_intrinsic_metadata_for_deparser_t deparser)
{
    apply { packet.emit(h); }
}

Pipeline(
    IngressParser(), Ingress(), IngressDeparser(),
    EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
