"""Slots are used again and again: section 8, for ranks that agree on the call."""

from .numbers import CE, CHECKED, RETRANSMIT, ROUND
from .vector import Job, Vector, back, nobody, play_round, ramp, ramp_sum, sums, to_all


def vectors():
    return [
        slot_reuse(),
        duplicates(),
        shadow_copy(),
        late_duplicate(),
        late_duplicates_are_stale(),
        future_rounds(),
        rounds_before_their_turn(),
        half_the_circle(),
        wrap_around(),
        new_epoch(),
        new_epoch_rounds(),
        congestion_flag(),
        unknown_flags(),
        bundles(),
    ]


def contribution(job, rank, round, slot=2, **options):
    return job.contribution(rank, slot, round, ramp(rank, round), **options)


def result(packet, job):
    return packet.result(ramp_sum(job.ranks, packet.round), job.ranks)


def again(packet):
    return packet.changed(flags=packet.flags | RETRANSMIT)


def slot_reuse():
    v = Vector(
        "slot_reuse",
        "Nothing of a round is left in the one after the next, which has the same set.",
        "fifo",
    )
    job = v.open(Job(ranks=2))
    for round in range(7):
        play_round(v, job, 3, round, order=[round % 2, 1 - round % 2])
    return v


def duplicates():
    about = """
A rank that is in already gets PENDING while others are missing, then the RESULT; for itself \
alone, with what it put into aux. What
it sends again does not count, whatever it is."""
    v = Vector("duplicates", about, "fifo")
    job = v.open(Job(ranks=3))
    packets = [contribution(job, rank, 0) for rank in range(3)]
    v.step("rank 1 starts the round", job, packets[1], nobody("started"))
    v.step("rank 1 again", job, again(packets[1]), back("pending", packets[1].pending(1)))
    v.step(
        "rank 2, for the first time, though it says RETRANSMIT",
        job,
        again(packets[2]),
        nobody("added"),
    )
    for rank in (1, 2):
        asks = again(packets[rank]).changed(aux=0x12345678 + rank)
        v.step(f"rank {rank} again", job, asks, back("pending", asks.pending(1, 2)))
    other = packets[2].changed(values=tuple(ramp(9, 9)))
    v.step("rank 2 again, with other values", job, other, back("pending", other.pending(1, 2)))
    v.step(
        "rank 0 completes the round",
        job,
        packets[0],
        to_all(job, packets[0].result_for_all(ramp_sum(3, 0), 3)),
    )
    for rank in (0, 1, 2, 1):
        asks = again(packets[rank]).changed(aux=0x87654321 - rank)
        v.step(f"rank {rank} asks again", job, asks, back("replayed", result(asks, job)))
    v.step("rank 2 asks again, with other values", job, other, back("replayed", result(other, job)))
    return v


def shadow_copy():
    about = """
The RESULT of a round is there for whoever lost it until the round after the next begins: while \
the next one is filled, and once it
is complete."""
    v = Vector("shadow_copy", about, "fifo")
    job = v.open(Job(ranks=3))
    play_round(v, job, 2, 0)

    def asks(rank, round):
        packet = again(contribution(job, rank, round))
        v.step(
            f"rank {rank} asks for round {round}",
            job,
            packet,
            back("replayed", result(packet, job)),
        )

    for round in range(1, 4):
        packets = [contribution(job, rank, round) for rank in range(3)]
        v.step(f"rank 1 starts round {round}", job, packets[1], nobody("started"))
        asks(0, round - 1)
        v.step(f"rank 0 joins round {round}", job, packets[0], nobody("added"))
        asks(2, round - 1)
        asks(1, round - 1)
        completed = packets[2].result_for_all(ramp_sum(3, round), 3)
        v.step(f"rank 2 completes round {round}", job, packets[2], to_all(job, completed))
        asks(0, round)
        asks(0, round - 1)
    return v


