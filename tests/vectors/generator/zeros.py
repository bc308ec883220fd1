"""Contributions without payload: EMPTY and ROOM, rules 2.8, 8.13 and 9.2."""

from .numbers import CE, CHECKED, EMPTY, MAX, RETRANSMIT, ROOM
from .vector import Job, Vector, back, nobody, ramp, sums, to_all

FEATURES = ("empty",)


def vectors():
    return [
        empty_first(),
        empty_in_the_middle(),
        empty_last(),
        empty_duplicates(),
        empty_of_another_call(),
        empty_rounds(),
        empty_before_its_turn(),
        empty_of_an_aborted_job(),
        empty_alone(),
        empty_congested(),
        empty_bundles(),
        empty_malformed(),
    ]


def contribution(job, rank, round, slot=2, lanes=64, **options):
    return job.contribution(rank, slot, round, ramp(rank, round, lanes), **options)


def empty(job, rank, round, slot=2, lanes=64, **options):
    return contribution(job, rank, round, slot, lanes, **options).emptied()


def in_full(packet):
    """The same contribution, with its zeros."""
    return packet.changed(
        flags=packet.flags & ~EMPTY | RETRANSMIT, lanes=None, values=(0,) * packet.lane_count()
    )


def room(packet):
    return back("room", packet.changed(kind=ROOM))


def total(job, round, *ranks, lanes=64):
    return sums([0] * lanes, *(ramp(rank, round, lanes) for rank in ranks))


def play(v, job, round, zeros, order=None):
    """A round in which these ranks are EMPTY; the last of the order is not."""
    order = list(order or range(job.ranks))
    for turn, rank in enumerate(order):
        packet = (empty if rank in zeros else contribution)(job, rank, round)
        expected = nobody("added" if turn else "started")
        if turn == job.ranks - 1:
            others = set(order) - set(zeros)
            expected = to_all(
                job, packet.result_for_all(total(job, round, *others), job.ranks)
            )
        what = " without payload" if rank in zeros else ""
        v.step(f"rank {rank}{what}, round {round}", job, packet, expected)


def empty_first():
    v = Vector(
        "empty_first",
        "EMPTY starts a round: what an earlier one has left in the set does not count.",
        "fifo",
        FEATURES,
    )
    job = v.open(Job(ranks=3))
    for round in range(2):
        play(v, job, round, zeros=())
    play(v, job, 2, zeros=(0,))
    play(v, job, 3, zeros=(0, 1))
    play(v, job, 4, zeros=(0, 1))
    play(v, job, 5, zeros=())
    return v


def empty_in_the_middle():
    v = Vector("empty_in_the_middle", "EMPTY joins a round, and adds nothing.", "fifo", FEATURES)
    job = v.open(Job(ranks=4))
    play(v, job, 0, zeros=(1,))
    play(v, job, 1, zeros=(1, 2))
    play(v, job, 2, zeros=(2, 0), order=[3, 0, 2, 1])
    return v


def empty_last():
    about = """
EMPTY does not complete a round: there is no room for the RESULT. The slot waits for the same \
contribution in full, whoever else sent values."""
    v = Vector("empty_last", about, "fifo", FEATURES)
    job = v.open(Job(ranks=2))
    for round in range(5):
        first = (contribution if round % 2 else empty)(job, 0, round)
        values = total(job, round, *(range(1) if round % 2 else ()))
        last = empty(job, 1, round)
        v.step(f"rank 0 starts round {round}", job, first, nobody("started"))
        v.step("rank 1 is EMPTY", job, last, room(last))
        v.step("rank 1 is EMPTY again", job, last, room(last))
        v.step(
            "rank 1 in full",
            job,
            in_full(last),
            to_all(job, in_full(last).result_for_all(values, 2)),
        )
    return v


