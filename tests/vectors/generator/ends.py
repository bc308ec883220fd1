"""Where frames end: before their IP packet does, or behind it."""

from dataclasses import replace

from .combiners import FEATURES as OF_COMBINERS
from .combiners import PARENT, PARENT_PORT, Below, goes_on, own, partial, to_everyone, up
from .frame import Frame
from .message import MixedJob, to_ranks
from .numbers import CHECKED, MAX, RETRANSMIT
from .vector import Job, Vector, back, nobody, ramp, ramp_sum, to_all, uncounted

PADDING = {"padding": b"\xee" * 46}
# Less than a frame's FCS, which a parser may take for the packet's bytes, and more.
MISSING = range(1, 9)
PART_BYTES = 4 * 64


def vectors():
    return [
        lengths(),
        cut_frames(),
        cut_frames_without_lanes(),
        cut_frames_of_256_lanes(),
        cut_messages(),
        cut_hellos(),
        combiner_cut_frames(),
        padding(),
        padding_of_256_lanes(),
        padding_of_messages(),
        combiner_padding(),
    ]


# Frames that are cut: rules 7.1 and 24.16.
REFUSED = (nobody("truncated"), uncounted())


def as_it_came(expected):
    """The same, with what is behind the packet, and without what the frame lacks."""
    make = expected.frame
    return replace(
        expected,
        without="lengths",
        frame=lambda frame: make(frame).changed(padding=frame.padding, cut=frame.cut),
    )


def without(job, packet, missing):
    return {"cut": len(job.frame(packet).to_bytes()) - missing}


def in_header(lanes):
    """What a packet lacks whose header lacks a byte. All parsers read headers."""
    return 4 * lanes + 1


def lengths():
    about = "The lengths of the frame, of IP and of UDP must agree."
    v = Vector("lengths", about, "fifo", ("frames",))
    job = v.open(Job(ranks=2))
    packets = [job.contribution(rank, 2, 0, ramp(rank, 0)) for rank in range(2)]
    right = packets[1]

    def refused(title, counter, *others, **fields):
        v.step(title, job, right, nobody(counter), *others, **fields)

    for length in (42, 73, 74, 74 + 64, 74 + 127):
        refused(f"cut off after {length} bytes", "truncated", uncounted(), cut=length)
    bad = nobody("bad_length")
    unseen = replace(bad, without="lengths")
    refused("an IP packet longer than the frame", "truncated", unseen, total_len=0xFFFF)
    refused("a byte less of IP", "bad_length", total_len=187)
    refused("a byte more of UDP", "bad_length", udp_len=169, total_len=188)
    refused("a byte less of UDP", "bad_length", udp_len=167, total_len=188)
    refused("no UDP", "bad_length", udp_len=0, total_len=188)
    refused("no IP", "bad_length", total_len=0)
    data = right.to_bytes()
    short = job.frame(right).changed(packet=data[:96], padding=bytes(200))
    v.frame("missing lanes behind the end of IP", job.port(1), short, bad)
    v.step("rank 0", job, packets[0], nobody("started"))
    v.step("rank 1", job, right, to_all(job, right.result_for_all(ramp_sum(2, 0), 2)))
    return v


def play_cut(v, job, round, lanes, missing, completes):
    """A round in which frames are cut before and after the whole ones."""
    slot = 2
    first, last = (job.contribution(rank, slot, round, ramp(rank, round, lanes)) for rank in (0, 1))
    # Its check word is right, too, where no lanes are added up.
    zeros = last.changed(values=(0,) * lanes)
    what = f"without its last {missing} bytes of {lanes} lanes"
    cut = without(job, first, missing)
    v.step(f"rank 1 {what}", job, last, *REFUSED, **cut)
    v.step(f"zeros {what}", job, zeros, *REFUSED, **cut)
    v.step("rank 0", job, first, nobody("started"))
    v.step(f"rank 0 {what}", job, first, *REFUSED, **cut)
    v.step(f"rank 1 {what}", job, last, *REFUSED, **cut)
    v.step("rank 1", job, last, completes(job, last.result_for_all(ramp_sum(2, round, lanes), 2)))
    v.step(f"rank 0 asks {what}", job, first, *REFUSED, **cut)


def cut_frames():
    about = """
A frame that is shorter than its IP packet leaves no trace, however much it lacks: it is in no \
sum, and has no answer."""
    v = Vector("cut_frames", about, "fifo", ("frames",))
    job = v.open(Job(ranks=2))
    cuts = [(lanes, missing) for lanes in (32, 64) for missing in (*MISSING, 4 * lanes)]
    for round, (lanes, missing) in enumerate(cuts):
        play_cut(v, job, round, lanes, missing, to_all)
    return v