def late_duplicate():
    about = """
Why packets have rounds: without, the late duplicate of the previous use of the other set is taken \
for a fresh contribution, and a wrong
sum comes of it."""
    v = Vector("late_duplicate", about, "fifo")
    job = v.open(Job(ranks=2))
    play_round(v, job, 0, 0, order=[1, 0])
    late, next = contribution(job, 1, 0, slot=0), contribution(job, 1, 1, slot=0)
    v.step("rank 1 starts round 1", job, next, nobody("started"))
    v.step(
        "rank 1's contribution to round 0 comes late",
        job,
        late,
        back("replayed", result(late, job)),
    )
    v.step("rank 1 again", job, next, back("pending", next.pending(1)))
    last = contribution(job, 0, 1, slot=0)
    v.step(
        "rank 0 completes round 1", job, last, to_all(job, last.result_for_all(ramp_sum(2, 1), 2))
    )
    return v


def late_duplicates_are_stale():
    about = (
        "What comes late for a round whose set has been used again is dropped: whatever the rank, "
        "while that round is filled and after."
    )
    v = Vector("late_duplicates_are_stale", about, "fifo")
    job = v.open(Job(ranks=2))

    def late(rank, *rounds):
        for round in rounds:
            packet = contribution(job, rank, round)
            v.step(
                f"rank {rank}'s contribution to round {round} comes late",
                job,
                packet,
                nobody("stale"),
            )

    play_round(v, job, 2, 0)
    play_round(v, job, 2, 1)
    packets = [contribution(job, rank, 2) for rank in range(2)]
    v.step("rank 0 starts round 2", job, packets[0], nobody("started"))
    late(0, 0)
    late(1, 0)
    v.step(
        "rank 1 completes round 2",
        job,
        packets[1],
        to_all(job, packets[1].result_for_all(ramp_sum(2, 2), 2)),
    )
    late(1, 0)
    play_round(v, job, 2, 3)
    late(0, 1, 0)
    play_round(v, job, 2, 4)
    late(1, 2, 1, 0)
    return v


def not_yet(v, job, packet, newest):
    """A round that no rank may be in. A data plane with less state may take it for an old one."""
    refused = back("wrong_round", packet.reject(ROUND, newest))
    v.step(f"rank {packet.rank} in round {packet.round}", job, packet, refused, nobody("stale"))


def future_rounds():
    v = Vector(
        "future_rounds",
        "Rounds that are further ahead than any rank can be are refused, and leave no trace.",
        "fifo",
    )
    job = v.open(Job(ranks=3))
    for round in (2, 3, 4, 0x7FFFFFFE):
        not_yet(v, job, contribution(job, 1, round), 0)
    packets = [contribution(job, rank, 0) for rank in range(3)]
    v.step("rank 1 starts round 0", job, packets[1], nobody("started"))
    not_yet(v, job, contribution(job, 1, 4), 0)
    v.step("rank 0 joins round 0", job, packets[0], nobody("added"))
    not_yet(v, job, contribution(job, 1, 3), 0)
    v.step(
        "rank 2 completes round 0",
        job,
        packets[2],
        to_all(job, packets[2].result_for_all(ramp_sum(3, 0), 3)),
    )
    for round in (3, 4, 5):
        not_yet(v, job, contribution(job, 2, round), 0)
    play_round(v, job, 2, 1)
    for round in (4, 5, 6):
        not_yet(v, job, contribution(job, 0, round), 1)
    play_round(v, job, 2, 2)
    return v


def rounds_before_their_turn():
    about = "A round begins only when the one before is complete, and none is left out."
    v = Vector("rounds_before_their_turn", about, "strict")
    job = v.open(Job(ranks=3))

    def refused(rank, round, newest):
        not_yet(v, job, contribution(job, rank, round), newest)

    for round in (1, 0xFFFFFFFE, 0xFFFFFFFF):
        refused(1, round, 0)
    for rank in range(3):
        packet = contribution(job, rank, 0)
        done = to_all(job, packet.result_for_all(ramp_sum(3, 0), 3))
        v.step(
            f"rank {rank} in round 0", job, packet, [nobody("started"), nobody("added"), done][rank]
        )
        if rank < 2:
            refused(1, 1, 0)
        refused(1, 2, 0)
    for rank in range(3):
        packet = contribution(job, rank, 1)
        done = to_all(job, packet.result_for_all(ramp_sum(3, 1), 3))
        v.step(
            f"rank {rank} in round 1", job, packet, [nobody("started"), nobody("added"), done][rank]
        )
        if rank < 2:
            refused(1, 2, 1)
        refused(1, 3, 1)
    v.step("rank 0 starts round 2", job, contribution(job, 0, 2), nobody("started"))
    refused(0, 3, 2)
    refused(1, 4, 2)
    return v


