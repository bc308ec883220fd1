// Section 8 of docs/protocol.md as entries of a table. Several tables decide by them at the same
// time, each about a register.

#define RULE_KEY                                                                 \
    m.pass: ternary;                                                             \
    m.held: ternary;                                                             \
    m.call: ternary;                                                             \
    h.switchml.op: ternary;                                                      \
    h.switchml.rank: ternary;                                                    \
    m.seen: ternary;

// Only of a packet's first pass: on others, neither the call nor the ranks were asked for.
//
// An entry for each of the 32 ranks that a packet may be of (`ranks.p4`): to compare two fields
// would cost a stage.
#define IN_ALREADY(pass, r, again) \
    (pass, HELD_SAME, CALL_SAME, _, r, (32w1 << r) &&& (32w1 << r)): again;

// `start`: the packet starts its round (rule 8.8), which it may if the set holds the round before
// (rule 24.5). `again`: its rank is in (rule 8.5, rule 8.6). `sum`, `maximum`: it is new to its
// round (rule 8.4). None of these: another call (rule 8.3), or another round (rule 8.9).
#define RULES(start, again, sum, maximum)                                        \
    (PASS_FIRST, HELD_BEFORE, _, _, _, _): start;                                \
    ANY_IN_ALREADY(PASS_FIRST, again)                                            \
    (PASS_FIRST, HELD_SAME, CALL_SAME, OP_SUM, _, _): sum;                       \
    (PASS_FIRST, HELD_SAME, CALL_SAME, OP_MAX, _, _): maximum;

// The same of packets without payload, which are of sums. `room`: its rank is in, or would be the
// last one (rule 8.13). If it is of another call, it gets ROOM as well (rule 24.9).
#define EMPTY_RULES(start, room, sum)                                            \
    (PASS_EMPTY, HELD_BEFORE, _, _, _, _): start;                                \
    ANY_IN_ALREADY(PASS_EMPTY, room)                                             \
    (PASS_EMPTY, HELD_SAME, CALL_SAME, _, _, _): sum;

// What lanes do. The first of a sum's lanes to come are stored, those after it added (rule 8.13):
// flags of a set without lanes have no CHECKED.
#define LANE_KEY                                                                 \
    m.step: ternary;                                                             \
    m.union: ternary;
#define LANE_STEPS(start, add, maximum, read_second)                             \
    (STEP_START, _): start;                                                      \
    (STEP_ADD, FLAG_CHECKED &&& FLAG_CHECKED): add;                              \
    (STEP_ADD, _): start;                                                        \
    (STEP_FIRST, _): add;                                                        \
    (STEP_MAX, _): maximum;                                                      \
    (STEP_SECOND, _): read_second;
