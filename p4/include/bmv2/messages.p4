// How answers leave: as messages of RoCEv2 to queue pairs (rules 37.3 and 37.5), as datagrams to
// sockets and groups.

// What the ICRC covers, with ones in place of what changes on the way.
#define COVERED_HEADERS \
    64w0xFFFFFFFFFFFFFFFF, \
    h.ipv4.version_ihl, 8w0xFF, h.ipv4.total_len, h.ipv4.id, h.ipv4.fragment, \
    8w0xFF, h.ipv4.protocol, 16w0xFFFF, h.ipv4.src, h.ipv4.dst, \
    h.udp.src, h.udp.dst, h.udp.len, 16w0xFFFF, \
    h.transport.opcode, h.transport.flags, h.transport.partition, \
    8w0xFF, h.transport.receiver, h.transport.number, h.transport.key, \
    h.transport.also_reserved, h.transport.sender, \
    h.switchml.version, h.switchml.kind, h.switchml.job, h.switchml.epoch, h.switchml.rank, \
    h.switchml.slot, h.switchml.round, h.switchml.op, h.switchml.flags, h.switchml.lanes, \
    h.switchml.fingerprint, h.switchml.check, h.switchml.aux
#define COVERED_LOW \
    h.low.v0, h.low.v1, h.low.v2, h.low.v3, h.low.v4, h.low.v5, \
    h.low.v6, h.low.v7, h.low.v8, h.low.v9, h.low.v10, h.low.v11, \
    h.low.v12, h.low.v13, h.low.v14, h.low.v15, h.low.v16, h.low.v17, \
    h.low.v18, h.low.v19, h.low.v20, h.low.v21, h.low.v22, h.low.v23, \
    h.low.v24, h.low.v25, h.low.v26, h.low.v27, h.low.v28, h.low.v29, \
    h.low.v30, h.low.v31
#define COVERED_HIGH \
    h.high.v0, h.high.v1, h.high.v2, h.high.v3, h.high.v4, h.high.v5, \
    h.high.v6, h.high.v7, h.high.v8, h.high.v9, h.high.v10, h.high.v11, \
    h.high.v12, h.high.v13, h.high.v14, h.high.v15, h.high.v16, h.high.v17, \
    h.high.v18, h.high.v19, h.high.v20, h.high.v21, h.high.v22, h.high.v23, \
    h.high.v24, h.high.v25, h.high.v26, h.high.v27, h.high.v28, h.high.v29, \
    h.high.v30, h.high.v31
#define ALL_OF_32_BITS 64w0x100000000
#define CRC_OF(fields) hash(crc, HashAlgorithm.crc32, 32w0, fields, ALL_OF_32_BITS)

// The lengths of a frame whose lanes are all in headers.
control Lengths(inout headers_t h) {
    apply {
        h.udp.len = UDP_BYTES(0);
        if (h.transport.isValid()) {
            h.udp.len = h.udp.len + AROUND_PACKET;
        }
        if (h.control_reply.isValid()) {
            h.udp.len = h.udp.len + 4 * CONTROL_REPLY_LANES;
        }
        if (h.low.isValid()) {
            h.udp.len = h.udp.len + 4 * LANES_PER_BLOCK;
        }
        if (h.high.isValid()) {
            h.udp.len = h.udp.len + 4 * LANES_PER_BLOCK;
        }
        h.ipv4.total_len = 20 + h.udp.len;
    }
}

// Rule 37.5, for a message.
control Icrc(inout headers_t h) {
    apply {
        bit<32> crc = 0;
        if (h.transport.isValid() && h.low.isValid() && h.high.isValid()) {
            CRC_OF(({ COVERED_HEADERS, COVERED_LOW, COVERED_HIGH }));
        } else if (h.transport.isValid() && h.low.isValid()) {
            CRC_OF(({ COVERED_HEADERS, COVERED_LOW }));
        } else if (h.transport.isValid() && h.control_reply.isValid()) {
            CRC_OF(({ COVERED_HEADERS, h.control_reply.first, h.control_reply.second }));
        } else if (h.transport.isValid()) {
            CRC_OF(({ COVERED_HEADERS }));
        }
        h.icrc.setValid();
        // Lowest byte first.
        h.icrc.value = crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24];
    }
}

control Messages(inout headers_t h, inout metadata_t m, inout standard_metadata_t standard) {
    Lengths() set_lengths;
    Icrc() icrc;
    bit<24> receiver = 0;

    action to_queue_pair(bit<48> mac, bit<32> address, bit<24> queue_pair) {
        h.ethernet.dst = mac;
        h.ipv4.dst = address;
        receiver = queue_pair;
        m.is_message = 1;
    }

    action to_others() { m.is_message = 0; }

    // The receivers of a RESULT to all: nodes of the job's group make a copy for each rank with a
    // queue pair, and one for each port with others.
    table copies {
        key = {
            h.switchml.job: exact @name("job");
            standard.egress_rid: exact @name("node");
        }
        actions = { to_queue_pair; to_others; }
        const default_action = to_others();
        size = MAX_MEMBERS;
    }

    action become_message() {
        h.transport.setValid();
        h.transport = {
            SEND_ONLY, 0x40, 0xFFFF, 0, receiver, 0, Q_KEY, 0, (bit<24>) DATA_PORT };
        h.udp.src = ROCE_PORT;
        h.udp.dst = ROCE_PORT;
        h.ipv4.ecn = 0;
    }

    action become_datagram() {
        h.transport.setInvalid();
        h.icrc.setInvalid();
        h.udp.src = DATA_PORT;
    }

    apply {
        if (h.switchml.rank == EVERYONE) {
            copies.apply();
        } else {
            receiver = h.transport.sender;
        }
        if (m.is_message == 1) {
            become_message();
        } else if (h.transport.isValid()) {
            become_datagram();
        }
        if (m.is_message == 1 || h.switchml.rank == EVERYONE) {
            set_lengths.apply(h);
        }
        if (m.is_message == 1) {
            icrc.apply(h);
        }
    }
}