def half_the_circle():
    about = (
        "A round is older than another if it is less than half the circle of 2^32 behind, or "
        "exactly half."
    )
    v = Vector("half_the_circle", about, "fifo")
    job = v.open(Job(ranks=1))
    for round in range(3):
        play_round(v, job, 2, round)
    for round in (0xFFFFFFFE, 0xFFFFFF00, 0x80000002, 0x80000004):
        v.step(f"round {round} is older than 2", job, contribution(job, 0, round), nobody("stale"))
    for round in (0xFFFFFFFF, 0x80000001):
        v.step(f"round {round} is older than 1", job, contribution(job, 0, round), nobody("stale"))
    for round in (0x80000000, 0x7FFFFFFF, 0x40000000):
        not_yet(v, job, contribution(job, 0, round), 2)
    return v


def wrap_around():
    about = "After round 2^32 - 1 of a slot comes round 0, which follows it like any other."
    v = Vector("wrap_around", about, "fifo", ("age",))
    job = v.open(Job(ranks=2))
    play_round(v, job, 2, 0)
    play_round(v, job, 2, 1)
    v.age(job, 2, 0xFFFFFFFA)
    late = contribution(job, 0, 0xFFFFFFF8)
    v.step("what comes late is stale", job, late, nobody("stale"))
    not_yet(v, job, contribution(job, 1, 0), 0xFFFFFFFB)
    for round in range(0xFFFFFFFC, 0x100000000):
        play_round(v, job, 2, round)
    asks = contribution(job, 1, 0xFFFFFFFF)
    v.step("rank 1 asks for the last round", job, asks, back("replayed", result(asks, job)))
    packets = [contribution(job, rank, 0) for rank in range(2)]
    v.step("rank 0 starts round 0", job, packets[0], nobody("started"))
    v.step("round 2^32 - 2 is over", job, contribution(job, 1, 0xFFFFFFFE), nobody("stale"))
    v.step("rank 1 asks for the last round", job, asks, back("replayed", result(asks, job)))
    v.step(
        "rank 1 completes round 0",
        job,
        packets[1],
        to_all(job, packets[1].result_for_all(ramp_sum(2, 0), 2)),
    )
    not_yet(v, job, contribution(job, 0, 4), 0)
    play_round(v, job, 2, 1)
    v.step("round 2^32 - 1 is over", job, contribution(job, 0, 0xFFFFFFFF), nobody("stale"))
    play_round(v, job, 2, 2)
    return v


def new_epoch():
    about = (
        "In a new epoch all slots are empty, though nobody has cleared them; packets of the one "
        "before do not touch them."
    )
    v = Vector("new_epoch", about, "fifo")
    old = v.open(Job(ranks=2))
    play_round(v, old, 2, 0)
    play_round(v, old, 2, 1)
    v.step("rank 0 starts round 2", old, contribution(old, 0, 2), nobody("started"))
    v.step(
        "rank 1 starts round 0 of another slot",
        old,
        contribution(old, 1, 0, slot=4),
        nobody("started"),
    )
    v.close(old)
    new = v.open(Job(ranks=2, epoch=old.epoch + 1))
    v.step(
        "rank 1 still in round 2 of the old epoch",
        old,
        contribution(old, 1, 2),
        nobody("wrong_epoch"),
    )
    play_round(v, new, 2, 0, order=[1, 0])
    v.step(
        "rank 0 still in round 2 of the old epoch",
        old,
        contribution(old, 0, 2),
        nobody("wrong_epoch"),
    )
    play_round(v, new, 2, 1)
    play_round(v, new, 2, 2)
    play_round(v, new, 4, 0)
    return v


