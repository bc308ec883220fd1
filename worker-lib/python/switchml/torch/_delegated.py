"""What Gloo is given in a call that goes to it, and what becomes of its results.

Gloo takes memory from a tensor's address on, in one piece, whatever the strides are. It refuses
averages of integers, and an older one those of floats.
"""

import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from ._elements import overwrite, plain

# Integer types that averages exist for. Sums of narrow types would overflow, so they use int64.
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Delegated:
    """The arguments of a call, as Gloo gets them: copies of tensors that it would misread.

    Results come to the first argument, except of `send`.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...], rank: int, ranks: int) -> None:
        options = next((argument for argument in arguments if hasattr(argument, "reduceOp")), None)
        is_average = options is not None and options.reduceOp.op == dist.ReduceOp.AVG
        # The options of a call that runs as a sum, and is then divided.
        is_average = is_average and all(map(_is_dense, tensors_in(arguments)))
        self._averaging = options if is_average else None
        # Ranks other than the root hold intermediate values of Gloo.
        self._has_result = getattr(self._averaging, "rootRank", rank) == rank
        self._ranks = ranks
        # Pairs of the tensor that wants a result, and the tensor in which Gloo has it.
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._is_taken = False
        self._lock = threading.Lock()
        with _without_inference_mode():
            self._arguments = [
                self._given(argument, at == 0 and name != "send")
                for at, argument in enumerate(arguments)
            ]

    def start(self, method: Callable[..., Work], **named: Any) -> Work:
        """Has Gloo make the call."""
        with _without_inference_mode():
            if self._averaging is None:
                return method(*self._arguments, **named)
            self._averaging.reduceOp = dist.ReduceOp.SUM
            try:
                return method(*self._arguments, **named)
            finally:
                self._averaging.reduceOp = dist.ReduceOp.AVG

    def take(self) -> None:
        """Brings results to where they are wanted, once Gloo is done. Raises `switchml.Error`."""
        with self._lock, torch.inference_mode():
            if self._is_taken or not self._has_result:
                return
            for tensor, copy in self._copies:
                overwrite(tensor, copy if self._averaging is None else average(copy, self._ranks))
            self._is_taken = True

    def original(self, value: Any) -> Any:
        """What Gloo says of its results, with the caller's tensors in it."""
        if isinstance(value, (list, tuple)):
            return [self.original(item) for item in value]
        return next((tensor for tensor, copy in self._copies if copy is value), value)

    def _given(self, argument: Any, gets_results: bool) -> Any:
        if isinstance(argument, (list, tuple)):
            return [self._given(item, gets_results) for item in argument]
        if not isinstance(argument, torch.Tensor) or not _is_dense(argument):
            return argument
        given = plain(argument)
        if self._averaging is not None and argument.dtype in INTEGERS:
            given = given.to(torch.int64)
        if gets_results and given.is_inference():
            given = given.clone()
        if gets_results and (given is not argument or self._averaging is not None):
            self._copies.append((argument, given))
        return given


@contextmanager
def _without_inference_mode() -> Iterator[None]:
    """What Gloo makes then it may write to on any thread."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def average(sums: torch.Tensor, ranks: int) -> torch.Tensor:
    """What sums over ranks are the averages of; of integers without what is behind the point."""
    return torch.div(sums, ranks, rounding_mode="trunc" if sums.dtype in INTEGERS else None)


def tensors_in(arguments: Any) -> Iterator[torch.Tensor]:
    """The tensors in arguments, and in lists in them."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from tensors_in(argument)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided
