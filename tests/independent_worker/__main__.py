"""A rank that makes the calls in one file, and writes their results to another, one a line.

    python -m independent_worker AGGREGATOR JOB RANK RANKS CALLS RESULTS

A line is a call and this rank's elements: `all_reduce OPERATION ELEMENT HEX`, `broadcast ROOT
ELEMENT HEX` or `barrier`. HEX are the elements' bytes in the machine's byte order, as in the
results.
"""

import sys

from .call import Element, Operation
from .worker import Worker


def main() -> None:
    aggregator, job, rank, ranks, calls, results = sys.argv[1:]
    with (
        Worker(aggregator, job, int(rank), int(ranks)) as worker,
        open(calls, encoding="ascii") as lines,
        open(results, "w", encoding="ascii") as out,
    ):
        for line in lines:
            print(answer(worker, line.split()), file=out)
        print(f"sent again: {worker.exchanger.resent}")


def answer(worker: Worker, words: list[str]) -> str:
    if words == ["barrier"]:
        worker.barrier()
        return ""
    what, detail, name, *data = words
    element = Element[name.upper()]
    elements = from_hex(element, "".join(data))
    if what == "broadcast":
        return to_hex(element, worker.broadcast(int(detail), element, elements))
    return to_hex(element, worker.all_reduce(Operation[detail.upper()], element, elements))


def from_hex(element: Element, text: str) -> list[int]:
    data, size = bytes.fromhex(text), element.size
    return [int.from_bytes(data[at : at + size], sys.byteorder) for at in range(0, len(data), size)]


def to_hex(element: Element, elements: list[int]) -> str:
    return b"".join(x.to_bytes(element.size, sys.byteorder) for x in elements).hex()


if __name__ == "__main__":
    main()
