"""A rank that makes calls of all kinds; its arguments are those of `lines`.

Lines are also `broadcast ROOT ELEMENT HEX` and `barrier`.
"""

from .. import lines
from ..call import Element
from .worker import Worker


def answer(worker: Worker, words: list[str]) -> str:
    if words == ["barrier"]:
        worker.barrier()
        return ""
    if words[0] == "broadcast":
        _, root, name, *data = words
        element = Element[name.upper()]
        elements = lines.from_hex(element, "".join(data))
        return lines.to_hex(element, worker.broadcast(int(root), element, elements))
    return lines.answer(worker, words)


if __name__ == "__main__":
    lines.main(Worker, answer)
