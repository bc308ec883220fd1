// States that the parser has only for packets of several parts (`parts.p4`), up to four. None is
// without payload, so what says so is too short.

#define OF_BLOCKS(number) m.blocks = number;

state contribution_0 {
    transition select(h.switchml.flags) {
        EMPTY: bad_length;
        default: bad_lanes;
    }
}

HEADER_STATES(3, contribution_3)
HEADER_STATES(4, contribution_4)
HEADER_STATES(5, contribution_5)
HEADER_STATES(6, contribution_6)
HEADER_STATES(7, contribution_7)
HEADER_STATES(8, contribution_8)

SHAPE_STATES(3, several_parts)
SHAPE_STATES(4, several_parts)
SHAPE_STATES(5, several_parts)
SHAPE_STATES(6, several_parts)
SHAPE_STATES(7, several_parts)
SHAPE_STATES(8, several_parts)

state several_parts {
    m.is_contribution = 1;
    m.first = PASS_FIRST | PART_NOT_LAST;
    transition low_and_high;
}
