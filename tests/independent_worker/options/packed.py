"""Floats in 16 and in 8 bits, several to a lane (section 26).

Elements are bits, as unsigned numbers.
"""

from collections.abc import Iterable, Sequence
from ctypes import c_float
from dataclasses import dataclass, replace
from functools import cached_property
from math import frexp, isfinite, ldexp

from ..call import hash_of
from ..floats import Fixed, is_marker
from ..packet import BLOCK
from .other_floats import of_float

# Rule 26.9.
MOST_RANKS_OF_8_BITS = 32
# Elements that are mixed.
COLUMN = 128


@dataclass(frozen=True)
class Packed:
    """What both widths have in common. `fixed` knows the elements' type, and exponents of 18.1."""

    fixed: Fixed
    # Elements per lane.
    fields = 2
    wide = None

    @property
    def bits(self) -> int:
        return 32 // self.fields

    def elements_per_chunk(self, full: int) -> int:
        return self.fields * full

    def lanes_of(self, count: int) -> int:
        return -(-count // (self.fields * BLOCK)) * BLOCK

    def skipped(self, count: int, e: int) -> list[int]:
        return self.fixed.skipped(count, e)

    def pack(self, fields: Sequence[int]) -> list[int]:
        lanes = len(fields) // self.fields
        return [
            sum(field << j * self.bits for j, field in enumerate(fields[lane::lanes]))
            for lane in range(lanes)
        ]

    def unpack(self, lanes: Sequence[int]) -> list[int]:
        most = 2**self.bits - 1
        return [lane >> j * self.bits & most for j in range(self.fields) for lane in lanes]


@dataclass(frozen=True)
class Packed16(Packed):
    def at(self, first: int) -> "Packed16":
        return self

    @property
    def m(self) -> int:
        return (1 << 15 - self.fixed.growth) - 1

    def places(self, e: int) -> int:
        return 14 - e - self.fixed.growth

    def exponent(self, elements: Sequence[int]) -> int:
        return self.fixed.exponent(elements)

    def encode(self, elements: Sequence[int], e: int) -> list[int]:
        p, m = self.places(max(min(e, 200), -200)), self.m
        values = self.fixed.finite_values(elements)
        fields = [max(min(round(ldexp(x, p)), m), -m) + m for x in values]
        missing = self.fields * self.lanes_of(len(elements)) - len(elements)
        return self.pack(fields + [m] * missing)

    def decode(self, lanes: Sequence[int], count: int, e: int) -> list[int]:
        p, zero = self.places(e), self.fixed.ranks * self.m
        return [self.fixed.of_one_lane(field - zero, p) for field in self.unpack(lanes)[:count]]


def f32(x: float) -> float:
    return c_float(x).value


@dataclass(frozen=True)
class Packed8(Packed):
    rank: int
    # The call's number, and the index of the chunk's first element.
    number: int
    first: int = 0
    fields = 4

    def at(self, first: int) -> "Packed8":
        return replace(self, first=first)

    @cached_property
    def seeds(self) -> tuple[int, int]:
        """Of signs and of the dither."""
        return hash_of((self.number,)) % 2**32, hash_of((self.number, self.first)) % 2**32

    @property
    def steps(self) -> int:
        return 127 if self.fixed.ranks == 1 else 255 // self.fixed.ranks

    def part(self, rank: int) -> int:
        """What a rank's dither is ahead of that of rank 0."""
        return 256 * rank // self.fixed.ranks

    def random(self, j: int, lane: int) -> int:
        """8 bits for the dither of field j of a lane."""
        return word(self.seeds[1], lane) >> 8 * j & 0xFF

    def flip(self, elements: Sequence[float]) -> list[float]:
        """Changes the signs of some elements of a whole chunk."""
        lanes = len(elements) // self.fields
        signs = [word(self.seeds[0], lane) for lane in range(lanes)]
        return [
            -x if signs[i % lanes] >> 31 - i // lanes & 1 else x for i, x in enumerate(elements)
        ]

    def rotate(self, elements: Sequence[int], e: int) -> list[float]:
        a = shift(e)
        values = [f32(ldexp(x, -a)) for x in self.fixed.finite_values(elements)]
        missing = self.fields * self.lanes_of(len(elements)) - len(elements)
        return add_up(turn(add_up(self.flip(values + [0.0] * missing), 8), 1), 16)

    def exponent(self, elements: Sequence[int]) -> int:
        e = self.fixed.exponent(elements)
        if is_marker(e):
            return e
        # y is mantissa * 2^power, the mantissa at least a half and less than 1.
        mantissa, power = frexp(max(map(abs, self.rotate(elements, e))))
        return 16 * (shift(e) + power - 1) + int(32 * mantissa) - 16

    def encode(self, elements: Sequence[int], e: int) -> list[int]:
        octave, z = scale(max(min(e, 2400), -3200))
        rotated = self.rotate(elements, octave)
        lanes = len(rotated) // self.fields
        f = f32(ldexp(f32(128 * self.steps / z), shift(octave) - octave))
        return self.pack([self.field(i, f32(x * f), lanes) for i, x in enumerate(rotated)])

    def field(self, i: int, place: float, lanes: int) -> int:
        """Of a rotated element in units of 2^-8 of a step."""
        t = (self.random(i // lanes, i % lanes) + self.part(self.rank)) % 256
        middle = 128 * self.steps
        # Infinities and NaN do not count.
        q = round(max(min(place, middle), -middle)) if isfinite(place) else 0
        return (q + middle + t) // 256

    def decode(self, lanes: Sequence[int], count: int, e: int) -> list[int]:
        octave, z = scale(e)
        ranks, steps = self.fixed.ranks, self.steps
        taken = 128 * ranks * (steps - 1) + sum(map(self.part, range(ranks)))
        rotated = []
        for i, s in enumerate(self.unpack(lanes)):
            u = self.random(i // len(lanes), i % len(lanes))
            rotated.append(f32(256 * s - u * ranks % 256 - taken))
        divisor = steps * self.fixed.divisor * COLUMN * 128
        factor = f32(z / divisor)
        elements = self.flip(add_up(turn(add_up(rotated, 16), -1), 8))[:count]
        return [of_float(self.fixed.format, ldexp(f32(x * factor), octave)) for x in elements]


def scale(e: int) -> tuple[int, float]:
    """e and z of rule 26.7."""
    return e // 16, 1 + (e % 16 + 1) / 16


def shift(e: int) -> int:
    """a of rule 26.5."""
    return 64 if e > 60 else -100 if e < -60 else 0


def word(seed: int, lane: int) -> int:
    """w of rule 26.4."""
    x = (seed + lane) % 2**32
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return x ^ x >> 16


def add_up(elements: Iterable[float], rows: int) -> list[float]:
    """Steps 3 and 5 of rule 26.5."""
    x = list(elements)
    columns = len(x) // rows
    for d in (1, 2, 4, 8)[: rows.bit_length() - 1]:
        for row in range(rows):
            if row & d == 0:
                for i in range(row * columns, (row + 1) * columns):
                    a, b = x[i], x[i + d * columns]
                    x[i], x[i + d * columns] = f32(a + b), f32(a - b)
    return x


def turn(x: Sequence[float], direction: int) -> list[float]:
    """Step 4: to the left, or with direction -1 to the right."""
    columns = len(x) // 8
    return [
        x[r * columns + (i + direction * r * len(x) // COLUMN) % columns]
        for r in range(8)
        for i in range(columns)
    ]
