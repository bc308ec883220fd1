"""The worked example of docs/spec (section 25): each packet of two calls of two ranks."""

from fractions import Fraction
from struct import pack, unpack

from .fingerprint import ALL_REDUCE, F32, I32, SUM, fingerprint
from .numbers import MAX
from .packet import Packet
from .vector import Job, Vector, back, nobody, sums, to_all

NAME = "worked_example"
F, SLOTS, RANKS = 32, 4, 2
INTEGERS = [[1, 2, 3], [10, -20, 30]]
# Elements of very different magnitudes, and a second data chunk, of whose exponent the ranks think
# differently.
FLOATS = [
    [0.001, 5e6, 1.0, 3.7, 12345678.0, -1.0, 0.5, 100.0, -0.25, 7.0, 1.5, -2.0],
    [0.002, 1.0, -1.0, 2.3, 8388608.0, 1.0, 0.25, -100.0, 0.125, 3.0, 0.75, 0.5],
]
RESULT = [
    *(0x3B449BA6, 0x4A989682, 0x00000000, 0x40C00000, 0x4B9E30A7, 0x00000000),
    *(0x3F400000, 0x00000000, 0xBE000000, 0x41200000, 0x40100000, 0xBFC00000),
]
GROWTH = (RANKS - 1).bit_length()
DIGIT = 32 - GROWTH


def vectors():
    v = Vector(NAME, "The worked example of docs/spec.", "fifo", ("max",))
    job = v.open(Job(ranks=RANKS, slots=SLOTS, newcomers=(0, 1)))
    for rank in range(RANKS):
        hello = job.hello(rank, F)
        v.step(f"HELLO of rank {rank}", job, hello, back("hello", hello), nobody("no_hello"))
        v.step(f"HELLO of rank {rank}, again", job, hello, back("hello", hello))
    for chunk in chunks(job):
        v.step(f"rank 0, {chunk.what}", job, chunk.packets[0], nobody("started"))
        v.step(f"rank 1, {chunk.what}", job, chunk.packets[1], to_all(job, chunk.result))
    return [v]


class Chunk:
    """What goes up and down for one chunk."""

    def __init__(self, job, number, what, lanes, op=0):
        self.what = f"chunk {number}: {what}"
        padded = [lane + [0] * (F - len(lane)) for lane in lanes]
        slot, round = number % SLOTS, number // SLOTS
        self.packets = [
            job.contribution(rank, slot, round, padded[rank], op=op) for rank in range(RANKS)
        ]
        combined = list(map(most, *padded)) if op == MAX else sums(*padded)
        self.result = self.packets[-1].result_for_all(combined, RANKS)


def chunks(job):
    job.fingerprint = fingerprint(0, ALL_REDUCE, SUM, I32, len(INTEGERS[0]))
    yield Chunk(job, 0, "the integers", [[x % 2**32 for x in own] for own in INTEGERS])
    job.fingerprint = fingerprint(1, ALL_REDUCE, SUM, F32, len(FLOATS[0]))
    full = F // 3
    data = [[singles(own)[:full], singles(own)[full:]] for own in FLOATS]
    own = [[exponent(chunk) for chunk in rank] for rank in data]
    least = [[~least_exponent(chunk) for chunk in rank] for rank in data]
    words = [
        [e % 2**32 for e in [*es, *es, *(~e for e in es), *inverted]]
        for es, inverted in zip(own, least)
    ]
    what = "exponents, predictions, predictions inverted, least exponents inverted"
    yield Chunk(job, 1, what, words, op=MAX)
    for chunk in range(2):
        lanes = [digits(data[rank][chunk], own[rank][chunk]) for rank in range(RANKS)]
        yield Chunk(job, 2 + chunk, f"data chunk {chunk}, ahead", lanes)
    # The ranks predicted the same of data chunk 0 alone.
    assert own[0][0] == own[1][0] and own[0][1] != own[1][1]
    e = max(own[0][1], own[1][1])
    yield Chunk(
        job, 4, "data chunk 1, once more", [digits(data[rank][1], e) for rank in range(RANKS)]
    )


def results():
    """Of the second call: by its meaning, the true sum rounded once."""
    return [nearest_single(sum(map(Fraction, pair))) for pair in zip(*map(singles, FLOATS))]


# ---- Numbers ----


def singles(values):
    return [unpack("<f", pack("<f", x))[0] for x in values]


def most(a, b):
    return max(a, b, key=lambda lane: lane - 2**32 if lane >> 31 else lane)


def exponent(elements):
    e, largest = -149, max(abs(Fraction(x)) for x in elements)
    while Fraction(2) ** (e + 1) <= largest:
        e += 1
    return e


def least_exponent(elements):
    return exponent([min(abs(x) for x in elements if x)])


def digits(elements, e):
    lanes = []
    for x in elements:
        v = round(Fraction(x) * Fraction(2) ** (94 - e - 3 * GROWTH))
        lanes += [v >> 2 * DIGIT, v >> DIGIT & 2**DIGIT - 1, v & 2**DIGIT - 1]
    return [lane % 2**32 for lane in lanes]


def undigits(lanes, e):
    """What lanes of a RESULT mean, exactly."""
    for a, b, c in zip(lanes[::3], lanes[1::3], lanes[2::3]):
        a -= 2**32 if a >> 31 else 0
        yield ((a * 2**DIGIT + b) * 2**DIGIT + c) * Fraction(2) ** -(94 - e - 3 * GROWTH)


def nearest_single(x):
    """To f32, ties to even; x is in the range of normal numbers, or 0."""
    unit = Fraction(2) ** (exponent([x]) - 23)
    return float(round(x / unit) * unit)


def check_example():
    """The lanes say what the sum is, and the examples of sections 19 and 25 of docs/spec."""
    all_chunks = list(chunks(Job(ranks=RANKS, slots=SLOTS)))
    found = [
        *undigits(all_chunks[2].result.values[:30], 23),
        *undigits(all_chunks[4].result.values[:6], 1),
    ]
    assert list(map(nearest_single, found)) == results()
    assert [unpack(">I", pack(">f", x))[0] for x in results()] == RESULT
    assert digits(singles([-0.000001]), 23) == [0xFFFFFFFF, 0x7FFDE721, 0x06000000]
