// What the control plane says of a port, 0 if nothing: 1 in loopback, for packets of several parts.
// Frames that come again have a pass header, which is believed, so it is looked for only at ports
// that no stranger can send to.
struct port_metadata_t {
    bit<8> recirculates;
}

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
        port_metadata_t of_port = port_metadata_unpack<port_metadata_t>(packet);
        m = {
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            RECIRCULATION_PORT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
#ifdef COMBINER
            , { 0, 0, 0, 0, 0, 0, 0 }
#endif
#ifdef PARTS
            , 0, 0, 0, 0
#endif
        };
        transition select(of_port.recirculates, intrinsic.ingress_port) {
            (1, _): again;
            (_, RECIRCULATION_PORTS): again;
            default: first;
        }
    }

    state first {
        m.port = intrinsic.ingress_port;
        transition ethernet;
    }

#include "../parser.p4"
}

// Nothing is mirrored. But the chip reads the containers of both fields below (the second is the
// compiler's own session number), and takes values that another field left there for a request to
// mirror. Zeros, which the parser sets, are a request of type 0, for which the compiler has an
// entry; it has none for NOT_MIRRORED.
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
    Losses() losses;
    Aggregator() aggregator;
    Counter<bit<64>, bit<8>>(256, CounterType_t.PACKETS) outcomes;

    action exclude(bit<9> id) { manager.level2_exclusion_id = id; }

    // Each port has an exclusion id, so that a flooded frame does not go back. There are fewer ids
    // than port numbers, so this table maps them.
    table exclusions {
        key = { intrinsic.ingress_port: exact @name("port"); }
        actions = { exclude; NoAction; }
        const default_action = NoAction();
        size = EXCLUSION_IDS;
    }

#ifdef PARTS
    action recirculate_by(port_t again, port_t later, port_t earlier) {
        m.again = again;
        m.later = later;
        m.earlier = earlier;
    }

    // The ports to recirculate by: to this part again, to the one after it, to the one before it.
    // Frames of a slot at a part all come by the same port, for they must not overtake each other:
    // `parts.p4`.
    table recirculation {
        key = {
            m.port: ternary @name("port");
            m.part: ternary @name("part");
            h.switchml.slot: ternary @name("slot");
        }
        actions = { recirculate_by; NoAction; }
        const default_action = NoAction();
        size = PIPELINES * PARTS * SLOT_CLASSES;
    }
#endif

    apply {
        exclusions.apply();
#ifdef PARTS
        recirculation.apply();
#else
        m.again[8:7] = intrinsic.ingress_port[8:7];
#endif
        deparser.mirror_type = NOT_MIRRORED;
#ifdef COMBINER
        m.combiner.now = intrinsic.ingress_mac_tstamp[47:16] + FIRST_TICK;
#endif
        if (!h.pass.isValid()) {
            // Ingress has no stage left for the chip's random numbers.
            losses.apply(m, intrinsic.ingress_mac_tstamp[15:0]);
        }
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

// ---- Egress: check words of control replies (rule 3.1); one salt more (rule 3.5) ----

struct egress_headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    udp_t udp;
    switchml_t switchml;
    // The first two lanes of a partial sum.
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

// Adds the contribution of one header byte to `salt`. A table replaces the product of a field and a
// constant, which the chip cannot compute.
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
        // Four sums side by side, for fewer stages. The op is 0, and the lanes of a control reply
        // are 2.
#ifdef COMBINER
        m.salt0 = h.switchml.check;
        if (h.switchml.lanes == LANES_PER_BLOCK) {
            m.salt2 = ((bit<64>) SALT_JOB_LANES << 5)[31:0];
        } else {
            m.salt2 = ((bit<64>) SALT_JOB_LANES << 6)[31:0];
        }
#else
        m.salt0 = h.control_reply.first;
        m.salt1 = h.control_reply.second;
        m.salt2 = SALT_JOB_LANES + SALT_JOB_LANES;
#endif
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
