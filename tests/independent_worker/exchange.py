"""Chunks to their slots and rounds, packets out, RESULTs in; what gets lost is sent again.

Sections 9 and 12 to 14.
"""

import time
from dataclasses import dataclass, replace

from .chunks import Chunk
from .packet import (
    BLOCK,
    CHECKED,
    CONTRIBUTION,
    EVERYONE,
    PENDING,
    REJECT,
    RESULT,
    RETRANSMIT,
    TAGGED,
    Packet,
    parse,
)
from .path import Path

# The most outstanding packets (rule 12.2); each rank chooses.
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
    # The answers that it knows, and those that name the contribution's op and lanes.
    kinds: tuple[int, ...] = (RESULT, PENDING, REJECT)
    kinds_with_lanes: tuple[int, ...] = (RESULT,)

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
            for data in self.path.receive(self.timer_from + self.timer.timeout() - now):
                packet = self.read(data)
                for number, lanes in self.results_of(packet) if packet else ():
                    results[number - first] = lanes
            self.look_at_the_clock()
        return [results[index] for index in range(len(chunks))]

    def may_send(self) -> bool:
        """Chunk c waits for the result of chunk c - S: its slot."""
        oldest = min(self.outstanding, default=self.next)
        return len(self.outstanding) < WINDOW and self.next - oldest < self.path.session.slots

    def send(self, chunk: Chunk, fingerprint: int) -> None:
        packet = self.contribution(chunk, fingerprint)
        self.outstanding[self.next] = Outstanding(packet, time.monotonic())
        self.next += 1
        self.path.send(packet)

    def contribution(self, chunk: Chunk, fingerprint: int) -> Packet:
        """The packet of the next chunk."""
        s = self.path.session
        slot, round = self.next % s.slots, self.next // s.slots % 2**32
        packet = Packet(CONTRIBUTION, s.job, s.epoch, s.rank, slot, round, chunk.op)
        return replace(packet, fingerprint=fingerprint, lanes=chunk.lanes).checked()

    def read(self, data: bytes) -> Packet | None:
        """None for what is malformed."""
        return parse(data)

    def results_of(self, answer: Packet) -> list[tuple[int, tuple[int, ...]]]:
        """The chunks that it completes, and their lanes."""
        number = self.judge(answer)
        return [] if number is None else [(number, answer.lanes)]

    def judge(self, answer: Packet) -> int | None:
        """The chunk whose RESULT it is, if it is one that counts."""
        own = {entry.packet.slot: number for number, entry in self.outstanding.items()}
        number = own.get(answer.slot)
        if number is None or not self.counts(answer, self.outstanding[number].packet):
            return None
        entry = self.outstanding[number]
        if answer.kind == RESULT:
            return self.complete(number, entry)
        self.heed(answer, entry)
        return None

    def counts(self, answer: Packet, sent: Packet) -> bool:
        """Rule 13.1, but for what it says of ranks."""
        s, is_result = self.path.session, answer.kind == RESULT
        answers = answer.job, answer.epoch, answer.round, answer.fingerprint
        same = answers == (s.job, s.epoch, sent.round, sent.fingerprint)
        to_me = answer.rank == s.rank or (is_result and answer.rank == EVERYONE)
        names_lanes = answer.kind in self.kinds_with_lanes
        fits = not names_lanes or (answer.op, len(answer.lanes)) == (sent.op, len(sent.lanes))
        check = answer.right_check(s.ranks if is_result else 1)
        right = answer.flags & (CHECKED | TAGGED) == CHECKED and answer.check == check
        return answer.kind in self.kinds and same and to_me and fits and right

    def heed(self, answer: Packet, entry: Outstanding) -> None:
        """What is no RESULT."""
        if answer.kind == REJECT and len(answer.lanes) == 2:
            self.refuse(*answer.lanes)
        elif answer.kind == PENDING:
            self.wait_for_peers(answer.lanes)

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

    def wait_for_peers(self, lanes: tuple[int, ...]) -> None:
        """The network is fine: go on asking, calmly."""
        ranks, me = self.path.session.ranks, self.path.session.rank
        bitmap = sum(lane << 32 * (place ^ 1) for place, lane in enumerate(lanes))
        missing = [rank for rank in range(ranks) if not bitmap >> rank & 1]
        is_whole = len(lanes) == (2 if ranks <= 64 else 32)
        if is_whole and missing and me not in missing and bitmap >> ranks == 0:
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
        entry.packet = replace(entry.packet, flags=entry.packet.flags | RETRANSMIT)
        entry.sent_at, entry.resent = now, True
        self.resent += 1
        self.path.send(entry.packet)