def new_epoch_rounds():
    v = Vector(
        "new_epoch_rounds",
        "In a new epoch, rounds of a used slot begin with 0, and with no other.",
        "strict",
    )
    old = v.open(Job(ranks=2))
    play_round(v, old, 2, 0)
    play_round(v, old, 2, 1)
    v.close(old)
    new = v.open(Job(ranks=2, epoch=0xFFFFFFFF))
    for round in (1, 2, 3):
        not_yet(v, new, contribution(new, 1, round), 0)
    play_round(v, new, 2, 0)
    not_yet(v, new, contribution(new, 1, 2), 0)
    play_round(v, new, 2, 1)
    return v


def congestion_flag():
    about = (
        "A RESULT has CE if any contribution had it, also for those that ask again; RETRANSMIT it "
        "never has."
    )
    v = Vector("congestion_flag", about, "fifo")
    job = v.open(Job(ranks=3))
    for round, marked in enumerate([(), (1,), (0,), (2,), (), (0, 1, 2)]):
        flags = CHECKED | (CE if marked else 0)
        packets = [
            contribution(
                job, rank, round, flags=CHECKED | RETRANSMIT | (CE if rank in marked else 0)
            )
            for rank in range(3)
        ]
        v.step(f"rank 0, round {round}", job, packets[0], nobody("started"))
        v.step(f"rank 1, round {round}", job, packets[1], nobody("added"))
        asks = contribution(job, 0, round, flags=CHECKED | CE)
        if round == 4:
            v.step("a duplicate's CE is nobody's", job, asks, back("pending", asks.pending(0, 1)))
        total = ramp_sum(3, round)
        v.step(
            f"rank 2, round {round}",
            job,
            packets[2],
            to_all(job, packets[2].result_for_all(total, 3, flags)),
        )
        asks = contribution(job, 1, round)
        v.step(
            f"rank 1 asks for round {round}",
            job,
            asks,
            back("replayed", asks.result(total, 3, flags)),
        )
    return v


def unknown_flags():
    v = Vector("unknown_flags", "Flags that nobody knows are ignored, and sent as 0.", "fifo")
    job = v.open(Job(ranks=2))
    first, last = (contribution(job, rank, 0, flags=CHECKED | 0xC0) for rank in range(2))
    v.step("rank 0", job, first, nobody("started"))
    v.step("rank 0 again", job, first, back("pending", first.pending(0)))
    v.step("rank 1", job, last, to_all(job, last.result_for_all(ramp_sum(2, 0), 2)))
    v.step("rank 0 asks again", job, first, back("replayed", result(first, job)))
    return v


def bundles():
    about = """
Runs of packets of one rank, as senders make them: a data plane that takes superpackets may get \
each run as one, cut anywhere. The last
packet of a run may be shorter. There are runs all of whose packets complete a round, none of \
which do, and some."""
    v = Vector("bundles", about, "fifo")
    job = v.open(Job(ranks=2))

    def packet(rank, slot, round):
        return job.contribution(
            rank, slot, round, ramp(rank, round + slot, 32 if slot == 7 else 64)
        )

    def run(rank, round, slots, done):
        for slot in slots:
            this = packet(rank, slot, round)
            total = sums(*(packet(r, slot, round).values for r in range(2)))
            if slot in done:
                v.step(
                    f"rank {rank}, slot {slot}, round {round}",
                    job,
                    this,
                    to_all(job, this.result_for_all(total, 2)),
                )
            else:
                v.step(f"rank {rank}, slot {slot}, round {round}", job, this, nobody("started"))

    def asks(rank, round, slots, pending):
        for slot in slots:
            this = packet(rank, slot, round)
            total = sums(*(packet(r, slot, round).values for r in range(2)))
            expected = (
                back("pending", this.pending(rank))
                if slot in pending
                else back("replayed", this.result(total, 2))
            )
            v.step(f"rank {rank} asks, slot {slot}, round {round}", job, this, expected)

    everything = range(8)
    run(0, 0, everything, done=())
    asks(0, 0, everything, pending=everything)
    run(1, 0, everything, done=everything)
    asks(0, 0, everything, pending=())
    run(1, 1, range(4), done=())
    run(0, 1, everything, done=range(4))
    asks(0, 1, everything, pending=range(4, 8))
    run(1, 1, range(4, 8), done=everything)
    return v
