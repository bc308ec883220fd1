"""Combiners: section 27 of docs/spec."""

from dataclasses import dataclass

from .frame import End, Frame
from .numbers import CE, CHECKED, MAX, RESULT, RETRANSMIT
from .vector import AGGREGATOR, Expected, Job, Vector, group_of, nobody, passed, ramp, sums

FEATURES = ("combiner",)
OF_ONE_CELL = (*FEATURES, "collisions")
PARENT = End("02:00:00:00:01:fe", "10.0.1.254", 48864)
PARENT_PORT = 4


def vectors():
    return [
        combined(),
        combined_in_another_group(),
        combiner_cells(),
        combiner_patience(),
        combiner_resends(),
        combiner_partial_sums(),
        combiner_maxima(),
        combiner_damage(),
        combiner_admission(),
        combiner_answers(),
        combiner_ranks_at_the_parents_port(),
    ]


@dataclass
class Below(Job):
    """A job of which these ranks, `first` and those behind it, are below the combiner."""

    first: int = 0

    def below(self):
        return range(self.first, self.first + self.ranks)

    def listed(self):
        return self.below()

    def head(self):
        return f"  parent port {PARENT_PORT} {PARENT.mac} {PARENT}"

    def port(self, rank):
        return 1 + rank // self.together % 3

    def way_up(self, rank):
        """Rule 27.2."""
        port = AGGREGATOR.udp + 1 + (rank + 64 * self.number) % 1024
        return End(AGGREGATOR.mac, AGGREGATOR.ip, port)

    def for_all(self):
        return End(AGGREGATOR.mac, AGGREGATOR.ip, AGGREGATOR.udp + 1025 + self.number)


def own(job, rank, round, slot=2, lanes=32, **options):
    return job.contribution(rank, slot, round, ramp(rank, round, lanes), **options)


def partial(job, ranks, round, slot=2, lanes=32, **options):
    """The partial sum of these ranks, which are of one group."""
    values = sums(*(ramp(rank, round, lanes) for rank in ranks))
    return job.contribution(ranks[0], slot, round, values, **options).partial(ranks)


def up(job, counter, packet, rank):
    """The packet goes to the parent from this rank's port."""
    return Expected(
        f"port {PARENT_PORT}",
        counter,
        lambda frame: frame.answer(job.way_up(rank), PARENT, packet),
    )


def goes_on(job, packet):
    """As it is."""
    return up(job, "passed", packet, packet.rank)


def combined(name="combined", first=0):
    about = """
What several ranks below contribute to a round goes to the parent as one partial sum, from the \
port of the rank that came last."""
    v = Vector(name, about, "fifo", FEATURES)
    round = 0
    for ranks in (2, 3, 4):
        job = v.open(Below(ranks=ranks, first=first))
        below = list(job.below())
        for order in (below, below[::-1], below[1:] + below[:1]):
            for lanes in (32, 64):
                for rank in order[:-1]:
                    packet = own(job, rank, round, lanes=lanes)
                    v.step(f"rank {rank} of {ranks}, round {round}", job, packet, nobody("held"))
                again = own(job, order[0], round, lanes=lanes)
                v.step(f"rank {order[0]} doubled", job, again, nobody("duplicate"))
                # The mark may come with any of them.
                marked = round % 2 * CE
                last = own(job, order[-1], round, lanes=lanes, flags=CHECKED | marked)
                leaves = partial(job, below, round, lanes=lanes, flags=CHECKED | marked)
                v.step(f"rank {order[-1]}", job, last, up(job, "combined", leaves, order[-1]))
                round += 1
        v.close(job)
    job = v.open(Below(ranks=2, first=first))
    for rank, counter in [(first, "held"), (first + 1, "combined")]:
        packet = own(job, rank, round)
        leaves = partial(job, list(job.below()), round, flags=CHECKED | CE)
        expected = up(job, counter, leaves, rank) if counter == "combined" else nobody(counter)
        # Marked in the IP header (rule 5.5).
        v.step(f"rank {rank}, marked", job, packet, expected, tos=3 if rank == first else 2)
    return v


