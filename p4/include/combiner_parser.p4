// States that only a combiner's parser has: for packets that go up unchanged, and for packets from
// its parent.

#define CONTROL_REPLY_BYTES (20 + 8 + HEADER_BYTES + 4 * CONTROL_REPLY_LANES)

#define BY_STATES(blocks)                                                        \
state resent_##blocks {                                                          \
    m.shape = SHAPE(blocks, OP_SUM);                                             \
    transition by;                                                               \
}                                                                                \
state partial_##blocks {                                                         \
    transition select(h.switchml.lanes, h.switchml.op) {                         \
        (LANES_PER_BLOCK * blocks, OP_SUM): by;                                  \
        (LANES_PER_BLOCK * blocks, OP_MAX): by;                                  \
        (LANES_PER_BLOCK * blocks, _): bad_op;                                   \
        default: bad_lanes;                                                      \
    }                                                                            \
}

BY_STATES(1)
BY_STATES(2)

// A partial sum without lanes.
state partial_0 {
    m.outcome = OUTCOME_BAD_LANES;
    transition accept;
}

// A partial sum has no shape, so it frees no cell.
state by {
    m.is_contribution = 1;
    m.first = PASS_BY;
    transition WHOLE;
}

state answer_length {
    transition select(h.ipv4.total_len) {
        IPV4_BYTES(0): answer;
        CONTROL_REPLY_BYTES: answer;
        IPV4_BYTES(1): answer;
        IPV4_BYTES(2): answer;
        default: accept;
    }
}

// FILLER and others of no interest to ranks stay here.
state answer {
    packet.extract(h.switchml);
    m.combiner.is_from_parent = 1;
    transition select(h.switchml.version, h.switchml.kind) {
        (VERSION, KIND_RESULT): WHOLE;
        (VERSION, KIND_PENDING): WHOLE;
        (VERSION, KIND_REJECT): WHOLE;
        (VERSION, KIND_HELLO): WHOLE;
        (VERSION, KIND_ROOM): WHOLE;
        (VERSION, _): bad_kind;
        default: bad_version;
    }
}
