"""Ranks with RDMA NICs: section 37 of docs/spec."""

from dataclasses import replace

from .frames import CE_MARK, DSCP
from .message import KEY, PORT, MixedJob, to_ranks
from .numbers import ABORTED, CE, CHECKED, GROUP, MISMATCH, RESULT, ROOM
from .vector import AGGREGATOR, Vector, back, nobody, passed, ramp, ramp_sum

FEATURES = ("roce",)


def vectors():
    return [
        roce_hello(),
        roce_of_2(),
        roce_of_5(),
        roce_and_sockets(),
        roce_places(),
        roce_refused(),
        roce_not_ours(),
        roce_marks(),
        roce_empty(),
    ]


def play_round(v, job, slot, round, lanes, order):
    """All ranks contribute to a round, in this order."""
    for turn, rank in enumerate(order):
        packet = job.contribution(rank, slot, round, ramp(rank, round, lanes))
        expected = nobody("added" if turn else "started")
        if turn == job.ranks - 1:
            result = packet.result_for_all(ramp_sum(job.ranks, round, lanes), job.ranks)
            expected = to_ranks(job, result)
        v.step(f"rank {rank} in round {round} of slot {slot}", job, packet, expected)


def roce_hello():
    about = """
HELLO binds a rank's queue pair in the place of its UDP port, and comes back as a message, \
with the flag GROUP too."""
    v = Vector("roce_hello", about, "fifo", FEATURES, lanes=64)
    job = v.open(MixedJob(ranks=2, newcomers=(0, 1), by_roce=(0, 1)))
    for rank in range(2):
        right = job.hello(rank, 32)
        early = job.contribution(rank, 2, 0, ramp(rank, 0))
        v.step(f"rank {rank} contributes too early", job, early, nobody("no_hello"))
        wrong = right.changed(aux=right.aux ^ 1)
        v.step(f"rank {rank} with a wrong secret", job, wrong, nobody("wrong_secret"))
        v.step(f"HELLO of rank {rank}", job, right, back("hello", right), nobody("no_hello"))
        for lanes in (32, 0, 64):
            again = job.hello(rank, lanes)
            v.step(f"HELLO of rank {rank} with {lanes} lanes", job, again, back("hello", again))
        to_group = right.changed(flags=GROUP)
        v.step(f"HELLO of rank {rank} to the group", job, to_group, back("hello", to_group))
    play_round(v, job, 2, 0, 32, (0, 1))
    return v


def roce_of_2():
    about = "Two ranks with queue pairs: sums, and each kind of answer to one rank."
    v = Vector("roce_of_2", about, "fifo", FEATURES)
    job = v.open(MixedJob(ranks=2, by_roce=(0, 1)))
    for round, lanes in enumerate((32, 64)):
        first = job.contribution(0, 2, round, ramp(0, round, lanes))
        v.step("rank 0 starts a round", job, first, nobody("started"))
        v.step("rank 0 again", job, first, back("pending", first.pending(0)))
        last = job.contribution(1, 2, round, ramp(1, round, lanes))
        total = ramp_sum(2, round, lanes)
        v.step("rank 1 completes it", job, last, to_ranks(job, last.result_for_all(total, 2)))
        for packet in (first, last):
            replayed = back("replayed", packet.result(total, 2))
            v.step(f"rank {packet.rank} again", job, packet, replayed)
    first = job.contribution(0, 3, 0, ramp(0, 0))
    other = job.contribution(1, 3, 0, ramp(1, 0)).changed(fingerprint=1)
    v.step("rank 0 starts another slot", job, first, nobody("started"))
    rejects = [other.reject(MISMATCH, starter << 16 | 1) for starter in (0, 1)]
    v.step("rank 1 in another call", job, other, *(back("mismatch", it) for it in rejects))
    v.abort(job)
    v.step("after the end", job, first, back("aborted", first.reject(ABORTED, 0)))
    return v


def roce_of_5():
    about = "More ranks with queue pairs than ports: each gets a copy of its own."
    v = Vector("roce_of_5", about, "fifo", FEATURES)
    job = v.open(MixedJob(ranks=5, by_roce=tuple(range(5))))
    play_round(v, job, 2, 0, 64, (4, 2, 0, 1, 3))
    play_round(v, job, 2, 1, 32, (1, 2, 3, 4, 0))
    return v