def empty_duplicates():
    about = "Who is in already and sends EMPTY gets ROOM, be the round complete or not."
    v = Vector("empty_duplicates", about, "fifo", FEATURES)
    job = v.open(Job(ranks=3))
    for round in range(3):
        first, second = empty(job, 0, round), contribution(job, 1, round)
        v.step(f"rank 0 starts round {round}", job, first, nobody("started"))
        v.step("rank 0 again", job, first, room(first))
        full = in_full(first)
        v.step("rank 0 in full", job, full, back("pending", full.pending(0)))
        v.step("rank 1", job, second, nobody("added"))
        v.step("rank 1 as if it were EMPTY", job, empty(job, 1, round), room(empty(job, 1, round)))
        last = contribution(job, 2, round)
        values = total(job, round, 1, 2)
        v.step("rank 2", job, last, to_all(job, last.result_for_all(values, 3)))
        for rank in range(3):
            again = empty(job, rank, round)
            v.step(f"rank {rank} after completion", job, again, room(again))
        v.step("rank 0 asks in full", job, full, back("replayed", full.result(values, 3)))
    return v


def empty_of_another_call():
    about = """
EMPTY of another call gets ROOM, and poisons nothing; in full it would be a MISMATCH. `lanes` \
says which call it is, as ever."""
    v = Vector("empty_of_another_call", about, "fifo", FEATURES)
    job = v.open(Job(ranks=2))
    first, last = empty(job, 0, 0), contribution(job, 1, 0)
    v.step("rank 0 starts the round", job, first, nobody("started"))
    for title, other in [
        ("another fingerprint", empty(job, 1, 0).changed(fingerprint=0xFEEDF00E)),
        ("other lanes", empty(job, 1, 0, lanes=32)),
    ]:
        v.step(title, job, other, room(other))
    v.step("rank 1", job, last, to_all(job, last.result_for_all(total(job, 0, 1), 2)))
    other = empty(job, 0, 0, lanes=32)
    v.step("other lanes after completion", job, other, room(other))
    return v


def empty_rounds():
    v = Vector(
        "empty_rounds",
        "EMPTY of a round that may not start yet gets ROOM; of one that is over, nothing.",
        "fifo",
        FEATURES,
    )
    job = v.open(Job(ranks=2))
    for round in (2, 5):
        early = empty(job, 1, round)
        v.step(f"round {round} before round 0", job, early, room(early), nobody("stale"))
    for round in range(3):
        play(v, job, round, zeros=(0,))
    v.step("round 0 is over", job, empty(job, 0, 0), nobody("stale"))
    early = empty(job, 0, 6)
    v.step("round 6 before round 4", job, early, room(early), nobody("stale"))
    play(v, job, 3, zeros=(1,), order=[1, 0])
    return v


def empty_before_its_turn():
    about = "EMPTY may not start a round before the one in the slot's other set is complete."
    v = Vector("empty_before_its_turn", about, "strict", FEATURES)
    job = v.open(Job(ranks=2))
    early = empty(job, 1, 1)
    v.step("round 1 before round 0", job, early, room(early))
    for round in range(3):
        play(v, job, round, zeros=(0,))
    early = empty(job, 0, 4)
    v.step("round 4 before round 3", job, early, room(early))
    return v


def empty_of_an_aborted_job():
    v = Vector("empty_of_an_aborted_job", "An aborted job has ROOM, too.", "fifo", FEATURES)
    job = v.open(Job(ranks=2))
    v.step("rank 0 starts the round", job, empty(job, 0, 0), nobody("started"))
    v.abort(job)
    last = empty(job, 1, 0)
    v.step("rank 1 is EMPTY", job, last, room(last))
    full = in_full(last)
    v.step("rank 1 in full", job, full, back("aborted", full.reject(3, 0)))
    return v


def empty_alone():
    v = Vector("empty_alone", "A job's only rank always completes its rounds.", "fifo", FEATURES)
    job = v.open(Job(ranks=1))
    for round in range(3):
        packet = empty(job, 0, round)
        v.step(f"EMPTY, round {round}", job, packet, room(packet))
        full = in_full(packet)
        v.step("in full", job, full, to_all(job, full.result_for_all([0] * 64, 1)))
    return v


