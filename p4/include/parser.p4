// States of the parser, the same for both fronts, from Ethernet on. A front begins with `state
// start`, and says how it checks the IP header's checksum: IPV4_EXTRACTED.

#define ETHERTYPE_IPV4 16w0x0800
#define ETHERTYPE_IPV6 16w0x86DD
#define ETHERTYPE_VLAN 16w0x8100
#define ETHERTYPE_QINQ 16w0x88A8
#define PROTOCOL_UDP 8w17
#define PLAIN_IPV4 8w0x45

// Lengths of an IPv4 packet with that many blocks of 32 lanes. A table of lengths instead of a
// comparison: parsers compare with constants alone. No packet with a tag has one (rule 24.14).
#define UDP_BYTES(blocks) (8 + HEADER_BYTES + 4 * LANES_PER_BLOCK * blocks)
#define IPV4_BYTES(blocks) (20 + UDP_BYTES(blocks))

// Where the roles differ. To a combiner come partial sums, which a root drops (rule 24.12), and at
// other ports its parent's answers; resends and maxima go by.
#ifdef COMBINER
#define PARTIAL_ROW(blocks) (VERSION, KIND_PARTIAL, UDP_BYTES(blocks)): partial_##blocks;
#define RESENT FLAG_RETRANSMIT &&& FLAG_RETRANSMIT
#define RESENT_ROW(blocks) (RESENT, LANES_PER_BLOCK * blocks, OP_SUM): resent_##blocks;
#define OTHER_PORTS answer_length
#define EMPTY_PASS PASS_BY
#define MAXIMUM_PAYLOAD(payload) by
#else
#define PARTIAL_ROW(blocks)
#define RESENT_ROW(blocks)
#define OTHER_PORTS accept
#define EMPTY_PASS PASS_EMPTY
#define MAXIMUM_PAYLOAD(payload) payload
#endif

// The parser takes a frame's FCS for bytes of the packet, if some are missing there. So it reads as
// many bytes behind a packet, too, and drops a frame without them (rule 24.16). They leave as they
// came.
#ifdef SEES_FCS
#define WHOLE behind
#else
#define WHOLE accept
#endif

#ifdef PARTS
#define LONGER_PACKETS                                                           \
    (DATA_PORT, IPV4_BYTES(3)): header_3;                                        \
    (DATA_PORT, IPV4_BYTES(4)): header_4;                                        \
    (DATA_PORT, IPV4_BYTES(5)): header_5;                                        \
    (DATA_PORT, IPV4_BYTES(6)): header_6;                                        \
    (DATA_PORT, IPV4_BYTES(7)): header_7;                                        \
    (DATA_PORT, IPV4_BYTES(8)): header_8;
#else
#define LONGER_PACKETS
#endif

// In messages of RoCEv2 the ICRC is behind the lanes, also behind those of a HELLO.
#ifdef ROCE
#define ROCE_PORT 16w4791
#define MESSAGES (ROCE_PORT, _): message_or_other;
#define BEHIND_LANES select(m.is_message) { 1: icrc; default: accept; }
#define HELLO_LANES                                                              \
    select(m.is_message, h.switchml.lanes) {                                     \
        (0, _): accept;                                                          \
        (_, LANES_PER_BLOCK): low;                                               \
        (_, 2 * LANES_PER_BLOCK): low_and_high;                                  \
        default: icrc;                                                           \
    }
#else
#define MESSAGES
#define BEHIND_LANES WHOLE;
#define HELLO_LANES WHOLE;
#endif

state again {
    packet.extract(h.pass);
    m.port = h.pass.port;
#ifdef PARTS
    m.part = h.pass.part;
#endif
    packet.extract(h.ethernet);
    packet.extract(h.ipv4);
    packet.extract(h.udp);
#ifdef ROCE
    m.is_message = h.pass.is_message;
    transition select(h.pass.is_message) {
        1: message_again;
        default: packet_again;
    }
}

state message_again {
    packet.extract(h.transport);
    transition packet_again;
}

