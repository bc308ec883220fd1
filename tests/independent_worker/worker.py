"""A rank of a job, which adds up f32."""

from types import TracebackType
from typing import Self

from .call import Call, Element, Kind, Operation
from .chunks import Chunk, Chunks
from .control import Control, ControlError
from .exchange import ExchangeError, Exchanger
from .path import Path, Session


class Worker:
    """All calls are blocking. Elements are bits, as unsigned numbers of the element's width."""

    def __init__(self, aggregator: str, job: str, rank: int, ranks: int, patience: float = 120.0):
        self.rank = rank
        self.control = Control(aggregator, job, rank, ranks, patience)
        self.path: Path | None = None
        try:
            self.path = self.path_of(self.control.session())
            full = self.control.ready(self.path.open())
        except Exception as error:
            self.control.leave(str(error) or "the path did not open")
            raise
        self.exchanger = self.exchanger_of(self.path, patience)
        self.chunks = self.chunks_of(rank, ranks, full)
        # The number of the next call.
        self.number = 0

    def path_of(self, session: Session) -> Path:
        if not session.group[0]:
            raise ControlError("the job has no multicast group")
        return Path(session)

    def exchanger_of(self, path: Path, patience: float) -> Exchanger:
        return Exchanger(path, patience)

    def chunks_of(self, rank: int, ranks: int, full: int) -> Chunks:
        return Chunks(rank, ranks, full)

    def all_reduce(self, operation: Operation, element: Element, elements: list[int]) -> list[int]:
        if (operation, element) != (Operation.SUM, Element.F32):
            raise ValueError(f"{operation.name} of {element.name} is not in the core")
        return self.run(Call(Kind.ALL_REDUCE, operation, element, len(elements)), elements)

    def run(self, call: Call, elements: list[int]) -> list[int]:
        number, self.number = self.number, self.number + 1
        fingerprint = call.fingerprint(number)

        def exchange(chunks: list[Chunk]) -> list[tuple[int, ...]]:
            return self.exchanger.exchange(chunks, fingerprint)

        try:
            return self.chunks.run(number, call, elements, exchange)
        except ExchangeError as error:
            why = self.why(error, number, call)
            raise ExchangeError(f"call {number}: {error}; {why}") from None

    def why(self, error: ExchangeError, number: int, call: Call) -> str:
        """What the control plane says of it."""
        return self.control.aborted or "not aborted"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.control.leave(str(error) if error else "")
        if self.path:
            self.path.close()
