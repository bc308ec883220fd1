"""A call as workers make it: sections 15 and 17 to 21 of docs/spec."""

from fractions import Fraction
from math import frexp, inf, isinf, isnan, nan
from struct import pack, unpack

from .fingerprint import hash_of
from .numbers import MAX
from .vector import Job, Vector, back, nobody, sums, to_all

# f32 in chunks of 32 elements: a chunk whose largest magnitude is one rank's, 31 of zeros, and one
# on which both ranks agree. 2^5 <= 62, 2^0 <= 1.96875.
TENSORS = [
    [[i / 2 for i in range(32)], *[[0.0] * 32] * 31, [1 + i / 32 for i in range(32)]],
    [[-2.0 * i for i in range(32)], *[[-0.0] * 32] * 31, [-1.5] * 32],
]
# The same in a small call, in chunks of 10 elements. 2^24 <= 16777216.
SMALL_TENSORS = [
    [
        [0.001, 5e6, 1.0, 3.14159, 12345678.0, 0.0, -0.001, 1e-6, -7.0, 16777216.0],
        [0.0] * 10,
        [1 + i / 32 for i in range(10)],
    ],
    [[0.001, -5e6, 2.0, -3.14159, 1.0, -0.0, -0.002, -1e-6, 0.5, 1e-6], [-0.0] * 10, [-1.5] * 10],
]
# The first chunk has what three lanes are too few for, the second what is not finite.
WIDE_TENSORS = [
    [[3e38, -3e38, 1.0, 0.0, 2.0**-149, -0.5, 0.0, 1e10, -1e-10, 5.0], [1.0, inf, -inf, inf, nan]],
    [[3e38, -3e38, 1.0, 1e-45, 0.0, 0.25, -0.0, -1e10, 1e-10, 6.0], [2.0, 3.0, 1.0, -inf, inf]],
]
ZEROS, NOT_FINITE = -(2**31), 2**31 - 1


def vectors():
    check_example()
    return [float_sum(), small_float_sum(), wide_float_sum()]


def exponent(elements):
    largest = max((abs(f32(x)) for x in elements), default=0)
    if any(isinf(x) or isnan(x) for x in elements):
        return NOT_FINITE
    return frexp(largest)[1] - 1 if largest else ZEROS


def least_exponent(elements):
    return exponent([min((x for x in map(abs, elements) if x > 0), default=0)])


def is_too_wide(e, least, ranks):
    """Whether three lanes may be too few for elements with these exponents."""
    growth = (ranks - 1).bit_length()
    return e == NOT_FINITE or max(least, -126) - 23 < e + 3 * growth - 94


def fixed(elements, e, ranks):
    growth = (ranks - 1).bit_length()
    return [round(x * 2.0 ** (30 - e - growth)) % 2**32 for x in elements]


def f32(x):
    return unpack(">f", pack(">f", x))[0]


