"""A call as workers make it ("Numbers" and "Maxima without a check word" of docs/protocol.md)."""

from math import frexp

from .fingerprint import hash_of
from .packet import MAX
from .vector import Job, Vector, back, nobody, sums, to_all

ZEROS = -(2**31)
# f32 in chunks of 32 elements: a chunk whose largest magnitude is one rank's, one of zeros, and one on which both ranks agree. 2^5 <= 62, 2^0 <= 1.96875.
TENSORS = [
    [[i / 2 for i in range(32)], [0.0] * 32, [1 + i / 32 for i in range(32)]],
    [[-2.0 * i for i in range(32)], [-0.0] * 32, [-1.5] * 32],
]


def vectors():
    check_example()
    return [float_sum()]


def exponent(elements):
    largest = max(map(abs, elements))
    return frexp(largest)[1] - 1 if largest else ZEROS


def fixed(elements, e, ranks):
    growth = (ranks - 1).bit_length()
    return [round(x * 2.0 ** (30 - e - growth)) % 2**32 for x in elements]


def digest(lanes):
    return hash_of(high << 32 | low for high, low in zip(lanes[::2], lanes[1::2]))


def witness(own, maximum):
    h = digest(maximum)
    is_own = bytes(mine == most for mine, most in zip(own, maximum))
    lanes = [h >> 32, h % 2**32, *(int.from_bytes(is_own[i : i + 4], "big") for i in range(0, len(is_own), 4))]
    return lanes + [0] * (-len(lanes) % 32)


def unchecked(result, contributions):
    """A maximum of a data plane that sums no lanes: its check word is that of the contributions added up."""
    return result.changed(flags=0, check=sum(packet.check_word() for packet in contributions) % 2**32)


def exponent_chunk(v, job, own, maximum):
    packets = [job.contribution(rank, 0, 0, own[rank], op=MAX) for rank in range(2)]
    v.step("rank 0's exponents", job, packets[0], nobody("started"))
    result = packets[1].result_for_all(maximum, 2)
    v.step("rank 1's exponents", job, packets[1], to_all(job, result), to_all(job, unchecked(result, packets)))
    again = packets[0].result(maximum, 2)
    v.step("rank 0 asks again", job, packets[0], back("replayed", again), back("replayed", unchecked(again, packets)))


def sum_chunk(v, job, slot, what, lanes):
    packets = [job.contribution(rank, slot, 0, lanes[rank]) for rank in range(2)]
    v.step(f"rank 0's {what}", job, packets[0], nobody("started"))
    v.step(f"rank 1's {what}", job, packets[1], to_all(job, packets[1].result_for_all(sums(*lanes), 2)))


def float_sum():
    about = "A sum of 96 f32 as two ranks make it: a chunk of exponents, its witnesses, and the data chunks that are not all zero."
    v = Vector("float_sum", about, "fifo")
    job = v.open(Job(ranks=2))
    exponents = [[exponent(chunk) for chunk in tensor] for tensor in TENSORS]
    most = [max(pair) for pair in zip(*exponents)]
    lanes = [[e % 2**32 for e in own] + [0] * 29 for own in [*exponents, most]]
    exponent_chunk(v, job, lanes[:2], lanes[2])
    sum_chunk(v, job, 1, "witness", [witness(own, lanes[2]) for own in lanes[:2]])
    for slot, chunk in ((2, 0), (3, 2)):
        sum_chunk(v, job, slot, f"data chunk {chunk}", [fixed(tensor[chunk], most[chunk], 2) for tensor in TENSORS])
    return v


def check_example():
    """The example of docs/protocol.md."""
    assert digest(range(1, 33)) == 0x30C209B810E0DA8A
    own = list(range(1, 32)) + [0]
    assert witness(own, list(range(1, 33)))[:3] + witness(own, list(range(1, 33)))[8:11] == [
        0x30C209B8, 0x10E0DA8A, 0x01010101, 0x01010101, 0x01010100, 0
    ]
