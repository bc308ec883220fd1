"""HELLO: how a rank gets its place."""

from dataclasses import replace

from .numbers import CE, GROUP
from .vector import Job, Vector, back, back_to_group, nobody, play_round, ramp


def vectors():
    return [
        hello(),
        hello_to_768(),
        hello_in_a_new_epoch(),
        hello_once_more(),
        hello_to_the_group(),
    ]


def hello():
    about = """
A rank gets its place by the first HELLO with its secret, which comes back as it went; from then \
on HELLOs come back from there alone.
Before, it may not contribute. (A data plane whose control plane enters places answers from the \
second HELLO on.)"""
    v = Vector("hello", about, "fifo", lanes=64)
    job = v.open(Job(ranks=2, newcomers=(0, 1)))
    for rank in range(2):
        right = job.hello(rank, 32)
        contribution = job.contribution(rank, 2, 0, ramp(rank, 0))
        v.step(f"rank {rank} contributes too early", job, contribution, nobody("no_hello"))
        for secret in (0, right.aux ^ 1, job.secret(1 - rank)):
            v.step(
                f"rank {rank} with a wrong secret",
                job,
                right.changed(aux=secret),
                nobody("wrong_secret"),
            )
        v.step(
            f"rank {rank} with another epoch",
            job,
            right.changed(epoch=job.epoch + 1),
            nobody("wrong_epoch"),
        )
        v.step(f"rank {rank} with another job", job, right.changed(job=6), nobody("unknown_job"))
        v.step(
            "a rank beyond the job's", job, right.changed(rank=2), nobody("bad_rank"), sender=rank
        )
        v.step(f"rank {rank} still has no place", job, contribution, nobody("no_hello"))
        v.step(f"HELLO of rank {rank}", job, right, back("hello", right), nobody("no_hello"))
        for lanes in (32, 0, 64):
            again = job.hello(rank, lanes)
            v.step(f"HELLO of rank {rank} with {lanes} lanes", job, again, back("hello", again))
        home = job.place(rank)
        for elsewhere in (replace(home, ip="10.0.0.77"), replace(home, udp=home.udp + 50)):
            v.step(
                f"HELLO of rank {rank} from elsewhere",
                job,
                right,
                nobody("wrong_place"),
                source=elsewhere,
            )
            v.step(
                f"rank {rank} contributes from there",
                job,
                contribution,
                nobody("wrong_place"),
                source=elsewhere,
            )
        v.step(
            f"rank {rank} with a wrong secret, now",
            job,
            right.changed(aux=0),
            nobody("wrong_secret"),
        )
    play_round(v, job, 2, 0)
    return v


def hello_to_768():
    about = (
        "HELLO of any size comes back whole: so ranks find the largest chunk that their path "
        "carries."
    )
    v = Vector("hello_to_768", about, "fifo")
    job = v.open(Job(ranks=1))
    for lanes in (*range(0, 769, 64), 32, 352):
        packet = job.hello(0, lanes)
        packet = packet.changed(
            values=tuple(0x01000193 * (index + 1) % 2**32 for index in range(lanes))
        )
        v.step(f"{lanes} lanes", job, packet, back("hello", packet))
    return v


def hello_in_a_new_epoch():
    about = (
        "In a new epoch a rank may live elsewhere; its place of the one before means nothing, and "
        "it must say HELLO again."
    )
    v = Vector("hello_in_a_new_epoch", about, "fifo")
    old = v.open(Job(ranks=2))
    play_round(v, old, 2, 0)
    v.close(old)
    new = v.open(Job(ranks=2, epoch=old.epoch + 1, processes=9, newcomers=(1,)))
    packet = new.contribution(1, 2, 0, ramp(1, 0))
    v.step("rank 1 has not said HELLO in this epoch", old, packet, nobody("no_hello"))
    hello = new.hello(1, 32)
    v.step("HELLO from its new place", new, hello, back("hello", hello), nobody("no_hello"))
    v.step("HELLO again", new, hello, back("hello", hello))
    v.step("rank 1 from its old place", old, packet, nobody("wrong_place"))
    play_round(v, new, 2, 0)
    return v


def hello_once_more():
    about = (
        "A member may say HELLO at any time, also while its rounds are filled; it changes nothing. "
        "Its slot and round are the member's own affair."
    )
    v = Vector("hello_once_more", about, "fifo")
    job = v.open(Job(ranks=2))
    for round in range(2):
        for rank in range(2):
            packet = job.hello(rank, 32)
            v.step(f"HELLO of rank {rank}", job, packet, back("hello", packet))
            numbered = packet.changed(slot=0xFFFF, round=round + 7)
            v.step(f"HELLO of rank {rank}, numbered", job, numbered, back("hello", numbered))
        play_round(v, job, 2, round)
    return v


def hello_to_the_group():
    about = (
        "A HELLO with GROUP goes to the job's group, without its secret, by the port that it came "
        "in by: so a rank finds out whether the group reaches it. It is admitted as any other."
    )
    v = Vector("hello_to_the_group", about, "fifo", ("group",))
    job = v.open(Job(ranks=3, newcomers=(2,)))

    def asks(rank, lanes=32):
        packet = job.hello(rank, lanes)
        return packet.changed(flags=GROUP)

    def answered(packet):
        return back_to_group(job, packet.changed(aux=0))

    for rank, lanes in ((0, 32), (1, 64), (0, 0), (1, 352)):
        packet = asks(rank, lanes)
        v.step(f"rank {rank}, {lanes} lanes", job, packet, answered(packet))
    numbered = asks(0).changed(slot=0xFFFF, round=7)
    v.step("a number", job, numbered, answered(numbered))
    marked = asks(1)
    v.step(
        "marked for congestion", job, marked, answered(marked.changed(flags=GROUP | CE)), tos=3
    )
    home = job.place(0)
    for title, change, counter in (
        ("a wrong secret", {"aux": job.secret(1)}, "wrong_secret"),
        ("another epoch", {"epoch": job.epoch + 1}, "wrong_epoch"),
        ("another job", {"job": 6}, "unknown_job"),
    ):
        v.step(title, job, asks(0).changed(**change), nobody(counter))
    elsewhere = replace(home, udp=home.udp + 50)
    v.step("rank 0 from elsewhere", job, asks(0), nobody("wrong_place"), source=elsewhere)
    newcomer = asks(2)
    v.step("a rank without a place", job, newcomer, answered(newcomer))
    plain = job.hello(1, 32)
    v.step("without GROUP", job, plain, back("hello", plain))
    play_round(v, job, 2, 0)
    return v