def cut_frames_without_lanes():
    about = "So does one without lanes, which is cut in its header."
    v = Vector("cut_frames_without_lanes", about, "fifo", ("empty", "frames"))
    job = v.open(Job(ranks=2))
    empty = job.contribution(0, 2, 0, [0] * 32).emptied()
    for missing in MISSING:
        v.step(f"without {missing} bytes", job, empty, *REFUSED, **without(job, empty, missing))
    v.step("rank 0", job, empty, nobody("started"))
    full = job.contribution(1, 2, 0, ramp(1, 0))
    v.step("rank 1", job, full, to_all(job, full.result_for_all(ramp(1, 0), 2)))
    return v


def cut_frames_of_256_lanes():
    about = """
A frame that takes several passes through a Tofino, cut in each of its parts, or between two. \
What a data plane has taken of it before is what the rank sends again."""
    v = Vector("cut_frames_of_256_lanes", about, "fifo", ("frames",))
    job = v.open(Job(ranks=2))
    of_part = [(1, 5), (2, 6, PART_BYTES), (3, 7), (4, 8)]
    cuts = [
        (256, (3 - part) * PART_BYTES + missing)
        for part, each in enumerate(of_part)
        for missing in each
    ]
    # The last part has 32 lanes.
    cuts.append((224, 2))
    for round, (lanes, missing) in enumerate(cuts):
        play_cut(v, job, round, lanes, missing, to_all)
    for lanes in range(96, 257, 32):
        cut_hello(v, job, job.hello(0, lanes), in_header(lanes))
    return v


def cut_messages():
    about = "A message of RoCEv2 that is cut, in its ICRC or before, leaves no trace either."
    v = Vector("cut_messages", about, "fifo", ("frames", "roce"))
    job = v.open(MixedJob(ranks=2, by_roce=(0,)))
    for round, missing in enumerate((*MISSING, 4 * 32, 4 * 32 + 4, 4 * 32 + 4 + 16)):
        first, last = (job.contribution(rank, 2, round, ramp(rank, round)) for rank in (0, 1))
        cut = without(job, first, missing)
        v.step(f"without {missing} bytes", job, first, nobody("truncated"), **cut)
        v.step("rank 0", job, first, nobody("started"))
        v.step(f"again without {missing} bytes", job, first, nobody("truncated"), **cut)
        v.step("rank 1", job, last, to_ranks(job, last.result_for_all(ramp_sum(2, round), 2)))
        hello = job.hello(0, 32)
        cut = without(job, hello, missing)
        v.step(f"a HELLO without {missing} bytes", job, hello, nobody("truncated"), **cut)
    return v


def cut_hellos():
    about = """
A HELLO that is shorter than its IP packet proves nothing. If it comes back all the same, it is \
as short, so that no host takes it."""
    v = Vector("cut_hellos", about, "fifo", ("frames",))
    job = v.open(Job(ranks=2, newcomers=(1,)))
    for lanes in (0, 32, 64):
        hello = job.hello(1, lanes)
        for missing in sorted({*MISSING, in_header(lanes)}):
            # Rank 1's would bind it.
            for rank in (1, 0) if lanes == 0 else (0,):
                cut_hello(v, job, job.hello(rank, lanes), missing)
        v.step("whole", job, hello, back("hello", hello), nobody("no_hello"))
        v.step("again", job, hello, back("hello", hello))
    return v


def cut_hello(v, job, hello, missing):
    answer = as_it_came(back("hello", hello))
    lanes = hello.lane_count()
    v.step(
        f"rank {hello.rank}'s of {lanes} lanes without {missing} bytes",
        job,
        hello,
        *REFUSED,
        *([answer] if missing < in_header(lanes) else []),
        **without(job, hello, missing),
    )


