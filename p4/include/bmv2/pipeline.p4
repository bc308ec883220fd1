parser FrameParser(
    packet_in packet,
    out headers_t h,
    inout metadata_t m,
    inout standard_metadata_t standard)
{
// See CheckFrame.
#define IPV4_EXTRACTED

    state start {
        transition select(standard.instance_type) {
            RECIRCULATED: again;
            default: first;
        }
    }

    state first {
        m.port = standard.ingress_port;
        transition ethernet;
    }

#include "../parser.p4"
}

#define IPV4_FIELDS { \
    h.ipv4.version_ihl, h.ipv4.dscp, h.ipv4.ecn, h.ipv4.total_len, h.ipv4.id, h.ipv4.fragment, \
    h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst }

control CheckFrame(inout headers_t h, inout metadata_t m) {
    apply { verify_checksum(h.udp.isValid(), IPV4_FIELDS, h.ipv4.checksum, HashAlgorithm.csum16); }
}

#define ETHERNET_BYTES 14
#define FRAME_BYTES (ETHERNET_BYTES + (bit<32>) h.ipv4.total_len)

control FrameIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t standard) {
    CheckWord() check_word;
    Losses() losses;
    Aggregator() aggregator;
    counter(256, CounterType.packets) outcomes;

    // The parser marks a packet before it has read all of it, and goes on when a frame ends.
    action refuse_cut() {
        m.outcome = OUTCOME_TRUNCATED;
        m.is_contribution = 0;
        m.is_hello = 0;
    }

    apply {
        m.bad_ip_checksum = standard.checksum_error;
        // Rule 7.1.
        if (h.udp.isValid() && !h.pass.isValid() && standard.packet_length < FRAME_BYTES) {
            refuse_cut();
        }
#ifdef COMBINER
        m.combiner.now = standard.ingress_global_timestamp + PATIENCE;
#endif
        // A recirculated packet was a contribution: it is not checked twice. A packet that goes by
        // is not checked, either, nor one of several parts.
#ifndef PARTS
        if (m.is_contribution == 1 && m.first != PASS_BY) {
            bit<32> right;
            check_word.apply(h, 1, right);
            if (right != h.switchml.check) {
                m.is_contribution = 0;
                m.outcome = OUTCOME_BAD_CHECK;
            }
        }
#endif
        if (!h.pass.isValid()) {
            bit<16> draw;
            random(draw, 0, 0xFFFF);
            losses.apply(m, draw);
        }
        aggregator.apply(h, m, standard);
        // Further passes of a frame are not counted again.
        if (m.pass == PASS_NONE || m.outcome != OUTCOME_NOT_OURS) {
            outcomes.count((bit<32>) m.outcome);
        }
    }
}

#ifdef ROCE
#include "messages.p4"
#endif

// ---- Egress: check words; the plain switch sends nothing back ----

control FrameEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t standard) {
    FinishCheck() check;
#ifdef ROCE
    Messages() messages;
#endif

    apply {
        if (h.pass.isValid()) {
            recirculate_preserving_field_list(0);
        } else if (m.is_answer == 0 && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);
        } else {
            check.apply(h, m);
            if (m.is_answer == 1) {
#ifdef ROCE
                messages.apply(h, m, standard);
#endif
                // Rule 5.6.
                truncate(FRAME_BYTES);
            }
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
