"""Several jobs at the same time, and what the control plane does to one."""

from .numbers import ABORTED
from .vector import Job, Vector, back, nobody, play_round, ramp, ramp_sum, to_all


def vectors():
    return [several_jobs(), jobs_to_16(), slots_to_512(), aborted_job(), closed_job()]


def contribution(job, rank, slot, round):
    return job.contribution(rank, slot, round, ramp(rank, round))


def several_jobs():
    about = """
Three jobs of the same processes, in slots of the same numbers, in turns: sums, groups and epochs \
are each job's own."""
    v = Vector("several_jobs", about, "fifo")
    jobs = [
        v.open(Job(ranks=2, number=number, epoch=epoch, group=group, processes=7))
        for number, epoch, group in (
            (7, 0x01020304, ("239.129.2.3", 50007)),
            (6, 0x01020305, ("239.255.0.6", 50006)),
            (0, 0x80000000, ("224.128.1.1", 50000)),
        )
    ]
    for round in range(3):
        for rank in range(2):
            for turn, job in enumerate(jobs):
                values = [value + turn for value in ramp(rank, round)]
                packet = job.contribution(rank, 7, round, values)
                total = [value + 2 * turn for value in ramp_sum(2, round)]
                expected = (
                    to_all(job, packet.result_for_all(total, 2)) if rank else nobody("started")
                )
                v.step(f"job {job.number}, rank {rank}, round {round}", job, packet, expected)
    strays = contribution(jobs[0], 1, 7, 2).changed(epoch=jobs[1].epoch)
    v.step("another job's epoch", jobs[0], strays, nobody("wrong_epoch"))
    return v


def jobs_to_16():
    about = """
16 jobs of 32 ranks at the same time, in all of which ranks are refused that have not said HELLO. \
In their next epoch all have, and
each job's first and last rank contribute; one job goes on to a sum."""
    v = Vector("jobs_to_16", about, "fifo")

    def open_all(epoch, newcomers):
        groups = [(f"239.255.0.{number}", 50000 + number) for number in range(16)]
        return [
            v.open(
                Job(ranks=32, number=number, epoch=epoch + number, group=group, newcomers=newcomers)
            )
            for number, group in enumerate(groups)
        ]

    strangers = open_all(0x01020304, tuple(range(32)))
    for job in strangers:
        for rank in (0, 31):
            packet = contribution(job, rank, 2, 0)
            v.step(
                f"rank {rank} of job {job.number} has not said HELLO",
                job,
                packet,
                nobody("no_hello"),
            )
    for job in strangers:
        v.close(job)
    jobs = open_all(0x01030304, ())
    for rank, counter in ((0, "started"), (31, "added")):
        for job in jobs:
            v.step(
                f"rank {rank} of job {job.number}",
                job,
                contribution(job, rank, 2, 0),
                nobody(counter),
            )
    for job in jobs:
        packet = contribution(job, 31, 2, 0).changed(rank=32)
        v.step(
            f"a rank beyond those of job {job.number}", job, packet, nobody("bad_rank"), sender=31
        )
        packet = contribution(job, 30, 8, 0)
        v.step(f"a slot beyond those of job {job.number}", job, packet, nobody("bad_slot"))
        packet = contribution(job, 30, 2, 0)
        v.step(
            f"rank 30 of job {job.number} from rank 29's place",
            job,
            packet,
            nobody("wrong_place"),
            sender=29,
        )
    play_round(v, jobs[15], 7, 0)
    return v


def slots_to_512():
    about = (
        "A job of 512 slots and one of 256: the first and the last slot of each are its own, and "
        "there is none behind the last."
    )
    v = Vector("slots_to_512", about, "fifo")
    jobs = [
        v.open(Job(ranks=2, number=number, epoch=epoch, slots=slots, group=group))
        for number, epoch, slots, group in (
            (7, 0x01020304, 512, ("239.129.2.3", 50007)),
            (8, 0x01020305, 256, ("239.129.2.4", 50008)),
        )
    ]
    for round in range(3):
        for rank in range(2):
            for job in jobs:
                for slot in (0, job.slots // 2 - 1, job.slots // 2, job.slots - 1):
                    packet = job.contribution(
                        rank, slot, round, [value + slot for value in ramp(rank, round)]
                    )
                    total = [value + 2 * slot for value in ramp_sum(2, round)]
                    expected = (
                        to_all(job, packet.result_for_all(total, 2)) if rank else nobody("started")
                    )
                    v.step(
                        f"job {job.number}, slot {slot}, rank {rank}, round {round}",
                        job,
                        packet,
                        expected,
                    )
    for job in jobs:
        for slot in (job.slots, 2 * job.slots - 1, 0x8000, 0xFFFF):
            packet = contribution(job, 0, slot, 0)
            v.step(f"slot {slot} of job {job.number}", job, packet, nobody("bad_slot"))
    return v


def aborted_job():
    about = (
        "Members of an aborted job are told so, whatever their round, and others are not. Other "
        "jobs go on."
    )
    v = Vector("aborted_job", about, "fifo")
    job = v.open(Job(ranks=3))
    other = v.open(Job(ranks=2, number=8, processes=8, epoch=0x01020306))
    play_round(v, job, 2, 0)
    v.step("rank 0 starts round 1", job, contribution(job, 0, 2, 1), nobody("started"))
    v.abort(job)
    for rank, slot, round in ((1, 2, 1), (0, 2, 1), (2, 2, 0), (2, 5, 17)):
        packet = contribution(job, rank, slot, round)
        v.step(
            f"rank {rank}, slot {slot}, round {round}",
            job,
            packet,
            back("aborted", packet.reject(ABORTED, 0)),
        )
    packet = contribution(job, 1, 2, 1)
    v.step("rank 1 from rank 0's place", job, packet, nobody("wrong_place"), sender=0)
    play_round(v, other, 2, 0)
    v.close(job)
    new = v.open(Job(ranks=3, epoch=job.epoch + 0x100))
    play_round(v, new, 2, 0)
    return v


def closed_job():
    v = Vector("closed_job", "A job that was ended is unknown. Another goes on.", "fifo")
    job = v.open(Job(ranks=2))
    other = v.open(Job(ranks=2, number=8, processes=8, epoch=0x01020306))
    play_round(v, job, 2, 0)
    v.step("rank 0 of job 8", other, contribution(other, 0, 2, 0), nobody("started"))
    v.close(job)
    for rank in range(2):
        v.step(f"rank {rank}", job, contribution(job, rank, 2, 0), nobody("unknown_job"))
        v.step(f"rank {rank}", job, contribution(job, rank, 2, 1), nobody("unknown_job"))
    packet = contribution(other, 1, 2, 0)
    v.step(
        "rank 1 of job 8", other, packet, to_all(other, packet.result_for_all(ramp_sum(2, 0), 2))
    )
    return v