def empty_congested():
    v = Vector("empty_congested", "EMPTY may have seen congestion.", "fifo", FEATURES)
    job = v.open(Job(ranks=2))
    first = empty(job, 0, 0, flags=CHECKED | CE)
    v.step("rank 0 with CE", job, first, nobody("started"))
    v.step("rank 0 again", job, first, room(first))
    last = contribution(job, 1, 0)
    values = total(job, 0, 1)
    v.step("rank 1", job, last, to_all(job, last.result_for_all(values, 2, CHECKED | CE)))
    return v


def empty_bundles():
    about = """
Runs of EMPTY packets of one rank, as senders make them: all start a round, all join one, some \
get ROOM, all do. Then runs of full packets, of which the last one is EMPTY."""
    v = Vector("empty_bundles", about, "fifo", FEATURES)
    job = v.open(Job(ranks=3))

    def run(rank, round, expected):
        for slot, this in enumerate(expected):
            packet = empty(job, rank, round, slot)
            v.step(
                f"rank {rank}, slot {slot}, round {round}",
                job,
                packet,
                room(packet) if this == "room" else nobody(this),
            )

    def run_in_full(rank, round, slots, *others):
        for slot in slots:
            packet = contribution(job, rank, round, slot)
            values = total(job, round, rank, *others)
            v.step(
                f"rank {rank} completes slot {slot}, round {round}",
                job,
                packet,
                to_all(job, packet.result_for_all(values, 3)),
            )

    everything = range(8)
    run(0, 0, ["started"] * 8)
    run(1, 0, ["added"] * 8)
    run(2, 0, ["room"] * 8)
    run_in_full(2, 0, everything)
    run(1, 1, ["started"] * 8)
    for slot in range(0, 8, 2):
        v.step(
            f"rank 0, slot {slot}", job, contribution(job, 0, 1, slot), nobody("added")
        )
    run(2, 1, ["room", "added"] * 4)
    run_in_full(2, 1, range(0, 8, 2), 0)
    for slot in (0, 2, 4):
        v.step(f"rank 2, slot {slot}", job, contribution(job, 2, 2, slot), nobody("started"))
    v.step("rank 2, slot 6", job, empty(job, 2, 2, 6), nobody("started"))
    for slot in (0, 2, 4):
        asks = contribution(job, 2, 2, slot)
        v.step(f"rank 2 again, slot {slot}", job, asks, back("pending", asks.pending(2)))
    again = empty(job, 2, 2, 6)
    v.step("rank 2 again, slot 6", job, again, room(again))
    return v


def empty_malformed():
    about = (
        "EMPTY with a payload, of a maximum, with no lanes or a wrong check word; and ROOM, which "
        "no aggregator takes."
    )
    v = Vector("empty_malformed", about, "fifo", (*FEATURES, "verify"))
    job = v.open(Job(ranks=2))
    right, full = empty(job, 1, 0), contribution(job, 1, 0)

    def refused(title, packet, counter, *others):
        v.step(title, job, packet, nobody(counter), *map(nobody, others))

    refused("with a payload", full.changed(flags=CHECKED | EMPTY), "bad_length", "bad_lanes")
    refused("with a lane", right.changed(values=(0,)), "bad_length", "bad_lanes")
    refused("of a maximum", right.changed(op=MAX), "bad_op", "bad_lanes", "bad_length")
    for lanes in (0, 2, 33, 800):
        packet = right.changed(lanes=lanes)
        refused(f"for {lanes} lanes", packet, "bad_lanes", "bad_length")
    refused(
        "no payload, and no flag", right.changed(flags=CHECKED), "bad_length", "bad_lanes"
    )
    refused("unchecked", right.changed(flags=EMPTY), "bad_check")
    refused("for another round", right.corrupted(round=2), "bad_check")
    refused("for fewer lanes", right.corrupted(lanes=32), "bad_check")
    refused("ROOM", right.changed(kind=ROOM), "bad_kind", "bad_length")
    refused("ROOM with a payload", full.changed(kind=ROOM), "bad_length", "bad_kind")
    play(v, job, 0, zeros=(0,))
    return v
