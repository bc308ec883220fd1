"""Calls in flight, as torch sees them."""

import functools
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from .._error import Error
from ._delegated import Delegated
from ._profile import Span
from ._threads import CALLBACKS, NAME, Deferred

# Longer waits overflow, in Python's locks and in C++.
_LONGEST = timedelta(days=36_500)

# Methods that torch's holder of a Python Work answers by itself, and wrongly.
_NOT_FORWARDED = (
    "is_completed",
    "is_success",
    "exception",
    "result",
    "source_rank",
    "_source_rank",
)


class _Asker(threading.local):
    """Whether this thread asks a holder what it holds, and what it found."""

    asks = False
    found: "HeldWork | None" = None


_asker = _Asker()


def after_backward(wait: Callable[[], object]) -> None:
    """A backward pass that runs calls this at its end, and raises its error."""
    if torch._C._current_graph_task_id() != -1:
        torch.autograd.Variable._execution_engine.queue_callback(wait)


class HeldWork(Work):
    """A Work in Python.

    Torch's C++ gives users a holder of it, which forwards only `wait` and `get_future`.
    """

    def get_future(self) -> torch.futures.Future[Any]:
        if _asker.asks:
            _asker.found = self
            return torch.futures.Future()
        if _is_called_by_ddp():
            self.raise_after_backward()
        return self.future()

    def raise_after_backward(self) -> None:
        """A backward pass that runs waits for the call at its end, and raises its error.

        DDP waits for the future, and torch's futures make a RuntimeError of any error. What is
        queued here runs before DDP's own callback, which is queued after its last bucket.
        """
        after_backward(self.wait)

    def future(self) -> torch.futures.Future[Any]:
        """The future for users.

        Their callbacks must not run on a thread that calls need for their completion.
        """
        raise NotImplementedError


# Modules of the Python caller when DDP's C++ calls: autograd, and torch's hooks for DDP.
_DDP = ("torch.autograd", "torch.distributed.algorithms.ddp_comm_hooks")


def _is_called_by_ddp() -> bool:
    """Whether `get_future` is called for DDP, by its C++ or a hook of torch's.

    Others, such as torchft's hook, may handle errors in a callback.
    """
    # On a thread of autograd's own, there is no caller in Python.
    caller = sys._getframe(1).f_back
    return caller is None or caller.f_globals["__name__"].startswith(_DDP)


@functools.cache
def see_through_holders() -> None:
    """Makes torch's holders of a `HeldWork` ask it. Other works answer as before."""
    for name in _NOT_FORWARDED:
        setattr(Work, name, _forwarding(name, getattr(Work, name)))


def _forwarding(name: str, original: Callable[[Work], Any]) -> Callable[[Work], Any]:
    def method(self: Work) -> Any:
        held = _held_by(self)
        return original(self) if held is None else getattr(held, name)()

    method.__name__ = name
    return method


def _held_by(work: Work) -> HeldWork | None:
    _asker.asks, _asker.found = True, None
    try:
        # Of all methods that reach the held work, only this one has no effect.
        work.get_future()
    except RuntimeError:
        # Not all of torch's own works have a future.
        pass
    finally:
        _asker.asks = False
    held, _asker.found = _asker.found, None
    return held


