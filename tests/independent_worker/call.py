"""What is called, and its fingerprint (section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    ALL_REDUCE = 0
    BROADCAST = 1
    BARRIER = 2


class Operation(IntEnum):
    """Details of an all-reduce."""

    SUM = 0
    AVG = 1
    MAX = 2
    MIN = 3
    SUM16 = 4
    AVG16 = 5
    SUM8 = 6
    AVG8 = 7


class Element(IntEnum):
    F32 = 0
    F64 = 1
    F16 = 2
    BF16 = 3
    I32 = 4
    I64 = 5

    @property
    def size(self) -> int:
        return {Element.F64: 8, Element.I64: 8, Element.F16: 2, Element.BF16: 2}.get(self, 4)


@dataclass(frozen=True)
class Call:
    kind: Kind
    detail: int
    element: Element
    count: int

    def fingerprint(self, number: int) -> int:
        return hash_of((number, self.kind << 32 | self.detail, self.element, self.count)) % 2**32


def hash_of(words: Sequence[int]) -> int:
    h = 0
    for word in words:
        h = mix((h + 0x9E3779B97F4A7C15) % 2**64 ^ word)
    return h


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def signed(word: int, width: int = 32) -> int:
    return word - (1 << width) if word >> width - 1 else word
