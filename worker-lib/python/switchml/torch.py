"""The backend `switchml` for `torch.distributed`.

    torch.distributed.init_process_group("switchml")

all_reduce (sum, avg, max, min), broadcast and barrier run in the network; all other collectives go to a Gloo group of the same
ranks. The aggregator's address is SWITCHML_AGGREGATOR of the group's first rank, or else MASTER_ADDR's host. SWITCHML_DEADLINE is how many
seconds a call may be without progress (5 unless set); it must cover the time that ranks may be apart. SWITCHML_JOIN_TIMEOUT is how many seconds ranks wait
for each other at the aggregator (60 unless set).
SWITCHML_FALLBACK=gloo makes all ranks of a group use Gloo if any of them cannot reach the aggregator; otherwise that is an error.
"""

# No `annotations` from `__future__`: DistributedDataParallel looks at those of hooks.

import atexit
import logging
import os
import queue
import threading
import uuid
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Work

from ._communicator import Communicator, Handle
from ._error import Error
from ._staging import STREAMS, Staged

NAME = "switchml"
# The first one whose C++ calls methods of a Python class that is a `Backend`.
OLDEST = "2.14"

_log = logging.getLogger(__name__)

_OPS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "avg", dist.ReduceOp.MAX: "max", dist.ReduceOp.MIN: "min"}
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class _Work(Work):
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


class _Thread:
    """A thread that runs what it is given, in order. What fails ends the call that it is of."""

    def __init__(self, name: str) -> None:
        self._todo: queue.SimpleQueue[tuple[Callable[[], None], _Work] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"{NAME}-{name}", daemon=True)
        self._thread.start()

    def add(self, run: Callable[[], None], work: _Work) -> None:
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
                work.finish(_backend_error(error))
            # Else it would keep tensors until the next one comes.
            del item, run, work


def _backend_error(error: Exception) -> Exception:
    """What torch's users catch, with the ranks that the library names."""
    raised = dist.DistBackendError(f"{NAME}: {error}")
    raised.ranks = getattr(error, "ranks", [])  # type: ignore[attr-defined]
    return raised


