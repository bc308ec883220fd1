"""EMPTY contributions (section 30)."""

import time

from ..chunks import Chunk
from ..exchange import Exchanger, Outstanding
from ..packet import HEADER, MAX, PENDING, REJECT, RESULT, VERSION, Packet, parse

EMPTY = 8
ROOM = 7
EMPTY_CONTRIBUTIONS = 1 << 1


class EmptyContribution(Packet):
    def to_bytes(self) -> bytes:
        return super().to_bytes()[: HEADER.size]

    def in_full(self) -> Packet:
        return Packet(**{**vars(self), "flags": self.flags & ~EMPTY})


def parse_room(data: bytes) -> Packet | None:
    """A ROOM has no lanes, and stands for zeros."""
    version, kind, job, epoch, rank, slot, round, op, flags, lanes, fingerprint, check, aux = (
        HEADER.unpack_from(data)
    )
    if (version, kind, len(data)) != (VERSION, ROOM, HEADER.size):
        return None
    zeros = (0,) * lanes
    return Packet(kind, job, epoch, rank, slot, round, op, flags, fingerprint, check, aux, zeros)


class EmptyExchanger(Exchanger):
    kinds = (RESULT, PENDING, REJECT, ROOM)
    kinds_with_lanes = (RESULT, ROOM)

    def contribution(self, chunk: Chunk, fingerprint: int) -> Packet:
        packet = super().contribution(chunk, fingerprint)
        if chunk.op == MAX or any(chunk.lanes):
            return packet
        return EmptyContribution(**{**vars(packet), "flags": packet.flags | EMPTY})

    def read(self, data: bytes) -> Packet | None:
        room = parse_room(data) if len(data) == HEADER.size else None
        return room or parse(data)

    def heed(self, answer: Packet, entry: Outstanding) -> None:
        if answer.kind != ROOM:
            return super().heed(answer, entry)
        if isinstance(entry.packet, EmptyContribution):
            self.resend(entry, time.monotonic())

    def resend(self, entry: Outstanding, now: float) -> None:
        if isinstance(entry.packet, EmptyContribution):
            entry.packet = entry.packet.in_full()
        super().resend(entry, now)
