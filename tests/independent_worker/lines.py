"""Calls from a file, results into another, one a line.

    AGGREGATOR JOB RANK RANKS CALLS RESULTS

A line is a call and this rank's elements: `all_reduce OPERATION ELEMENT HEX`. HEX are the elements'
bytes in the machine's byte order, as in the results.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

from .call import Element, Operation
from .worker import Worker

W = TypeVar("W", bound=Worker)


def main(
    worker_of: Callable[[str, str, int, int], W], answer: Callable[[W, list[str]], str]
) -> None:
    aggregator, job, rank, ranks, calls, results = sys.argv[1:]
    with (
        worker_of(aggregator, job, int(rank), int(ranks)) as worker,
        open(calls, encoding="ascii") as lines,
        open(results, "w", encoding="ascii") as out,
    ):
        for line in lines:
            print(answer(worker, line.split()), file=out)
        print(f"sent again: {worker.exchanger.resent}")


def answer(worker: Worker, words: list[str]) -> str:
    _, operation, name, *data = words
    element = Element[name.upper()]
    elements = from_hex(element, "".join(data))
    return to_hex(element, worker.all_reduce(Operation[operation.upper()], element, elements))


def from_hex(element: Element, text: str) -> list[int]:
    data, size = bytes.fromhex(text), element.size
    return [int.from_bytes(data[at : at + size], sys.byteorder) for at in range(0, len(data), size)]


def to_hex(element: Element, elements: list[int]) -> str:
    return b"".join(x.to_bytes(element.size, sys.byteorder) for x in elements).hex()
