"""Packet tags, section 28: what lacks the right one leaves no trace."""

from dataclasses import replace

from .numbers import ABORTED, CE, CHECKED, EMPTY, GROUP, MAX, MISMATCH, RETRANSMIT, ROOM, TAGGED
from .vector import Job, Vector, back, back_to_group, nobody, play_round, ramp, ramp_sum, to_all


def vectors():
    return [
        tags(),
        tags_over_ipv6(),
        tags_wrong(),
        tags_of_answers(),
        tags_of_empty(),
        tags_of_hellos(),
        tags_of_hellos_to_the_group(),
        tags_of_partial_sums(),
        tags_in_a_job_without(),
    ]


def tags():
    v = Vector("tags", "Rounds of a job with tags, of several sizes.", "fifo", ("keys",), lanes=768)
    job = v.open(Job(ranks=3, has_keys=True))
    for round, lanes in enumerate((32, 64, 352, 768)):
        play_round(v, job, 2, round, lanes=lanes)
    other = v.open(Job(ranks=2, number=8, processes=8, epoch=0x01020306))
    play_round(v, other, 2, 0)
    play_round(v, job, 2, 4)
    return v


def tags_over_ipv6():
    about = "A right UDP checksum has the tag in it."
    v = Vector("tags_over_ipv6", about, "fifo", ("frames", "ipv6", "keys"), lanes=768)
    job = v.open(Job(ranks=2, is_v6=True, has_keys=True))
    for round, lanes in enumerate((32, 768)):
        for rank in range(2):
            packet = job.contribution(rank, 2, round, ramp(rank, round, lanes))
            result = packet.result_for_all(ramp_sum(2, round, lanes), 2)
            expected = to_all(job, result) if rank else nobody("started")
            v.step(f"rank {rank}, {lanes} lanes", job, packet, expected, udp_checksum=None)
    again = job.contribution(0, 2, 1, ramp(0, 1, 768))
    result = again.result(ramp_sum(2, 1, 768), 2)
    v.step("rank 0 again", job, again, back("replayed", result), udp_checksum=None)
    hello = job.hello(0, 32)
    v.step("HELLO", job, hello, back("hello", hello), udp_checksum=None)
    return v


def tags_wrong():
    about = """
Packets from the right place, with a right check word, whose tag is missing, wrong or another's, \
or whose header was changed behind it: they are dropped before they are judged by anything but \
job, epoch and rank."""
    v = Vector("tags_wrong", about, "fifo", ("keys",))
    job = v.open(Job(ranks=3, has_keys=True))
    right = job.contribution(1, 2, 0, ramp(1, 0))

    def refused(title, packet, **options):
        v.step(title, job, packet, nobody("bad_tag"), **options)

    def all_refused():
        refused("no tag", right.changed(flags=CHECKED))
        for bit in (0, 31, 32, 63):
            refused(f"bit {bit} of the tag", right.changed(tag=right.right_tag() ^ 1 << bit))
        refused("a tag of 0", right.changed(tag=0))
        refused("by rank 0's key", right.changed(keys=job.keys(0)))
        refused("by the job's key", right.changed(keys=(job.key(), None)))
        refused("by no key", right.changed(keys=None))
        refused("another slot", right.retagged(slot=3))
        refused("another round", right.retagged(round=right.round + 2))
        refused("MAX", right.retagged(op=MAX))
        refused("RETRANSMIT", right.retagged(flags=right.flags | RETRANSMIT))
        refused("another call", right.retagged(fingerprint=job.fingerprint ^ 1))
        refused("other lanes", right.retagged(values=tuple(ramp(2, 0))))
        refused("another check word", right.retagged(check=right.right_check() ^ 1))
        refused("another aux", right.retagged(aux=5))
        refused("as rank 0", right.retagged(rank=0), sender=0)
        refused("rank 1 from rank 0's place, without", right.changed(flags=CHECKED), sender=0)
        v.step("another epoch", job, right.changed(epoch=5), nobody("wrong_epoch"))
        v.step("another job", job, right.changed(job=6), nobody("unknown_job"))
        v.step("rank 3", job, right.changed(rank=3), nobody("bad_rank"), sender=1)
        v.step("from rank 0's place", job, right, nobody("wrong_place"), sender=0)
        v.step("a slot beyond the job's", job, right.changed(slot=8), nobody("bad_slot"))
        short = job.frame(right)
        data = right.to_bytes()
        for length in (len(data) - 8, len(data) - 1):
            frame = short.changed(packet=data[:length])
            v.frame(f"{length} bytes", job.port(1), frame, nobody("bad_length"))
        frame = short.changed(packet=data + bytes(8))
        v.frame("8 bytes too many", job.port(1), frame, nobody("bad_length"))

    all_refused()
    play_round(v, job, 2, 0, order=(0, 2, 1))
    right = job.contribution(1, 2, 1, ramp(1, 1))
    v.step(
        "rank 0 starts round 1", job, job.contribution(0, 2, 1, ramp(0, 1)), nobody("started")
    )
    all_refused()
    v.step("rank 1 joins", job, right, nobody("added"))
    return v


