"""Partial sums: PARTIAL, rules 2.9, 3.5, 8.14 and 8.15."""

from .numbers import CE, CHECKED, MAX, MISMATCH
from .vector import Job, Vector, back, nobody, play_round, ramp, ramp_sum, sums, to_all

FEATURES = ("partial",)


def vectors():
    return [
        partial_sums(),
        partial_sums_of_64_ranks(),
        partial_sums_of_1024_ranks(),
        partial_sums_overlap(),
        partial_sums_refused(),
        partial_sums_of_wrong_sets(),
        partial_sums_from_elsewhere(),
        partial_sums_before_hello(),
        partial_sums_damaged(),
        partial_maxima(),
        partial_sums_in_bundles(),
    ]


def partial(job, ranks, round, slot=2, lanes=32, **options):
    """The partial sum of these ranks, which are of one group."""
    values = sums(*(ramp(rank, round, lanes) for rank in ranks))
    return job.contribution(ranks[0], slot, round, values, **options).partial(ranks)


def own(job, rank, round, slot=2, lanes=32):
    return job.contribution(rank, slot, round, ramp(rank, round, lanes))


def completes(job, packet, round, lanes=32, **options):
    values = ramp_sum(job.ranks, round, lanes)
    return to_all(job, packet.result_for_all(values, job.ranks, **options))


def partial_sums():
    about = """
Partial sums and contributions in any order make the same RESULT. Ranks 0 to 2 live behind one \
combiner, rank 3 behind another."""
    v = Vector("partial_sums", about, "fifo", FEATURES)
    job = v.open(Job(ranks=4, together=3))
    orders = [
        [((0, 1, 2),), 3],
        [3, ((0, 1, 2),)],
        [((0, 2),), 3, 1],
        [1, ((0, 2),), ((3,),)],
        [((1, 2),), ((0,),), 3],
    ]
    for round, order in enumerate(orders):
        for turn, this in enumerate(order):
            if isinstance(this, int):
                packet, title = own(job, this, round, lanes=64), f"rank {this}"
                sender = this
            else:
                packet = partial(job, this[0], round, lanes=64)
                title, sender = "ranks " + ", ".join(map(str, this[0])), this[0][0]
            expected = nobody("added" if turn else "started")
            if turn == len(order) - 1:
                expected = completes(job, packet, round, lanes=64)
            v.step(f"{title}, round {round}", job, packet, expected, sender=sender)
    return v


def partial_sums_of_64_ranks():
    about = "Two groups of ranks, each behind a combiner of its own."
    v = Vector("partial_sums_of_64_ranks", about, "fifo", FEATURES)
    job = v.open(Job(ranks=64, together=32))
    first, second = range(32), range(32, 64)
    for round, order in enumerate([(first, second), (second, first)]):
        one, other = (partial(job, ranks, round) for ranks in order)
        v.step("a group", job, one, nobody("started"))
        v.step("the same group", job, one, nobody("duplicate"))
        v.step("the other one", job, other, completes(job, other, round))
    last = own(job, 63, 1)
    v.step("rank 63 asks", job, last, back("replayed", last.result(ramp_sum(64, 1), 64)))
    return v


def partial_sums_of_1024_ranks():
    about = """
The largest job: 32 groups, each behind a combiner of its own. Their last ranks come by \
themselves, and two call something else in the next round."""
    v = Vector("partial_sums_of_1024_ranks", about, "fifo", FEATURES)
    job = v.open(Job(ranks=1024, together=32))
    firsts = [992, 0, *range(32, 992, 32)]
    seen = []
    for turn, first in enumerate(firsts):
        ranks = range(first, first + 31)
        packet = partial(job, ranks, 0)
        v.step(f"group {first // 32}", job, packet, nobody("added" if turn else "started"))
        seen += ranks
        if turn in (0, 1):
            v.step("the same group", job, packet, nobody("duplicate"))
            overlap = partial(job, (first, first + 31), 0)
            v.step("with its last rank", job, overlap, nobody("overlap"))
            asks = own(job, first + 30, 0)
            pending = back("pending", asks.pending(*seen, of=1024))
            v.step(f"rank {first + 30} asks", job, asks, pending)
    for first in firsts:
        last = own(job, first + 31, 0)
        is_last = first == firsts[-1]
        expected = completes(job, last, 0) if is_last else nobody("added")
        v.step(f"rank {first + 31}", job, last, expected)
    asks = own(job, 1023, 0)
    v.step("rank 1023 asks", job, asks, back("replayed", asks.result(ramp_sum(1024, 0), 1024)))
    v.step("group 31, round 1", job, partial(job, range(992, 1024), 1), nobody("started"))
    for rank in (777, 300):
        other = own(job, rank, 1).changed(fingerprint=rank)
        named = [1023 << 16 | 777, rank << 16 | rank]
        rejected = [back("mismatch", other.reject(MISMATCH, ranks)) for ranks in named]
        v.step(f"rank {rank} calls something else", job, other, *rejected)
    return v


