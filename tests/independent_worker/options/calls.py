"""Calls of all kinds as chunks."""

from ..call import Call, Element, Kind, Operation
from ..chunks import Chunks, Exchange, chunk, lanes_of_element
from ..floats import Codec, Fixed
from ..packet import MAX, SUM
from .audiences import ALL_BUT
from .integers import extreme_bits, extreme_lane, long_bits, long_lanes
from .other_floats import FORMATS, Average
from .packed import MOST_RANKS_OF_8_BITS, Packed8, Packed16


class AnyChunks(Chunks):
    def __init__(self, rank: int, ranks: int, full: int, has_audiences: bool):
        super().__init__(rank, ranks, full)
        self.has_audiences = has_audiences

    def run(
        self, number: int, call: Call, elements: list[int], exchange: Exchange
    ) -> list[int]:
        """Elements are bits, as unsigned numbers; of a broadcast and a barrier, lanes."""
        if call.kind is Kind.ALL_REDUCE and call.detail in (Operation.MAX, Operation.MIN):
            return self.extremes(call, elements, exchange)
        if call.kind is Kind.ALL_REDUCE and call.element is Element.I64:
            return self.long_integers(elements, exchange)
        if call.kind is Kind.ALL_REDUCE and call.element is not Element.I32:
            return super().run(number, call, elements, exchange)
        is_for_others = self.has_audiences and call.kind is Kind.BROADCAST
        op = ALL_BUT + call.detail if is_for_others else SUM
        results = exchange([chunk(op, part) for part in self.cut(elements, self.full)])
        return [lane for result in results for lane in result][: len(elements)]

    def long_integers(self, elements: list[int], exchange: Exchange) -> list[int]:
        parts = self.cut([long_lanes(bits) for bits in elements], self.full // 3)
        results = exchange([chunk(SUM, [lane for x in part for lane in x]) for part in parts])
        found: list[int] = []
        for part, result in zip(parts, results):
            found += map(long_bits, self.cut(list(result[: 3 * len(part)]), 3))
        return found

    def extremes(self, call: Call, elements: list[int], exchange: Exchange) -> list[int]:
        format, is_min = FORMATS.get(call.element), call.detail == Operation.MIN
        infinity, nan = (format.infinity, format.nan) if format else (None, None)
        lanes = [extreme_lane(call.element, bits, infinity, is_min) for bits in elements]
        results = exchange([chunk(MAX, part) for part in self.cut(lanes, self.full)])
        found = [lane for result in results for lane in result][: len(elements)]
        return [extreme_bits(call.element, lane, nan, is_min) for lane in found]

    def codec(self, number: int, call: Call) -> Codec:
        operation, format = Operation(call.detail), FORMATS[call.element]
        kind = Average if operation.name.startswith("AVG") else Fixed
        fixed = kind(format, self.ranks, lanes_of_element(call))
        if operation in (Operation.SUM, Operation.AVG):
            return fixed
        if operation in (Operation.SUM8, Operation.AVG8) and self.ranks <= MOST_RANKS_OF_8_BITS:
            return Packed8(fixed, self.rank, number)
        return Packed16(fixed)
