"""A rank that makes calls of all kinds."""

import sys
from collections.abc import Sequence

from .. import worker
from ..call import Call, Element, Kind, Operation
from ..exchange import ExchangeError, Exchanger, Mismatch
from ..path import Path, Session
from .audiences import AUDIENCES, AudienceExchanger
from .calls import AnyChunks
from .empty import EMPTY_CONTRIBUTIONS, EmptyExchanger
from .ipv6 import CopiesPath, Ipv6Path
from .reports import report_call, text_of


class Worker(worker.Worker):
    def path_of(self, session: Session) -> Path:
        if session.group[0]:
            return Path(session)
        return Ipv6Path(session) if ":" in session.aggregator[0] else CopiesPath(session)

    def exchanger_of(self, path: Path, patience: float) -> Exchanger:
        capabilities = path.session.capabilities
        if not capabilities & EMPTY_CONTRIBUTIONS:
            return Exchanger(path, patience)
        kind = AudienceExchanger if capabilities & AUDIENCES else EmptyExchanger
        return kind(path, patience)

    def chunks_of(self, rank: int, ranks: int, full: int) -> AnyChunks:
        capabilities = self.path.session.capabilities if self.path else 0
        return AnyChunks(rank, ranks, full, bool(capabilities & AUDIENCES))

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

    def why(self, error: ExchangeError, number: int, call: Call) -> str:
        if isinstance(error, Mismatch):
            return f"{text_of(call)}: {report_call(self.control, number, call, error.named)}"
        return f"{text_of(call)}: {super().why(error, number, call)}"
