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
// An entry for each of the 32 ranks that a packet may be of: to compare two fields would cost a
// stage.
#define IN_ALREADY(r, again) \
    (PASS_FIRST, HELD_SAME, CALL_SAME, _, r, (32w1 << r) &&& (32w1 << r)): again;

// `start`: the packet starts its round (rule 8.8), which it may if the set holds the round before
// (rule 24.5). `again`: its rank is in (rule 8.5, rule 8.6). `sum`, `maximum`: it is new to its
// round (rule 8.4). None of these: another call (rule 8.3), or another round (rule 8.9).
#define RULES(start, again, sum, maximum)                                        \
    (PASS_FIRST, HELD_BEFORE, _, _, _, _): start;                                \
    IN_ALREADY(0, again)                                                         \
    IN_ALREADY(1, again)                                                         \
    IN_ALREADY(2, again)                                                         \
    IN_ALREADY(3, again)                                                         \
    IN_ALREADY(4, again)                                                         \
    IN_ALREADY(5, again)                                                         \
    IN_ALREADY(6, again)                                                         \
    IN_ALREADY(7, again)                                                         \
    IN_ALREADY(8, again)                                                         \
    IN_ALREADY(9, again)                                                         \
    IN_ALREADY(10, again)                                                        \
    IN_ALREADY(11, again)                                                        \
    IN_ALREADY(12, again)                                                        \
    IN_ALREADY(13, again)                                                        \
    IN_ALREADY(14, again)                                                        \
    IN_ALREADY(15, again)                                                        \
    IN_ALREADY(16, again)                                                        \
    IN_ALREADY(17, again)                                                        \
    IN_ALREADY(18, again)                                                        \
    IN_ALREADY(19, again)                                                        \
    IN_ALREADY(20, again)                                                        \
    IN_ALREADY(21, again)                                                        \
    IN_ALREADY(22, again)                                                        \
    IN_ALREADY(23, again)                                                        \
    IN_ALREADY(24, again)                                                        \
    IN_ALREADY(25, again)                                                        \
    IN_ALREADY(26, again)                                                        \
    IN_ALREADY(27, again)                                                        \
    IN_ALREADY(28, again)                                                        \
    IN_ALREADY(29, again)                                                        \
    IN_ALREADY(30, again)                                                        \
    IN_ALREADY(31, again)                                                        \
    (PASS_FIRST, HELD_SAME, CALL_SAME, OP_SUM, _, _): sum;                       \
    (PASS_FIRST, HELD_SAME, CALL_SAME, OP_MAX, _, _): maximum;
