// Part of a role's control: the sizes of its tables, and the changes to a frame that it sends.

#define MAX_JOBS 16
#define MAX_RANKS 32
#define MAX_MEMBERS (MAX_JOBS * MAX_RANKS)

#define TTL 8w64
#define DONT_FRAGMENT 16w0x4000
#define CONTROL_REPLY_UDP_BYTES (8 + HEADER_BYTES + 4 * CONTROL_REPLY_LANES)
#define ECN_ECT0 2w2
#define ECN_CE 2w3

    // Rule 5.4.
    action finish_ip() {
        h.ipv4.ttl = TTL;
        h.ipv4.id = 0;
        h.ipv4.fragment = DONT_FRAGMENT;
        h.udp.checksum = 0;
        m.is_answer = 1;
    }

    action once_more(bit<8> pass) {
        h.pass.setValid();
        h.pass.kind = pass;
        h.pass.index = m.index;
        h.pass.port = m.port;
        h.pass.others = m.others;
#ifdef ROCE
        h.pass.is_message = m.is_message;
#endif
#ifdef PARTS
        h.pass.part = m.part;
        h.pass.blocks = m.blocks;
        h.pass.own = m.own;
#endif
        ONCE_MORE
    }

    // Rule 24.15.
    action lost() {
        m.outcome = OUTCOME_LOST_FOR_TESTS;
        DROP
    }
