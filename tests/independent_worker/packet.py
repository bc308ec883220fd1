"""A packet: header, lanes, check word (sections 2 and 3)."""

import struct
from dataclasses import dataclass, replace

VERSION = 1
CONTRIBUTION, RESULT, PENDING, REJECT, HELLO = range(1, 6)
SUM, MAX = 0, 1
RETRANSMIT, CE, CHECKED, TAGGED = 1, 2, 4, 32
EVERYONE = 0xFFFF
BLOCK = 32

HEADER = struct.Struct(">BBHIHHIBBHIII")


@dataclass(frozen=True)
class Packet:
    kind: int
    job: int
    epoch: int
    rank: int
    slot: int = 0
    round: int = 0
    op: int = SUM
    flags: int = 0
    fingerprint: int = 0
    check: int = 0
    aux: int = 0
    lanes: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        place = self.job, self.epoch, self.rank, self.slot, self.round
        lanes = len(self.lanes), self.fingerprint, self.check, self.aux
        header = HEADER.pack(VERSION, self.kind, *place, self.op, self.flags, *lanes)
        return header + struct.pack(f">{len(self.lanes)}I", *self.lanes)

    def right_check(self, contributions: int) -> int:
        """The check word of lanes of one i32; this worker sends no others."""
        salt = 0
        first, third = self.job << 16 | len(self.lanes), self.slot << 8 | self.op
        for word in (first, self.epoch, third, self.round, self.fingerprint):
            salt = (salt + word) * 0x9E3779B1 % 2**32
        return (sum(self.lanes) + contributions * salt) % 2**32

    def checked(self) -> "Packet":
        """A contribution as it is sent."""
        return replace(self, flags=self.flags | CHECKED, check=self.right_check(1))


def parse(data: bytes) -> Packet | None:
    """None for what is malformed."""
    if len(data) < HEADER.size:
        return None
    version, kind, job, epoch, rank, slot, round, op, flags, lanes, fingerprint, check, aux = (
        HEADER.unpack_from(data)
    )
    wanted = HEADER.size + 4 * lanes
    # A PENDING or REJECT may have any bytes behind its lanes.
    fits = len(data) >= wanted if kind in (PENDING, REJECT) else len(data) == wanted
    if version != VERSION or not fits:
        return None
    values = struct.unpack_from(f">{lanes}I", data, HEADER.size)
    return Packet(kind, job, epoch, rank, slot, round, op, flags, fingerprint, check, aux, values)
