"""A packet of the protocol: header, lanes, check word.

Sections 2 and 3 of docs/spec.
"""

from dataclasses import dataclass, replace

from .numbers import (
    CE,
    CHECKED,
    CONTRIBUTION,
    EMPTY,
    EVERYONE,
    FLAGS,
    KINDS,
    OPS,
    PARTIAL,
    PENDING,
    REASONS,
    REJECT,
    RESULT,
    SUM,
    TAGGED,
    VERSION,
)

LANES_PER_LINE = 8


def siphash_2_4(key, message):
    """Aumasson and Bernstein, SipHash: a fast short-input PRF (2012), section 2."""
    first, second = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))
    v = [
        first ^ 0x736F6D6570736575,
        second ^ 0x646F72616E646F6D,
        first ^ 0x6C7967656E657261,
        second ^ 0x7465646279746573,
    ]

    def turn(word, by):
        return (word << by | word >> 64 - by) % 2**64

    def rounds(count):
        for _ in range(count):
            v[0], v[2] = (v[0] + v[1]) % 2**64, (v[2] + v[3]) % 2**64
            v[1], v[3] = turn(v[1], 13) ^ v[0], turn(v[3], 16) ^ v[2]
            v[0] = turn(v[0], 32)
            v[2], v[0] = (v[2] + v[1]) % 2**64, (v[0] + v[3]) % 2**64
            v[1], v[3] = turn(v[1], 17) ^ v[2], turn(v[3], 21) ^ v[0]
            v[2] = turn(v[2], 32)

    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@dataclass(frozen=True)
