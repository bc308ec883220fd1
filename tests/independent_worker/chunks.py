"""A call as chunks: what is sent in which order, and what comes of it (sections 17 and 20)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from .call import Call, signed
from .floats import F32, NOT_FINITE, ZEROS, Codec, Fixed, is_marker
from .packet import BLOCK, MAX, SUM

T = TypeVar("T")

MOST_CHUNKS_AHEAD = 63
MOST_CALLS_REMEMBERED = 4096
MOST_ELEMENTS_OF_THREE_LANES = 1024


@dataclass(frozen=True)
class Chunk:
    op: int
    lanes: tuple[int, ...]


def chunk(op: int, content: Sequence[int], least: int = 0) -> Chunk:
    """With its padding."""
    lanes = max(-(-len(content) // BLOCK) * BLOCK, least, BLOCK)
    return Chunk(op, (*content, *([0] * (lanes - len(content)))))


# Data chunks and how they become lanes.
Group = list[tuple[Codec, list[int]]]
# A chunk's lanes, and a function that decodes the lanes of its RESULT.
Late = tuple[list[int], Callable[[tuple[int, ...]], list[int]]]
# A function that sends chunks in this order, and returns the lanes of their RESULTs.
Exchange = Callable[[list[Chunk]], list[tuple[int, ...]]]


@dataclass(frozen=True)
class Past:
    """A small call that was."""

    exponents: list[int]
    right: list[bool]

    def goes_ahead(self) -> list[bool]:
        sent = sum(not is_marker(e) for e in self.exponents)
        steady = 2 * sum(self.right) >= sent
        return [steady and e != ZEROS for e in self.exponents]


class Chunks:
    """Calls of a session, one after the other: sums of f32."""

    def __init__(self, rank: int, ranks: int, full: int):
        self.rank, self.ranks = rank, ranks
        # Lanes of a full chunk.
        self.full = full
        self.past: dict[Call, Past] = {}

    def run(
        self, number: int, call: Call, elements: list[int], exchange: Exchange
    ) -> list[int]:
        """Elements are bits, as unsigned numbers."""
        return self.floats(self.codec(number, call), call, elements, exchange)

    @staticmethod
    def cut(elements: list[T], size: int) -> list[list[T]]:
        return [elements[start : start + size] for start in range(0, len(elements), size)]

    def codec(self, number: int, call: Call) -> Codec:
        return Fixed(F32, self.ranks, lanes_of_element(call))

    def floats(
        self, codec: Codec, call: Call, elements: list[int], exchange: Exchange
    ) -> list[int]:
        size = codec.elements_per_chunk(self.full)
        parts = self.cut(elements, size)
        codecs = [codec.at(first) for first in range(0, len(elements), size)]
        words = 4 if codec.wide else 3
        small = len(parts) <= MOST_CHUNKS_AHEAD and words * len(parts) <= self.full
        if small and parts:
            done, exponents, wide = self.go_ahead(call, codecs, parts, exchange)
        else:
            done, (exponents, wide) = {}, self.agree(codecs, parts, exchange)
        pieces = [
            self.late(codec, part, e, is_wide) if i not in done else []
            for i, (codec, part, e, is_wide) in enumerate(zip(codecs, parts, exponents, wide))
        ]
        results = iter(exchange([chunk(SUM, lanes) for late in pieces for lanes, _ in late]))
        for i, late in enumerate(pieces):
            if late:
                done[i] = [bits for _, decode in late for bits in decode(next(results))]
        found: list[int] = []
        for i, (codec, part, e) in enumerate(zip(codecs, parts, exponents)):
            found += done[i] if i in done else codec.skipped(len(part), e)
        return found

    def late(self, codec: Codec, part: list[int], e: int, is_wide: bool) -> list[Late]:
        """What is sent of a data chunk when E is known."""
        if codec.wide and is_wide:
            return [
                (codec.wide.encode(few), partial(codec.wide.decode, count=len(few)))
                for few in self.cut(part, codec.wide.elements_per_chunk(self.full))
            ]
        if is_marker(e):
            return []
        return [(codec.encode(part, e), partial(codec.decode, count=len(part), e=e))]

    def agree(
        self, codecs: list[Codec], parts: list[list[int]], exchange: Exchange
    ) -> tuple[list[int], list[bool]]:
        """The exponents over all ranks, and which data chunks are wide."""
        each = list(zip(codecs, parts))
        groups = self.cut(each, self.full // 2 if codecs and codecs[0].wide else self.full)
        chunks = [chunk(MAX, [word % 2**32 for word in exponent_words(group)]) for group in groups]
        exponents: list[int] = []
        wide: list[bool] = []
        for group, result in zip(groups, exchange(chunks)):
            said = [signed(lane) for lane in result]
            exponents += said[: len(group)]
            wide += widths(group, said[: len(group)], said[len(group) :])
        return exponents, wide

    def go_ahead(
        self, call: Call, codecs: list[Codec], parts: list[list[int]], exchange: Exchange
    ) -> tuple[dict[int, list[int]], list[int], list[bool]]:
        """The results that count of what went ahead, the exponents over all ranks, and which data
        chunks are wide."""
        own = [codec.exponent(part) for codec, part in zip(codecs, parts)]
        past = self.past.get(call)
        predicted, go_ahead = own, [True] * len(own)
        if past:
            predicted = [predict(last, mine) for last, mine in zip(past.exponents, own)]
            go_ahead = past.goes_ahead()
        ahead = [i for i, goes in enumerate(go_ahead) if goes]
        datas = [chunk(SUM, codecs[i].encode(parts[i], predicted[i])) for i in ahead]
        known = [ZEROS if e == ZEROS else p for e, p in zip(own, predicted)]
        inverted = [ZEROS if e == ZEROS else ~p for e, p in zip(own, predicted)]
        group = list(zip(codecs, parts))
        words = [word % 2**32 for word in (*own, *known, *inverted, *least_words(group))]
        first = codecs[0].lanes_of(len(parts[0]))
        exponents, *results = exchange([chunk(MAX, words, first if ahead else 0), *datas])
        n = len(parts)
        said = [signed(lane) for lane in exponents]
        overall, largest, smallest = said[:n], said[n : 2 * n], [~e for e in said[2 * n : 3 * n]]
        wide = widths(group, overall, said[3 * n :])
        right = [
            not is_marker(e) and not is_wide and e == most == least
            for e, is_wide, most, least in zip(overall, wide, largest, smallest)
        ]
        self.remember(call, Past(overall, right))
        done = {
            i: codecs[i].decode(result, len(parts[i]), overall[i])
            for i, result in zip(ahead, results)
            if right[i]
        }
        return done, overall, wide

    def remember(self, call: Call, past: Past) -> None:
        if call not in self.past and len(self.past) == MOST_CALLS_REMEMBERED:
            self.past.clear()
        self.past[call] = past


def lanes_of_element(call: Call) -> int:
    return 3 if call.count <= MOST_ELEMENTS_OF_THREE_LANES else 1


def predict(last: int, own: int) -> int:
    return own if last == NOT_FINITE else max(last, own)


def exponent_words(group: Group) -> list[int]:
    return [*(codec.exponent(part) for codec, part in group), *least_words(group)]


def least_words(group: Group) -> list[int]:
    """The inverted bits of the exponents of the smallest magnitudes, where they are told."""
    least = [codec.wide.least(part) for codec, part in group if codec.wide]
    return [e if e == ZEROS else ~e for e in least]


def widths(group: Group, exponents: list[int], inverted: list[int]) -> list[bool]:
    """Which data chunks go in the wide form."""
    if not group[0][0].wide:
        return [False] * len(group)
    return [
        codec.wide is not None and codec.wide.is_needed(e, ~least)
        for (codec, _), e, least in zip(group, exponents, inverted)
    ]
