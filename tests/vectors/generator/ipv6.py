"""Over IPv6: sections 5 and 7 of docs/spec."""

from dataclasses import replace

from .frames import CE_MARK, DSCP, ICMP, TCP, tags
from .numbers import CE, CHECKED, GROUP
from .vector import (
    AGGREGATOR_V6,
    Job,
    Vector,
    back,
    nobody,
    passed,
    play_round,
    ramp,
    ramp_sum,
    to_all,
)

HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION = 0, 43, 44, 60
MAPPED = "::ffff:10.0.0.2"


def vectors():
    return [ipv6_rounds(), ipv6_marks(), ipv6_not_ours(), ipv6_forged(), ipv6_lengths()]


def ipv6_rounds():
    about = """
A job over IPv6 has no group: each rank gets a copy of a RESULT to all, and a HELLO with GROUP \
goes back to its sender.
The UDP checksum of an answer is right."""
    v = Vector("ipv6_rounds", about, "fifo", ("ipv6",))
    job = v.open(Job(ranks=3, newcomers=(1, 2), is_v6=True))
    first = job.contribution(1, 2, 0, ramp(1, 0))
    v.step("rank 1 has not said HELLO", job, first, nobody("no_hello"))
    for rank in (1, 2):
        hello = job.hello(rank, 64)
        v.step(
            f"HELLO of rank {rank}", job, hello, back("hello", hello), nobody("no_hello")
        )
        v.step(f"HELLO of rank {rank} again", job, hello, back("hello", hello))
        v.step(
            "from another address",
            job,
            hello,
            nobody("wrong_place"),
            source=replace(job.place(rank), ip="fd88::99"),
        )
    to_group = job.hello(1, 32).changed(flags=GROUP)
    v.step("HELLO to the group", job, to_group, back("hello", to_group))
    for round, lanes in enumerate((32, 64, 352, 768)):
        play_round(v, job, 2, round, lanes=lanes)
    again = job.contribution(1, 2, 3, ramp(1, 3, 768))
    replayed = again.result(ramp_sum(3, 3, 768), 3)
    v.step("rank 1 once more", job, again, back("replayed", replayed))
    early = job.contribution(0, 3, 0, ramp(0, 0))
    v.step("rank 0 starts another slot", job, early, nobody("started"))
    v.step("rank 0 again", job, early, back("pending", early.pending(0)))
    v.abort(job)
    v.step("the job is aborted", job, early, back("aborted", early.reject(3, 0)))
    return v


def ipv6_marks():
    about = """
The traffic class has the mark of congestion, as IPv4's type of service: the answer has ECT(0) \
instead, its header the flag CE. The flow label stays."""
    v = Vector("ipv6_marks", about, "fifo", ("ipv6", "frames"))
    job = v.open(Job(ranks=2, is_v6=True))
    first, second = (job.contribution(rank, 2, 0, ramp(rank, 0)) for rank in range(2))
    v.step("rank 0, marked", job, first, nobody("started"), tos=DSCP | CE_MARK, flow=1)
    result = second.result_for_all(ramp_sum(2, 0), 2, CHECKED | CE)
    v.step("rank 1", job, second, to_all(job, result), tos=DSCP, flow=0xFFFFF)
    again = back("replayed", first.result(ramp_sum(2, 0), 2, CHECKED | CE))
    for ecn in range(4):
        v.step(f"rank 0 again, ECN {ecn}", job, first, again, tos=DSCP | ecn)
    v.step("padded", job, first, again, padding=bytes(6))
    return v


def one_job(v):
    job = v.open(Job(ranks=2, is_v6=True))
    return job, job.contribution(1, 2, 0, ramp(1, 0))


def ipv6_not_ours():
    about = """
What is not the aggregator's goes on untouched. So does what has headers before UDP's, and what \
says that it comes from an address that maps one of IPv4."""
    v = Vector("ipv6_not_ours", about, "fifo", ("ipv6", "frames", "macs"))
    job, right = one_job(v)

    def passes(title, counter, **fields):
        v.step(title, job, right, passed(counter), **fields)

    for title, header in (
        ("hop-by-hop options", HOP_BY_HOP),
        ("a routing header", ROUTING),
        ("a fragment", FRAGMENT),
        ("destination options", DESTINATION),
    ):
        passes(title, "ipv6", protocol=header)
    passes("TCP", "not_ours", protocol=TCP)
    passes("ICMP", "not_ours", protocol=ICMP)
    passes("ICMPv6", "not_ours", protocol=58)
    passes("another version", "not_ours", version=4)
    passes("another address", "not_ours", destination=replace(AGGREGATOR_V6, ip="fd88::fd"))
    passes("another UDP port", "not_ours", destination=replace(AGGREGATOR_V6, udp=48865))
    passes("all nodes", "not_ours", destination=replace(AGGREGATOR_V6, ip="ff02::1"))
    passes("another MAC", "not_ours", destination=replace(AGGREGATOR_V6, mac="33:33:00:00:00:01"))
    mapped = replace(job.place(1), ip=MAPPED)
    passes("from an address of IPv4", "not_ours", source=mapped)
    play_round(v, job, 2, 0)
    return v


def ipv6_forged():
    about = "Nobody else sends from the aggregator's IPv6 address, in any disguise."
    v = Vector("ipv6_forged", about, "fifo", ("ipv6", "frames", "macs"))
    job, right = one_job(v)
    result = right.result_for_all(ramp_sum(2, 0), 2)
    forged = job.frame(right).changed(
        source=AGGREGATOR_V6, destination=job.place(0), packet=result
    )

    def refused(title, frame=forged, **fields):
        v.frame(title, job.port(1), frame.changed(**fields), nobody("spoofed"))

    refused("a RESULT")
    refused("from another UDP port", source=replace(AGGREGATOR_V6, udp=1))
    refused("TCP", protocol=TCP)
    refused("with hop-by-hop options", protocol=HOP_BY_HOP)
    refused("a fragment", protocol=FRAGMENT)
    refused("without a packet", cut=62)
    refused("behind a tag without a VLAN", tags=tags((0x8100, 0)))
    refused("behind two tags", tags=tags((0x88A8, 0), (0x8100, 0)))
    elsewhere = forged.changed(source=replace(AGGREGATOR_V6, ip="fd88::fd"))
    v.frame("from another address", job.port(1), elsewhere, passed())
    refused("behind three tags", elsewhere, tags=tags((0x88A8, 0), (0x8100, 0), (0x8100, 0)))
    v.frame(
        "a contribution to the aggregator",
        job.port(1),
        job.frame(right).changed(source=AGGREGATOR_V6),
        nobody("wrong_place"),
    )
    play_round(v, job, 2, 0)
    return v


def ipv6_lengths():
    about = "All layers agree on a length, and the frame is that long."
    v = Vector("ipv6_lengths", about, "fifo", ("ipv6", "frames"))
    job, right = one_job(v)
    udp_len = 8 + 32 + 128

    def refused(title, counter, **fields):
        v.step(title, job, right, nobody(counter), **fields)

    refused("IP longer than the frame", "truncated", total_len=udp_len + 1)
    refused("a jumbogram", "bad_length", total_len=0)
    refused("IP shorter than UDP", "bad_length", total_len=udp_len - 1, udp_len=udp_len)
    refused("UDP shorter than IP", "bad_length", total_len=udp_len, udp_len=udp_len - 1)
    refused("UDP without a header", "truncated", total_len=39, udp_len=39)
    refused("the frame cut", "truncated", cut=62 + 32 + 127)
    play_round(v, job, 2, 0)
    return v