def partial_sums_overlap():
    about = """
A partial sum is added whole or not at all. What was refused comes in the ranks' own resends."""
    v = Vector("partial_sums_overlap", about, "fifo", FEATURES)
    job = v.open(Job(ranks=4, together=4))
    v.step("rank 0 itself", job, own(job, 0, 0), nobody("started"))
    v.step("ranks 0 and 1", job, partial(job, (0, 1), 0), nobody("overlap"))
    v.step("rank 0", job, partial(job, (0,), 0), nobody("duplicate"))
    v.step("ranks 2 and 3", job, partial(job, (2, 3), 0), nobody("added"))
    v.step("all ranks", job, partial(job, range(4), 0), nobody("overlap"))
    again = own(job, 3, 0)
    v.step("rank 3 itself", job, again, back("pending", again.pending(0, 2, 3)))
    last = own(job, 1, 0)
    v.step("rank 1 itself", job, last, completes(job, last, 0))
    v.step("ranks 0 and 1 late", job, partial(job, (0, 1), 0), nobody("duplicate"))
    for round in (1, 2):
        all_ranks = partial(job, range(4), round)
        v.step(f"all ranks, round {round}", job, all_ranks, completes(job, all_ranks, round))
    v.step("round 0 is over", job, partial(job, (0, 1), 0), nobody("stale"))
    v.step("round 1 is not", job, partial(job, (0, 1), 1), nobody("duplicate"))
    return v


def partial_sums_refused():
    about = """
A partial sum of another call, of a round that may not start or of an aborted job is dropped, \
without a trace. Contributions are answered as ever."""
    v = Vector("partial_sums_refused", about, "strict", FEATURES)
    job = v.open(Job(ranks=3, together=3))
    v.step("round 1 before round 0", job, partial(job, (0, 1), 1), nobody("conflict"))
    play_round(v, job, 2, 0)
    v.step("ranks 1 and 2 start", job, partial(job, (1, 2), 1), nobody("started"))
    first = partial(job, (0,), 1)
    for title, other in [
        ("another fingerprint", first.changed(fingerprint=1)),
        ("another operator", first.changed(op=MAX)),
        ("other lanes", partial(job, (0,), 1, lanes=64)),
    ]:
        v.step(title, job, other, nobody("conflict"))
    v.step("rank 0", job, first, completes(job, first, 1))
    v.step("another call after it", job, first.changed(fingerprint=1), nobody("conflict"))
    v.step("ranks 1 and 2, round 2", job, partial(job, (1, 2), 2), nobody("started"))
    other = own(job, 0, 2).changed(fingerprint=1)
    rejected = back("mismatch", other.reject(MISMATCH, 2 << 16))
    v.step("rank 0 calls something else", job, other, rejected)
    v.step("the round is poisoned", job, partial(job, (0,), 2), nobody("conflict"))
    v.abort(job)
    v.step("the job is aborted", job, partial(job, (0,), 2), nobody("conflict"))
    return v


def partial_sums_of_wrong_sets():
    about = "A set begins with the first rank of its group, is not empty, and ends below N."
    v = Vector("partial_sums_of_wrong_sets", about, "fifo", FEATURES)
    job = v.open(Job(ranks=33, together=64))
    good = partial(job, (0,), 0)
    for rank, aux in [(0, 0), (1, 1), (31, 3), (32, 2), (32, 3), (32, 1 << 31), (64, 1), (992, 1)]:
        wrong = good.changed(rank=rank, aux=aux)
        v.step(f"rank {rank}, aux {aux:#x}", job, wrong, nobody("bad_rank"), sender=0)
    v.step("rank 32", job, partial(job, (32,), 0), nobody("started"))
    return v