class Packet:
    kind: int
    job: int
    epoch: int
    rank: int
    slot: int
    round: int
    op: int
    flags: int
    fingerprint: int
    aux: int
    values: tuple
    # Contributions that it stands for.
    contributions: int = 1
    version: int = VERSION
    # What the header says, where that is not what is right.
    lanes: int = None
    check: int = None
    # Keys: its rank's, and its job's.
    keys: tuple = None
    # What is in the place of the right tag.
    tag: int = None

    def changed(self, **fields):
        """The same packet with other fields, and the check word that fits them."""
        return replace(self, **fields)

    def corrupted(self, **fields):
        """The same packet with other fields, but the check word that it had."""
        return replace(self, check=self.check_word(), **fields)

    def emptied(self):
        """The same contribution without its lanes, as if they were zeros."""
        return self.changed(flags=self.flags | EMPTY, lanes=self.lane_count(), values=())

    def partial(self, ranks):
        """The partial sum of these ranks, which are of one group, with the lanes of this packet."""
        return self.changed(
            kind=PARTIAL,
            rank=ranks[0] // 32 * 32,
            aux=sum(1 << rank % 32 for rank in ranks),
            contributions=len(ranks),
        )

    def with_lane(self, index, value):
        values = list(self.values)
        values[index] = value
        return tuple(values)

    def lane_count(self):
        return len(self.values) if self.lanes is None else self.lanes

    def salt(self):
        h = 0
        for word in (
            self.job << 16 | self.lane_count(),
            self.epoch,
            self.slot << 8 | self.op,
            self.round,
            self.fingerprint,
        ):
            h = (h + word) * 0x9E3779B1 % 2**32
        return h

    def right_check(self):
        salts, more = self.contributions, 0
        if self.kind == PARTIAL:
            salts, more = salts | 1, self.rank + self.aux
        return (sum(self.values) + salts * self.salt() + more) % 2**32

    def check_word(self):
        return self.right_check() if self.check is None else self.check

    def header(self):
        return b"".join(
            value.to_bytes(size, "big")
            for value, size in (
                (self.version, 1),
                (self.kind, 1),
                (self.job, 2),
                (self.epoch, 4),
                (self.rank, 2),
                (self.slot, 2),
                (self.round, 4),
                (self.op, 1),
                (self.flags, 1),
                (self.lane_count(), 2),
                (self.fingerprint, 4),
                (self.check_word(), 4),
                (self.aux, 4),
            )
        )

    def to_bytes(self):
        tag = self.tag_word().to_bytes(8, "big") if self.flags & TAGGED else b""
        return self.header() + b"".join(lane.to_bytes(4, "big") for lane in self.values) + tag

    # ---- Tags (section 28 of docs/spec) ----

    def right_tag(self):
        of_rank, of_job = self.keys or (bytes(16), bytes(16))
        key = of_job if self.rank == EVERYONE else of_rank
        return siphash_2_4(key, self.changed(flags=self.flags & ~CE).header())

    def tag_word(self):
        return self.right_tag() if self.tag is None else self.tag

    def retagged(self, **fields):
        """The same packet with other fields, but the tag that it had."""
        return replace(self, tag=self.tag_word(), **fields)

    # ---- Answers (section 9 of docs/spec) ----

    def result(self, values, of, flags=CHECKED):
        """The RESULT for the sender alone, of that many contributions."""
        return self.changed(
            kind=RESULT,
            flags=flags | self.flags & TAGGED,
            values=tuple(values),
            contributions=of,
            check=None,
        )

    def result_for_all(self, values, of, flags=CHECKED):
        return self.result(values, of, flags).changed(rank=EVERYONE, aux=0)

    def pending(self, *ranks, of=2):
        """The PENDING that says that these ranks are in, in a job of so many."""
        lanes = [0] * (32 if of > 64 else 2)
        for rank in ranks:
            lanes[rank // 32 ^ 1] |= 1 << rank % 32
        return self.control_reply(PENDING, *lanes)

    def reject(self, reason, detail):
        return self.control_reply(REJECT, reason, detail)

    def control_reply(self, kind, *values):
        return self.changed(
            kind=kind,
            op=SUM,
            flags=CHECKED | self.flags & TAGGED,
            lanes=None,
            check=None,
            values=values,
        )

    # ---- For readers ----

    def rows(self):
        """Lines of bytes, each with what they say."""
        h = self.header().hex()
        flags = " ".join(name for bit, name in FLAGS.items() if self.flags & bit) or "no flags"
        rank = "everyone" if self.rank == EVERYONE else f"rank {self.rank}"
        aux = "ranks" if self.kind == PARTIAL else "aux"
        kind = KINDS.get(self.kind, f"kind {self.kind}")
        check = "check" if self.check_word() == self.right_check() else "wrong check"
        yield (
            f"{h[0:2]} {h[2:4]} {h[4:8]} {h[8:16]}",
            f"version {self.version}, {kind}, job {self.job}, epoch",
        )
        yield f"{h[16:20]} {h[20:24]} {h[24:32]}", f"{rank}, slot {self.slot}, round {self.round}"
        yield (
            f"{h[32:34]} {h[34:36]} {h[36:40]} {h[40:48]} {h[48:56]} {h[56:64]}",
            f"{op_text(self.op)}, {flags}, {self.lane_count()} lanes, fingerprint, {check}, {aux}",
        )
        for start in range(0, len(self.values), LANES_PER_LINE):
            lanes = self.values[start : start + LANES_PER_LINE]
            yield (
                " ".join(f"{lane:08x}" for lane in lanes),
                self.note_comment() if start == 0 else "",
            )
        if self.flags & TAGGED:
            yield (
                f"{self.tag_word():016x}",
                "tag" if self.tag_word() == self.right_tag() else "wrong tag",
            )

    def note_comment(self):
        if self.kind == PENDING:
            return "ranks that are in"
        if self.kind == REJECT:
            return REASONS[self.values[0]] + ", detail"
        return ""


def op_text(op):
    """For readers."""
    if op >> 6 == 1:
        return f"SUM for rank {op & 63}"
    if op >> 6 == 2:
        return f"SUM for all but rank {op & 63}"
    if op not in OPS:
        return "unknown op"
    name, _, lanes = OPS[op].partition("_")
    return f"{name} of {lanes.lower() or 'i32'}"


def check_example():
    """The example of docs/spec."""
    packet = Packet(
        CONTRIBUTION,
        0x0102,
        0x03040506,
        0,
        0x0708,
        0x090A0B0C,
        SUM,
        CHECKED,
        0x0D0E0F10,
        0,
        tuple(range(1, 33)),
    )
    assert packet.salt() == 0xF397C142
    assert packet.right_check() == 0xF397C352
    assert packet.result(packet.values, 4).right_check() == 0xCE5F0718
    assert packet.partial((33, 34)).right_check() == 0xDAC745FC
    tagged = Packet(
        CONTRIBUTION,
        7,
        0x01020304,
        1,
        2,
        0,
        SUM,
        CHECKED | TAGGED,
        0xFEEDF00D,
        0xA0000001,
        (0,) * 32,
        check=0,
        keys=(bytes(range(16)), None),
    )
    assert tagged.tag_word() == 0xAFFDEF0863105E8D
    assert tagged.changed(flags=tagged.flags | CE).tag_word() == 0xAFFDEF0863105E8D
