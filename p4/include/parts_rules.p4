// The rules of `rules.p4` for packets of several parts (`parts.p4`): each part has a first pass and
// a query. They are never without payload.

#define FIRST PASS_FIRST &&& ~PART_NOT_LAST
#define QUERY PASS_QUERY &&& ~PART_EARLIER

#define EMPTY_RULES(start, room, sum)
#define MORE_STEPS (PASS_REFUSED, _, _, _, _, _): to(STEP_MISMATCH);

#define LANE_KEY m.step: ternary;
#define LANE_STEPS(start, add, maximum, read_second)                             \
    STEP_START: start;                                                           \
    STEP_ADD: add;                                                               \
    STEP_FIRST: add;                                                             \
    STEP_MAX: maximum;                                                           \
    STEP_SECOND: read_second;
