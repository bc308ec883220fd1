"""Calls in flight, as torch sees them, and the threads behind them."""

import queue
import threading
from datetime import timedelta
from typing import Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

NAME = "switchml"


class CallWork(Work):
    """A call in flight. `wait` and `get_future` are what torch asks Python for; the rest it finds out by the future."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self._over = threading.Event()
        self._error: Exception | None = None
        # A future of tensors on GPUs must know which.
        devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
        self._finished: torch.futures.Future[None] = torch.futures.Future(devices=list(devices))
        # An exception that a callback raises is one for C++, too, where DDP waits; `set_exception` makes one for Python alone, and DDP crash.
        self._future = self._finished.then(self._result)

    def finish(self, error: Exception | None = None) -> None:
        """The call is over."""
        self._error = error
        self._finished.set_result(None)
        self._over.set()

    def _result(self, _: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self._error:
            raise self._error
        return self._tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        # The communicator's own deadline ends every call. Torch passes 0 or less where no time is given.
        limit = timeout.total_seconds() if timeout and timeout > timedelta() else None
        if not self._over.wait(limit):
            raise dist.DistBackendError(f"{NAME}: not done after {limit} s")
        if self._error:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._future


class CallThread:
    """A thread that runs what it is given, in order. What fails ends the call that it is of."""

    def __init__(self, name: str) -> None:
        self._todo: queue.SimpleQueue[tuple[Callable[[], None], CallWork] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"{NAME}-{name}", daemon=True)
        self._thread.start()

    def add(self, run: Callable[[], None], work: CallWork) -> None:
        self._todo.put((run, work))

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._todo.get()) is not None:
            run, work = item
            try:
                run()
            except Exception as error:
                work.finish(backend_error(error))
            # Else it would keep tensors until the next one comes.
            del item, run, work


def backend_error(error: Exception) -> Exception:
    """What torch's users catch, with the ranks that the library names."""
    raised = dist.DistBackendError(f"{NAME}: {error}")
    raised.ranks = getattr(error, "ranks", [])
    return raised
