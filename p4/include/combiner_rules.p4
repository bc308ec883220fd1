// What a packet does to its cell, as entries of a table: section 27 of docs/spec, with what
// rules 24.13 and 27.12 leave to a combiner. Several tables decide by them at the same time, each
// about a register.

// The identity of a cell's contents, without epoch and round: job, slot, group, op and lanes. Jobs
// are below 4096, with up to 1024 slots and ranks.
#define PLACE                                                                    \
    (h.switchml.job[11:0] ++ h.switchml.slot[9:0] ++ h.switchml.rank[9:5] ++ m.shape[4:0])

#define RULE_KEY                                                                 \
    m.pass: ternary;                                                             \
    m.held: ternary;                                                             \
    m.combiner.round: ternary;                                                   \
    m.call: ternary;                                                             \
    h.switchml.rank: ternary;                                                    \
    m.seen: ternary;

// Matches neither HELD_OTHER nor HELD_SAME.
#define FREE 0 &&& 3

// The packet's rank is in the cell's group: the lowest five bits of the rank are its bit number.
#define IN_ALREADY(pass, r, again)                                               \
    (pass, HELD_SAME, CALL_SAME, CALL_SAME, r &&& 16w31, (32w1 << r) &&& (32w1 << r)): again;

// `start`: the packet claims the cell (rule 27.10). `again`: its rank is in already. `sum`: it is
// new to its round (rule 27.9). Otherwise it passes.
#define RULES(start, again, sum, maximum)                                        \
    (PASS_FIRST, FREE, _, _, _, _): start;                                       \
    ANY_IN_ALREADY(PASS_FIRST, again)                                            \
    (PASS_FIRST, HELD_SAME, CALL_SAME, CALL_SAME, _, _): sum;
#define EMPTY_RULES(start, room, sum)

#define LANE_KEY m.step: ternary;
#define LANE_STEPS(start, add, maximum, read_second)                             \
    STEP_START: start;                                                           \
    STEP_ADD: add;                                                               \
    STEP_COMPLETE: add;                                                          \
    STEP_SECOND: read_second;
