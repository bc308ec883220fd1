"""Averages, f16 and bf16 (section 29). Elements are bits, as unsigned numbers."""

from dataclasses import dataclass
from math import copysign, ldexp

from ..call import Element
from ..floats import F32, Fixed, Format

FORMATS = {
    Element.F32: F32,
    Element.F16: Format(16, 10, 15, 0x7E00),
    Element.BF16: Format(16, 7, 127, 0x7FC0),
}


@dataclass(frozen=True)
class Average(Fixed):
    """As a sum, until its result is made."""

    @property
    def divisor(self) -> int:
        return self.ranks

    def of_one_lane(self, s: int, p: int) -> int:
        """Rule 29.3: by way of f64."""
        return of_float(self.format, s * (ldexp(1.0, -p) / self.ranks))


def of_float(format: Format, x: float) -> int:
    """The bits of the nearest number; what rounds to zero keeps its sign, as a zero does."""
    sign = 1 << format.width - 1 if copysign(1.0, x) < 0 else 0
    return sign | format.nearest(*x.as_integer_ratio())
