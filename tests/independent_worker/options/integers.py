"""Lanes of what needs no scale (section 21). Elements are bits, as unsigned numbers."""

from collections.abc import Sequence

from ..call import Element, signed

NAN_LANE = 0x7FFFFFFF


def extreme_lane(element: Element, bits: int, nan_above: int | None, is_min: bool) -> int:
    """`nan_above`: the bits of infinity; magnitudes above are NaN. None for integers."""
    width = 8 * element.size
    magnitude = bits & (1 << width - 1) - 1
    if nan_above is not None and magnitude > nan_above:
        return NAN_LANE
    lane = signed(bits, width)
    if nan_above is not None and lane < 0:
        lane ^= (1 << width - 1) - 1
    return (~lane if is_min else lane) % 2**32


def extreme_bits(element: Element, lane: int, nan: int | None, is_min: bool) -> int:
    """The way back; `nan` for the lane that says so, None for integers."""
    width = 8 * element.size
    if nan is not None and lane == NAN_LANE:
        return nan
    value = signed(lane, 32)
    value = ~value if is_min else value
    if nan is not None and value < 0:
        value ^= (1 << width - 1) - 1
    return value % (1 << width)


def long_lanes(bits: int) -> list[int]:
    """The lanes of an i64."""
    return [bits >> 44, bits >> 22 & 2**22 - 1, bits & 2**22 - 1]


def long_bits(lanes: Sequence[int]) -> int:
    a, b, c = lanes
    return ((a << 44) + (b << 22) + c) % 2**64
