"""Made by `cargo xtask gen` from the crate `switchml-protocol`: change it there."""

VERSION = 1
EVERYONE = 65535

CONTRIBUTION = 0x01
RESULT = 0x02
PENDING = 0x03
REJECT = 0x04
HELLO = 0x05
FILLER = 0x06
ROOM = 0x07
PARTIAL = 0x08
DONE = 0x09
KINDS = {
    CONTRIBUTION: "CONTRIBUTION",
    RESULT: "RESULT",
    PENDING: "PENDING",
    REJECT: "REJECT",
    HELLO: "HELLO",
    FILLER: "FILLER",
    ROOM: "ROOM",
    PARTIAL: "PARTIAL",
    DONE: "DONE",
}

SUM = 0x00
MAX = 0x01
OPS = {
    SUM: "SUM",
    MAX: "MAX",
}

RETRANSMIT = 0x01
CE = 0x02
CHECKED = 0x04
EMPTY = 0x08
GROUP = 0x10
TAGGED = 0x20
FLAGS = {
    RETRANSMIT: "RETRANSMIT",
    CE: "CE",
    CHECKED: "CHECKED",
    EMPTY: "EMPTY",
    GROUP: "GROUP",
    TAGGED: "TAGGED",
}

MISMATCH = 0x01
ROUND = 0x02
ABORTED = 0x03
REASONS = {
    MISMATCH: "MISMATCH",
    ROUND: "ROUND",
    ABORTED: "ABORTED",
}

OUTCOMES = {
    "not_ours",
    "vlan",
    "ipv6",
    "ip_options",
    "fragment",
    "started",
    "added",
    "completed",
    "replayed",
    "pending",
    "stale",
    "mismatch",
    "wrong_round",
    "aborted",
    "hello",
    "spoofed",
    "truncated",
    "bad_ip_checksum",
    "bad_version",
    "bad_kind",
    "bad_op",
    "bad_lanes",
    "bad_length",
    "bad_check",
    "unknown_job",
    "wrong_epoch",
    "bad_rank",
    "bad_tag",
    "bad_slot",
    "wrong_secret",
    "no_hello",
    "wrong_place",
    "mixed_jobs",
    "slot_busy",
    "send_failed",
    "room",
    "duplicate",
    "overlap",
    "conflict",
    "held",
    "combined",
    "evicted",
    "passed",
    "flushed",
    "hello_passed",
    "to_rank",
    "to_all",
    "lost_for_tests",
}
