"""Several jobs at the same time, and what the control plane does to one."""

from .packet import ABORTED
from .vector import Job, Vector, back, nobody, play_round, ramp, ramp_sum, to_all


def vectors():
    return [several_jobs(), aborted_job(), closed_job()]


def contribution(job, rank, slot, round):
    return job.contribution(rank, slot, round, ramp(rank, round))


def several_jobs():
    about = """
Three jobs of the same processes, in slots of the same numbers, in turns: sums, groups and epochs are each job's own."""
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
                expected = to_all(job, packet.result_for_all(total, 2)) if rank else nobody("started")
                v.step(f"job {job.number}, rank {rank}, round {round}", job, packet, expected)
    strays = contribution(jobs[0], 1, 7, 2).changed(epoch=jobs[1].epoch)
    v.step("another job's epoch", jobs[0], strays, nobody("wrong_epoch"))
    return v


def aborted_job():
    about = "Members of an aborted job are told so, whatever their round, and others are not. Other jobs go on."
    v = Vector("aborted_job", about, "fifo")
    job = v.open(Job(ranks=3))
    other = v.open(Job(ranks=2, number=8, processes=8, epoch=0x01020306))
    play_round(v, job, 2, 0)
    v.step("rank 0 starts round 1", job, contribution(job, 0, 2, 1), nobody("started"))
    v.abort(job)
    for rank, slot, round in ((1, 2, 1), (0, 2, 1), (2, 2, 0), (2, 5, 17)):
        packet = contribution(job, rank, slot, round)
        v.step(f"rank {rank}, slot {slot}, round {round}", job, packet, back("aborted", packet.reject(ABORTED, 0)))
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
    v.step("rank 1 of job 8", other, packet, to_all(other, packet.result_for_all(ramp_sum(2, 0), 2)))
    return v
