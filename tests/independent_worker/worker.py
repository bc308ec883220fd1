"""A rank of a job."""

import sys
from collections.abc import Sequence
from types import TracebackType

from .call import Call, Element, Kind, Operation
from .chunks import Chunk, Chunks
from .control import Control
from .exchange import ExchangeError, Exchanger, Mismatch
from .path import Path


class Worker:
    """All calls are blocking. Elements are bits, as unsigned numbers of the element's width."""

    def __init__(self, aggregator: str, job: str, rank: int, ranks: int, patience: float = 120.0):
        self.rank = rank
        self.control = Control(aggregator, job, rank, ranks, patience)
        self.path: Path | None = None
        try:
            self.path = Path(self.control.session())
            full = self.control.ready(self.path.open())
        except Exception as error:
            self.control.leave(str(error) or "the path did not open")
            raise
        self.exchanger = Exchanger(self.path, patience)
        self.chunks = Chunks(rank, ranks, full)
        # The number of the next call.
        self.number = 0

    def all_reduce(self, operation: Operation, element: Element, elements: list[int]) -> list[int]:
        offered = {
            Element.F64: (),
            Element.I32: (Operation.SUM, Operation.MAX, Operation.MIN),
            Element.I64: (Operation.SUM,),
        }
        if operation not in offered.get(element, Operation):
            raise ValueError(f"{operation.name} of {element.name} is not for this worker")
        return self.run(Call(Kind.ALL_REDUCE, operation, element, len(elements)), elements)

    def broadcast(self, root: int, element: Element, elements: Sequence[int]) -> list[int]:
        data = b"".join(x.to_bytes(element.size, sys.byteorder) for x in elements)
        own = data if self.rank == root else bytes(len(data))
        own += bytes(-len(own) % 4)
        lanes = [int.from_bytes(own[at : at + 4], "big") for at in range(0, len(own), 4)]
        result = self.run(Call(Kind.BROADCAST, root, element, len(elements)), lanes)
        back = b"".join(lane.to_bytes(4, "big") for lane in result)[: len(data)]
        return [
            int.from_bytes(back[at : at + element.size], sys.byteorder)
            for at in range(0, len(back), element.size)
        ]

    def barrier(self) -> None:
        self.run(Call(Kind.BARRIER, 0, Element.I32, 1), [0])

    def run(self, call: Call, elements: list[int]) -> list[int]:
        number, self.number = self.number, self.number + 1
        fingerprint = call.fingerprint(number)

        def exchange(chunks: list[Chunk]) -> list[tuple[int, ...]]:
            return self.exchanger.exchange(chunks, fingerprint)

        try:
            return self.chunks.run(number, call, elements, exchange)
        except Mismatch as error:
            why = self.control.report_call(number, str(call), error.named)
            raise ExchangeError(f"call {number}, {call}: {error}; {why}") from None
        except ExchangeError as error:
            raise ExchangeError(
                f"call {number}, {call}: {error}; {self.control.aborted or 'not aborted'}"
            ) from None

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.control.leave(str(error) if error else "")
        if self.path:
            self.path.close()
