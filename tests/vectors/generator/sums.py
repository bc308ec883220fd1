"""What ranks get if nothing goes wrong: sums and maxima."""

from .packet import CHECKED
from .vector import Job, Vector, back, nobody, ramp, ramp_sum, to_all


def vectors():
    return [sum_of_1(), sum_of_2(), sum_of_3(), sum_of_32(), sum_of_64()]


def play_round(v, job, slot, round, order=None, lanes=32, values=ramp):
    """A round by the book: ranks contribute in this order."""
    order = list(order or range(job.ranks))
    for turn, rank in enumerate(order):
        packet = job.contribution(rank, slot, round, values(rank, round, lanes))
        if turn == len(order) - 1:
            total = [sum(lane) % 2**32 for lane in zip(*(values(r, round, lanes) for r in range(job.ranks)))]
            expected = to_all(job, packet.result_for_all(total, job.ranks))
            v.step(f"rank {rank} completes round {round} of slot {slot}", job, packet, expected)
        elif turn == 0:
            v.step(f"rank {rank} starts round {round} of slot {slot}", job, packet, nobody("started"))
        else:
            v.step(f"rank {rank} joins round {round} of slot {slot}", job, packet, nobody("added"))


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
    v = Vector("sum_of_3", "Three ranks in any order, the first and the last slot of the job, rounds in between each other.", "fifo")
    job = v.open(Job(ranks=3))
    play_round(v, job, 0, 0, order=[2, 0, 1])
    play_round(v, job, 7, 0, order=[1, 2, 0])
    play_round(v, job, 7, 1, order=[0, 2, 1])
    play_round(v, job, 0, 1, order=[0, 1, 2])
    for rank in range(3):
        for slot in (3, 4):
            packet = job.contribution(rank, slot, 0, ramp(rank, slot))
            expected = [nobody("started"), nobody("added"), to_all(job, packet.result_for_all(ramp_sum(3, slot), 3))]
            v.step(f"rank {rank}, slot {slot}", job, packet, expected[rank])
    return v


def sum_of_32():
    v = Vector("sum_of_32", "32 ranks at four ports; the first to come is the last of them.", "fifo")
    job = v.open(Job(ranks=32))
    play_round(v, job, 1, 0, order=[31, *range(31)])
    asks = job.contribution(31, 1, 0, ramp(31, 0))
    v.step("rank 31 asks again", job, asks, back("replayed", asks.result(ramp_sum(32, 0), 32)))
    return v


def sum_of_64():
    about = "64 ranks at four ports: PENDING has a bit for each of them."
    v = Vector("sum_of_64", about, "fifo")
    job = v.open(Job(ranks=64))
    order = [63, *range(63)]
    for turn, rank in enumerate(order):
        packet = job.contribution(rank, 1, 0, [1 << rank % 32] * 32)
        if turn == 63:
            # Each power of two, twice.
            v.step(f"rank {rank} completes the round", job, packet, to_all(job, packet.result_for_all([0xFFFFFFFE] * 32, 64)))
            continue
        v.step(f"rank {rank}", job, packet, nobody("added" if turn else "started"))
        if turn in (0, 33):
            v.step(f"rank {rank} again", job, packet, back("pending", packet.pending(*order[: turn + 1])))
    return v
