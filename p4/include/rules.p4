// Section 8 of docs/spec as entries of a table. Several tables apply these rules in
// parallel, each for a register.

#define RULE_KEY                                                                 \
    m.pass: ternary;                                                             \
    m.held: ternary;                                                             \
    m.call: ternary;                                                             \
    h.switchml.op: ternary;                                                      \
    h.switchml.rank: ternary;                                                    \
    m.seen: ternary;

// Only for a packet's first pass: other passes read neither the call nor the ranks.
//
// There is an entry for each of the 32 possible ranks of a packet (`ranks.p4`), because comparing
// two fields would cost a stage.
#define IN_ALREADY(pass, r, again) \
    (pass, HELD_SAME, CALL_SAME, _, r, (32w1 << r) &&& (32w1 << r)): again;

// `start`: the packet starts its round (rule 8.8), which it may if the set holds the round before
// (rule 24.5). `again`: its rank is in already (rule 8.5, rule 8.6). `sum`, `maximum`: it is new to
// its round (rule 8.4). Otherwise: another call (rule 8.3), or another round (rule 8.9).
#define RULES(start, again, sum, maximum)                                        \
    (FIRST, HELD_BEFORE, _, _, _, _): start;                                     \
    ANY_IN_ALREADY(FIRST, again)                                                 \
    (FIRST, HELD_SAME, CALL_SAME, OP_SUM, _, _): sum;                            \
    (FIRST, HELD_SAME, CALL_SAME, OP_MAX, _, _): maximum;

#ifdef PARTS
#include "parts_rules.p4"
#else

#define FIRST PASS_FIRST
#define QUERY PASS_QUERY

// The same of packets without payload, which are of sums. `room`: its rank is in, or would be the
// last one (rule 8.13). If it is of another call, it gets ROOM as well (rule 24.9).
#define EMPTY_RULES(start, room, sum)                                            \
    (PASS_EMPTY, HELD_BEFORE, _, _, _, _): start;                                \
    ANY_IN_ALREADY(PASS_EMPTY, room)                                             \
    (PASS_EMPTY, HELD_SAME, CALL_SAME, _, _, _): sum;
#define MORE_STEPS (PASS_EMPTY, HELD_SAME, _, _, _, _): to(STEP_ROOM);

// The effect on lanes. The first lanes of a sum are stored, later ones added (rule 8.13): the flags
// of a set without lanes have no CHECKED.
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
#endif