def combined_in_another_group():
    return combined("combined_in_another_group", first=40)


def combiner_cells():
    about = """
A cell takes one call of one round. What finds it taken goes on as it is. A round that is older \
gives way, or is left alone; what completes makes the cell free."""
    v = Vector("combiner_cells", about, "fifo", OF_ONE_CELL)
    job = v.open(Below(ranks=2))
    other = v.open(Below(ranks=2, number=8))
    v.step("rank 0", job, own(job, 0, 5), nobody("held"))
    for title, of, packet in [
        ("another slot", job, own(job, 1, 5, slot=3)),
        ("another job", other, own(other, 1, 5)),
        ("another fingerprint", job, own(job, 1, 5).changed(fingerprint=1)),
        ("other lanes", job, own(job, 1, 5, lanes=64)),
        ("an older round", job, own(job, 1, 4)),
    ]:
        v.step(title, of, packet, goes_on(of, packet))
    both = partial(job, (0, 1), 5)
    v.step("rank 1", job, own(job, 1, 5), up(job, "combined", both, 1))
    v.step("another job's", other, own(other, 1, 5), nobody("held"))
    packet = own(job, 0, 6)
    v.step("the first one's next round", job, packet, goes_on(job, packet))
    both = up(other, "combined", partial(other, (0, 1), 5), 0)
    v.step("the other one", other, own(other, 0, 5), both)
    v.step("a round", job, own(job, 0, 7), nobody("held"))
    newer = own(job, 0, 8)
    v.step("a newer one", job, newer, nobody("held"), goes_on(job, newer))
    return v


def combiner_patience():
    about = "What has waited for long leaves in place of another key's packet, or is forgotten."
    v = Vector("combiner_patience", about, "fifo", OF_ONE_CELL)
    job = v.open(Below(ranks=3))
    other = v.open(Below(ranks=3, number=8))
    v.step("rank 0", job, own(job, 0, 0), nobody("held"))
    v.step("rank 2", job, own(job, 2, 0), nobody("held"))
    v.pause()
    old = up(other, "evicted", partial(job, (0, 2), 0), 1)
    v.step("another job's", other, own(other, 1, 0), old, nobody("held"))
    late = own(job, 1, 0)
    v.step("too late", job, late, goes_on(job, late))
    v.pause()
    v.step("of other lanes", job, own(job, 1, 1, lanes=64), nobody("held"))
    return v


def combiner_resends():
    about = """
Resends go on untouched. Ranks that they leave behind do not wait for them, or send again, too."""
    v = Vector("combiner_resends", about, "fifo", FEATURES)
    job = v.open(Below(ranks=3))
    resent = CHECKED | RETRANSMIT
    alone = own(job, 1, 0, flags=resent)
    v.step("rank 1 again", job, alone, goes_on(job, alone))
    marked = alone.changed(flags=resent | CE)
    v.step("marked in the IP header", job, alone, goes_on(job, marked), tos=3)
    v.step("rank 0", job, own(job, 0, 0), nobody("held"))
    v.step("rank 1 again", job, alone, goes_on(job, alone))
    without = up(job, "combined", partial(job, (0, 2), 0), 2)
    v.step("rank 2", job, own(job, 2, 0), without, nobody("held"))
    for rank in (0, 2):
        again = own(job, rank, 0, flags=resent)
        v.step(f"rank {rank} again", job, again, goes_on(job, again))
    for rank in (0, 1):
        v.step(f"rank {rank}, round 1", job, own(job, rank, 1), nobody("held"))
    every = up(job, "combined", partial(job, (0, 1, 2), 1), 2)
    v.step("rank 2, round 1", job, own(job, 2, 1), every)
    return v