def fixed_in_three(elements, e, ranks):
    growth = (ranks - 1).bit_length()
    base = 2 ** (32 - growth)
    lanes = []
    for x in elements:
        v = round(Fraction(f32(x)) * Fraction(2) ** (94 - e - 3 * growth))
        lanes += [v // base // base % 2**32, v // base % base, v % base]
    return lanes + [0] * (-len(lanes) % 32)


def fixed_wide(elements, ranks):
    """Multiples of 2^-149 in digits, behind a lane of infinities."""
    bits = 32 - (ranks - 1).bit_length()
    digits = -(-278 // bits)
    lanes = []
    for x in elements:
        infinities = (isnan(x) or x == inf) * 2**16 + (isnan(x) or x == -inf)
        v = 0 if infinities else int(Fraction(f32(x)) * 2**149)
        first, *rest = (v // 2 ** (bits * place) for place in reversed(range(digits)))
        lanes += [infinities, first % 2**32, *(digit % 2**bits for digit in rest)]
    return lanes + [0] * (-len(lanes) % 32)


def digest(lanes):
    return hash_of(high << 32 | low for high, low in zip(lanes[::2], lanes[1::2]))


def witness(own, maximum):
    h = digest(maximum)
    is_own = bytes(mine == most for mine, most in zip(own, maximum))
    lanes = [
        h >> 32,
        h % 2**32,
        *(int.from_bytes(is_own[i : i + 4], "big") for i in range(0, len(is_own), 4)),
    ]
    return lanes + [0] * (-len(lanes) % 32)


def unchecked(result, contributions):
    """A maximum by a data plane that sums no lanes: its check word adds up theirs."""
    return result.changed(
        flags=0, check=sum(packet.check_word() for packet in contributions) % 2**32
    )


def exponent_chunk(v, job, slot, own, maximum):
    packets = [job.contribution(rank, slot, 0, own[rank], op=MAX) for rank in range(2)]
    v.step("rank 0's exponents", job, packets[0], nobody("started"))
    result = packets[1].result_for_all(maximum, 2)
    v.step(
        "rank 1's exponents",
        job,
        packets[1],
        to_all(job, result),
        to_all(job, unchecked(result, packets)),
    )
    again = packets[0].result(maximum, 2)
    v.step(
        "rank 0 asks again",
        job,
        packets[0],
        back("replayed", again),
        back("replayed", unchecked(again, packets)),
    )


def sum_chunk(v, job, slot, what, lanes):
    packets = [job.contribution(rank, slot, 0, lanes[rank]) for rank in range(2)]
    v.step(f"rank 0's {what}", job, packets[0], nobody("started"))
    v.step(
        f"rank 1's {what}", job, packets[1], to_all(job, packets[1].result_for_all(sums(*lanes), 2))
    )


def inverted(e):
    return e if e == ZEROS else ~e


def call(name, about, tensors, lanes_of, is_small=False):
    """A sum of two ranks that is the session's first, in chunks of 32 lanes.

    These are exponents, their witnesses, and the data chunks that are not all zero; of those that
    three lanes are too few for, the chunks of the wide form.
    """
    v = Vector(name, about, "fifo")
    job = v.open(Job(ranks=2))
    exponents = [[exponent(chunk) for chunk in tensor] for tensor in tensors]
    most = [max(pair) for pair in zip(*exponents)]
    least = [[inverted(least_exponent(chunk)) for chunk in tensor] for tensor in tensors]
    smallest = [~max(pair) for pair in zip(*least)]
    if is_small:
        # One chunk of exponents has all of them.
        exponents = [own + more for own, more in zip(exponents, least)]
    maximum = [max(pair) for pair in zip(*exponents)]
    words = [[e % 2**32 for e in own] + [0] * (-len(own) % 32) for own in [*exponents, maximum]]
    maxima = [[own[i : i + 32] for own in words] for i in range(0, len(words[0]), 32)]
    for slot, (*own, maximum) in enumerate(maxima):
        exponent_chunk(v, job, slot, own, maximum)
    for slot, (*own, maximum) in enumerate(maxima, len(maxima)):
        sum_chunk(v, job, slot, "witness", [witness(mine, maximum) for mine in own])
    sent = []
    for chunk, e in enumerate(most):
        data = [tensor[chunk] for tensor in tensors]
        if is_small and e != ZEROS and is_too_wide(e, smallest[chunk], 2):
            # Ten lanes an element.
            for first in range(0, len(data[0]), 3):
                lanes = [fixed_wide(elements[first : first + 3], 2) for elements in data]
                sent.append((f"elements from {first} on of data chunk {chunk}", lanes))
        elif e != ZEROS:
            sent.append((f"data chunk {chunk}", [lanes_of(elements, e, 2) for elements in data]))
    for slot, (what, lanes) in enumerate(sent, 2 * len(maxima)):
        sum_chunk(v, job, slot, what, lanes)
    return v


def float_sum():
    about = (
        "A sum of 1056 f32 as two ranks make it: two chunks of exponents, their witnesses, and the "
        "data chunks that are not all zero."
    )
    return call("float_sum", about, TENSORS, fixed)


def small_float_sum():
    about = (
        "A sum of 30 f32 as two ranks make it, in three lanes each: a chunk of exponents, its "
        "witness, and the data chunks that are not all zero."
    )
    return call("small_float_sum", about, SMALL_TENSORS, fixed_in_three, is_small=True)


def wide_float_sum():
    about = (
        "A sum of 15 f32 as two ranks make it, for which three lanes are too few: a chunk of "
        "exponents, its witness, and the elements in ten lanes each."
    )
    return call("wide_float_sum", about, WIDE_TENSORS, fixed_in_three, is_small=True)


def check_example():
    """The example of docs/spec."""
    assert digest(range(1, 33)) == 0x30C209B810E0DA8A
    own = list(range(1, 32)) + [0]
    assert witness(own, list(range(1, 33)))[:3] + witness(own, list(range(1, 33)))[8:11] == [
        0x30C209B8,
        0x10E0DA8A,
        0x01010101,
        0x01010101,
        0x01010100,
        0,
    ]
    assert pack(">f", -0.000001) == bytes.fromhex("B58637BD")
    assert fixed_in_three([-0.000001], 23, 2)[:4] == [0xFFFFFFFF, 0x7FFDE721, 0x06000000, 0]