state packet_again {
#endif
    packet.extract(h.switchml);
#ifdef PARTS
    transition select(h.pass.kind, h.pass.blocks) {
        // Its lanes come in front of those that the frame has.
        (PASS_QUERY | PART_EARLIER, _): accept;
        (_, 1): low;
        default: low_and_high;
    }
#else
    transition select(h.switchml.lanes) {
        2 * LANES_PER_BLOCK: low_and_high;
        default: low;
    }
#endif
}

state low {
    packet.extract(h.low);
    transition BEHIND_LANES
}

state low_and_high {
    packet.extract(h.low);
    packet.extract(h.high);
    transition BEHIND_LANES
}

#ifdef SEES_FCS
state behind {
    packet.extract(h.behind);
    transition accept;
}
#endif

state ethernet {
    packet.extract(h.ethernet);
    transition select(h.ethernet.dst[47:40], h.ethernet.type) {
        // A frame to a group or to all is not for the aggregator, whatever its address (rule 5.7).
        (1 &&& 1, ETHERTYPE_IPV4): others_ipv4;
        (_, ETHERTYPE_IPV4): ipv4;
        (_, ETHERTYPE_IPV6): ipv6;
        (_, ETHERTYPE_VLAN): outer_tag;
        (_, ETHERTYPE_QINQ): outer_tag;
        default: accept;
    }
}

// Rule 24.11.
state ipv6 {
    m.outcome = OUTCOME_IPV6;
    transition accept;
}

// Tags are not served (rules 5.8 and 24.10), but nobody may hide the aggregator's address behind
// them (rule 5.9).
state outer_tag {
    packet.extract(h.outer);
    m.outcome = OUTCOME_VLAN;
    transition select(h.outer.type) {
        ETHERTYPE_IPV4: others_ipv4;
        ETHERTYPE_VLAN: inner_tag;
        ETHERTYPE_QINQ: inner_tag;
        default: accept;
    }
}

state inner_tag {
    packet.extract(h.inner);
    transition select(h.inner.type) {
        ETHERTYPE_IPV4: others_ipv4;
        ETHERTYPE_VLAN: hidden;
        ETHERTYPE_QINQ: hidden;
        default: accept;
    }
}

state hidden {
    m.outcome = OUTCOME_SPOOFED;
    transition accept;
}

state others_ipv4 {
    packet.extract(h.ipv4);
    transition accept;
}

state ipv4 {
    packet.extract(h.ipv4);
    IPV4_EXTRACTED
    transition select(h.ipv4.version_ihl, h.ipv4.protocol, h.ipv4.fragment) {
        // The packet is not a fragment: no more fragments, no offset.
        (PLAIN_IPV4, PROTOCOL_UDP, 0 &&& 0x3FFF): udp;
        (PLAIN_IPV4, PROTOCOL_UDP, _): fragment;
        (_, PROTOCOL_UDP, _): ip_options;
        default: accept;
    }
}

state fragment {
    m.outcome = OUTCOME_FRAGMENT;
    transition accept;
}

state ip_options {
    m.outcome = OUTCOME_IP_OPTIONS;
    transition accept;
}

state udp {
    packet.extract(h.udp);
    transition select(h.udp.dst, h.ipv4.total_len) {
        (DATA_PORT, IPV4_BYTES(0)): header_0;
        (DATA_PORT, IPV4_BYTES(1)): header_1;
        (DATA_PORT, IPV4_BYTES(2)): header_2;
        LONGER_PACKETS
        (DATA_PORT, _): bad_length;
        MESSAGES
        default: OTHER_PORTS;
    }
}

// Lengths, version and kind: rule 7.1 to rule 7.4, in another order (rule 24.8).
#define HEADER_STATES(blocks, contribution)                                      \
state header_##blocks {                                                          \
    packet.extract(h.switchml);                                                  \
    transition select(h.switchml.version, h.switchml.kind, h.udp.len) {          \
        (VERSION, KIND_CONTRIBUTION, UDP_BYTES(blocks)): contribution;           \
        (VERSION, KIND_HELLO, UDP_BYTES(blocks)): hello_##blocks;                \
        PARTIAL_ROW(blocks)                                                      \
        (VERSION, _, UDP_BYTES(blocks)): bad_kind;                               \
        (_, _, UDP_BYTES(blocks)): bad_version;                                  \
        default: bad_length;                                                     \
    }                                                                            \
}                                                                                \
state hello_##blocks {                                                           \
    transition select(h.switchml.lanes, h.switchml.op) {                         \
        (LANES_PER_BLOCK * blocks, OP_SUM): hello;                               \
        (LANES_PER_BLOCK * blocks, OP_MAX): hello;                               \
        (LANES_PER_BLOCK * blocks, _): bad_op;                                   \
        default: bad_lanes;                                                      \
    }                                                                            \
}

