"""Packed lanes: several elements in each, and no sum of N ranks carries from one into the next.

Section 26 of docs/spec. Results are added up field by field.
"""

from .vector import Job, Vector, back, nobody, to_all

LANES = 32


def vectors():
    return [
        # Of N ranks, a field of 16 bits is at most 2m, where m = 2^(15-L) - 1 (rule 26.2).
        sums_of_fields(16, ranks=2, highest=2 * (2**14 - 1)),
        sums_of_fields(16, ranks=8, highest=2 * (2**12 - 1)),
        sums_of_fields(16, ranks=64, highest=2 * (2**9 - 1)),
        # One of 8 bits is at most K = floor(255 / N) (rule 26.7), and N at most 32.
        sums_of_fields(8, ranks=2, highest=127),
        sums_of_fields(8, ranks=8, highest=31),
        sums_of_fields(8, ranks=32, highest=7),
    ]


def fields_of(rank, bits, highest):
    """The fields of each lane, field 0 first.

    In turns: all are the highest that a rank may send; one is, between zeros; one is zero; each is
    another.
    """
    count = 32 // bits
    lanes = []
    for lane in range(LANES):
        one = lane // 4 % count
        lanes.append(
            [
                [highest] * count,
                [highest if field == one else 0 for field in range(count)],
                [0 if field == one else highest for field in range(count)],
                [(rank + lane + field) % (highest + 1) for field in range(count)],
            ][lane % 4]
        )
    return lanes


def packed(fields, bits):
    """Rule 26.1: field 0 is the lowest bits."""
    return [
        int.from_bytes(b"".join(field.to_bytes(bits // 8, "little") for field in lane), "little")
        for lane in fields
    ]


def sums_of_fields(bits, ranks, highest):
    v = Vector(
        f"sum{bits}_of_{ranks}",
        f"Fields of {bits} bits as {ranks} ranks send them: up to {highest}, and {ranks * highest} "
        "in the sum. None carries into the next.",
        "fifo",
    )
    job = v.open(Job(ranks=ranks))
    contributions = [fields_of(rank, bits, highest) for rank in range(ranks)]
    # `to_bytes` refuses a sum that its field does not hold.
    result = packed(
        [[sum(field) for field in zip(*lane)] for lane in zip(*contributions)],
        bits,
    )
    packets = [
        job.contribution(rank, 0, 0, packed(fields, bits))
        for rank, fields in enumerate(contributions)
    ]
    for rank, packet in enumerate(packets[:-1]):
        v.step(f"rank {rank}", job, packet, nobody("added" if rank else "started"))
    for_all = packets[-1].result_for_all(result, ranks)
    v.step("the last one", job, packets[-1], to_all(job, for_all))
    v.step("rank 0 asks again", job, packets[0], back("replayed", packets[0].result(result, ranks)))
    return v
