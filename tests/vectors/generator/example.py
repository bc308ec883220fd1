"""The worked example of docs/protocol.md: two calls of two ranks, each packet of them. It is a vector, too."""

from fractions import Fraction
from struct import pack, unpack

from .fingerprint import ALL_REDUCE, F32, I32, SUM, fingerprint
from .packet import MAX, Packet
from .vector import Job, Vector, back, nobody, sums, to_all

NAME = "worked_example"
BEGIN, END = "<!-- written by tests/vectors/generate.py -->\n", "<!-- end -->\n"
F, SLOTS, RANKS = 32, 4, 2
INTEGERS = [[1, 2, 3], [10, -20, 30]]
# Elements of very different magnitudes, and a second data chunk, of whose exponent the ranks think differently.
FLOATS = [
    [0.001, 5e6, 1.0, 3.7, 12345678.0, -1.0, 0.5, 100.0, -0.25, 7.0, 1.5, -2.0],
    [0.002, 1.0, -1.0, 2.3, 8388608.0, 1.0, 0.25, -100.0, 0.125, 3.0, 0.75, 0.5],
]
GROWTH = (RANKS - 1).bit_length()
DIGIT = 32 - GROWTH


def vectors():
    v = Vector(NAME, "The worked example of docs/protocol.md.", "fifo", ("max",))
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
        self.packets = [job.contribution(rank, slot, round, padded[rank], op=op) for rank in range(RANKS)]
        combined = list(map(most, *padded)) if op == MAX else sums(*padded)
        self.result = self.packets[-1].result_for_all(combined, RANKS)


def chunks(job):
    job.fingerprint = fingerprint(0, ALL_REDUCE, SUM, I32, len(INTEGERS[0]))
    yield Chunk(job, 0, "the integers", [[x % 2**32 for x in own] for own in INTEGERS])
    job.fingerprint = fingerprint(1, ALL_REDUCE, SUM, F32, len(FLOATS[0]))
    full = F // 3
    data = [[singles(own)[:full], singles(own)[full:]] for own in FLOATS]
    own = [[exponent(chunk) for chunk in rank] for rank in data]
    words = [[e % 2**32 for e in [*es, *es, *(~e for e in es)]] for es in own]
    yield Chunk(job, 1, "exponents, predictions, predictions inverted", words, op=MAX)
    for chunk in range(2):
        lanes = [digits(data[rank][chunk], own[rank][chunk]) for rank in range(RANKS)]
        yield Chunk(job, 2 + chunk, f"data chunk {chunk}, ahead", lanes)
    # The ranks predicted the same of data chunk 0 alone.
    assert own[0][0] == own[1][0] and own[0][1] != own[1][1]
    e = max(own[0][1], own[1][1])
    yield Chunk(job, 4, "data chunk 1, once more", [digits(data[rank][1], e) for rank in range(RANKS)])


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
    """The lanes say what the sum is; and the example of three lanes in docs/protocol.md."""
    all_chunks = list(chunks(Job(ranks=RANKS, slots=SLOTS)))
    found = [*undigits(all_chunks[2].result.values[:30], 23), *undigits(all_chunks[4].result.values[:6], 1)]
    assert list(map(nearest_single, found)) == results()
    assert digits(singles([-0.000001]), 23) == [0xFFFFFFFF, 0x7FFDE721, 0x06000000]


# ---- The page ----


def in_page(text):
    """The page with the example as it is now."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n```text\n" + "\n".join(lines()) + "\n```\n\n" + END + after


def lines():
    job = Job(ranks=RANKS, slots=SLOTS)
    for rank in range(RANKS):
        yield from packet_lines(f"rank {rank} to the aggregator, and back: HELLO", job.hello(rank, F))
    told = None
    for chunk in chunks(job):
        if job.fingerprint != told:
            yield from (call_of_floats() if told else call_of_integers())
            told = job.fingerprint
        for rank, packet in enumerate(chunk.packets):
            yield from packet_lines(f"rank {rank} to the aggregator: {chunk.what}", packet)
        yield from packet_lines("the aggregator to all", chunk.result)
    yield from ["", "# The result of call 1, in bits of f32, has the lanes of chunks 2 and 4:"]
    yield from hexadecimal(int.from_bytes(pack(">f", x), "big") for x in results())


def call_of_integers():
    yield from ["", "# ---- Call 0: all_reduce(sum, i32, 3) ----"]
    yield from (f"#   rank {rank}: {', '.join(map(str, own))}" for rank, own in enumerate(INTEGERS))
    yield f"#   result: {', '.join(str(sum(pair)) for pair in zip(*INTEGERS))}"


def call_of_floats():
    yield from ["", "# ---- Call 1: all_reduce(sum, f32, 12) ----"]
    for rank, own in enumerate(FLOATS):
        yield from (f"#   rank {rank}: {', '.join(map(str, own[:10]))},", f"#           {', '.join(map(str, own[10:]))}")


def packet_lines(title, packet):
    yield from ["", f"# {title}"]
    rows = list(packet.rows())
    # A HELLO needs no check word.
    yield from (f"{data:<40}  # {comment.replace('wrong check', 'check')}" for data, comment in rows[:3])
    values = list(packet.values)
    used = max((index + 1 for index, lane in enumerate(values) if lane), default=0)
    yield from hexadecimal(values[:used])
    if used < len(values):
        yield f"00000000 ...{'':<28}  # {len(values) - used} lanes of 0"


def hexadecimal(words):
    words = [f"{word:08x}" for word in words]
    yield from (" ".join(words[start : start + 8]) for start in range(0, len(words), 8))
