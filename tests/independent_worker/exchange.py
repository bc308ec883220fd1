"""Chunks to their slots and rounds, packets out, RESULTs in; what gets lost is sent again."""

import time
from dataclasses import dataclass, replace

from .chunks import Chunk
from .packet import (
    BLOCK,
    CHECKED,
    CONTRIBUTION,
    EMPTY,
    EVERYONE,
    PENDING,
    REJECT,
    RESULT,
    RETRANSMIT,
    ROOM,
    SUM,
    Packet,
)
from .path import Path

# The most outstanding packets; docs/protocol.md lets each rank choose.
WINDOW = 32
FLOOR, CEILING = 0.002, 0.1
MISMATCH = 1
REASONS = {2: "ROUND", 3: "ABORTED"}


class ExchangeError(Exception):
    """The session is over."""


class Mismatch(ExchangeError):
    """Ranks made different calls."""

    def __init__(self, named: list[int]):
        super().__init__(f"refused: MISMATCH of ranks {named}")
        self.named = named


class Timer:
    """RFC 6298, with a floor of milliseconds, for this is Python."""

    def __init__(self) -> None:
        self.smoothed: float | None = None
        self.variation = 0.0
        self.expiries = 0

    def sample(self, rtt: float) -> None:
        if self.smoothed is None:
            self.smoothed, self.variation = rtt, rtt / 2
            return
        self.variation += (abs(self.smoothed - rtt) - self.variation) / 4
        self.smoothed += (rtt - self.smoothed) / 8

    def timeout(self) -> float:
        base = 0.01 if self.smoothed is None else max(self.smoothed + 4 * self.variation, FLOOR)
        return min(base * (1 << min(self.expiries, 10)), CEILING)


@dataclass
class Outstanding:
    packet: Packet
    sent_at: float
    resent: bool = False


class Exchanger:
    def __init__(self, path: Path, deadline: float = 60.0):
        self.path = path
        self.deadline = deadline
        self.timer = Timer()
        # Number of the next chunk.
        self.next = 0
        self.outstanding: dict[int, Outstanding] = {}
        self.missing: list[int] = []
        self.resent = 0
        # The times of the last result, and of the last result, PENDING or timeout.
        self.progress = self.timer_from = time.monotonic()

    def exchange(self, chunks: list[Chunk], fingerprint: int) -> list[tuple[int, ...]]:
        """Sends chunks with the next numbers; the lanes of their RESULTs, when all are here."""
        first, results = self.next, dict[int, tuple[int, ...]]()
        self.progress = self.timer_from = time.monotonic()
        while len(results) < len(chunks):
            while self.next - first < len(chunks) and self.may_send():
                self.send(chunks[self.next - first], fingerprint)
            now = time.monotonic()
            for packet in self.path.receive(self.timer_from + self.timer.timeout() - now):
                number = self.judge(packet)
                if number is not None:
                    results[number - first] = packet.lanes
            self.look_at_the_clock()
        return [results[index] for index in range(len(chunks))]

    def may_send(self) -> bool:
        """Chunk c waits for the result of chunk c - S: its slot."""
        oldest = min(self.outstanding, default=self.next)
        return len(self.outstanding) < WINDOW and self.next - oldest < self.path.session.slots

    def send(self, chunk: Chunk, fingerprint: int) -> None:
        s = self.path.session
        slot, round = self.next % s.slots, self.next // s.slots % 2**32
        packet = Packet(CONTRIBUTION, s.job, s.epoch, s.rank, slot, round, chunk.op)
        packet = replace(packet, fingerprint=fingerprint, lanes=chunk.lanes).checked()
        if s.takes_empty and chunk.op == SUM and not any(chunk.lanes):
            packet = replace(packet, flags=packet.flags | EMPTY)
        self.outstanding[self.next] = Outstanding(packet, time.monotonic())
        self.next += 1
        self.path.send(packet)

    def judge(self, answer: Packet) -> int | None:
        """The chunk whose RESULT it is, if it is one that counts."""
        s = self.path.session
        own = {entry.packet.slot: number for number, entry in self.outstanding.items()}
        number = own.get(answer.slot)
        if number is None or answer.kind not in (RESULT, PENDING, REJECT, ROOM):
            return None
        entry = self.outstanding[number]
        sent, is_result = entry.packet, answer.kind == RESULT
        answers = answer.job, answer.epoch, answer.round, answer.fingerprint
        same = answers == (s.job, s.epoch, sent.round, sent.fingerprint)
        to_me = answer.rank == s.rank or (is_result and answer.rank == EVERYONE)
        names_lanes = answer.kind in (RESULT, ROOM)
        fits = not names_lanes or (answer.op, len(answer.lanes)) == (sent.op, len(sent.lanes))
        check = answer.right_check(s.ranks if is_result else 1)
        right = answer.flags & CHECKED and answer.check == check
        if not (same and to_me and fits and right):
            return None
        if answer.kind == REJECT:
            self.refuse(*answer.lanes[:2])
        elif answer.kind == PENDING:
            self.wait_for_peers(answer.lanes[0] << 32 | answer.lanes[1])
        elif answer.kind == ROOM:
            if sent.flags & EMPTY:
                self.resend(entry, time.monotonic())
        else:
            return self.complete(number, entry)
        return None

    def complete(self, number: int, entry: Outstanding) -> int:
        now = time.monotonic()
        if not entry.resent:
            self.timer.sample(now - entry.sent_at)
        del self.outstanding[number]
        self.progress = self.timer_from = now
        self.timer.expiries = 0
        return number

    def refuse(self, reason: int, detail: int) -> None:
        named = [detail >> 16, detail & 0xFFFF]
        if reason != MISMATCH:
            raise ExchangeError(f"refused: {REASONS.get(reason, reason)}, detail {detail:#x}")
        if max(named) < self.path.session.ranks:
            raise Mismatch(named)

    def wait_for_peers(self, bitmap: int) -> None:
        """The network is fine: go on asking, calmly."""
        missing = [rank for rank in range(self.path.session.ranks) if not bitmap >> rank & 1]
        me = self.path.session.rank
        if missing and me not in missing and bitmap >> self.path.session.ranks == 0:
            self.missing = missing
            self.timer_from = time.monotonic()

    def look_at_the_clock(self) -> None:
        now = time.monotonic()
        if not self.outstanding:
            return
        if now - self.progress > self.deadline:
            late = "the aggregator does not answer"
            if self.missing:
                late = f"ranks {self.missing} are missing"
            oldest = self.outstanding[min(self.outstanding)].packet
            where = f"slot {oldest.slot}, round {oldest.round}, {len(oldest.lanes) // BLOCK} blocks"
            raise ExchangeError(f"no result for {self.deadline} s ({where}): {late}")
        if now < self.timer_from + self.timer.timeout():
            return
        timeout = self.timer.timeout()
        self.timer.expiries += 1
        self.timer_from = now
        for entry in self.outstanding.values():
            if now - entry.sent_at >= timeout:
                self.resend(entry, now)

    def resend(self, entry: Outstanding, now: float) -> None:
        entry.packet = replace(entry.packet, flags=entry.packet.flags & ~EMPTY | RETRANSMIT)
        entry.sent_at, entry.resent = now, True
        self.resent += 1
        self.path.send(entry.packet)