def roce_and_sockets():
    about = """
Ranks with queue pairs beside ranks with sockets, some at one port: a RESULT to all goes to the \
group by the ports of the latter, and as a message to each of the former, whoever completes it."""
    v = Vector("roce_and_sockets", about, "fifo", FEATURES)
    job = v.open(MixedJob(ranks=6, by_roce=(0, 3, 5)))
    play_round(v, job, 2, 0, 32, (0, 1, 2, 3, 4, 5))
    play_round(v, job, 2, 1, 64, (5, 3, 0, 2, 4, 1))
    for rank in (0, 1):
        packet = job.contribution(rank, 2, 1, ramp(rank, 1, 64))
        replayed = back("replayed", packet.result(ramp_sum(6, 1, 64), 6))
        v.step(f"rank {rank} again", job, packet, replayed)
    for turn, rank in enumerate((0, 1)):
        packet = job.contribution(rank, 3, 0, ramp(rank, 0))
        v.step(f"rank {rank} in slot 3", job, packet, nobody("added" if turn else "started"))
        pending = packet.pending(*range(rank + 1), of=6)
        v.step(f"rank {rank} again there", job, packet, back("pending", pending))
    other = v.open(MixedJob(ranks=2, number=3, by_roce=(1,)))
    play_round(v, other, 2, 0, 32, (0, 1))
    play_round(v, job, 4, 0, 32, (5, 4, 3, 2, 1, 0))
    return v


def roce_places():
    about = """
A rank's packets come from its queue pair alone: not from another one of its host, nor from a \
socket. Nor does a message come from a rank with a socket."""
    v = Vector("roce_places", about, "fifo", FEATURES)
    job = v.open(MixedJob(ranks=2, by_roce=(0,)))
    number = job.queue_pair(0)
    for packet in (job.contribution(0, 2, 0, ramp(0, 0)), job.hello(0, 32)):
        message = job.message(packet, 0)
        for other in (number ^ 1, number ^ 0x100, number ^ 0x10000):
            v.frame(
                f"from queue pair {other:#x}",
                job.port(0),
                message.changed(sender=other),
                nobody("wrong_place"),
            )
        datagram = job.datagram(packet, 0)
        for udp in (number & 0xFFFF, message.source.udp, PORT):
            v.frame(
                f"from a socket at UDP port {udp}",
                job.port(0),
                datagram.changed(source=replace(datagram.source, udp=udp)),
                nobody("wrong_place"),
            )
    home = job.place(1)
    for packet in (job.contribution(1, 2, 0, ramp(1, 0)), job.hello(1, 32)):
        message = job.message(packet, 1).changed(sender=home.udp)
        for udp in (message.source.udp, home.udp):
            v.frame(
                f"rank 1, by a message from UDP port {udp}",
                job.port(1),
                message.changed(source=replace(message.source, udp=udp)),
                nobody("wrong_place"),
            )
    for rank in range(2):
        hello = job.hello(rank, 32)
        v.step(f"HELLO of rank {rank}", job, hello, back("hello", hello))
    play_round(v, job, 2, 0, 32, (1, 0))
    return v


def one_job(v):
    job = v.open(MixedJob(ranks=2, by_roce=(0, 1)))
    packet = job.contribution(1, 2, 0, ramp(1, 0))
    return job, packet, job.frame(packet)


def roce_refused():
    about = """
What names the aggregator's queue pair, and is no message with a packet, is dropped. Nobody \
compares partition, packet number, ICRC, and the bytes in front of queue pairs' numbers."""
    v = Vector("roce_refused", about, "fifo", FEATURES)
    job, packet, message = one_job(v)

    def refused(title, counter, *others, **fields):
        expected = [nobody(name) for name in (counter, *others)]
        v.frame(title, job.port(1), message.changed(**fields), *expected)

    for length in (8, 12, 19, 20, 23, 24, 55):
        refused(f"{length} bytes", "truncated", "bad_length", length=length)
    refused("without lanes", "bad_length", "bad_lanes", length=56)
    refused("a byte less", "bad_length", length=20 + 32 + 128 + 3)
    refused("another version", "bad_version", flags=0x41)
    refused("UC SEND ONLY", "bad_kind", opcode=0x24)
    refused("with immediate data", "bad_kind", opcode=0x65)
    refused("a notification of congestion", "bad_kind", opcode=0x81)
    for padding in (0x10, 0x20, 0x30):
        refused(f"padding {padding >> 4}", "bad_length", flags=0x40 | padding)
    refused("another version of packets", "bad_version", packet=packet.changed(version=2))
    refused("a kind of answers", "bad_kind", packet=packet.changed(kind=RESULT))
    refused("another job", "unknown_job", packet=packet.changed(job=6))
    for slot, (title, fields) in enumerate(
        (
            ("another partition", {"partition": 0x7FFF}),
            ("another packet number", {"psn": 0xFFFFFFFF}),
            ("a wrong ICRC", {"icrc": 0x12345678}),
            ("a byte in front of the receiver", {"reserved": 0xFF}),
            ("a byte in front of the sender", {"also_reserved": 0xFF}),
            ("solicited", {"flags": 0xC0}),
        )
    ):
        first = job.contribution(1, slot, 0, ramp(1, 0))
        taken = job.frame(first).changed(**fields)
        v.frame(title, job.port(1), taken, nobody("started"))
        v.step("rank 1 again", job, first, back("pending", first.pending(1)))
    return v


