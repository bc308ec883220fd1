"""Sums whose lanes not all ranks need: rules 2.10, 8.5 and 9.3."""

from .numbers import CE, MISMATCH, RETRANSMIT, SUM
from .vector import Job, Vector, back, nobody, ramp, ramp_sum, to_all

FEATURES = ("audiences",)

ONE, ALL_BUT = 64, 128


def vectors():
    return [
        audiences(),
        audiences_of_lost_results(),
        audiences_without_lanes(),
        audiences_that_differ(),
        audiences_in_a_job_with_tags(),
    ]


def contribution(job, rank, round, op, **options):
    return job.contribution(rank, 2, round, ramp(rank, round), op=op, **options)


def result(job, round, op):
    packet = contribution(job, 0, round, op)
    return packet.result_for_all(ramp_sum(job.ranks, round), job.ranks)


def play(v, job, round, op, what):
    """A round that rank 0 needs the lanes of."""
    for rank in range(job.ranks):
        expected = nobody("added" if rank else "started")
        if rank == job.ranks - 1:
            expected = to_all(job, result(job, round, op))
        v.step(f"rank {rank}, for {what}", job, contribution(job, rank, round, op), expected)


def audiences():
    v = Vector(
        "audiences",
        "Sums for some ranks are sums; their results keep the op. No rank 63 is there, so all but "
        "that one are all.",
        "fifo",
        FEATURES,
    )
    job = v.open(Job(ranks=3))
    calls = (
        (ONE, "rank 0"),
        (ALL_BUT + 1, "all but rank 1"),
        (ALL_BUT + 2, "all but rank 2"),
        (SUM, "all"),
        (ALL_BUT + 63, "all but rank 63"),
    )
    for round, (op, what) in enumerate(calls):
        play(v, job, round, op, what)
    return v


def audiences_of_lost_results():
    v = Vector(
        "audiences_of_lost_results",
        "Who asks again gets the lanes, whether they are for that rank or not.",
        "fifo",
        FEATURES,
    )
    job = v.open(Job(ranks=3))
    play(v, job, 0, ONE, "rank 0")
    for rank in range(3):
        again = contribution(job, rank, 0, ONE)
        again = again.changed(flags=again.flags | RETRANSMIT)
        expected = back("replayed", again.result(ramp_sum(3, 0), 3))
        v.step(f"rank {rank} again", job, again, expected)
    return v


def audiences_without_lanes():
    v = Vector(
        "audiences_without_lanes",
        "As in an all-gather: one rank has lanes, the others need them. CE goes with the result.",
        "fifo",
        ("audiences", "empty"),
    )
    job = v.open(Job(ranks=3))
    op = ALL_BUT + 2
    for rank in range(2):
        packet = contribution(job, rank, 0, op).emptied()
        v.step(f"rank {rank} without lanes", job, packet, nobody("added" if rank else "started"))
    last = contribution(job, 2, 0, op)
    last = last.changed(flags=last.flags | CE)
    expected = to_all(job, last.result_for_all(ramp(2, 0), 3, last.flags))
    v.step("rank 2, congested", job, last, expected)
    return v


def audiences_in_a_job_with_tags():
    v = Vector(
        "audiences_in_a_job_with_tags",
        "No member sends them there (rule 22.13). They are sums, and all ranks get the RESULT.",
        "fifo",
        ("audiences", "keys"),
    )
    job = v.open(Job(ranks=3, has_keys=True))
    play(v, job, 0, ONE, "rank 0")
    play(v, job, 1, ALL_BUT + 1, "all but rank 1")
    return v


def audiences_that_differ():
    v = Vector(
        "audiences_that_differ",
        "Ranks that disagree on who needs the lanes make different calls.",
        "fifo",
        FEATURES,
    )
    job = v.open(Job(ranks=2))
    for round, (first, second) in enumerate(((SUM, ONE), (ONE, ONE + 1), (ONE, ALL_BUT))):
        slot = 2 + round
        packets = [
            job.contribution(rank, slot, 0, ramp(rank, 0), op=op)
            for rank, op in enumerate((first, second))
        ]
        v.step(f"rank 0, op {first}", job, packets[0], nobody("started"))
        # Of the rank that was first, or in its place of the asker.
        rejects = [packets[1].reject(MISMATCH, first << 16 | 1) for first in (0, 1)]
        expected = [back("mismatch", reject) for reject in rejects]
        v.step(f"rank 1, op {second}", job, packets[1], *expected)
    return v
