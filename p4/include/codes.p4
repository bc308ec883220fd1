// Numbers that controls pass to each other. None is on a wire.

// How a frame goes through the pipeline. 0: it does not concern a slot.
const bit<8> PASS_NONE = 0;
const bit<8> PASS_FIRST = 1;
// The first pass of a contribution without payload (rule 8.13).
const bit<8> PASS_EMPTY = 2;
// Reads the first half of a complete round for a rank that is in it already.
const bit<8> PASS_QUERY = 3;
// Reads the second half, and sends the RESULT.
const bit<8> PASS_RESULT = 4;
// Answered without access to the slot: REJECT(ABORTED), or ROOM without payload.
const bit<8> PASS_TURNED_AWAY = 8;
const bit<8> PASS_ABORTED = PASS_TURNED_AWAY | PASS_FIRST;
const bit<8> PASS_ROOM = PASS_TURNED_AWAY | PASS_EMPTY;

// Bits of passes, for packets of several parts only (`parts.p4`): the first pass, or one that was
// turned away, of a part that others follow; and the query of a part whose followers are read.
const bit<8> PART_NOT_LAST = 16;
const bit<8> PART_EARLIER = 4;
// An earlier part was of another call.
const bit<8> PASS_REFUSED = PASS_TURNED_AWAY | PASS_QUERY;

// The round that a set holds: another one than the packet's, the same, or the one before. (The TNA
// numbers predicates in this way.)
const bit<8> HELD_OTHER = 1;
const bit<8> HELD_SAME = 2;
const bit<8> HELD_BEFORE = 4;
// The packet is lost on purpose, and no rule sees it (rule 24.15). A combiner must not take this
// for a free cell.
const bit<8> HELD_LOST = HELD_OTHER | HELD_SAME;

// The round's call is the packet's: both the fingerprint and the shape are. (Also a number of the
// TNA's.)
const bit<8> CALL_SAME = 8;

// The packet's effect on its slot.
const bit<8> STEP_NONE = 0;
const bit<8> STEP_START = 1;
const bit<8> STEP_ADD = 2;
const bit<8> STEP_MAX = 3;
// Adds zeros, which reads the first half.
const bit<8> STEP_FIRST = 4;
// Reads the second half.
const bit<8> STEP_SECOND = 5;
const bit<8> STEP_AGAIN = 6;
const bit<8> STEP_MISMATCH = 7;
const bit<8> STEP_STALE = 8;
const bit<8> STEP_ABORTED = 9;
// Without payload: as START and ADD, except for the lanes; or ROOM, without effect.
const bit<8> STEP_START_EMPTY = 10;
const bit<8> STEP_ADD_EMPTY = 11;
const bit<8> STEP_ROOM = 12;

// Combiners only. A contribution that goes by on its way up, and frees the cell of its round.
const bit<8> PASS_BY = 16;
// The cell's contents are old, and of another turn; or of the same. (The TNA numbers predicates in
// this way.)
const bit<8> HELD_OLD = 4;
const bit<8> HELD_OLD_SAME = 8;
// The packet completes the ranks below the combiner.
const bit<8> STEP_COMPLETE = 13;
// The packet goes up unchanged.
const bit<8> STEP_PASS = 14;

// Of all roles: the packet is dropped.
const bit<8> STEP_LOST = 15;