class _Group(Backend):
    """A process group: a job at the aggregator, and Gloo for what that does not do."""

    def __init__(self, communicator: Communicator, gloo: Backend) -> None:
        super().__init__(communicator.rank, communicator.world_size)
        self._communicator = communicator
        self._gloo = gloo
        # Waits for calls in flight.
        self._completions = _Thread("completions")
        # From the first tensor of a GPU on: makes calls whose elements have to be waited for, and all others, for their order counts.
        self._calls: _Thread | None = None
        self._delegated: set[str] = set()
        self._closed = False
        # A thread that comes back from a wait must still find the interpreter.
        atexit.register(self.shutdown)

    def name(self) -> str:
        return NAME

    # What torch asks some versions of its own backends for.
    getBackendName = name

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        op = _OPS.get(opts.reduceOp.op if opts is not None else dist.ReduceOp.SUM)
        if op is None or not all(_is_offered(tensor, op) for tensor in tensors):
            return self._delegate("allreduce", tensors, opts)
        return self._start(tensors, lambda tensor: self._reduce(tensor, op))

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def average_in_16_bits(self, tensor: torch.Tensor) -> Work:
        return self._start([tensor], lambda tensor: self._reduce(tensor, "avg16"))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        return self._start(tensors, lambda tensor: self._broadcast(tensor, opts.rootRank))

    def barrier(self, opts: Any = None) -> Work:
        token = torch.zeros(1, dtype=torch.int32)
        return self._start([token], lambda tensor: self._reduce(tensor, "sum"))

    def statistics(self) -> dict[str, Any]:
        return self._communicator.stats()

    def shutdown(self) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.shutdown)
        if self._calls is not None:
            self._calls.close()
        self._completions.close()
        _log.info("%s: %s", NAME, _in_words(self.statistics()))
        try:
            self._communicator.close()
        except Error as error:
            _log.warning("%s: %s", NAME, error)

    abort = shutdown

    def _start(self, tensors: list[torch.Tensor], start: Callable[[torch.Tensor], tuple[Handle, Callable[[], None]]]) -> Work:
        work = _Work(tensors)
        staged = {place: Staged(tensor) for place, tensor in enumerate(tensors) if tensor.device.type in STREAMS}
        there = [staged[place].host if place in staged else tensor for place, tensor in enumerate(tensors)]

        def call() -> None:
            for copy in staged.values():
                copy.arrived()
            started = [start(tensor) for tensor in there]
            self._completions.add(lambda: finish(started), work)

        def finish(started: list[tuple[Handle, Callable[[], None]]]) -> None:
            for handle, _ in started:
                handle.wait()
            for _, then in started:
                then()
            for copy in staged.values():
                copy.give_back()
            work.finish()

        if staged and self._calls is None:
            self._calls = _Thread("calls")
        if self._calls is not None:
            self._calls.add(call, work)
            return work
        try:
            call()
        except Error as error:
            raise _backend_error(error) from None
        return work

    def _reduce(self, tensor: torch.Tensor, op: str) -> tuple[Handle, Callable[[], None]]:
        """Starts a reduction; the second result puts it in its place once it is here."""
        if op in ("max", "min") and tensor.dtype in (torch.int64, torch.float64):
            return self._extremum_of_wide(tensor, op)
        if tensor.dtype == torch.int64:
            return self._sum_of_integers(tensor)
        there = tensor if tensor.is_contiguous() else tensor.contiguous()
        handle = self._communicator.all_reduce_start(there.detach(), op)
        return handle, (lambda: None) if there is tensor else (lambda: _overwrite(tensor, there))

    def _sum_of_integers(self, tensor: torch.Tensor) -> tuple[Handle, Callable[[], None]]:
        """Sums of int64, modulo 2^64: each as four digits of 16 bits in elements of 32, which 64 ranks cannot overflow."""
        digits = [(tensor.detach() >> shift & 0xFFFF).to(torch.int32) for shift in (0, 16, 32, 48)]
        there = torch.stack(digits)
        handle = self._communicator.all_reduce_start(there, "sum")

        def put_together() -> None:
            sums = there.to(torch.int64)
            _overwrite(tensor, sums[0] + (sums[1] << 16) + (sums[2] << 32) + (sums[3] << 48))

        return handle, put_together

    def _extremum_of_wide(self, tensor: torch.Tensor, op: str) -> tuple[Handle, Callable[[], None]]:
        """Extrema of 64 bits: of the upper words first, which is waited for, as the order of calls must be that of all ranks; then of the lower
        words of those ranks whose upper words are the largest.
        """
        keys = _keys(tensor.detach(), op)
        largest, high = (keys >> 32).to(torch.int32), (keys >> 32).to(torch.int32)
        self._communicator.all_reduce(largest, "max")
        # In the order of signed words, like the upper ones.
        low = ((keys & 0xFFFFFFFF) - 2**31).to(torch.int32)
        low[high != largest] = -(2**31)
        handle = self._communicator.all_reduce_start(low, "max")
        return handle, lambda: _overwrite(tensor, _of_keys((largest.to(torch.int64) << 32) + low + 2**31, tensor.dtype, op))

    def _broadcast(self, tensor: torch.Tensor, root: int) -> tuple[Handle, Callable[[], None]]:
        """Starts a broadcast: any elements, as words of 32 bits."""
        there = tensor.detach()
        size = there.numel() * there.element_size()
        if there.is_contiguous() and size % 4 == 0 and there.data_ptr() % 4 == 0:
            return self._communicator.broadcast_start(_as_words(there), root), lambda: None
        words = torch.zeros(size + 3 & ~3, dtype=torch.uint8)
        words[:size] = there.contiguous().view(-1).view(torch.uint8)
        handle = self._communicator.broadcast_start(words.view(torch.int32), root)
        return handle, lambda: _overwrite(tensor, words[:size].view(tensor.dtype).view(tensor.shape))

    def _delegate(self, name: str, *arguments: Any, **named: Any) -> Any:
        if name not in self._delegated:
            self._delegated.add(name)
            _log.info("%s: %s goes to Gloo", NAME, name)
        return getattr(self._gloo, name)(*arguments, **named)


def _delegating(name: str) -> Callable[..., Any]:
    def method(self: _Group, *arguments: Any, **named: Any) -> Any:
        return self._delegate(name, *arguments, **named)

    method.__name__ = name
    return method


# Whatever else this version of torch has.
for _name in (
    "allgather",
    "allgather_coalesced",
    "_allgather_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce_sparse",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "gather",
    "gather_single",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
):
    if hasattr(Backend, _name):
        setattr(_Group, _name, _delegating(_name))


# The key of every NaN, for which nothing else is used.
_NAN = 2**63 - 1


def _keys(tensor: torch.Tensor, op: str) -> torch.Tensor:
    """Contiguous int64 of which the largest stands for the extremum. -0.0 is less than 0.0, and a NaN wins, as in the network for other floats."""
    words = tensor.contiguous().view(torch.int64)
    if tensor.dtype == torch.float64:
        # A negative float's magnitude falls as its integer rises: invert all but the sign.
        words = words ^ (words >> 63 & _NAN)
    if op == "min":
        words = ~words
    return torch.where(tensor.isnan(), _NAN, words) if tensor.dtype == torch.float64 else words


def _of_keys(keys: torch.Tensor, dtype: torch.dtype, op: str) -> torch.Tensor:
    """The inverse of `_keys`."""
    words = ~keys if op == "min" else keys
    if dtype == torch.int64:
        return words
    floats = (words ^ (words >> 63 & _NAN)).view(torch.float64)
    return torch.where(keys == _NAN, torch.nan, floats)


def _is_offered(tensor: torch.Tensor, op: str) -> bool:
    if tensor.device.type not in ("cpu", *STREAMS) or tensor.is_sparse:
        return False
    return tensor.dtype in _FLOATS or (tensor.dtype in (torch.int32, torch.int64) and op != "avg")


def _as_words(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.int32)


