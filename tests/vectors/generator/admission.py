"""Admission, section 7, as far as a datagram shows it. What is not admitted leaves no trace."""

from dataclasses import replace

from .numbers import CHECKED, EMPTY, MAX, PENDING, REJECT, RESULT, TAGGED
from .vector import Job, Vector, back, nobody, play_round, ramp, ramp_sum, to_all


def vectors():
    return [
        malformed_packets(),
        unknown_ops(),
        malformed_hellos(),
        packets_too_long(),
        truncated_packets(),
        check_word_covers(),
        check_word_wrong_in_any_place(),
        unchecked(),
        strangers(),
        wrong_places(),
    ]


def contribution(job, rank=1, slot=2, round=0, **options):
    return job.contribution(rank, slot, round, ramp(rank, round), **options)


def malformed_packets():
    about = (
        "Packets that are none of the protocol's, or none that an aggregator takes. A data plane "
        "with fewer sizes may find the length wrong first."
    )
    v = Vector("malformed_packets", about, "fifo")
    job = v.open(Job(ranks=2))
    right = contribution(job)

    def refused(title, counter, *others, **fields):
        v.step(title, job, right.changed(**fields), nobody(counter), *map(nobody, others))

    for version in (0, 2, 255):
        refused(f"version {version}", "bad_version", version=version)
    for kind in (0, RESULT, 6, 10, 255):
        refused(f"kind {kind}", "bad_kind", kind=kind)
    refused("PENDING", "bad_kind", "bad_length", kind=PENDING, values=(0, 1))
    refused("REJECT", "bad_kind", "bad_length", kind=REJECT, values=(3, 0))
    for op in (0x02, 0x0F, 0x20, 0xC0):
        refused(f"op {op:#04x}", "bad_op", op=op)
    refused("no lanes", "bad_lanes", values=())
    for size in (1, 31, 33, 63):
        refused(f"{size} lanes", "bad_lanes", "bad_length", values=(5,) * size)
    refused("more lanes than any packet has", "bad_lanes", "bad_length", lanes=0xFFE0)
    refused("32 lanes behind a header that says 64", "bad_length", "bad_lanes", lanes=64)
    refused(
        "64 lanes behind a header that says 32",
        "bad_length",
        "bad_lanes",
        lanes=32,
        values=(5,) * 64,
    )
    play_round(v, job, 2, 0)
    return v


def unknown_ops():
    v = Vector("unknown_ops", "SUM and MAX are 0 and 1: no bit of op is ignored.", "fifo")
    job = v.open(Job(ranks=2))
    # Rule 2.10 has 64 to 191.
    for high in (0x02, 0x04, 0x08, 0x10, 0x20, 0xC0):
        for low in (0, 1):
            op = high | low
            v.step(f"op {op:#04x}", job, contribution(job, op=op), nobody("bad_op"))
    play_round(v, job, 2, 0)
    return v


def malformed_hellos():
    v = Vector("malformed_hellos", "The same for HELLO, which may have no lanes.", "fifo")
    job = v.open(Job(ranks=2))

    def refused(title, counter, *others, lanes=32, **fields):
        v.step(
            title, job, job.hello(1, lanes).changed(**fields), nobody(counter), *map(nobody, others)
        )

    refused("version", "bad_version", version=3)
    refused("op", "bad_op", op=0x02)
    refused("16 lanes", "bad_lanes", "bad_length", lanes=16)
    hello = job.hello(1, 32).changed(lanes=0)
    v.step(
        "32 lanes behind a header that says none",
        job,
        hello,
        nobody("bad_length"),
        nobody("bad_lanes"),
    )
    hello = job.hello(1, 0).changed(lanes=32)
    v.step(
        "none behind a header that says 32", job, hello, nobody("bad_length"), nobody("bad_lanes")
    )
    play_round(v, job, 2, 0)
    return v


def packets_too_long():
    about = (
        "Packets that are longer than any of the protocol's are refused for what is wrong with "
        "their headers."
    )
    v = Vector("packets_too_long", about, "fifo", ("long",))
    job = v.open(Job(ranks=2))
    right = contribution(job).changed(values=(5,) * 800)
    v.step("800 lanes", job, right, nobody("bad_lanes"), nobody("bad_length"))
    v.step(
        "800 lanes behind a header that says 768",
        job,
        right.changed(lanes=768),
        nobody("bad_length"),
    )
    v.step("HELLO", job, job.hello(1, 800), nobody("bad_lanes"), nobody("bad_length"))
    v.step("version 2", job, right.changed(version=2), nobody("bad_version"), nobody("bad_length"))
    play_round(v, job, 2, 0)
    return v


def truncated_packets():
    about = "Datagrams that end before their header or their lanes do, or after."
    v = Vector("truncated_packets", about, "fifo")
    job = v.open(Job(ranks=2))
    right = contribution(job)
    data = right.to_bytes()
    frame = job.frame(right)
    for length in (0, 1, 2, 31):
        short = frame.changed(packet=data[:length])
        v.frame(f"{length} bytes", job.port(1), short, nobody("truncated"), nobody("bad_length"))
    for length in (32, 33, 32 + 64, len(data) - 4, len(data) - 1):
        short = frame.changed(packet=data[:length])
        # What is as long as another number of lanes may be refused for that.
        others = [nobody("bad_lanes")] if length == 32 else []
        v.frame(f"{length} bytes", job.port(1), short, nobody("bad_length"), *others)
    for more in (1, 4, 64):
        v.frame(
            f"{more} bytes too many",
            job.port(1),
            frame.changed(packet=data + bytes(more)),
            nobody("bad_length"),
        )
    play_round(v, job, 2, 0)
    return v