class CallWork(HeldWork):
    """A call in the network."""

    def __init__(
        self, name: str, tensors: list[torch.Tensor], late_ranks: Callable[[], list[int]]
    ) -> None:
        super().__init__()
        self._tensors, self._late_ranks = tensors, late_ranks
        self._name, self._begin, self._span = name, time.monotonic(), Span(name)
        self._is_over = False
        # Held until the call is over. An event would take longer to make than all else here.
        self._in_flight = threading.Lock()
        self._in_flight.acquire()
        self._error: Exception | None = None
        # What users may attach callbacks to, once it is asked for, and what completes it.
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._finished: torch.futures.Future[None] | None = None
        self._lock = threading.Lock()
        # What ends the call, if that is left to the first who waits.
        self._deferred: Deferred | None = None

    def leave_to_waiter(self, deferred: Deferred) -> None:
        """The first thread that waits without a limit ends the call."""
        self._deferred = deferred

    def finish(self, error: Exception | None = None) -> None:
        """The call is over."""
        self._span.end()
        self._error = error
        with self._lock:
            self._is_over = True
            finished = self._finished
        self._in_flight.release()
        if finished is not None:
            CALLBACKS.add(lambda: finished.set_result(None))

    def until_over(self) -> None:
        """Waits until the call is over, however it ended."""
        self._over_within(None)

    def _over_within(self, seconds: float | None) -> bool:
        limit = -1 if seconds is None else seconds
        if not self._is_over and self._in_flight.acquire(timeout=limit):
            # Others may wait, too.
            self._in_flight.release()
        return self._is_over

    def fail(self, error: Exception) -> None:
        """The call is over, for this reason."""
        self.finish(backend_error(error, in_call(self._name, self._tensors, self._begin)))

    def _result(self, _: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self._error:
            raise self._error
        return self._tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        # The communicator's own deadline ends every call. Torch passes 0 or less for no limit.
        given = timeout if timeout and timeout > timedelta() else None
        limit = min(given, _LONGEST).total_seconds() if given else None
        if limit is None and not self._is_over and self._deferred is not None:
            self._deferred.run_here()
        if not self._over_within(limit):
            ranks = self._late_ranks()
            waits = "; it waits for " + rank_list(ranks) if ranks else ""
            error = Error(f"not done after {limit} s{waits}", ranks)
            raise backend_error(error, in_call(self._name, self._tensors, self._begin))
        if self._error:
            raise self._error
        if self._future is not None:
            # After a wait, the future must be done.
            self._future.wait()
        return True

    def future(self) -> torch.futures.Future[list[torch.Tensor]]:
        if self._deferred is not None:
            # Nobody may wait for a call that has callbacks.
            self._deferred.hand_over()
        with self._lock:
            if self._future is None:
                finished = torch.futures.Future(devices=_gpus_of(self._tensors))
                # An exception raised in a callback also reaches C++, where DDP waits. An exception
                # by `set_exception` reaches only Python, and makes DDP crash.
                self._future = finished.then(self._result)
                if self._is_over:
                    finished.set_result(None)
                else:
                    self._finished = finished
            return self._future

    def is_completed(self) -> bool:
        return self._is_over

    def is_success(self) -> bool:
        return self._is_over and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors


class GlooWork(HeldWork):
    """A call that went to Gloo. `made` is over when all ranks have made it, if that is known."""

    def __init__(
        self,
        name: str,
        work: Work,
        tensors: list[torch.Tensor],
        delegated: Delegated,
        made: CallWork | None,
        failed: Callable[[], None],
        forget: Callable[[Work], None],
    ) -> None:
        super().__init__()
        self._name, self._begin = name, time.monotonic()
        self._failed, self._forget = failed, forget
        self._work, self._tensors, self._delegated, self._made = work, tensors, delegated, made
        # Whether a caller has the future.
        self._shared = False

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        if self._made is not None:
            self._made.wait(timeout)
        try:
            done = self._work.wait(min(timeout, _LONGEST))
        except RuntimeError as error:
            self._failed()
            # Whoever goes on without lost ranks catches one kind of errors. Gloo names no rank.
            where = in_call(self._name, self._tensors, self._begin)
            raise backend_error(error, where) from None
        self._take()
        if self._shared:
            self._future.wait()
        return done

    @functools.cached_property
    def _future(self) -> torch.futures.Future[Any]:
        theirs = self._work.get_future()
        finished: torch.futures.Future[None] = torch.futures.Future(devices=_gpus_of(self._tensors))
        if self._made is None or self._made.is_success():
            self._finish_with(theirs, finished)
        else:
            self._made.future().add_done_callback(lambda _: self._finish_with(theirs, finished))
        return finished.then(lambda _: self._value(theirs))

    def _finish_with(
        self, theirs: torch.futures.Future[Any], finished: torch.futures.Future[None]
    ) -> None:
        """Finishes our future as soon as Gloo's is, or never will be because ranks differ."""
        if theirs.done() or self._failure() is not None:
            finished.set_result(None)
        else:
            # Gloo's threads complete its calls, and would run the callbacks, too.
            theirs.add_done_callback(lambda _: CALLBACKS.add(lambda: finished.set_result(None)))

    def _failure(self) -> Exception | None:
        """Why ranks do not all make this call."""
        return None if self._made is None else self._made.exception()

    def future(self) -> torch.futures.Future[Any]:
        self._shared = True
        return self._future

    def _value(self, theirs: torch.futures.Future[Any]) -> Any:
        if failure := self._failure():
            raise failure
        value = theirs.value()
        self._take()
        return self._delegated.original(value)

    def _take(self) -> None:
        self._forget(self._work)
        try:
            self._delegated.take()
        except Error as error:
            raise backend_error(error) from None

    def is_completed(self) -> bool:
        if self._failure() is not None:
            return True
        if self._made is not None and not self._made.is_completed():
            return False
        if not self._work.is_completed():
            return False
        try:
            self._delegated.take()
        except Error:
            # The error is raised in `wait`.
            pass
        return True

    def is_success(self) -> bool:
        return self._failure() is None and self._work.is_success()

    def exception(self) -> Any:
        if failure := self._failure():
            return failure
        try:
            return self._work.exception()
        except TypeError:
            # An older torch cannot convert the exception to a Python object, nor its absence.
            return self._raised() if self.is_completed() else None

    def _raised(self) -> Exception | None:
        try:
            self._work.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        if failure := self._failure():
            raise failure
        results = self._work.result()
        self._take()
        return self._delegated.original(results)

    def source_rank(self) -> int:
        return self._work.source_rank()

    def _source_rank(self) -> int:
        return self._work._source_rank()


def _gpus_of(tensors: list[torch.Tensor]) -> list[torch.device]:
    """Which GPUs tensors are on: a future of theirs must know."""
    return list({tensor.device for tensor in tensors if tensor.device.type != "cpu"})


def rank_list(ranks: list[int]) -> str:
    """Ranks for people: "rank 1", "ranks 1 and 3"."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def in_call(name: str, tensors: list[torch.Tensor], begin: float) -> str:
    """What a rank was in when it heard of an error: a call that began at this time."""
    size = sum(tensor.nbytes for tensor in tensors)
    return f" (in {name} of {size} bytes, {time.monotonic() - begin:.1f} s after its start)"


def backend_error(error: Exception, where: str = "") -> Exception:
    """What torch's users catch, with the ranks that the library names."""
    raised = dist.DistBackendError(f"{NAME}: {error}{where}")
    raised.ranks = getattr(error, "ranks", [])
    return raised
