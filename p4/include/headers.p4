// Headers of a frame, and the metadata carried with it.

typedef bit<9> port_t;
typedef bit<16> group_t;
// Index of a set of a slot, in every register.
typedef bit<16> index_t;
// Number of a part of a packet: 64 lanes, or 32 if it is the last.
typedef bit<8> part_t;

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

#ifdef ROCE
// BTH and DETH of a message of RoCEv2 (rule 37.1).
header transport_t {
    bit<8> opcode;
    bit<8> flags;
    bit<16> partition;
    bit<8> reserved;
    bit<24> receiver;
    bit<32> number;
    bit<32> key;
    bit<8> also_reserved;
    bit<24> sender;
}

// What ends a message.
header icrc_t {
    bit<32> value;
}
#endif

// 32 lanes of payload. A register entry holds a lane of `low` and one of `high`.
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

#ifdef SEES_FCS
// What is behind the packet, or behind the part of it that a pass takes: the FCS at least.
header behind_t {
    bit<32> bytes;
}
#endif

// The payload of a PENDING or REJECT.
header control_reply_t {
    bit<32> first;
    bit<32> second;
}

// Stands in front of a frame that goes through the pipeline again; never on a wire.
header pass_t {
    bit<8> kind;
#ifdef ROCE
    bit<1> is_message;
    bit<6> unused;
#else
    bit<7> unused;
#endif
    port_t port;
    index_t index;
    // Number of the job's other ranks.
    bit<8> others;
#ifdef COMBINER
    bit<32> turn;
    bit<8> salts;
#endif
#ifdef PARTS
    part_t part;
    // Blocks of 32 lanes of this part and those after it.
    bit<8> blocks;
    bit<32> own;
#endif
}

struct headers_t {
    pass_t pass;
    ethernet_t ethernet;
    vlan_t outer;
    vlan_t inner;
    ipv4_t ipv4;
    udp_t udp;
#ifdef ROCE
    transport_t transport;
#endif
    switchml_t switchml;
    control_reply_t control_reply;
    lanes_t low;
    lanes_t high;
#ifdef SEES_FCS
    behind_t behind;
#endif
#ifdef ROCE
    icrc_t icrc;
#endif
}

#ifdef COMBINER
// Additional metadata of a combiner.
struct combiner_t {
    // The packet came to a port for the parent's answers.
    bit<1> is_from_parent;
    // The time, as the front counts.
    clock_t now;
    // A hash of key, round and call; and slot, group and shape as one number.
    bit<32> turn;
    bit<32> place;
    // Whether the cell's round is the packet's: CALL_SAME.
    bit<8> round;
    // The additional terms in the check word of a partial sum of all ranks below (rule 3.5): the
    // number of salts, and a constant.
    bit<8> salts;
    bit<32> surplus;
}
#endif

struct metadata_t {
    // OUTCOME_*: the outcome of the packet, for the counters.
    bit<8> outcome;
    // The frame has a whole header of ours, of a kind that the aggregator takes.
    bit<1> is_contribution;
    bit<1> is_hello;
    bit<1> bad_ip_checksum;
    // The packet is lost on purpose.
    bit<1> lost;
    // The packet is addressed to the aggregator.
    bit<1> is_ours;
#ifdef ROCE
    // The frame names the aggregator's queue pair.
    bit<1> is_message;
#endif
    // The packet is a HELLO with the rank's secret.
    bit<1> is_member;
    // The frame goes out as an answer, so its IP header is ours.
    bit<1> is_answer;
    // PASS_*
    bit<8> pass;
    // The packet's first pass, once it is admitted: PASS_FIRST or PASS_EMPTY.
    bit<8> first;
    // The port by which the frame came in the first time; in a combiner, once the packet is to go
    // to the parent, the port that leads there.
    port_t port;
    // The port to recirculate by, on Tofino.
    port_t again;
    index_t index;
    // The round before the packet's in its set.
    bit<32> previous;
    // Op and lanes as one number.
    bit<8> shape;
    // The flags of a RESULT of this contribution alone.
    bit<8> flags;
    // The rank's bit, and the bits of all other ranks.
    bit<32> own;
    bit<32> rest;
    // Number of the job's other ranks.
    bit<8> others;
    // The values read from the set's registers: HELD_*, CALL_*, the ranks in the round before this
    // packet, the number of missing ranks, the flags of a RESULT before this packet.
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
#ifdef PARTS
    part_t part;
    bit<8> blocks;
    // The ports to recirculate by to the parts after and before this one, on Tofino.
    port_t later;
    port_t earlier;
#endif
}
