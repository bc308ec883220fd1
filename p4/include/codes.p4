// Numbers that controls tell each other. None is on a wire.

// How a frame goes through the pipeline. 0: it does not concern a slot.
const bit<8> PASS_NONE = 0;
const bit<8> PASS_FIRST = 1;
// A contribution to an aborted job.
const bit<8> PASS_ABORTED = 2;
// Reads the first half of a complete round for a rank that is in it already.
const bit<8> PASS_QUERY = 3;
// Reads the second half, and sends the RESULT.
const bit<8> PASS_RESULT = 4;

// What a set holds: another round than the packet's, the same, or the one before. (The TNA numbers
// predicates so.)
const bit<8> HELD_OTHER = 1;
const bit<8> HELD_SAME = 2;
const bit<8> HELD_BEFORE = 4;

// The round's call is the packet's: both the fingerprint and the shape are. (Likewise.)
const bit<8> CALL_SAME = 8;

// What the packet does to its slot, and what it finds there.
const bit<8> STEP_NONE = 0;
const bit<8> STEP_START = 1;
const bit<8> STEP_ADD = 2;
const bit<8> STEP_MAX = 3;
// Reads the second half; the first one is read as lanes are combined.
const bit<8> STEP_SECOND = 4;
const bit<8> STEP_AGAIN = 5;
const bit<8> STEP_MISMATCH = 6;
const bit<8> STEP_STALE = 7;
const bit<8> STEP_ABORTED = 8;
