// Made by `cargo xtask gen` from the crate `switchml-protocol`: change it there.

header switchml_t {
    bit<8> version;
    bit<8> kind;
    bit<16> job;
    bit<32> epoch;
    bit<16> rank;
    bit<16> slot;
    bit<32> round;
    bit<8> op;
    bit<8> flags;
    bit<16> lanes;
    bit<32> fingerprint;
    bit<32> check;
    bit<32> aux;
}

const bit<8> VERSION = 1;
const bit<16> DATA_PORT = 48864;
const bit<16> HEADER_BYTES = 32;
const bit<16> LANES_PER_BLOCK = 32;
const bit<16> CONTROL_REPLY_LANES = 2;
const bit<16> EVERYONE = 65535;
const bit<8> KIND_CONTRIBUTION = 1;
const bit<8> KIND_RESULT = 2;
const bit<8> KIND_PENDING = 3;
const bit<8> KIND_REJECT = 4;
const bit<8> KIND_HELLO = 5;
const bit<8> KIND_FILLER = 6;
const bit<8> OP_SUM = 0;
const bit<8> OP_MAX = 1;
const bit<8> FLAG_RETRANSMIT = 1;
const bit<8> FLAG_CE = 2;
const bit<8> FLAG_CHECKED = 4;
const bit<32> REJECT_MISMATCH = 1;
const bit<32> REJECT_ROUND = 2;
const bit<32> REJECT_ABORTED = 3;
const bit<8> OUTCOME_NOT_OURS = 0;
const bit<8> OUTCOME_VLAN = 1;
const bit<8> OUTCOME_IPV6 = 2;
const bit<8> OUTCOME_IP_OPTIONS = 3;
const bit<8> OUTCOME_FRAGMENT = 4;
const bit<8> OUTCOME_STARTED = 5;
const bit<8> OUTCOME_ADDED = 6;
const bit<8> OUTCOME_COMPLETED = 7;
const bit<8> OUTCOME_REPLAYED = 8;
const bit<8> OUTCOME_PENDING = 9;
const bit<8> OUTCOME_STALE = 10;
const bit<8> OUTCOME_MISMATCH = 11;
const bit<8> OUTCOME_WRONG_ROUND = 12;
const bit<8> OUTCOME_ABORTED = 13;
const bit<8> OUTCOME_HELLO = 14;
const bit<8> OUTCOME_SPOOFED = 15;
const bit<8> OUTCOME_TRUNCATED = 16;
const bit<8> OUTCOME_BAD_IP_CHECKSUM = 17;
const bit<8> OUTCOME_BAD_VERSION = 18;
const bit<8> OUTCOME_BAD_KIND = 19;
const bit<8> OUTCOME_BAD_OP = 20;
const bit<8> OUTCOME_BAD_LANES = 21;
const bit<8> OUTCOME_BAD_LENGTH = 22;
const bit<8> OUTCOME_BAD_CHECK = 23;
const bit<8> OUTCOME_UNKNOWN_JOB = 24;
const bit<8> OUTCOME_WRONG_EPOCH = 25;
const bit<8> OUTCOME_BAD_RANK = 26;
const bit<8> OUTCOME_BAD_SLOT = 27;
const bit<8> OUTCOME_WRONG_SECRET = 28;
const bit<8> OUTCOME_NO_HELLO = 29;
const bit<8> OUTCOME_WRONG_PLACE = 30;
const bit<8> OUTCOME_MIXED_JOBS = 31;
const bit<8> OUTCOME_SLOT_BUSY = 32;
const bit<8> OUTCOME_SEND_FAILED = 33;

// What a header adds to the check word: the sum of its words, each times its factor.
const bit<32> SALT_JOB_LANES = 0x8bc6ba71;
const bit<32> SALT_EPOCH = 0x1f76bcc1;
const bit<32> SALT_SLOT_OP = 0xcc042811;
const bit<32> SALT_ROUND = 0xffe6cc61;
const bit<32> SALT_FINGERPRINT = 0x9e3779b1;
