"""What ranks get if nothing goes wrong: sums and maxima."""

from .numbers import ABORTED, MAX, MISMATCH, RETRANSMIT, SUM
from .vector import Job, Vector, back, nobody, play_round, ramp, ramp_sum, to_all

SIZES = range(32, 769, 32)


def vectors():
    return [
        sum_of_1(),
        sum_of_2(),
        sum_of_3(),
        sum_of_32(),
        sum_of_64(),
        pending_of_65(),
        sum_wraps(),
        max_of_i32(),
        max_of_i32_in_each_block(),
        max_checked_or_not(),
        lanes_32_and_64(),
        lanes_to_256(),
        lanes_to_256_again(),
        refusals_of_256_lanes(),
        maxima_to_256(),
        lanes_to_768(),
        calls_change(),
    ]


def sum_of_1():
    v = Vector("sum_of_1", "One rank: each contribution completes its round.", "fifo")
    job = v.open(Job(ranks=1))
    for round in range(4):
        play_round(v, job, 2, round)
    return v


def sum_of_2():
    v = Vector("sum_of_2", "Two ranks, three rounds of one slot.", "fifo")
    job = v.open(Job(ranks=2))
    play_round(v, job, 0, 0)
    play_round(v, job, 0, 1, order=[1, 0])
    play_round(v, job, 0, 2)
    return v


def sum_of_3():
    v = Vector(
        "sum_of_3",
        "Three ranks in any order; the first slot of the job, the last, and two at the same time.",
        "fifo",
    )
    job = v.open(Job(ranks=3))
    play_round(v, job, 0, 0, order=[2, 0, 1])
    play_round(v, job, 7, 0, order=[1, 2, 0])
    play_round(v, job, 7, 1, order=[0, 2, 1])
    play_round(v, job, 0, 1, order=[0, 1, 2])
    for rank in range(3):
        for slot in (3, 4):
            packet = job.contribution(rank, slot, 0, ramp(rank, slot))
            expected = [
                nobody("started"),
                nobody("added"),
                to_all(job, packet.result_for_all(ramp_sum(3, slot), 3)),
            ]
            v.step(f"rank {rank}, slot {slot}", job, packet, expected[rank])
    return v


def sum_of_32():
    v = Vector(
        "sum_of_32", "32 ranks at four ports; the first to come is the last of them.", "fifo"
    )
    job = v.open(Job(ranks=32))
    play_round(v, job, 1, 0, order=[31, *range(31)])
    asks = job.contribution(31, 1, 0, ramp(31, 0))
    v.step("rank 31 asks again", job, asks, back("replayed", asks.result(ramp_sum(32, 0), 32)))
    return v


def sum_of_64():
    v = Vector("sum_of_64", "64 ranks at four ports: PENDING has a bit for each of them.", "fifo")
    job = v.open(Job(ranks=64))
    order = [63, *range(63)]
    for turn, rank in enumerate(order):
        packet = job.contribution(rank, 1, 0, [1 << rank % 32] * 32)
        if turn == 63:
            # Each power of two, twice.
            v.step(
                "rank 62 completes the round",
                job,
                packet,
                to_all(job, packet.result_for_all([0xFFFFFFFE] * 32, 64)),
            )
            continue
        v.step(f"rank {rank}", job, packet, nobody("added" if turn else "started"))
        if turn in (0, 33):
            v.step(
                f"rank {rank} again",
                job,
                packet,
                back("pending", packet.pending(*order[: turn + 1])),
            )
    return v


def combined(v, job, op, lanes):
    """A round, and its result once more. `lanes` are contributions and the result."""
    columns = [
        [lane[column] for lane in lanes] * (32 // len(lanes)) for column in range(job.ranks + 1)
    ]
    for rank in range(job.ranks):
        packet = job.contribution(rank, 0, 0, columns[rank], op=op)
        if rank == job.ranks - 1:
            v.step(
                f"rank {rank}",
                job,
                packet,
                to_all(job, packet.result_for_all(columns[-1], job.ranks)),
            )
        else:
            v.step(f"rank {rank}", job, packet, nobody("added" if rank else "started"))
    again = job.contribution(0, 0, 0, columns[0], op=op)
    v.step("rank 0 asks again", job, again, back("replayed", again.result(columns[-1], job.ranks)))


def sum_wraps():
    v = Vector("sum_wraps", "SUM of i32 is modulo 2^32.", "fifo")
    job = v.open(Job(ranks=3))
    lanes = [
        (0xFFFFFFFF, 0x00000001, 0x00000000, 0x00000000),
        (0x7FFFFFFF, 0x00000001, 0x00000000, 0x80000000),
        (0x80000000, 0x80000000, 0x80000000, 0x80000000),
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFD),
        # Carries between halves, which packed fields never make.
        (0x0000FFFF, 0x00000001, 0x00000000, 0x00010000),
        (0xFFFF0000, 0x00010000, 0x12345678, 0x12345678),
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0xFFFFFFFE, 0x00000003, 0xFFFFFFFF, 0x00000000),
    ]
    combined(v, job, SUM, lanes)
    return v