def combiner_partial_sums():
    about = """
Partial sums of combiners below are combined, or go on as they are. One that overlaps goes on."""
    v = Vector("combiner_partial_sums", about, "fifo", FEATURES)
    # Ranks 0 and 1 are behind one combiner, 2 and 3 behind another.
    job = v.open(Below(ranks=4, together=2))

    def sent(title, ranks, round, *expected):
        packet = partial(job, ranks, round)
        v.step(title, job, packet, *expected, sender=ranks[-1])

    def passes(ranks, round):
        return up(job, "passed", partial(job, ranks, round), ranks[-1])

    of_nobody = partial(job, (0, 1), 0).changed(aux=0)
    v.step("of no rank", job, of_nobody, nobody("bad_rank"), sender=1)
    sent("ranks 0 and 1", (0, 1), 0, nobody("held"), passes((0, 1), 0))
    every = up(job, "combined", partial(job, (0, 1, 2, 3), 0), 3)
    sent("ranks 2 and 3", (2, 3), 0, every, passes((2, 3), 0))
    v.step("rank 1", job, own(job, 1, 1), nobody("held"))
    sent("ranks 2 and 3", (2, 3), 1, nobody("held"), passes((2, 3), 1))
    return v


def combiner_maxima():
    about = "A data plane that cannot sum the lanes of a maximum lets maxima go on as they are."
    v = Vector("combiner_maxima", about, "fifo", FEATURES)
    job = v.open(Below(ranks=2))
    packets = [own(job, rank, 0, op=MAX) for rank in (0, 1)]
    v.step("rank 0", job, packets[0], nobody("held"), goes_on(job, packets[0]))
    both = job.contribution(0, 2, 0, ramp(1, 0), op=MAX).partial((0, 1))
    last = up(job, "combined", both, 1)
    v.step("rank 1", job, packets[1], last, goes_on(job, packets[1]))
    return v


def combiner_damage():
    about = "What is damaged is not combined."
    v = Vector("combiner_damage", about, "fifo", (*FEATURES, "verify"))
    job = v.open(Below(ranks=2))
    first, last = (own(job, rank, 0) for rank in (0, 1))
    v.step("a lane", job, first.corrupted(values=first.with_lane(31, 0)), nobody("bad_check"))
    v.step("rank 0", job, first, nobody("held"))
    v.step("a lane", job, last.corrupted(values=last.with_lane(0, 0)), nobody("bad_check"))
    v.step("rank 1", job, last, up(job, "combined", partial(job, (0, 1), 0), 1))
    return v


def combiner_admission():
    about = "A combiner admits ranks below it, from where they said HELLO."
    v = Vector("combiner_admission", about, "fifo", FEATURES)
    job = v.open(Below(ranks=3, first=1, newcomers=(3,)))
    good = own(job, 1, 0)
    for title, packet, sender, counter in [
        ("an unknown job", good.changed(job=99), 1, "unknown_job"),
        ("another epoch", good.changed(epoch=7), 1, "wrong_epoch"),
        ("a rank elsewhere", good.changed(rank=0), 1, "bad_rank"),
        ("a rank beyond", good.changed(rank=4), 1, "bad_rank"),
        ("from rank 2's place", good, 2, "wrong_place"),
        ("a slot beyond", good.changed(slot=8), 1, "bad_slot"),
        ("before its HELLO", own(job, 3, 0), 3, "no_hello"),
        ("a RESULT", good.changed(kind=RESULT), 1, "bad_kind"),
    ]:
        v.step(title, job, packet, nobody(counter), sender=sender)
    hello = job.hello(3, 32)
    wrong = hello.changed(aux=1)
    v.step("a wrong secret", job, wrong, nobody("wrong_secret"))
    v.step("rank 3 says HELLO", job, hello, up(job, "hello_passed", hello, 3), nobody("no_hello"))
    v.step("again", job, hello, up(job, "hello_passed", hello, 3))
    v.step("from elsewhere", job, hello, nobody("wrong_place"), sender=1)
    for rank in (3, 1):
        v.step(f"rank {rank}", job, own(job, rank, 0), nobody("held"))
    every = up(job, "combined", partial(job, (1, 2, 3), 0), 2)
    v.step("rank 2", job, own(job, 2, 0), every)
    return v