def _overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(values)


def _create(options: Any, _backend_options: Any) -> Backend:
    """The process group that torch asks for."""
    if torch.__version__ < OLDEST:
        raise RuntimeError(f"torch {torch.__version__} cannot have a backend in Python; {NAME} needs torch {OLDEST} or newer")
    rank, size = options.group_rank, options.group_size
    # A group that was destroyed leaves its keys to the next one of its name; all ranks have counted as many.
    attempt = options.store.add(f"attempts/{rank}", 1)
    store = dist.PrefixStore(f"{NAME}/{attempt}", options.store)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, options.timeout)
    fallback = os.environ.get("SWITCHML_FALLBACK", "")
    if fallback not in ("", "gloo"):
        raise ValueError(f"SWITCHML_FALLBACK is {fallback!r}; gloo is allowed, or nothing")
    try:
        communicator, failure = _connect(store, rank, size, options.timeout), None
    except Error as error:
        communicator, failure = None, error
    if not fallback:
        if communicator is None:
            raise _backend_error(failure)
        return _Group(communicator, gloo)
    # All or none.
    store.set(f"failure/{rank}", str(failure or ""))
    failures = [store.get(f"failure/{other}").decode() for other in range(size)]
    reasons = {other: reason for other, reason in enumerate(failures) if reason}
    if communicator is not None and not reasons:
        return _Group(communicator, gloo)
    if communicator is not None:
        communicator.close()
    _log.warning("%s: all ranks use Gloo, because of rank %s", NAME, "; rank ".join(f"{r}: {why}" for r, why in reasons.items()))
    return gloo


def _connect(store: Any, rank: int, size: int, timeout: timedelta) -> Communicator:
    """Joins the group's job, which the first rank gives its name and its aggregator."""
    if rank == 0:
        aggregator = os.environ.get("SWITCHML_AGGREGATOR") or os.environ.get("MASTER_ADDR", "")
        store.set("aggregator", aggregator)
        store.set("job", f"torch-{uuid.uuid4()}")
    aggregator = os.environ.get("SWITCHML_AGGREGATOR") or store.get("aggregator").decode()
    job = store.get("job").decode()
    return Communicator(
        aggregator=aggregator or None,
        job=job,
        rank=rank,
        world_size=size,
        deadline=_seconds("SWITCHML_DEADLINE", 5),
        join_timeout=min(timeout.total_seconds(), _seconds("SWITCHML_JOIN_TIMEOUT", 60)),
    )


def _seconds(name: str, otherwise: float) -> float:
    given = os.environ.get(name)
    try:
        return float(given) if given else otherwise
    except ValueError:
        raise Error(f"{name} is {given!r}; a number of seconds is allowed") from None


def statistics(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """What all calls of a group took that have returned on this rank, those that went to Gloo aside; of the default group unless one is given.

    `bytes` of elements in `calls` calls: `chunks` packets were sent once and `resent` again. `skipped` more, of `skipped_bytes` bytes of elements, did not
    have to be sent, because their elements are zero on all ranks. `seconds` is the sum over calls, and `late` has the seconds that ranks were
    waited for, by rank. Raises ValueError for a group of another backend, which includes one that fell back to Gloo.
    """
    backend = _backend_of(group)
    if backend is None:
        raise ValueError(f"the group is not {NAME}'s")
    return backend.statistics()


def fixed16_compress_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook for DistributedDataParallel that averages gradients in fixed point of 16 bits, for half of the packets.

        model.register_comm_hook(None, switchml.torch.fixed16_compress_hook)

    Each packet's worth of elements (about 700) has a binary point in common, and each element 15 bits and a sign, less log2 of the number of ranks. So an average is off
    by at most 2^-14 times the largest of the packet's elements with 2 ranks, 2^-13 with 4, 2^-12 with 8. Results have the same bits on all ranks. Gradients of f64 are averaged as they are, as are
    those in groups of other backends, which includes one that fell back to Gloo.
    """
    backend, gradients = _backend_of(group), bucket.buffer()
    if backend is None or gradients.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        # Not above: torch imports this module before it is complete.
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(group or dist.group.WORLD, bucket)
    return backend.average_in_16_bits(gradients).get_future().then(lambda future: future.value()[0])


def _backend_of(group: dist.ProcessGroup | None) -> _Group | None:
    """What is behind a group, or the default group; None if it is of another backend."""
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group; call init_process_group first")
    backends = [group._get_backend(device) for device in group._device_types]
    return next((backend for backend in backends if isinstance(backend, _Group)), None)


def _in_words(statistics: dict[str, Any]) -> str:
    megabytes, skipped = statistics["bytes"] / 1e6, statistics["skipped_bytes"] / 1e6
    return (
        f"{statistics['calls']} calls of {megabytes:.1f} MB in {statistics['chunks']} packets, {statistics['resent']} of them sent again; "
        f"{skipped:.1f} MB in {statistics['skipped']} packets were zero and not sent"
    )


def register() -> None:
    """Makes the backend known to torch, once; torch calls it when it is imported."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", *STREAMS])


register()
