"""What tells one call from another: section 4 of docs/spec."""

ALL_REDUCE, BROADCAST, BARRIER = 0, 1, 2
# Details of an all-reduce.
SUM, AVERAGE, MAX, MIN, SUM_16, AVERAGE_16 = range(6)
F32, F64, F16, BF16, I32, I64 = range(6)


def mix(word):
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def hash_of(words):
    h = 0
    for word in words:
        h = mix((h + 0x9E3779B97F4A7C15) % 2**64 ^ word)
    return h


def fingerprint(number, kind, detail, element, count):
    return hash_of([number, kind << 32 | detail, element, count]) % 2**32


def check_example():
    """The examples of docs/spec."""
    assert hash_of([0, 0, 0, 1000]) == 0x7A284BC0513B1A32
    assert fingerprint(0, ALL_REDUCE, SUM, F32, 1000) == 0x513B1A32
    assert fingerprint(1, BARRIER, 0, I32, 1) == 0xEA50409A
    assert fingerprint(7, BROADCAST, 2, F16, 77) == 0xD60C7E2D
