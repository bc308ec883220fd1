"""What only shows in whole frames: envelopes, and what is not the aggregator's."""

from dataclasses import replace

from .frame import Frame
from .numbers import CE, CHECKED
from .vector import (
    AGGREGATOR,
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

MORE_FRAGMENTS = 0x2000
TCP, ICMP = 6, 1
ARP, IPV6 = 0x0806, 0x86DD
DSCP, ECT_0, CE_MARK = 0xA0, 2, 3


def vectors():
    return [
        not_ours(),
        other_macs(),
        group_macs(),
        runts(),
        forged_answers(),
        tagged(),
        tagged_with_a_priority(),
        wrong_ports_and_macs(),
        ip_checksum(),
        congestion_marks(),
        congestion_marks_of_answers(),
        envelope_of_answers(),
    ]


def tags(*each):
    """VLAN tags, each an EtherType and a number."""
    return b"".join(kind.to_bytes(2, "big") + number.to_bytes(2, "big") for kind, number in each)


def one_job(v, ranks=2):
    job = v.open(Job(ranks=ranks))
    packets = [job.contribution(rank, 2, 0, ramp(rank, 0)) for rank in range(ranks)]
    return job, packets


def not_ours():
    about = (
        "What is not the aggregator's goes where it would go without one, untouched, whatever is "
        "in it."
    )
    v = Vector("not_ours", about, "fifo", ("frames",))
    job, (_, right) = one_job(v)

    def passes(title, counter, **fields):
        v.step(title, job, right, passed(counter), **fields)

    passes("ARP", "not_ours", ethertype=ARP)
    # An IPv4 header whose bytes are those of IPv6 with hop-by-hop options.
    passes("IPv6 with extensions", "ipv6", ethertype=IPV6, version_ihl=0x60, fragment=0)
    passes("a tag of 802.1ad", "vlan", tags=tags((0x88A8, 5)))
    passes("two VLAN tags", "vlan", tags=tags((0x88A8, 7), (0x8100, 5)))
    passes("TCP", "not_ours", protocol=TCP)
    passes("ICMP", "not_ours", protocol=ICMP)
    passes("another address", "not_ours", destination=replace(AGGREGATOR, ip="10.0.0.253"))
    passes("another UDP port", "not_ours", destination=replace(AGGREGATOR, udp=48865))
    passes("IPv4 options", "ip_options", version_ihl=0x46)
    passes("all the options that there can be", "ip_options", version_ihl=0x4F)
    passes("the first fragment", "fragment", fragment=MORE_FRAGMENTS)
    passes("a fragment in the midst", "fragment", fragment=MORE_FRAGMENTS | 0xB9)
    passes("the last fragment", "fragment", fragment=0x00B9)
    play_round(v, job, 2, 0)
    return v


GROUP_MACS = {
    "all hosts": "ff:ff:ff:ff:ff:ff",
    "a group": "01:00:5e:01:02:03",
    "the aggregator's MAC as a group's": "03:00:00:00:00:fe",
}


def other_macs():
    about = """
A frame to another MAC is not the aggregator's, whatever its address: not one to all hosts or to a \
group of them, and none to another host. A data plane that
answered it would take that MAC for its own."""
    v = Vector("other_macs", about, "fifo", ("frames", "macs"))
    job, (_, right) = one_job(v)
    macs = {
        "a MAC that differs in its last bit": "02:00:00:00:00:ff",
        "a rank": job.place(0).mac,
        "nobody": "00:00:00:00:00:00",
    }
    return to_macs(v, job, right, GROUP_MACS | macs)


def group_macs():
    about = """
A frame to all hosts, or to a group of them, is not the aggregator's, whatever its address.
All switches know such MACs, also those that do not know which ones are their own."""
    v = Vector("group_macs", about, "fifo", ("frames",))
    job, (_, right) = one_job(v)
    return to_macs(v, job, right, GROUP_MACS)


def to_macs(v, job, right, macs):
    for whom, mac in macs.items():
        destination = replace(AGGREGATOR, mac=mac)
        v.step(f"a contribution to {whom}", job, right, passed(), destination=destination)
        v.step(f"a HELLO to {whom}", job, job.hello(1, 32), passed(), destination=destination)
    forged = job.frame(right).changed(
        source=AGGREGATOR, destination=replace(AGGREGATOR, mac="ff:ff:ff:ff:ff:ff")
    )
    v.frame("to all hosts in the aggregator's name", job.port(1), forged, nobody("spoofed"))
    play_round(v, job, 2, 0)
    return v


def runts():
    about = "Frames that end in their headers are nobody's."
    v = Vector("runts", about, "fifo", ("frames", "runts"))
    job, (_, right) = one_job(v)
    for length in (14, 20, 33, 41):
        v.step(f"{length} bytes", job, right, passed(), cut=length)
    return v


def forged_answers():
    about = """
Nobody else sends from the aggregator's address: what comes in from there is dropped, in any \
disguise that a host may take for IPv4, and so is
what hides behind more tags than there are in networks."""
    v = Vector("forged_answers", about, "fifo", ("frames",))
    job, (_, contribution) = one_job(v)
    result = contribution.result_for_all(ramp_sum(2, 0), 2)
    forged = Frame(AGGREGATOR, job.place(0), result)

    def refused(title, frame=forged, **fields):
        v.frame(title, job.port(1), frame.changed(**fields), nobody("spoofed"))

    def passes(title, counter, frame, **fields):
        v.frame(title, job.port(1), frame.changed(**fields), passed(counter))

    refused("a RESULT")
    refused("a RESULT for all", to_all(job, result).frame(job.frame(contribution)))
    refused("a REJECT", packet=contribution.reject(3, 0).changed(rank=0))
    to_aggregator = job.frame(contribution).changed(source=AGGREGATOR)
    v.frame(
        "a contribution to the aggregator",
        job.port(1),
        to_aggregator,
        nobody("wrong_place"),
        nobody("spoofed"),
    )
    refused("from another UDP port", source=replace(AGGREGATOR, udp=1))
    refused("TCP", protocol=TCP)
    refused("with options", version_ihl=0x46)
    refused("a fragment", fragment=MORE_FRAGMENTS)
    refused("without a packet", cut=42)
    refused("behind a tag without a VLAN", tags=tags((0x8100, 0)))
    refused("behind two tags", tags=tags((0x88A8, 0), (0x8100, 0)))
    refused("behind three tags", tags=tags((0x88A8, 0), (0x8100, 0), (0x8100, 0)))
    other = forged.changed(source=replace(AGGREGATOR, ip="10.0.0.253"))
    passes("from another address", "not_ours", other)
    passes("from another address, behind a tag", "vlan", other, tags=tags((0x88A8, 0)))
    passes(
        "from another address, behind two tags", "vlan", other, tags=tags((0x88A8, 0), (0x8100, 0))
    )
    refused(
        "from another address, behind three tags",
        other,
        tags=tags((0x88A8, 0), (0x8100, 0), (0x8100, 0)),
    )
    passes("ARP", "not_ours", forged, ethertype=ARP)
    play_round(v, job, 2, 0)
    return v


def tagged():
    about = (
        "A rank lives in the VLAN of its HELLO. An answer has the tag of its question, priority "
        "and all."
    )
    v = Vector("tagged", about, "fifo", ("frames", "tags"))
    job = v.open(Job(ranks=2, newcomers=(0, 1)))
    packets = [job.contribution(rank, 2, 0, ramp(rank, 0)) for rank in range(2)]
    vlan, urgent, other = tags((0x8100, 5)), tags((0x8100, 0xE005)), tags((0x8100, 6))
    for rank, tag in enumerate((vlan, urgent)):
        hello = job.hello(rank, 32)
        v.step(f"HELLO of rank {rank}", job, hello, back("hello", hello), tags=tag)
        v.step("... in another VLAN", job, hello, nobody("wrong_place"), tags=other)
    v.step("rank 0 in another VLAN", job, packets[0], nobody("wrong_place"), tags=other)
    v.step("rank 0 in no VLAN", job, packets[0], nobody("wrong_place"))
    priority = tags((0x8100, 0xE000))
    v.step("rank 0 with a priority alone", job, packets[0], nobody("wrong_place"), tags=priority)
    v.step("rank 0", job, packets[0], nobody("started"), tags=vlan)
    pending = back("pending", packets[0].pending(0))
    v.step("rank 0 again, with a priority", job, packets[0], pending, tags=urgent)
    total = ramp_sum(2, 0)
    completed = to_all(job, packets[1].result_for_all(total, 2))
    v.step("rank 1, with a priority", job, packets[1], completed, tags=urgent)
    again = back("replayed", packets[0].result(total, 2))
    v.step("rank 0 once more", job, packets[0], again, tags=vlan)
    elsewhere = job.frame(packets[0]).changed(destination=replace(AGGREGATOR, udp=48865))
    v.frame("another UDP port", job.port(0), elsewhere.changed(tags=vlan), passed())
    return v


def tagged_with_a_priority():
    about = "A tag without a VLAN is no VLAN, but stays."
    v = Vector("tagged_with_a_priority", about, "fifo", ("frames", "tags"))
    job, packets = one_job(v)
    priority = tags((0x8100, 0xE000))
    v.step("rank 0", job, packets[0], nobody("started"), tags=priority)
    v.step("rank 0 again", job, packets[0], back("pending", packets[0].pending(0)))
    completed = to_all(job, packets[1].result_for_all(ramp_sum(2, 0), 2))
    v.step("rank 1", job, packets[1], completed, tags=priority)
    return v


def wrong_ports_and_macs():
    about = "A place is a port and a MAC, too, where the data plane sees them."
    v = Vector("wrong_ports_and_macs", about, "fifo", ("frames",))
    job, (_, right) = one_job(v)
    frame = job.frame(right)
    v.frame("another port", job.port(0), frame, nobody("wrong_place"))
    mac = replace(job.place(1), mac=job.place(0).mac)
    v.step("another MAC", job, right, nobody("wrong_place"), source=mac)
    hello = job.hello(1, 32)
    v.frame("HELLO by another port", job.port(0), job.frame(hello), nobody("wrong_place"))
    v.step("HELLO from another MAC", job, hello, nobody("wrong_place"), source=mac)
    play_round(v, job, 2, 0)
    return v


def ip_checksum():
    about = "A wrong checksum of the IPv4 header is the end of a packet that is the aggregator's."
    v = Vector("ip_checksum", about, "fifo", ("frames",))
    job, (_, right) = one_job(v)
    for flip in (0x0001, 0x8000, 0xFFFF):
        good = int.from_bytes(job.frame(right).ipv4()[10:12], "big")
        v.step(
            f"bits {flip:#06x} wrong",
            job,
            right,
            nobody("bad_ip_checksum"),
            ip_checksum=good ^ flip,
        )
        v.step(
            "a HELLO", job, job.hello(1, 32), nobody("bad_ip_checksum"), ip_checksum=0x1234 ^ flip
        )
    play_round(v, job, 2, 0)
    return v


def congestion_marks():
    about = "The network's mark of a contribution becomes CE in its round's RESULT."
    v = Vector("congestion_marks", about, "fifo")
    job = v.open(Job(ranks=3))
    for round, marks in enumerate(
        [(0, 0, 0), (CE_MARK, ECT_0, 0), (ECT_0, CE_MARK, ECT_0), (0, 1, CE_MARK), (1, ECT_0, 0)]
    ):
        packets = [job.contribution(rank, 2, round, ramp(rank, round)) for rank in range(3)]
        result = packets[2].result_for_all(
            ramp_sum(3, round), 3, CHECKED | (CE if CE_MARK in marks else 0)
        )
        v.step(f"rank 0, round {round}", job, packets[0], nobody("started"), tos=marks[0])
        v.step(f"rank 1, round {round}", job, packets[1], nobody("added"), tos=marks[1])
        v.step(f"rank 2, round {round}", job, packets[2], to_all(job, result), tos=marks[2])
    return v


def congestion_marks_of_answers():
    about = (
        "The network's mark is not sent back: an answer can be marked anew. A HELLO may tell of it."
    )
    v = Vector("congestion_marks_of_answers", about, "fifo", ("frames",))
    job, packets = one_job(v)
    total = ramp_sum(2, 0)
    v.step("rank 0", job, packets[0], nobody("started"), tos=DSCP | ECT_0)
    pending = back("pending", packets[0].pending(0))
    v.step("rank 0 again, marked", job, packets[0], pending, tos=DSCP | CE_MARK)
    v.step("rank 0 again, not for marking", job, packets[0], pending, tos=DSCP)
    completed = to_all(job, packets[1].result_for_all(total, 2))
    v.step("rank 1, not marked", job, packets[1], completed, tos=DSCP | ECT_0)
    v.step(
        "rank 0 asks again, marked",
        job,
        packets[0],
        back("replayed", packets[0].result(total, 2)),
        tos=CE_MARK,
    )
    hello = job.hello(1, 32)
    told = hello.changed(flags=CE)
    v.step("HELLO, marked", job, hello, back("hello", told), back("hello", hello), tos=CE_MARK)
    return v


def envelope_of_answers():
    about = (
        "Whatever a contribution's envelope says, that of its answer has TTL 64, Don't Fragment, "
        "identification 0 and no UDP checksum."
    )
    v = Vector("envelope_of_answers", about, "fifo", ("frames",))
    job, packets = one_job(v)
    total = ramp_sum(2, 0)
    for turn, fields in enumerate(
        (
            {"ttl": 1, "id": 0, "fragment": 0, "udp_checksum": 0},
            {"ttl": 255, "id": 0xFFFF, "fragment": 0x4000, "udp_checksum": 0xFFFF},
            {"ttl": 64, "id": 0x4321, "fragment": 0x8000, "udp_checksum": 0x1234},
        )
    ):
        hello = job.hello(0, 32)
        v.step("HELLO", job, hello, back("hello", hello), **fields)
        if turn == 0:
            v.step("rank 0", job, packets[0], nobody("started"), **fields)
        if turn < 2:
            v.step(
                "rank 0 again", job, packets[0], back("pending", packets[0].pending(0)), **fields
            )
        if turn == 1:
            v.step(
                "rank 1",
                job,
                packets[1],
                to_all(job, packets[1].result_for_all(total, 2)),
                **fields,
            )
        if turn > 0:
            v.step(
                "rank 1 asks again",
                job,
                packets[1],
                back("replayed", packets[1].result(total, 2)),
                **fields,
            )
    return v
