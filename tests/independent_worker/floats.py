"""Floats as integers, and back (sections 18 and 19). Elements are bits, as unsigned numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ldexp
from typing import Protocol

from .call import signed
from .packet import BLOCK

ZEROS, NOT_FINITE = -(2**31), 2**31 - 1


def is_marker(e: int) -> bool:
    return e in (ZEROS, NOT_FINITE)


class Codec(Protocol):
    """How the elements of a call become lanes."""

    def elements_per_chunk(self, full: int) -> int:
        """Of a data chunk of so many lanes."""

    def lanes_of(self, count: int) -> int:
        """Those of a data chunk of so many elements, with its padding."""

    def at(self, first: int) -> "Codec":
        """For the chunk whose first element has this place in the call."""

    def exponent(self, elements: Sequence[int]) -> int: ...

    def encode(self, elements: Sequence[int], e: int) -> list[int]:
        """With the true E or a predicted one. What is sent with a wrong one does not count."""

    def decode(self, lanes: Sequence[int], count: int, e: int) -> list[int]: ...

    def skipped(self, count: int, e: int) -> list[int]: ...

    @property
    def wide(self) -> "Wide | None":
        """How elements travel that its lanes are too few for, if they ever do."""


@dataclass(frozen=True)
class Format:
    """1 sign bit, then the exponent, then the mantissa."""

    width: int
    mantissa: int
    bias: int
    nan: int

    @property
    def infinity(self) -> int:
        return 2 * self.bias + 1 << self.mantissa

    @property
    def least(self) -> int:
        """The exponent of the smallest subnormal number."""
        return 1 - self.bias - self.mantissa

    def magnitude(self, bits: int) -> int:
        return bits & (1 << self.width - 1) - 1

    def value(self, bits: int) -> float:
        """Exactly; f64 holds all numbers of these formats."""
        field, mantissa = self.magnitude(bits) >> self.mantissa, bits & 2**self.mantissa - 1
        if field == 0:
            number = ldexp(mantissa, self.least)
        else:
            number = ldexp(2**self.mantissa + mantissa, self.least + field - 1)
        return -number if bits >> self.width - 1 else number

    def nearest(self, over: int, under: int) -> int:
        """The bits of over / under, rounded once, ties to even; +0.0 for 0."""
        sign, over = (1 << self.width - 1 if over < 0 else 0), abs(over)
        if over == 0:
            return 0
        e = over.bit_length() - under.bit_length()
        if over << max(-e, 0) < under << max(e, 0):
            e -= 1
        unit = max(e - self.mantissa, self.least)
        units, rest = divmod(over << max(-unit, 0), under << max(unit, 0))
        rest = 2 * rest - (under << max(unit, 0))
        units += rest > 0 or (rest == 0 and units & 1)
        # A carry out of the mantissa correctly increments the exponent.
        return sign | min(units + (unit - self.least << self.mantissa), self.infinity)


F32 = Format(32, 23, 127, 0x7FC00000)


@dataclass(frozen=True)
class Fixed:
    """How the ranks of a job scale the elements of a call."""

    format: Format
    ranks: int
    # Lanes per element: 1 or 3.
    lanes: int

    @property
    def divisor(self) -> int:
        """Of the sum: 1, but for averages."""
        return 1

    @property
    def growth(self) -> int:
        return (self.ranks - 1).bit_length()

    def elements_per_chunk(self, full: int) -> int:
        return full // self.lanes

    def lanes_of(self, count: int) -> int:
        return -(-count * self.lanes // BLOCK) * BLOCK

    def at(self, first: int) -> "Fixed":
        return self

    def finite_values(self, elements: Sequence[int]) -> list[float]:
        """0 for what is not finite: its chunk does not count."""
        format = self.format
        return [
            format.value(bits) if format.magnitude(bits) < format.infinity else 0.0
            for bits in elements
        ]

    def places(self, e: int) -> int:
        return 30 - e - self.growth if self.lanes == 1 else 94 - e - 3 * self.growth

    def exponent(self, elements: Sequence[int]) -> int:
        largest = max(map(self.format.magnitude, elements))
        if largest == 0:
            return ZEROS
        if largest >= self.format.infinity:
            return NOT_FINITE
        field = largest >> self.format.mantissa
        return field - self.format.bias if field else largest.bit_length() - 1 + self.format.least

    @property
    def wide(self) -> "Wide | None":
        return Wide(self) if self.lanes == 3 else None

    def encode(self, elements: Sequence[int], e: int) -> list[int]:
        p, digit = self.places(max(min(e, 200), -200)), 32 - self.growth
        limit = 2 ** (31 - self.growth if self.lanes == 1 else 95 - 3 * self.growth) - 1
        lanes = []
        for x in self.finite_values(elements):
            v = max(min(round(ldexp(x, p)), limit), -limit)
            if self.lanes == 1:
                lanes.append(v % 2**32)
            else:
                lanes += [(v >> 2 * digit) % 2**32, v >> digit & 2**digit - 1, v & 2**digit - 1]
        return lanes

    def decode(self, lanes: Sequence[int], count: int, e: int) -> list[int]:
        p = self.places(e)
        if self.lanes == 1:
            return [self.of_one_lane(signed(lane), p) for lane in lanes[:count]]
        digit = 32 - self.growth
        triples = zip(lanes[: 3 * count : 3], lanes[1 : 3 * count : 3], lanes[2 : 3 * count : 3])
        sums = ((signed(a) << digit) + b << digit for a, b, c in triples)
        return [self.scaled(s + c, p) for s, c in zip(sums, lanes[2 : 3 * count : 3])]

    def of_one_lane(self, s: int, p: int) -> int:
        return self.scaled(s, p)

    def scaled(self, s: int, p: int) -> int:
        """s * 2^-p / divisor."""
        return self.format.nearest(s << max(-p, 0), self.divisor << max(p, 0))

    def skipped(self, count: int, e: int) -> list[int]:
        return [self.format.nan if e == NOT_FINITE else 0] * count


@dataclass(frozen=True)
class Wide:
    """Whole multiples of the format's smallest number, in as many digits as they take."""

    three: Fixed

    @property
    def digit(self) -> int:
        return 32 - self.three.growth

    @property
    def lanes(self) -> int:
        format = self.three.format
        return 1 + -(-(2 * format.bias + format.mantissa + 1) // self.digit)

    def least(self, elements: Sequence[int]) -> int:
        """The exponent of the smallest magnitude above zero."""
        magnitudes = map(self.three.format.magnitude, elements)
        return self.three.exponent([min(filter(None, magnitudes), default=0)])

    def is_needed(self, e: int, least: int) -> bool:
        if is_marker(e):
            return e == NOT_FINITE
        format = self.three.format
        return max(least, 1 - format.bias) - format.mantissa < -self.three.places(e)

    def elements_per_chunk(self, full: int) -> int:
        return full // self.lanes

    def encode(self, elements: Sequence[int]) -> list[int]:
        return [lane for bits in elements for lane in self.lanes_of(bits)]

    def lanes_of(self, bits: int) -> list[int]:
        format = self.three.format
        magnitude = format.magnitude(bits)
        if magnitude >= format.infinity:
            is_nan = magnitude > format.infinity
            infinities = (is_nan or magnitude == bits) << 16 | (is_nan or magnitude != bits)
            return [infinities] + [0] * (self.lanes - 1)
        v = int(ldexp(format.value(bits), -format.least))
        first, *rest = (v >> self.digit * place for place in reversed(range(self.lanes - 1)))
        return [0, first % 2**32, *(digit % 2**self.digit for digit in rest)]

    def decode(self, lanes: Sequence[int], count: int) -> list[int]:
        starts = range(0, count * self.lanes, self.lanes)
        return [self.decoded(*lanes[start : start + self.lanes]) for start in starts]

    def decoded(self, infinities: int, first: int, *rest: int) -> int:
        format, (positive, negative) = self.three.format, divmod(infinities, 2**16)
        if positive and negative:
            return format.nan
        if positive or negative:
            return format.infinity | (negative > 0) << format.width - 1
        s = signed(first)
        for digit in rest:
            s = (s << self.digit) + digit
        return format.nearest(s, self.three.divisor << -format.least)