def tags_of_answers():
    about = "Answers to one have a tag by its key, without CE; RESULTs to all one by the job's."
    v = Vector("tags_of_answers", about, "fifo", ("keys",), lanes=64)
    job = v.open(Job(ranks=3, has_keys=True))

    def packet(rank, round=0, flags=CHECKED, slot=2):
        return job.contribution(rank, slot, round, ramp(rank, round, 64), flags=flags)

    v.step("rank 0 starts", job, packet(0), nobody("started"))
    v.step("rank 0 again", job, packet(0), back("pending", packet(0).pending(0, of=3)))
    marked = packet(1, flags=CHECKED | CE)
    v.step("rank 1, marked", job, marked, nobody("added"))
    total, congested = ramp_sum(3, 0, 64), CHECKED | CE
    result = packet(2).result_for_all(total, 3, congested)
    v.step("rank 2 completes", job, packet(2), to_all(job, result))
    for rank in range(3):
        again = packet(rank, flags=CHECKED | RETRANSMIT)
        result = again.result(total, 3, congested)
        v.step(f"rank {rank} again", job, again, back("replayed", result))
    late = packet(0, round=4)
    v.step("a round too late", job, late, back("wrong_round", late.reject(2, 0)))
    v.step("rank 0 in slot 3", job, packet(0, slot=3), nobody("started"))
    other = packet(1, slot=3).changed(fingerprint=job.fingerprint ^ 1)
    refusal = other.reject(MISMATCH, 0 << 16 | 1)
    v.step("rank 1 calls something else", job, other, back("mismatch", refusal))
    v.abort(job)
    refusal = packet(0, round=1).reject(ABORTED, 0)
    v.step("of an aborted job", job, packet(0, round=1), back("aborted", refusal))
    v.step(
        "the same without a tag", job, packet(0, round=1).changed(flags=CHECKED), nobody("bad_tag")
    )
    return v


def tags_of_empty():
    about = "The tag of an EMPTY contribution, and of a ROOM, is right behind the header."
    v = Vector("tags_of_empty", about, "fifo", ("empty", "keys"), lanes=64)
    job = v.open(Job(ranks=2, has_keys=True))
    zeros = [job.contribution(rank, 2, 0, [0] * 64).emptied() for rank in range(2)]
    wrong = zeros[0].changed(tag=zeros[0].right_tag() ^ 1)
    v.step("rank 0 with a wrong tag", job, wrong, nobody("bad_tag"))
    v.step("rank 0 without", job, zeros[0].changed(flags=CHECKED | EMPTY), nobody("bad_tag"))
    v.step("rank 0", job, zeros[0], nobody("started"))
    for rank in range(2):
        v.step(f"rank {rank}", job, zeros[rank], back("room", zeros[rank].changed(kind=ROOM)))
    full = job.contribution(1, 2, 0, ramp(1, 0, 64))
    v.step("rank 1 in full", job, full, to_all(job, full.result_for_all(ramp(1, 0, 64), 2)))
    return v


