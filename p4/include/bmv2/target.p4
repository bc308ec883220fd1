// ---- Ingress ----

// Rule 3.1.
control Salt(in headers_t h, out bit<32> salt) {
    apply {
        salt = (h.switchml.job ++ h.switchml.lanes) * SALT_JOB_LANES
            + h.switchml.epoch * SALT_EPOCH
            + (8w0 ++ h.switchml.slot ++ h.switchml.op) * SALT_SLOT_OP
            + h.switchml.round * SALT_ROUND
            + h.switchml.fingerprint * SALT_FINGERPRINT;
    }
}

// The check word of the packet as it is, if it stands for `contributions` contributions.
control CheckWord(in headers_t h, in bit<32> contributions, out bit<32> word) {
    Salt() one;

    apply {
        bit<32> salt;
        one.apply(h, salt);
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
#ifdef ROCE
    bit<1> is_message;
    bit<24> queue_pair;
#endif
}

#define RECIRCULATED 4

#define ARCHITECTURE_PARAMETERS inout standard_metadata_t standard
#define DROP mark_to_drop(standard);
#define TO_PORT(port) standard.egress_spec = port;
#define TO_GROUP(group) standard.mcast_grp = group;
#define FLOOD(group) standard.mcast_grp = group;
#define THROUGH_EGRESS_TO_PORT(port) standard.egress_spec = port;
// Egress recirculates each frame with a pass header, whatever the port.
#define ONCE_MORE standard.egress_spec = 0;
#define TO_LATER_PART
#define TO_EARLIER_PART
#ifdef ROCE
#define QUEUE_PAIR , m.is_message, h.transport.sender
#else
#define QUEUE_PAIR
#endif
#define LEARN \
    digest<learn_t>(1, { \
        h.switchml.job, h.switchml.epoch, h.switchml.rank, \
        m.port, h.ethernet.src, h.ipv4.src, h.udp.src QUEUE_PAIR });