MAXIMA = [
    (1, 2, 3, 3),
    (3, 2, 1, 3),
    # -1, -2, -3
    (0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD, 0xFFFFFFFF),
    (0x80000000, 0x7FFFFFFF, 0x00000000, 0x7FFFFFFF),
    (0x80000000, 0x80000000, 0x80000001, 0x80000001),
    (0x00000000, 0xFFFFFFFF, 0x80000000, 0x00000000),
    (0x80000000, 0x80000000, 0x80000000, 0x80000000),
    # The upper half decides, then the lower one, which has no sign.
    (0x0001FFFF, 0x00018000, 0x00017FFF, 0x0001FFFF),
]


def max_of_i32():
    v = Vector(
        "max_of_i32",
        "MAX of i32 is that of signed numbers; its check word is made from the values.",
        "fifo",
        ("max",),
    )
    combined(v, v.open(Job(ranks=3)), MAX, MAXIMA)
    return v


def max_of_i32_in_each_block():
    about = """
As in max_of_i32, in each block of 32 lanes, which a data plane may keep apart; with or without \
CHECKED, as in max_checked_or_not."""
    v = Vector("max_of_i32_in_each_block", about, "fifo")
    job = v.open(Job(ranks=3))
    for round, size in enumerate((64, 64)):
        # The second block begins with another row than the first.
        rows = [MAXIMA[(index + index // 32 + round) % len(MAXIMA)] for index in range(size)]
        unchecked_maximum(v, job, round, [list(column) for column in zip(*rows)])
    return v


def maxima_to_256():
    about = """
Maxima of packets that take several passes through a Tofino, as in max_checked_or_not."""
    return unchecked_maxima("maxima_to_256", about, [96, 128, 256, 224])


def max_checked_or_not():
    about = """MAX, and who cannot sum up a maximum's lanes sends the RESULT without CHECKED: in \
the check word's place is then what those of
the contributions add up to."""
    return unchecked_maxima("max_checked_or_not", about, [32, 64, 64])


def unchecked_maxima(name, about, sizes):
    v = Vector(name, " ".join(about.split()), "fifo")
    job = v.open(Job(ranks=3))
    for round, size in enumerate(sizes):
        # Signed, and in each lane another rank's.
        least = [16 * (index - 32) for index in range(size)]
        lanes = [
            [least[index] + (rank + round + index) % 3 & 0xFFFFFFFF for index in range(size)]
            for rank in range(job.ranks)
        ]
        unchecked_maximum(v, job, round, [*lanes, [lane + 2 & 0xFFFFFFFF for lane in least]])
    return v


def unchecked_maximum(v, job, round, columns):
    """A round of three ranks, which has these lanes, and this result."""
    *lanes, result = columns
    size = len(result)
    packets = [job.contribution(rank, 1, round, lanes[rank], op=MAX) for rank in range(job.ranks)]
    added_up = sum(packet.check_word() for packet in packets) % 2**32

    def unchecked(packet):
        return packet.changed(flags=0, check=added_up)

    v.step(f"rank 0, {size} lanes", job, packets[0], nobody("started"))
    v.step(f"rank 1, {size} lanes", job, packets[1], nobody("added"))
    for_all = packets[2].result_for_all(result, 3)
    v.step(
        f"rank 2, {size} lanes",
        job,
        packets[2],
        to_all(job, for_all),
        to_all(job, unchecked(for_all)),
    )
    for_one = packets[0].result(result, 3)
    v.step(
        "rank 0 asks again",
        job,
        packets[0],
        back("replayed", for_one),
        back("replayed", unchecked(for_one)),
    )


def lanes(v, sizes, values, total, op):
    """A round of two ranks for each number of lanes, in one slot."""
    job = v.open(Job(ranks=2))
    for round, size in enumerate(sizes):
        first = job.contribution(0, 5, round, values(0, round, size), op=op)
        v.step(f"rank 0, {size} lanes", job, first, nobody("started"))
        last = job.contribution(1, 5, round, values(1, round, size), op=op)
        v.step(
            f"rank 1, {size} lanes",
            job,
            last,
            to_all(job, last.result_for_all(total(round, size), 2)),
        )
    return v


def lanes_of_i32(name, about, sizes):
    v = Vector(name, about, "fifo")
    return lanes(v, sizes, ramp, lambda round, size: ramp_sum(2, round, size), SUM)


def lanes_32_and_64():
    return lanes_of_i32(
        "lanes_32_and_64",
        "The two sizes that fit a pass through a Tofino, in turns.",
        [32, 64, 32, 64],
    )


# More than a pass through a Tofino, all of them, in turns with those that fit.
TO_256 = [96, 64, 128, 160, 32, 192, 224, 256, 256, 96]


def lanes_to_256():
    about = "Packets of several passes through a Tofino: each lane has a number of its own."
    return lanes_of_i32("lanes_to_256", about, TO_256)


def lanes_to_256_again():
    about = "Packets of several passes through a Tofino, sent again before and after the RESULT."
    v = Vector("lanes_to_256_again", about, "fifo")
    job = v.open(Job(ranks=3))
    for round, size in enumerate(TO_256):
        packets = [job.contribution(rank, 7, round, ramp(rank, round, size)) for rank in range(3)]
        result = ramp_sum(3, round, size)
        v.step(f"rank 2, {size} lanes", job, packets[2], nobody("started"))
        v.step("rank 2 again", job, packets[2], back("pending", packets[2].pending(2)))
        v.step("rank 0", job, packets[0], nobody("added"))
        v.step("rank 2 once more", job, packets[2], back("pending", packets[2].pending(0, 2)))
        v.step("rank 1", job, packets[1], to_all(job, packets[1].result_for_all(result, 3)))
        for packet in packets:
            again = packet.changed(flags=packet.flags | RETRANSMIT)
            answer = back("replayed", packet.result(result, 3))
            v.step(f"rank {packet.rank} asks again", job, again, answer)
        if round > 1:
            size = TO_256[round - 2]
            late = job.contribution(0, 7, round - 2, ramp(0, round - 2, size))
            v.step("a late duplicate", job, late, nobody("stale"))
    return v


def refusals_of_256_lanes():
    about = """
Packets of several passes through a Tofino are refused as others are: of another call, or \
of an aborted job."""
    v = Vector("refusals_of_256_lanes", about, "fifo")
    job = v.open(Job(ranks=2))
    for slot, (size, difference) in enumerate(
        [
            (256, {"fingerprint": 1}),
            (224, {"op": MAX}),
            (256, {"values": tuple(ramp(1, 9, 96))}),
            (96, {"values": tuple(ramp(1, 9, 256))}),
            (64, {"values": tuple(ramp(1, 9, 96))}),
            (128, {"values": tuple(ramp(1, 9, 64))}),
        ]
    ):
        packets = [job.contribution(rank, slot, 0, ramp(rank, slot, size)) for rank in range(2)]
        other = packets[1].changed(**difference)
        refused = [back("mismatch", other.reject(MISMATCH, by << 16 | 1)) for by in range(2)]
        v.step(f"rank 0, {size} lanes", job, packets[0], nobody("started"))
        v.step(f"rank 1 calls something else in slot {slot}", job, other, *refused)
        v.step("rank 1 again", job, other, *refused)
    for round in range(3):
        play_round(v, job, 7, round, lanes=256)
    v.abort(job)
    for size in (64, 96, 256):
        packet = job.contribution(1, 7, 3, ramp(1, 3, size))
        refused = back("aborted", packet.reject(ABORTED, 0))
        v.step(f"rank 1, {size} lanes, of the aborted job", job, packet, refused)
    return v


def lanes_to_768():
    about = "Every number of lanes, each lane with a number of its own."
    return lanes_of_i32("lanes_to_768", about, SIZES)


def calls_change():
    about = "The call, its operator and its lanes may be others in each round of a slot."
    v = Vector("calls_change", about, "fifo", ("max",))
    job = v.open(Job(ranks=2))
    for round, (op, size) in enumerate([(SUM, 64), (MAX, 32), (SUM, 32), (MAX, 64), (SUM, 64)]):
        job.fingerprint = 0xF0000000 + round
        packets = [
            job.contribution(rank, 6, round, ramp(rank, round, size), op=op) for rank in range(2)
        ]
        result = ramp(1, round, size) if op == MAX else ramp_sum(2, round, size)
        v.step(f"rank 0, round {round}", job, packets[0], nobody("started"))
        v.step("rank 0 again", job, packets[0], back("pending", packets[0].pending(0)))
        v.step(
            f"rank 1, round {round}",
            job,
            packets[1],
            to_all(job, packets[1].result_for_all(result, 2)),
        )
        v.step("rank 0 asks again", job, packets[0], back("replayed", packets[0].result(result, 2)))
    return v


def pending_of_65():
    about = "65 ranks are too many for two lanes: PENDING has a bit for each of 1024."
    v = Vector("pending_of_65", about, "fifo")
    job = v.open(Job(ranks=65))
    order = [64, 0, 33, 31, 32]
    for turn, rank in enumerate(order):
        packet = job.contribution(rank, 1, 0, ramp(rank, 0))
        v.step(f"rank {rank}", job, packet, nobody("added" if turn else "started"))
        seen = packet.pending(*order[: turn + 1], of=65)
        v.step(f"rank {rank} again", job, packet, back("pending", seen))
    return v