def check_word_covers():
    about = """
The check word guards each field that decides where a contribution is added, and each lane: a \
change behind its back is found out, before the
contribution leaves a trace. Two jobs of the same processes, so that only the check word tells \
their packets apart."""
    v = Vector("check_word_covers", about, "fifo", ("verify",))
    job = v.open(Job(ranks=2))
    v.open(Job(ranks=2, number=6))
    right = contribution(job)

    def refused(title, **fields):
        v.step(title, job, right.corrupted(**fields), nobody("bad_check"))

    refused("job", job=6)
    refused("slot", slot=3)
    refused("round", round=1)
    refused("op", op=MAX)
    refused("fingerprint", fingerprint=job.fingerprint ^ 1 << 31)
    for bit in (0, 15, 31):
        v.step(
            f"check, bit {bit}",
            job,
            right.changed(check=right.right_check() ^ 1 << bit),
            nobody("bad_check"),
        )
    for lane in range(32):
        refused(f"lane {lane}", values=right.with_lane(lane, right.values[lane] ^ 1 << lane))
    play_round(v, job, 2, 0)
    return v


def check_word_wrong_in_any_place():
    about = (
        "A contribution whose check word is wrong, as the first of its round, in its midst, as the "
        "last, and as a duplicate: SUM and MAX."
    )
    v = Vector("check_word_wrong", about, "fifo", ("max", "verify"), lanes=64)
    job = v.open(Job(ranks=3))
    for round, op in enumerate((0, MAX)):
        packets = [
            job.contribution(rank, 2, round, ramp(rank, round, 64), op=op) for rank in range(3)
        ]
        total = ramp_sum(3, round, 64) if op == 0 else ramp(2, round, 64)
        done = to_all(job, packets[2].result_for_all(total, 3))
        for rank, expected in enumerate([nobody("started"), nobody("added"), done]):
            packet = packets[rank]
            for lane in (0, 31, 32, 63):
                values = packet.with_lane(lane, packet.values[lane] ^ 0x40000000)
                v.step(
                    f"rank {rank}, lane {lane} corrupted",
                    job,
                    packet.corrupted(values=values),
                    nobody("bad_check"),
                )
            v.step(f"rank {rank}", job, packet, expected)
        again = packets[1].corrupted(values=packets[1].with_lane(7, 0))
        v.step("rank 1 again, corrupted", job, again, nobody("bad_check"))
        v.step("rank 1 again", job, packets[1], back("replayed", packets[1].result(total, 3)))
    return v


def unchecked():
    v = Vector(
        "unchecked",
        "A contribution without CHECKED is refused, though its check word is right.",
        "fifo",
    )
    job = v.open(Job(ranks=2))
    for flags in (0, 0xFF - CHECKED - EMPTY - TAGGED):
        v.step(f"flags {flags:#04x}", job, contribution(job, flags=flags), nobody("bad_check"))
    play_round(v, job, 2, 0)
    return v


def strangers():
    about = "Packets of other jobs, sessions, ranks and slots."
    v = Vector("strangers", about, "fifo")
    job = v.open(Job(ranks=3, newcomers=(2,)))
    right = contribution(job)

    def refused(title, counter, *others, packet=right, sender=1):
        v.step(title, job, packet, nobody(counter), *map(nobody, others), sender=sender)

    for number in (0, 6, 8, 255, 256, 0xFFFF):
        refused(f"job {number}", "unknown_job", packet=right.changed(job=number))
    for epoch in (0, job.epoch - 1, job.epoch + 1, 0xFFFFFFFF):
        refused(f"epoch {epoch:#x}", "wrong_epoch", packet=right.changed(epoch=epoch))
    for rank in (3, 31, 32, 63, 64, 0x100, 0xFFFF):
        refused(f"rank {rank}", "bad_rank", packet=right.changed(rank=rank))
    for slot in (8, 9, 0x8002, 0xFFFF):
        refused(f"slot {slot}", "bad_slot", packet=right.changed(slot=slot))
    refused(
        "a rank that has not said HELLO", "no_hello", packet=contribution(job, rank=2), sender=2
    )
    v.step("rank 1", job, right, nobody("started"))
    v.step("rank 1 again: nobody else is in", job, right, back("pending", right.pending(1)))
    return v


def wrong_places():
    about = "A member speaks from its place alone: its address, and its UDP port."
    v = Vector("wrong_places", about, "fifo")
    job = v.open(Job(ranks=3))
    right = contribution(job)
    home = job.place(1)

    def refused(title, **fields):
        v.step(title, job, right, nobody("wrong_place"), source=replace(home, **fields))

    refused("another address", ip="10.0.0.9")
    refused("the address of another rank", ip="10.0.0.3")
    refused("another UDP port", udp=home.udp + 50)
    for sender in (0, 2):
        v.step(
            f"as rank 1 from where rank {sender} lives",
            job,
            right,
            nobody("wrong_place"),
            sender=sender,
        )
    play_round(v, job, 2, 0)
    return v
