"""Ranks that disagree on the call: rule 2."""

from .numbers import MAX, MISMATCH, ROUND
from .vector import Job, Vector, back, nobody, play_round, ramp, ramp_sum


def vectors():
    return [
        mismatch("fingerprint", "fingerprints", fingerprint=0xFEEDF00C),
        mismatch("op", "operators", op=MAX),
        mismatch("lanes", "numbers of lanes", values=tuple(ramp(2, 0, 64))),
        mismatch_after_completion(),
        mismatch_costs_no_sum(),
        mismatch_after_completion_costs_no_sum(),
    ]


def rejected(packet, first, dissenter):
    return back("mismatch", packet.reject(MISMATCH, first << 16 | dissenter))


def mismatch(name, about, features=(), **difference):
    v = Vector(
        f"mismatch_of_{name}",
        f"Ranks disagree on {about}: all are told the same, who started the round and who "
        "disagreed first; there is no way on.",
        "strict",
        features,
        lanes=64 if "values" in difference else 32,
    )
    job = v.open(Job(ranks=3))
    packets = [job.contribution(rank, 3, 0, ramp(rank, 0)) for rank in range(3)]
    other = packets[2].changed(**difference)
    v.step("rank 1 starts the round", job, packets[1], nobody("started"))
    v.step("rank 2 calls something else", job, other, rejected(other, 1, 2))
    for packet in (*packets, other):
        v.step(f"rank {packet.rank} again", job, packet, rejected(packet, 1, 2))
    also = packets[0].changed(fingerprint=1)
    v.step("rank 0 calls a third thing", job, also, rejected(also, 1, 2))
    next = job.contribution(0, 3, 1, ramp(0, 1))
    v.step("no next round", job, next, back("wrong_round", next.reject(ROUND, 0)))
    play_round(v, job, 2, 0)
    return v


def mismatch_after_completion():
    v = Vector(
        "mismatch_after_completion",
        "A complete round is poisoned, too, by whoever calls something else.",
        "strict",
    )
    job = v.open(Job(ranks=3))
    play_round(v, job, 2, 0)
    other = job.contribution(1, 2, 0, ramp(1, 0)).changed(fingerprint=1)
    v.step("rank 1 calls something else", job, other, rejected(other, 0, 1))
    right = job.contribution(2, 2, 0, ramp(2, 0))
    v.step("rank 2 asks again", job, right, rejected(right, 0, 1))
    next = job.contribution(1, 2, 1, ramp(1, 1))
    v.step("no next round", job, next, back("wrong_round", next.reject(ROUND, 0)))
    return v


def mismatch_costs_no_sum():
    about = """
Ranks disagree, and whatever they send after that, nobody gets a RESULT. Who disagrees with the \
first rank is told of it. A data plane that
does not know which rank was first names the asker twice; and answers ranks that agree with the \
first as if they had to wait for others."""
    v = Vector("mismatch_costs_no_sum", about, "fifo")
    for number, difference in enumerate(
        [{"fingerprint": 1}, {"op": MAX}, {"values": tuple(ramp(1, 0, 64))}]
    ):
        job = v.open(Job(ranks=3)) if number == 0 else job
        packets = [job.contribution(rank, number, 0, ramp(rank, 0)) for rank in range(3)]
        other = packets[1].changed(**difference)
        v.lanes = max(v.lanes, len(other.values))
        v.step("rank 0 starts the round", job, packets[0], nobody("started"))
        v.step(
            "rank 1 calls something else", job, other, rejected(other, 0, 1), rejected(other, 1, 1)
        )
        v.step(
            "rank 2 calls what rank 0 did",
            job,
            packets[2],
            rejected(packets[2], 0, 1),
            nobody("added"),
        )
        v.step("rank 1 once more", job, other, rejected(other, 0, 1), rejected(other, 1, 1))
        for packet in packets:
            waits = back("pending", packet.pending(0, 1, 2))
            v.step(
                f"rank {packet.rank} calls what rank 0 did",
                job,
                packet,
                rejected(packet, 0, 1),
                waits,
            )
    play_round(v, job, 6, 0)
    return v


def mismatch_after_completion_costs_no_sum():
    about = """
Who calls something else in a complete round is told of it. The RESULT may still be had by others \
from a data plane that does not
know which rank was first."""
    v = Vector("mismatch_after_completion_costs_no_sum", about, "fifo")
    job = v.open(Job(ranks=3))
    play_round(v, job, 2, 0)
    other = job.contribution(1, 2, 0, ramp(9, 9)).changed(fingerprint=1)
    v.step("rank 1 calls something else", job, other, rejected(other, 0, 1), rejected(other, 1, 1))
    right = job.contribution(2, 2, 0, ramp(2, 0))
    result = back("replayed", right.result(ramp_sum(3, 0), 3))
    v.step("rank 2 asks again", job, right, rejected(right, 0, 1), result)
    return v