def tags_of_hellos():
    about = "A HELLO comes back with the tag that it had. Without the right one it binds nobody."
    v = Vector("tags_of_hellos", about, "fifo", ("keys",), lanes=768)
    job = v.open(Job(ranks=2, has_keys=True, newcomers=(1,)))
    right = job.hello(1, 32)
    contribution = job.contribution(1, 2, 0, ramp(1, 0))
    home = job.place(1)
    elsewhere = replace(home, udp=home.udp + 50)
    wrong = right.changed(tag=right.right_tag() ^ 1 << 40)
    v.step("a wrong tag", job, wrong, nobody("bad_tag"), source=elsewhere)
    v.step("no tag", job, right.changed(flags=0), nobody("bad_tag"), source=elsewhere)
    v.step("by rank 0's key", job, right.changed(keys=job.keys(0)), nobody("bad_tag"))
    v.step("a wrong secret", job, right.changed(aux=1), nobody("wrong_secret"))
    v.step("rank 1 has no place yet", job, contribution, nobody("no_hello"))
    for lanes in (32, 0, 768):
        hello = job.hello(1, lanes)
        # Its place may be known from then on (rule 24.6).
        others = [nobody("no_hello")] if lanes == 32 else []
        v.step(f"{lanes} lanes", job, hello, back("hello", hello), *others)
    v.step("played again from elsewhere", job, right, nobody("wrong_place"), source=elsewhere)
    play_round(v, job, 2, 0)
    return v


def tags_of_hellos_to_the_group():
    about = "One that goes to the group has the tag that it came with, of the secret that it lacks."
    v = Vector("tags_of_hellos_to_the_group", about, "fifo", ("group", "keys"))
    job = v.open(Job(ranks=2, has_keys=True))
    for rank in range(2):
        packet = job.hello(rank, 32).changed(flags=GROUP | TAGGED)
        v.step(f"rank {rank}", job, packet, back_to_group(job, packet.retagged(aux=0)))
    wrong = packet.changed(tag=packet.right_tag() ^ 2)
    v.step("a wrong tag", job, wrong, nobody("bad_tag"))
    return v


def tags_of_partial_sums():
    about = "Who adds up has no keys, so partial sums are nothing for a job with tags."
    v = Vector("tags_of_partial_sums", about, "fifo", ("keys", "partial"))
    job = v.open(Job(ranks=4, has_keys=True, together=4))
    both = job.contribution(1, 2, 0, ramp(1, 0)).partial((1, 2))
    v.step("by a rank's key", job, both, nobody("bad_tag"), sender=2)
    v.step("by the job's", job, both.changed(keys=(job.key(),) * 2), nobody("bad_tag"), sender=2)
    v.step("by none", job, both.changed(keys=None), nobody("bad_tag"), sender=2)
    v.step("without a tag", job, both.changed(flags=CHECKED), nobody("bad_tag"), sender=2)
    play_round(v, job, 2, 0)
    return v


def tags_in_a_job_without():
    about = "A job without keys takes no packets with tags, by whatever key."
    v = Vector("tags_in_a_job_without", about, "fifo", ("keys",))
    job = v.open(Job(ranks=2))
    packet = job.contribution(1, 2, 0, ramp(1, 0), flags=CHECKED | TAGGED)
    v.step("by no key", job, packet, nobody("bad_tag"))
    v.step("by some key", job, packet.changed(keys=(job.key(1), None)), nobody("bad_tag"))
    hello = job.hello(1, 32).changed(flags=TAGGED)
    v.step("HELLO", job, hello, nobody("bad_tag"))
    play_round(v, job, 2, 0)
    return v