def roce_not_ours():
    about = "What is for other queue pairs, or has another Q_Key, goes on untouched."
    v = Vector("roce_not_ours", about, "fifo", (*FEATURES, "frames"))
    job, _, message = one_job(v)

    def passes(title, **fields):
        v.frame(title, job.port(1), message.changed(**fields), passed())

    for bit in (0, 8, 16):
        passes(f"another queue pair by bit {bit}", receiver=AGGREGATOR.udp ^ 1 << bit)
    for bit in (0, 8, 16, 31):
        passes(f"another Q_Key by bit {bit}", key=KEY ^ 1 << bit)
    passes("an acknowledgement", receiver=5, opcode=0x11, length=20)
    for length in (0, 4, 7):
        passes(f"{length} bytes, which name no queue pair", length=length)
    passes("another address", destination=replace(message.destination, ip="10.0.0.77"))
    passes("another UDP port", destination=replace(message.destination, udp=PORT + 1))
    forged = message.changed(source=replace(AGGREGATOR, udp=PORT), destination=job.place(0))
    v.frame("from the aggregator's address", job.port(1), forged, nobody("spoofed"))
    play_round(v, job, 2, 0, 32, (0, 1))
    return v


def roce_marks():
    about = """
A mark of congestion becomes the flag CE. Answers keep DSCP, and are not ECN-capable, whatever \
came."""
    v = Vector("roce_marks", about, "fifo", (*FEATURES, "frames"))
    job = v.open(MixedJob(ranks=2, by_roce=(0, 1)))
    first, last = (job.contribution(rank, 2, 0, ramp(rank, 0)) for rank in range(2))
    v.step("rank 0, marked", job, first, nobody("started"), tos=DSCP | CE_MARK)
    result = last.result_for_all(ramp_sum(2, 0), 2, CHECKED | CE)
    v.step("rank 1", job, last, to_ranks(job, result), tos=DSCP)
    again = back("replayed", first.result(ramp_sum(2, 0), 2, CHECKED | CE))
    hello = job.hello(0, 32)
    for ecn in range(4):
        v.step(f"rank 0 again, ECN {ecn}", job, first, again, tos=DSCP | ecn)
        flags = CE if ecn == CE_MARK else 0
        greeted = back("hello", hello.changed(flags=flags))
        v.step(f"HELLO, ECN {ecn}", job, hello, greeted, tos=DSCP | ecn)
    early = job.contribution(1, 3, 0, ramp(1, 0))
    v.step("another slot", job, early, nobody("started"), tos=2)
    v.step("rank 1 again", job, early, back("pending", early.pending(1)), tos=2, ttl=1, id=0)
    # The round's flag comes back, too.
    marked = job.contribution(0, 3, 0, ramp(0, 0))
    result = marked.result_for_all(ramp_sum(2, 0), 2, CHECKED | CE)
    v.step("rank 0, marked", job, marked, to_ranks(job, result), tos=CE_MARK)
    return v


def roce_empty():
    about = "Contributions without payload, and ROOM, as messages."
    v = Vector("roce_empty", about, "fifo", (*FEATURES, "empty"), lanes=64)
    job = v.open(MixedJob(ranks=2, by_roce=(0, 1)))
    for round, lanes in enumerate((32, 64)):
        zeros = job.contribution(0, 2, round, [0] * lanes)
        empty = zeros.emptied()
        v.step("rank 0 has zeros", job, empty, nobody("started"))
        v.step("rank 0 again", job, empty, back("room", empty.changed(kind=ROOM)))
        last = job.contribution(1, 2, round, ramp(1, round, lanes))
        room = last.emptied().changed(kind=ROOM)
        v.step("rank 1 would be the last", job, last.emptied(), back("room", room))
        result = last.result_for_all(ramp(1, round, lanes), 2)
        v.step("rank 1 completes it", job, last, to_ranks(job, result))
        replayed = zeros.result(ramp(1, round, lanes), 2)
        v.step("rank 0 in full", job, zeros, back("replayed", replayed))
    return v
