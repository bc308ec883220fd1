"""A call as chunks: what is sent in which order, and what comes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .call import Call, Element, Kind, Operation, extreme_bits, extreme_lane, signed
from .floats import FORMATS, NOT_FINITE, ZEROS, Codec, Fixed, is_skipped
from .packed import MOST_RANKS_OF_8_BITS, Packed8, Packed16
from .packet import BLOCK, MAX, SUM

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


# Sends chunks in this order, and returns the lanes of their RESULTs.
Exchange = Callable[[list[Chunk]], list[tuple[int, ...]]]


@dataclass(frozen=True)
class Past:
    """A small call that was."""

    exponents: list[int]
    right: list[bool]

    def goes_ahead(self) -> list[bool]:
        sent = sum(not is_skipped(e) for e in self.exponents)
        steady = 2 * sum(self.right) >= sent
        return [steady and e != ZEROS for e in self.exponents]


class Chunks:
    """Calls of a session, one after the other."""

    def __init__(self, rank: int, ranks: int, full: int):
        self.rank, self.ranks = rank, ranks
        # Lanes of a full chunk.
        self.full = full
        self.past: dict[Call, Past] = {}

    def run(
        self, number: int, call: Call, elements: list[int], exchange: Exchange
    ) -> list[int]:
        """Elements are bits, as unsigned numbers; of a broadcast and a barrier, lanes."""
        if call.kind is Kind.ALL_REDUCE and call.detail in (Operation.MAX, Operation.MIN):
            return self.extremes(call, elements, exchange)
        if call.kind is Kind.ALL_REDUCE and call.element is not Element.I32:
            return self.floats(number, call, elements, exchange)
        results = exchange([chunk(SUM, part) for part in self.cut(elements, self.full)])
        return [lane for result in results for lane in result][: len(elements)]

    @staticmethod
    def cut(elements: list[int], size: int) -> list[list[int]]:
        return [elements[start : start + size] for start in range(0, len(elements), size)]

    def extremes(self, call: Call, elements: list[int], exchange: Exchange) -> list[int]:
        format, is_min = FORMATS.get(call.element), call.detail == Operation.MIN
        infinity, nan = (format.infinity, format.nan) if format else (None, None)
        lanes = [extreme_lane(call.element, bits, infinity, is_min) for bits in elements]
        results = exchange([chunk(MAX, part) for part in self.cut(lanes, self.full)])
        found = [lane for result in results for lane in result][: len(elements)]
        return [extreme_bits(call.element, lane, nan, is_min) for lane in found]

    def codec(self, number: int, call: Call) -> Codec:
        operation = Operation(call.detail)
        lanes = 3 if call.count <= MOST_ELEMENTS_OF_THREE_LANES else 1
        is_average = operation.name.startswith("AVG")
        fixed = Fixed(FORMATS[call.element], self.ranks, is_average, lanes)
        if operation in (Operation.SUM, Operation.AVG):
            return fixed
        if operation in (Operation.SUM8, Operation.AVG8) and self.ranks <= MOST_RANKS_OF_8_BITS:
            return Packed8(fixed, self.rank, number)
        return Packed16(fixed)

    def floats(
        self, number: int, call: Call, elements: list[int], exchange: Exchange
    ) -> list[int]:
        codec = self.codec(number, call)
        size = codec.elements_per_chunk(self.full)
        parts = self.cut(elements, size)
        codecs = [codec.at(first) for first in range(0, len(elements), size)]
        small = len(parts) <= MOST_CHUNKS_AHEAD and 3 * len(parts) <= self.full
        if small and parts:
            done, exponents = self.go_ahead(call, codecs, parts, exchange)
        else:
            done, exponents = {}, self.agree(codecs, parts, exchange)
        late = [i for i, e in enumerate(exponents) if i not in done and not is_skipped(e)]
        results = exchange([chunk(SUM, codecs[i].encode(parts[i], exponents[i])) for i in late])
        done.update(zip(late, results))
        found: list[int] = []
        for i, (codec, part, e) in enumerate(zip(codecs, parts, exponents)):
            if is_skipped(e):
                found += codec.skipped(len(part), e)
            else:
                found += codec.decode(done[i], len(part), e)
        return found

    def agree(
        self, codecs: list[Codec], parts: list[list[int]], exchange: Exchange
    ) -> list[int]:
        """The exponents over all ranks."""
        own = [codec.exponent(part) % 2**32 for codec, part in zip(codecs, parts)]
        results = exchange([chunk(MAX, group) for group in self.cut(own, self.full)])
        return [signed(lane) for result in results for lane in result][: len(own)]

    def go_ahead(
        self, call: Call, codecs: list[Codec], parts: list[list[int]], exchange: Exchange
    ) -> tuple[dict[int, tuple[int, ...]], list[int]]:
        """The RESULTs that count of what went ahead, and the exponents over all ranks."""
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
        words = [word % 2**32 for word in (*own, *known, *inverted)]
        first = codecs[0].lanes_of(len(parts[0]))
        exponents, *results = exchange([chunk(MAX, words, first if ahead else 0), *datas])
        n = len(parts)
        said = [signed(lane) for lane in exponents[: 3 * n]]
        overall, largest, smallest = said[:n], said[n : 2 * n], [~word for word in said[2 * n :]]
        right = [
            not is_skipped(e) and e == most == least
            for e, most, least in zip(overall, largest, smallest)
        ]
        self.remember(call, Past(overall, right))
        return {i: result for i, result in zip(ahead, results) if right[i]}, overall

    def remember(self, call: Call, past: Past) -> None:
        if call not in self.past and len(self.past) == MOST_CALLS_REMEMBERED:
            self.past.clear()
        self.past[call] = past


def predict(last: int, own: int) -> int:
    return own if last == NOT_FINITE else max(last, own)
