// States of the parser for messages of RoCEv2: section 37.

#define SEND_ONLY 8w0x64
// Beside these bits of the flags, a message has "solicited" and "migrated", which nobody compares.
#define NO_PADDING_VERSION_0 8w0 &&& 8w0x3F
#define BTH_VERSION_0 8w0 &&& 8w0x0F
#define Q_KEY 32w0x53574D4C

// Bytes in a message beside the packet, and of an IPv4 packet with a message of that many blocks.
#define TRANSPORT_BYTES 20
#define ICRC_BYTES 4
#define AROUND_PACKET (TRANSPORT_BYTES + ICRC_BYTES)
#define MESSAGE_BYTES(blocks) (IPV4_BYTES(blocks) + AROUND_PACKET)
// The last length of an IPv4 packet that names no queue pair, and that has no room for a packet.
#define NAMELESS_BYTES (20 + 8 + 7)
#define TOO_SHORT_BYTES (20 + 8 + AROUND_PACKET - 1)

// Rule 37.4, in another order (rule 24.8).
state message_or_other {
    transition select(h.ipv4.total_len) {
        0 .. NAMELESS_BYTES: accept;
        default: receiver;
    }
}

state receiver {
    transition select(packet.lookahead<bit<64>>()[23:0]) {
        (bit<24>) DATA_PORT: for_aggregator;
        default: accept;
    }
}

state for_aggregator {
    m.is_message = 1;
    transition select(h.ipv4.total_len) {
        0 .. TOO_SHORT_BYTES: truncated;
        default: transport;
    }
}

state transport {
    packet.extract(h.transport);
    transition select(h.transport.flags, h.transport.opcode, h.transport.key) {
        (NO_PADDING_VERSION_0, SEND_ONLY, Q_KEY): message;
        (BTH_VERSION_0, SEND_ONLY, Q_KEY): bad_length;
        (BTH_VERSION_0, SEND_ONLY, _): other_key;
        (BTH_VERSION_0, _, _): bad_kind;
        default: bad_version;
    }
}

state other_key {
    m.is_message = 0;
    transition accept;
}

state message {
    transition select(h.ipv4.total_len) {
        MESSAGE_BYTES(0): message_0;
        MESSAGE_BYTES(1): message_1;
        MESSAGE_BYTES(2): message_2;
        default: bad_length;
    }
}

#define MESSAGE_STATE(blocks)                                                    \
state message_##blocks {                                                         \
    packet.extract(h.switchml);                                                  \
    transition select(h.switchml.version, h.switchml.kind, h.udp.len) {          \
        (VERSION, KIND_CONTRIBUTION, UDP_BYTES(blocks) + AROUND_PACKET):         \
            contribution_##blocks;                                               \
        (VERSION, KIND_HELLO, UDP_BYTES(blocks) + AROUND_PACKET): hello_##blocks; \
        (VERSION, _, UDP_BYTES(blocks) + AROUND_PACKET): bad_kind;               \
        (_, _, UDP_BYTES(blocks) + AROUND_PACKET): bad_version;                  \
        default: bad_length;                                                     \
    }                                                                            \
}

MESSAGE_STATE(0)
MESSAGE_STATE(1)
MESSAGE_STATE(2)

state icrc {
    packet.extract(h.icrc);
    transition accept;
}

REFUSED(truncated, OUTCOME_TRUNCATED)