def combiner_cut_frames():
    about = """
What is cut is not combined, and no partial sum is cut. What a combiner passes untouched may be \
as short as it came, if its header is whole."""
    v = Vector("combiner_cut_frames", about, "fifo", (*OF_COMBINERS, "frames"))
    job = v.open(Below(ranks=2))
    cuts = [
        (lanes, missing)
        for lanes in (32, 64)
        for missing in (*MISSING, 4 * lanes, in_header(lanes))
    ]
    for round, (lanes, missing) in enumerate(cuts):
        first, last = (own(job, rank, round, lanes=lanes) for rank in (0, 1))
        zeros = first.changed(values=(0,) * lanes)
        cut = without(job, first, missing)
        for title, packet in [("rank 0", first), ("zeros", zeros)]:
            v.step(f"{title} without {missing} bytes", job, packet, *REFUSED, **cut)
        v.step("rank 0", job, first, nobody("held"))
        v.step(f"rank 1 without {missing} bytes", job, last, *REFUSED, **cut)
        both = up(job, "combined", partial(job, (0, 1), round, lanes=lanes), 1)
        v.step("rank 1", job, last, both)
        again = own(job, 1, round, lanes=lanes, flags=CHECKED | RETRANSMIT)
        maximum = own(job, 1, round, lanes=lanes, op=MAX)
        hello = job.hello(1, lanes)
        is_passed = missing < in_header(lanes)
        for title, packet, counter in [
            ("a resend", again, "passed"),
            ("a maximum", maximum, "passed"),
            ("a partial sum", partial(job, (1,), round, lanes=lanes), "passed"),
            ("a HELLO", hello, "hello_passed"),
        ]:
            passes = as_it_came(up(job, counter, packet, 1))
            answers = (*REFUSED, *([passes] if is_passed else []))
            v.step(f"{title} without {missing} bytes", job, packet, *answers, sender=1, **cut)
        everyone = first.result_for_all(ramp(0, 0, lanes), 2)
        short = Frame(PARENT, job.for_all(), everyone, **cut)
        down = as_it_came(to_everyone(job, everyone))
        answers = (*REFUSED, *([down] if is_passed else []))
        v.frame(f"a RESULT without {missing} bytes", PARENT_PORT, short, *answers)
    for packet in (job.hello(1, 0), own(job, 1, len(cuts)).emptied()):
        for missing in MISSING:
            cut = without(job, packet, missing)
            v.step(f"a header without {missing} bytes", job, packet, *REFUSED, **cut)
    return v


def padded(v, title, job, packet, expected):
    """A data plane that cannot cut frames sends back what is behind the packet (rule 24.17)."""
    others = [] if expected.frame is None else [as_it_came(expected)]
    v.step(title, job, packet, expected, *others, **PADDING)


def padding():
    about = "What Ethernet pads is not the packet's; an answer has none of it."
    v = Vector("padding", about, "fifo", ("frames",))
    job = v.open(Job(ranks=2))
    play_padded(v, job, 0, 32)
    hello = job.hello(1, 0)
    padded(v, "HELLO", job, hello, back("hello", hello))
    return v


def play_padded(v, job, round, lanes):
    first, last = (job.contribution(rank, 2, round, ramp(rank, round, lanes)) for rank in (0, 1))
    total = ramp_sum(2, round, lanes)
    padded(v, "rank 0", job, first, nobody("started"))
    padded(v, "rank 0 again", job, first, back("pending", first.pending(0)))
    padded(v, "rank 1", job, last, to_all(job, last.result_for_all(total, 2)))
    padded(v, "rank 0 asks again", job, first, back("replayed", first.result(total, 2)))


def padding_of_256_lanes():
    about = "As in padding, with packets that take several passes through a Tofino."
    v = Vector("padding_of_256_lanes", about, "fifo", ("frames",))
    job = v.open(Job(ranks=2))
    for round, lanes in enumerate((64, 96, 256)):
        play_padded(v, job, round, lanes)
    return v


def padding_of_messages():
    about = "As in padding, of ranks with and without queue pairs."
    v = Vector("padding_of_messages", about, "fifo", ("frames", "roce"))
    job = v.open(MixedJob(ranks=2, by_roce=(0,)))
    first, last = (job.contribution(rank, 2, 0, ramp(rank, 0)) for rank in (0, 1))
    v.step("rank 0", job, first, nobody("started"), **PADDING)
    v.step("rank 0 again", job, first, back("pending", first.pending(0)), **PADDING)
    v.step("rank 1", job, last, to_ranks(job, last.result_for_all(ramp_sum(2, 0), 2)), **PADDING)
    again = back("replayed", first.result(ramp_sum(2, 0), 2))
    v.step("rank 0 asks again", job, first, again, **PADDING)
    hello = job.hello(0, 32)
    v.step("HELLO", job, hello, back("hello", hello), **PADDING)
    return v


def combiner_padding():
    about = "What Ethernet pads goes neither up nor down."
    v = Vector("combiner_padding", about, "fifo", (*OF_COMBINERS, "frames"))
    job = v.open(Below(ranks=2))
    padded(v, "rank 0", job, own(job, 0, 0), nobody("held"))
    both = up(job, "combined", partial(job, (0, 1), 0), 1)
    padded(v, "rank 1", job, own(job, 1, 0), both)
    again = own(job, 1, 0, flags=CHECKED | RETRANSMIT)
    padded(v, "a resend", job, again, goes_on(job, again))
    everyone = again.result_for_all(ramp(0, 0), 2)
    down = to_everyone(job, everyone)
    frame = Frame(PARENT, job.for_all(), everyone, **PADDING)
    v.frame("a RESULT", PARENT_PORT, frame, down, as_it_came(down))
    return v