def combiner_answers():
    about = """
Answers of the parent to a rank come to the rank's port, and go to where it lives; RESULTs to all \
come to the job's port, and go to all ranks below."""
    v = Vector("combiner_answers", about, "fifo", FEATURES)
    job = v.open(Below(ranks=3, first=1))
    asked = own(job, 2, 0)
    for packet in [
        asked.result(ramp(0, 0), 4),
        asked.result(ramp(0, 0, 64), 4),
        asked.pending(0, 1),
        job.hello(2, 64),
        job.hello(2, 0),
    ]:
        down(v, job, packet, job.way_up(2), to_rank(job, packet))
    everyone = asked.result_for_all(ramp(0, 0, 64), 4)
    down(v, job, everyone, job.for_all(), to_everyone(job, everyone))
    # Marked in the IP header on the way (rule 5.5).
    result = asked.result(ramp(0, 0), 4)
    for packet, to, expected in [
        (result, job.way_up(2), to_rank),
        (everyone, job.for_all(), to_everyone),
    ]:
        marked = packet.changed(flags=packet.flags | CE)
        down(v, job, packet, to, expected(job, marked), tos=3)
    pending = asked.pending(0)
    wrong = nobody("wrong_place")
    down(v, job, pending, job.way_up(1), wrong)
    down(v, job, pending, job.for_all(), wrong)
    down(v, job, everyone, job.way_up(2), wrong, nobody("bad_rank"))
    down(v, job, pending, job.way_up(2), wrong, source=PARENT_FORGED)
    down(v, job, pending.changed(rank=0), job.way_up(0), nobody("bad_rank"), passed())
    down(v, job, pending.changed(epoch=7), job.way_up(2), nobody("wrong_epoch"))
    down(v, job, asked, job.way_up(2), nobody("bad_kind"))
    return v


@dataclass
class BesideTheParent(Below):
    """The last rank is behind the parent's port."""

    def port(self, rank):
        return PARENT_PORT if rank == self.below()[-1] else super().port(rank)


def combiner_ranks_at_the_parents_port():
    about = """
A RESULT to all goes back, too, by the port that it came in by, if a rank is there."""
    v = Vector("combiner_ranks_at_the_parents_port", about, "fifo", FEATURES)
    job = v.open(BesideTheParent(ranks=2))
    v.step("rank 0", job, own(job, 0, 0), nobody("held"))
    last = own(job, 1, 0)
    v.step("rank 1", job, last, up(job, "combined", partial(job, (0, 1), 0), 1))
    everyone = last.result_for_all(ramp(0, 0), 2)
    down(v, job, everyone, job.for_all(), to_everyone(job, everyone))
    again = last.result(ramp(0, 0), 2)
    down(v, job, again, job.way_up(1), to_rank(job, again))
    return v


PARENT_FORGED = End(PARENT.mac, PARENT.ip, PARENT.udp + 1)


def down(v, job, packet, to, *expected, source=PARENT, tos=0):
    frame = Frame(source, to, packet, tos=tos)
    v.frame(f"to port {to.udp}", PARENT_PORT, frame, *expected)


def to_rank(job, packet):
    place = job.place(packet.rank)
    return Expected(
        f"port {job.port(packet.rank)}",
        "to_rank",
        lambda frame: frame.answer(AGGREGATOR, place, packet),
    )


def to_everyone(job, packet):
    return Expected(
        f"group {job.number}",
        "to_all",
        lambda frame: frame.answer(AGGREGATOR, group_of(job), packet),
    )