def partial_sums_from_elsewhere():
    about = """
A partial sum comes from where all of its ranks live, except for the UDP port. Ranks 0 and 1 are \
at one place, 2 and 3 at another."""
    v = Vector("partial_sums_from_elsewhere", about, "fifo", FEATURES)
    job = v.open(Job(ranks=4, together=2))
    for ranks, sender in [((0, 1), 2), ((1, 2), 0), ((1, 2), 2), ((0, 1, 2, 3), 0), ((3,), 0)]:
        title = f"ranks {', '.join(map(str, ranks))} from rank {sender}'s"
        packet = partial(job, ranks, 0)
        v.step(title, job, packet, nobody("wrong_place"), sender=sender)
    v.step("by rank 1's port", job, partial(job, (0, 1), 0), nobody("started"), sender=1)
    last = partial(job, (2, 3), 0)
    v.step("by rank 3's port", job, last, completes(job, last, 0), sender=3)
    return v


def partial_sums_before_hello():
    about = "All ranks of a set have said HELLO."
    v = Vector("partial_sums_before_hello", about, "fifo", FEATURES)
    job = v.open(Job(ranks=3, together=3, newcomers=(1,)))
    v.step("ranks 0 and 1", job, partial(job, (0, 1), 0), nobody("no_hello"))
    v.step("ranks 0 and 2", job, partial(job, (0, 2), 0), nobody("started"))
    hello = job.hello(1, 32)
    v.step("rank 1 says HELLO", job, hello, back("hello", hello))
    last = partial(job, (1,), 0)
    v.step("rank 1", job, last, completes(job, last, 0))
    return v


def partial_sums_damaged():
    about = "The check word covers the set, too: also one of as many ranks."
    v = Vector("partial_sums_damaged", about, "fifo", (*FEATURES, "verify"))
    job = v.open(Job(ranks=4, together=4))
    for packet, counter in [
        (partial(job, (0, 1), 0), "started"),
        (partial(job, (2,), 0), "added"),
    ]:
        for aux in range(1, 16):
            if aux != packet.aux:
                damaged = packet.corrupted(aux=aux)
                v.step(f"aux {aux:#x}", job, damaged, nobody("bad_check"))
        lane = packet.corrupted(values=packet.with_lane(31, 0))
        v.step("a lane", job, lane, nobody("bad_check"))
        v.step("as sent", job, packet, nobody(counter))
    return v


def partial_maxima():
    about = "The check word of a maximum is that of its values, also on the way."
    v = Vector("partial_maxima", about, "fifo", (*FEATURES, "max"))
    job = v.open(Job(ranks=3, together=3))

    def values(*numbers):
        return [max(number, index) for index in range(32) for number in [max(numbers)]]

    first = job.contribution(0, 2, 0, values(7, 9), op=MAX, flags=CHECKED | CE).partial((0, 2))
    last = job.contribution(1, 2, 0, values(8), op=MAX)
    v.step("ranks 0 and 2", job, first, nobody("started"))
    result = last.result_for_all(values(7, 8, 9), 3, flags=CHECKED | CE)
    v.step("rank 1", job, last, to_all(job, result))
    return v


def partial_sums_in_bundles():
    about = """
Runs of partial sums as senders make them: all start a round; some join one and some are \
duplicates; some complete one and some overlap."""
    v = Vector("partial_sums_in_bundles", about, "fifo", FEATURES)
    job = v.open(Job(ranks=4, together=4))
    slots = range(8)
    for slot in slots:
        v.step(f"ranks 0 and 1, slot {slot}", job, partial(job, (0, 1), 0, slot), nobody("started"))
    for slot in slots:
        ranks, counter = [((2,), "added"), ((1,), "duplicate")][slot % 2]
        v.step(f"slot {slot}", job, partial(job, ranks, 0, slot), nobody(counter))
    for slot in slots:
        packet = partial(job, (2, 3), 0, slot)
        expected = completes(job, packet, 0) if slot % 2 else nobody("overlap")
        v.step(f"ranks 2 and 3, slot {slot}", job, packet, expected)
    return v