HEADER_STATES(0, contribution_0)
HEADER_STATES(1, contribution_1)
HEADER_STATES(2, contribution_2)

state hello {
    m.is_hello = 1;
    transition HELLO_LANES
}

// Op and lanes as one number, the same with and without payload.
#define SHAPE(blocks, op) (2 * blocks + op)

// Without payload (rule 2.8).
#define EMPTY FLAG_EMPTY &&& FLAG_EMPTY

#ifndef PARTS
#define OF_BLOCKS(blocks)

state contribution_0 {
    transition select(h.switchml.flags, h.switchml.lanes, h.switchml.op) {
        (EMPTY, LANES_PER_BLOCK, OP_SUM): empty_1;
        (EMPTY, 2 * LANES_PER_BLOCK, OP_SUM): empty_2;
        (EMPTY, LANES_PER_BLOCK, _): bad_op;
        (EMPTY, 2 * LANES_PER_BLOCK, _): bad_op;
        default: bad_lanes;
    }
}

state empty_1 {
    m.shape = SHAPE(1, OP_SUM);
    transition empty;
}

state empty_2 {
    m.shape = SHAPE(2, OP_SUM);
    transition empty;
}

state empty {
    m.is_contribution = 1;
    m.first = EMPTY_PASS;
    transition BEHIND_LANES
}
#endif

#define SHAPE_STATES(blocks, payload)                                            \
state contribution_##blocks {                                                    \
    transition select(h.switchml.flags, h.switchml.lanes, h.switchml.op) {       \
        (EMPTY, LANES_PER_BLOCK * blocks, OP_SUM): bad_length;                   \
        (EMPTY, LANES_PER_BLOCK * blocks, _): bad_op;                            \
        RESENT_ROW(blocks)                                                       \
        (_, LANES_PER_BLOCK * blocks, OP_SUM): sum_##blocks;                     \
        (_, LANES_PER_BLOCK * blocks, OP_MAX): max_##blocks;                     \
        (_, LANES_PER_BLOCK * blocks, _): bad_op;                                \
        default: bad_lanes;                                                      \
    }                                                                            \
}                                                                                \
state sum_##blocks {                                                             \
    m.shape = SHAPE(blocks, OP_SUM);                                             \
    OF_BLOCKS(blocks)                                                            \
    transition payload;                                                          \
}                                                                                \
state max_##blocks {                                                             \
    m.shape = SHAPE(blocks, OP_MAX);                                             \
    OF_BLOCKS(blocks)                                                            \
    transition MAXIMUM_PAYLOAD(payload);                                         \
}

#ifdef PARTS
#include "parts_parser.p4"
#endif

SHAPE_STATES(1, one_block)
SHAPE_STATES(2, two_blocks)

state one_block {
    m.is_contribution = 1;
    m.first = PASS_FIRST;
    transition low;
}

state two_blocks {
    m.is_contribution = 1;
    m.first = PASS_FIRST;
    transition low_and_high;
}

#define REFUSED(state_name, why)                                                 \
state state_name {                                                               \
    m.outcome = why;                                                             \
    transition accept;                                                           \
}

REFUSED(bad_version, OUTCOME_BAD_VERSION)
REFUSED(bad_kind, OUTCOME_BAD_KIND)
REFUSED(bad_op, OUTCOME_BAD_OP)
REFUSED(bad_lanes, OUTCOME_BAD_LANES)
REFUSED(bad_length, OUTCOME_BAD_LENGTH)

#ifdef COMBINER
#include "combiner_parser.p4"
#endif
#ifdef ROCE
#include "roce_parser.p4"
#endif
