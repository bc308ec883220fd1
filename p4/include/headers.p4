// Headers of a frame, and what is carried along with it.

typedef bit<9> port_t;
typedef bit<16> group_t;
// Of a set of a slot, in every register.
typedef bit<16> index_t;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header vlan_t {
    bit<16> tag;
    bit<16> type;
}

header ipv4_t {
    bit<8> version_ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_len;
    bit<16> id;
    bit<16> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header udp_t {
    bit<16> src;
    bit<16> dst;
    bit<16> len;
    bit<16> checksum;
}

// 32 lanes of payload. A register holds a lane of `low` beside one of `high`.
header lanes_t {
    bit<32> v0; bit<32> v1; bit<32> v2; bit<32> v3;
    bit<32> v4; bit<32> v5; bit<32> v6; bit<32> v7;
    bit<32> v8; bit<32> v9; bit<32> v10; bit<32> v11;
    bit<32> v12; bit<32> v13; bit<32> v14; bit<32> v15;
    bit<32> v16; bit<32> v17; bit<32> v18; bit<32> v19;
    bit<32> v20; bit<32> v21; bit<32> v22; bit<32> v23;
    bit<32> v24; bit<32> v25; bit<32> v26; bit<32> v27;
    bit<32> v28; bit<32> v29; bit<32> v30; bit<32> v31;
}

// What a PENDING or REJECT says.
header control_reply_t {
    bit<32> first;
    bit<32> second;
}

// In front of a frame that goes through the pipeline again; never on a wire.
header pass_t {
    bit<8> kind;
    bit<7> unused;
    port_t port;
    index_t index;
    // Ranks of the job but one.
    bit<8> others;
#ifdef COMBINER
    bit<32> turn;
    bit<8> salts;
#endif
}

struct headers_t {
    pass_t pass;
    ethernet_t ethernet;
    vlan_t outer;
    vlan_t inner;
    ipv4_t ipv4;
    udp_t udp;
    switchml_t switchml;
    control_reply_t control_reply;
    lanes_t low;
    lanes_t high;
}

#ifdef COMBINER
// What a combiner knows beside.
struct combiner_t {
    // The packet came to a port for the parent's answers.
    bit<1> is_from_parent;
    // It goes to the parent.
    bit<1> goes_up;
    // The time, as the front counts.
    clock_t now;
    // A hash of key, round and call; and slot, group and shape as one number.
    bit<32> turn;
    bit<32> place;
    // Whether the cell's round is the packet's: CALL_SAME.
    bit<8> round;
    // UDP port from which the rank's packets go up.
    bit<16> from;
    // What the check word of a partial sum of all ranks below has more than theirs (rule 3.5): so
    // many salts, and this.
    bit<8> salts;
    bit<32> surplus;
}
#endif

struct metadata_t {
    // OUTCOME_*: what became of the packet, for the counters.
    bit<8> outcome;
    // The frame has a whole header of ours, of a kind that the aggregator takes.
    bit<1> is_contribution;
    bit<1> is_hello;
    bit<1> bad_ip_checksum;
    // It is addressed to the aggregator.
    bit<1> is_ours;
    // It is a HELLO that has the rank's secret.
    bit<1> is_member;
    // It goes out as an answer, so the IP header is ours.
    bit<1> is_answer;
    // PASS_*
    bit<8> pass;
    // What its first pass is, once it is admitted: PASS_FIRST, or PASS_EMPTY.
    bit<8> first;
    // Where the frame came in, the first time.
    port_t port;
    // Where it comes in once more.
    port_t again;
    index_t index;
    // The round before the packet's in its set.
    bit<32> previous;
    // Op and lanes as one number.
    bit<8> shape;
    // The flags of a RESULT of this contribution alone.
    bit<8> flags;
    // The rank's bit, and those of all others.
    bit<32> own;
    bit<32> rest;
    // Ranks of the job but one.
    bit<8> others;
    // What the set's registers said: HELD_*, CALL_*, the ranks in the round before this packet, how
    // many are missing, the flags of a RESULT before this packet.
    bit<8> held;
    bit<8> call;
    bit<32> seen;
    bit<8> missing;
    bit<8> union;
    // STEP_*
    bit<8> step;
#ifdef COMBINER
    combiner_t combiner;
#endif
}
