"""A process group of torch: what runs in the network, and what goes to Gloo."""

# Otherwise each call would evaluate the annotations of the functions that it makes.
from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Hashable, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Work

from .._communicator import Communicator, Handle
from .._error import Error
from . import _flight, _gloo, _wide
from ._alive import Place
from ._delegated import INTEGERS, Delegated, tensors_in
from ._elements import is_plain, overwrite, plain
from ._lazy import behind
from ._membership import Membership, added
from ._parts import Scratch, as_words, parted
from ._staging import STREAMS, Call, Staging
from ._threads import CALLBACKS, NAME, CallThread, Failed
from ._trampoline import Base, Options, can_delegate, method_of
from ._untraced import keep_out
from ._work import CallWork, GlooWork, backend_error, in_call

log = logging.getLogger("switchml.torch")

# A call, and a function to run once it is over.
Started = tuple[Handle, Callable[[], None]]


@dataclass
class Kin:
    """Who a group's ranks are, in all groups of the process alike, and how they find each other."""

    members: Sequence[Hashable]
    # A connection to where they meet that nobody blocks.
    line: dist.Store
    # The rank in whose process that is, if it is known.
    home: int | None = None

    def some(self, ranks: Sequence[int]) -> "Kin":
        """Some of the ranks."""
        return Kin([self.members[rank] for rank in ranks], self.line)


# Makes a group of ranks that meet in a store: rank, number of ranks, timeout, and who they are.
Make = Callable[[dist.Store, int, int, timedelta, Kin], Backend]

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
}
# Tensors of this many bytes or more are gathered in the network also by a group that has made no
# call there. A job at the aggregator is not worth it for a few sizes or objects.
_LEAST_GATHERED = 1 << 16
# All-gathers of this many bytes or more have a job of their own.
_GATHERED_APART = 1 << 20
# The bytes up to which a call runs on the thread that waits for it. To hand a larger one to another
# thread at once takes less time than that thread gains, if the caller has something else to do.
_SMALL = 1 << 18
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Maxima and minima of these have more bits than the network compares.
_WIDE = (torch.int64, torch.float64)
# The types that calls in the network tell apart.
_TYPES = (*_FLOATS, torch.int32, torch.int64)
# Seconds that calls in flight get when a program ends, since nobody waits for them any more.
_FAREWELL = 5.0
# Seconds in which a thread notices that its call is over.
_NOTICE = 0.05


class Group(Base):
    """A process group: a job at the aggregator, and Gloo for what that does not do."""

    # Torch's C++ looks up here what a backend supports. If an attribute is missing, it recurses for
    # ever.
    supports_splitting = True
    supports_coalescing = False
    supports_shrinking = True
    supports_reconfigure = False
    supports_window = False
    supports_time_estimate = False
    _supports_time_estimate = False

    def __init__(
        self,
        rank: int,
        size: int,
        memberships: tuple[Membership, Membership],
        gloo: Backend,
        timeout: timedelta,
        store: dist.Store,
        make: Make,
        reached: dict[int, Place],
        kin: Kin,
    ) -> None:
        super().__init__(rank, size)
        # Large all-gathers have their own job: they fill the path from the aggregator, and
        # reduce-scatters the path to it, so that both together take no longer than one of them.
        self._membership, self._gathering = memberships
        # Any, because Gloo has more methods than torch's types declare.
        self._gloo: Any = gloo
        self._options = Options(NAME, timeout)
        # Where the ranks met, and how those of a new group do.
        self.store, self._make = store, make
        # The ranks of the first group whose processes this one can watch, and where.
        self.reached = reached
        self.kin = kin
        # Parts by name: torch asks for each type of device.
        self._parts: dict[str, Backend] = {}
        # Waits for calls in flight.
        self._completions = CallThread()
        # Makes calls that have to wait until the job is joined, or until elements arrive from a
        # GPU, and calls behind these, because their order counts. The thread starts with the first
        # of them.
        self._calls: CallThread | None = None
        # Whether calls have been made in the network. It is the same on all ranks.
        self._is_used = self._membership.is_joined()
        self._delegated: set[str] = set()
        self._at_gloo = _gloo.InFlight()
        self._scratch = Scratch()
        # Calls so far in which all ranks take part. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch
        # compares them between ranks.
        self._sequence = 0
        # The last call that was not made in a callback.
        self._outside: weakref.ref[CallWork] | None = None
        # Whether one runs for which there is no object.
        self._runs_at_once = False
        # The last call of a tensor of a GPU, by its memory.
        self._staging: weakref.WeakValueDictionary[int, Call] = weakref.WeakValueDictionary()
        self._warned = False
        self._has_failed = False
        # Callbacks make calls, too, on threads of their own.
        self._lock = threading.Lock()
        self._closed = False
        # The process that made the group: a fork has neither its threads nor Gloo's.
        self._process = os.getpid()
        # A thread that returns from a wait needs the interpreter.
        atexit.register(self._end_with_program)

    def name(self) -> str:
        return NAME

    # The name that some versions of torch ask their own backends for.
    getBackendName = name

    @property
    def options(self) -> Any:
        return self._options

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work | None:
        return self._all_reduce("allreduce", tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work | None:
        return self._all_reduce("allreduce_coalesced", tensors, opts)

    def _all_reduce(self, name: str, tensors: list[torch.Tensor], opts: Any) -> Work | None:
        tensors = behind(tensors)
        op = _OPS.get(opts.reduceOp.op if opts is not None else dist.ReduceOp.SUM)
        is_awaited = _is_awaited(opts)
        if op and is_awaited and len(tensors) == 1 and self._can_be_at_once(tensors[0], op):
            self._reduce_at_once(tensors[0], op)
            # Torch takes this for a call that is over.
            return None
        if op is None or not all(_is_offered(tensor, op) for tensor in tensors):
            # The two calls have options of different types.
            return self._delegate(name, tensors, *([] if opts is None else [opts]))
        # Several run side by side, and so have to start before the first is waited for.
        deferred = len(tensors) == 1 and (is_awaited or _is_small(tensors))
        return self._start(
            "all_reduce",
            tensors,
            lambda there: [self._reduce(tensor, op, deferred) for tensor in there],
            is_awaited,
        )

    def _can_be_at_once(self, tensor: torch.Tensor, op: str) -> bool:
        """Whether a reduction that its maker waits for needs nothing but the library's call."""
        return (
            tensor.is_cpu
            and _is_offered(tensor, op)
            and is_plain(tensor)
            and not _is_wide(tensor, op)
            and self._membership.is_joined()
            and (self._calls is None or self._calls.is_idle())
            and not CALLBACKS.run_here()
            and not torch.autograd._profiler_enabled()
        )

    def _reduce_at_once(self, tensor: torch.Tensor, op: str) -> None:
        """A reduction without objects for who waits: they take longer than a small one."""
        self._begin()
        self._sequence += 1
        self._is_used = True
        self._runs_at_once = True
        failures: list[Exception] = []
        begin = time.monotonic()
        try:
            handle = self._communicator.all_reduce_start(tensor, op, deferred=True)
            self._completions.run_now(handle.wait, failures.append)
        except Error as error:
            failures.append(error)
        finally:
            self._runs_at_once = False
        if failures:
            self._tell_recorder()
            raise backend_error(failures[0], in_call("all_reduce", [tensor], begin))

    def average_in_bits(
        self, bits: int, tensor: torch.Tensor, residual: torch.Tensor | None = None
    ) -> CallWork:
        """The average in 16 or 8 bits an element, of contiguous elements.

        What they lose goes to the residual.
        """
        tensors = [tensor] if residual is None else [tensor, residual]

        def average(there: list[torch.Tensor]) -> list[Started]:
            given = [tensor.detach() for tensor in there]
            start = self._communicator.all_reduce_start
            return [(start(given[0], "avg", bits, *given[1:]), lambda: None)]

        work = self._start("all_reduce", tensors, average)
        # Hooks call this, and DDP waits for the futures that they derive from this one.
        work.raise_after_backward()
        return work

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        return self._start(
            "broadcast",
            behind(tensors),
            lambda there: [self._broadcast(tensor, opts.rootRank) for tensor in there],
            _is_awaited(opts),
        )

    def _scatter(self, name: str, outputs: Any, given: Any, opts: Any) -> Work:
        """A reduce-scatter, in any form that torch has."""
        outputs, given = behind((outputs, given))
        op = _OPS.get(opts.reduceOp.op if opts is not None else dist.ReduceOp.SUM)
        calls = parted(outputs, given)
        if op is None or not all(
            call.fits(self.size()) and _is_scattered(call.part, op) for call in calls
        ):
            return self._delegate(name, outputs, given, opts)
        # The inputs must not change.
        with torch.inference_mode():
            copies = [call.copied(self._scratch) for call in calls]

        def start(there: list[torch.Tensor]) -> list[Started]:
            start = self._communicator.reduce_scatter_start
            return [(start(flat, op), lambda: None) for flat in there]

        def take() -> None:
            for call, copy in zip(calls, copies):
                call.take_part(copy, self.rank())
                self._scratch.give_back(copy)

        results = [call.part for call in calls]
        is_awaited = _is_awaited(opts)
        return self._start("reduce_scatter", copies, start, is_awaited, results=results, take=take)

    def _gather(self, name: str, outputs: Any, given: Any, opts: Any) -> Work:
        """An all-gather, in any form that torch has."""
        outputs, given = behind((outputs, given))
        calls = parted(given, outputs)
        size = self.size()
        gathered = sum(call.part.nbytes for call in calls) * size
        is_large = gathered >= _LEAST_GATHERED or (self._is_used and gathered > 0)
        if not is_large or not all(call.fits(size) for call in calls):
            return self._delegate(name, outputs, given, opts)
        with torch.inference_mode():
            wholes = [call.gathering(self.rank(), size) for call in calls]
        if not all(as_words(flat, size) is not None for flat in wholes):
            return self._delegate(name, outputs, given, opts)

        membership = self._gathering if gathered >= _GATHERED_APART else self._membership
        is_awaited = _is_awaited(opts)
        deferred = len(wholes) == 1 and (is_awaited or _is_small(wholes))

        def start(there: list[torch.Tensor]) -> list[Started]:
            agreed = self._agree_to_gather() if membership is self._gathering else []
            start = membership.communicator().all_gather_start
            words = [as_words(flat, size) for flat in there]
            return [*agreed, *((start(word, deferred=deferred), lambda: None) for word in words)]

        def take() -> None:
            for call, flat in zip(calls, wholes):
                call.take_whole(flat)

        results = list(tensors_in([call.whole for call in calls]))
        return self._start("all_gather", wholes, start, is_awaited, membership, results, take)

    def _agree_to_gather(self) -> list[Started]:
        """Tells other ranks that this one gathers in the network, as `_announce` does for Gloo.

        The call without elements tells the two apart, and sends nothing.
        """
        if not self._is_used:
            return []
        nothing = torch.empty(0, dtype=torch.int32, device="cpu")
        calls = self._communicator.all_gather_start(nothing), self._communicator.barrier_start()
        return [(call, lambda: None) for call in calls]

    def barrier(self, opts: Any = None) -> Work:
        # The device is given, since torch may make tensors elsewhere by default.
        token = torch.zeros(1, dtype=torch.int32, device="cpu")
        deferred = is_awaited = _is_awaited(opts)
        return self._start(
            "barrier", [token], lambda there: [self._reduce(there[0], "sum", deferred)], is_awaited
        )

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        self._note("monitored_barrier")
        self._gloo.monitored_barrier(opts.timeout, wait_all_ranks)

    def split(self, store: dist.Store, ranks: list[int], options: Any) -> Backend:
        """A group of some of the ranks, all of which call this."""
        if self.rank() not in ranks:
            # Torch's C++ crashes if it gets None.
            raise backend_error(
                Error(
                    f"rank {self.rank()} is in no part of the group; split_group needs it in one, "
                    "use new_group if it is in none"
                )
            )
        name = options.group_name
        if name not in self._parts:
            self._parts[name] = self._make(
                store, ranks.index(self.rank()), len(ranks), options._timeout, self.kin.some(ranks)
            )
        return self._parts[name]

    def shrink(
        self, ranks_to_exclude: list[int], shrink_flags: int = 0, opts_override: Any = None
    ) -> Backend:
        """A group of the other ranks, all of which call this; the excluded ones may be gone."""
        left = [rank for rank in range(self.size()) if rank not in ranks_to_exclude]
        if shrink_flags & dist.distributed_c10d.SHRINK_ABORT:
            self.abort()
        named = "-".join(map(str, ranks_to_exclude))
        store = dist.PrefixStore(f"without/{named}", self.store)
        options = opts_override or self._options
        rank, kin = left.index(self.rank()), self.kin.some(left)
        return self._make(store, rank, len(left), options._timeout, kin)

    def perform_nocolor_split(self, _device: torch.device) -> None:
        """Ranks that are not in a new group have nothing to do for it."""

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: timedelta) -> None:
        self._options._timeout = timeout
        self._membership.set_timeout(timeout.total_seconds())
        self._gathering.set_timeout(timeout.total_seconds())
        _gloo.set_timeout(self._gloo, timeout)

    def statistics(self) -> dict[str, Any]:
        return added(self._membership.statistics(), self._gathering.statistics())

    @property
    def _communicator(self) -> Communicator:
        return self._membership.communicator()

    def shutdown(self) -> None:
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        atexit.unregister(self._end_with_program)
        if sys.exc_info()[0] is not None:
            # The group is destroyed because something failed: nobody waits for these calls any
            # more, and other ranks may never make them.
            self._abandon()
        for thread in self._threads():
            thread.close()
        log.info("%s: %s", NAME, _in_words(self.statistics()))
        for membership in (self._gathering, self._membership):
            try:
                membership.close()
            except Error as error:
                log.warning("%s: %s", NAME, error)

    def abort(self) -> None:
        """Ends calls in flight with an error, and then as `shutdown`."""
        self._membership.abort()
        self._gathering.abort()
        self.shutdown()

    def end_calls(self, lost: list[int]) -> None:
        """Ends calls in flight, when the other ranks go on without the lost ones.

        They end with an error that names these. Without any, they are over or soon will be.
        """
        patience = _NOTICE if lost else _FAREWELL
        if not all(thread.is_idle_within(patience) for thread in self._threads()):
            self.give_up(lost)

    def leave(self) -> None:
        """As `shutdown`, once calls in flight have ended, but for those that went to Gloo."""
        self._at_gloo.keep(self._gloo)
        self.shutdown()

    def _end_with_program(self) -> None:
        """As `shutdown`, but other ranks are not to wait for a program that has failed."""
        if self._process == os.getpid():
            failed = getattr(sys, "last_type", None) is not None
            if failed or not all(t.is_idle_within(_FAREWELL) for t in self._threads()):
                self._abandon()
        self.shutdown()

    def _abandon(self) -> None:
        """Ends calls in flight, if there are any."""
        if not all(thread.is_idle() for thread in self._threads()):
            log.warning("%s: abandoning calls in flight", NAME)
            self.give_up([])

    def give_up(self, lost: Sequence[int]) -> None:
        """Ends all ranks' calls in flight, because of these ranks."""
        self._membership.abort(lost)
        self._gathering.abort(lost)

    def _threads(self) -> list[CallThread]:
        """Those with calls in flight, in their calls' order."""
        return [*([] if self._calls is None else [self._calls]), self._completions]

    def _start(
        self,
        name: str,
        tensors: list[torch.Tensor],
        start: Callable[[list[torch.Tensor]], list[Started]],
        is_awaited: bool = False,
        membership: Membership | None = None,
        results: list[torch.Tensor] | None = None,
        take: Callable[[], None] = lambda: None,
    ) -> CallWork:
        """Starts calls on the tensors, or on their copies in the host's memory.

        One that is awaited is over on return: to wait on another thread would take longer than a
        small call. If it has failed, the wait for the work says so.

        `take` is called once the tensors hold what came. It brings that to the results, where
        these are others.
        """
        self._begin()
        membership = membership or self._membership
        self._sequence += 1
        self._is_used |= membership is self._membership
        work = CallWork(name, tensors if results is None else results, membership.late_ranks)
        self._watch_order(work)
        staging = Staging(tensors, work, self._staging)
        is_left_to_waiter = not is_awaited and _is_small(tensors)

        def call(then: Callable[[Callable[[], None], Failed], None]) -> None:
            staging.arrive()
            started = start(staging.there)
            if is_left_to_waiter:
                _send(started)
            then(lambda: finish(started), failed)

        def finish(started: list[Started]) -> None:
            for handle, _ in started:
                handle.wait()
            for _, then in started:
                then()
            staging.give_back()
            take()
            work.finish()

        def failed(error: Exception) -> None:
            self._tell_recorder()
            if membership is self._gathering:
                # What ranks agree on may have failed, and they do not come to the call itself.
                membership.abort()
            work.fail(error)

        waits = bool(staging) or not membership.is_joined()
        with self._lock:
            if waits and self._calls is None:
                self._calls = CallThread()
        if self._calls is not None and (waits or not self._calls.is_idle()):
            self._calls.add(lambda: call(self._completions.add), failed)
            return work
        try:
            with torch.inference_mode():
                if is_awaited:
                    call(self._completions.run_now)
                elif is_left_to_waiter:
                    call(lambda *both: work.leave_to_waiter(self._completions.defer(*both)))
                else:
                    call(self._completions.add)
        except Error as error:
            failed(error)
            raise work.exception() or error from None
        return work

    def _tell_recorder(self) -> None:
        """Has torch write down the last calls, once: others fail because of the first."""
        if not self._has_failed:
            self._has_failed = True
            _flight.write()

    def _begin(self) -> None:
        """What comes before each call. Raises if this is not the group's process."""
        keep_out()
        if self._process != os.getpid():
            raise backend_error(
                Error(
                    f"this is a fork of process {self._process}, which the group belongs to, and "
                    "does not have its threads; make a new group here"
                )
            )

    def _watch_order(self, work: CallWork) -> None:
        """Warns, once, of calls whose order may be chance, and may differ on other ranks."""
        if not CALLBACKS.run_here():
            self._outside = weakref.ref(work)
            return
        outside = self._outside() if self._outside is not None else None
        is_in_flight = self._runs_at_once or (outside is not None and not outside.is_completed())
        if is_in_flight and not self._warned:
            self._warned = True
            log.warning(
                "%s: a callback makes a call while one that was made elsewhere is in flight; sums "
                "are wrong unless that happens on all ranks (with PowerSGD: make bucket_cap_mb "
                "larger than the model)",
                NAME,
            )

    def _reduce(self, tensor: torch.Tensor, op: str, deferred: bool) -> Started:
        """Starts a reduction, or leaves that to the wait for it.

        The second result puts it in its place once it is here.
        """
        if op in ("max", "min") and tensor.dtype in _WIDE:
            handle, result = _wide.extremum(self._communicator, tensor.detach(), op)
            return handle, lambda: overwrite(tensor, result())
        if op == "avg" and tensor.dtype in INTEGERS:
            handle, result = _wide.average_of_integers(self._communicator, tensor, self.size())
            return handle, lambda: overwrite(tensor, result())
        there = plain(tensor)
        handle = self._communicator.all_reduce_start(there.detach(), op, deferred=deferred)
        return handle, (lambda: None) if there is tensor else (lambda: overwrite(tensor, there))

    def _broadcast(self, tensor: torch.Tensor, root: int) -> Started:
        """Starts a broadcast: of types that the network does not know, as words of 32 bits."""
        there = plain(tensor).detach()
        if there.dtype not in _TYPES:
            _wide.tell_apart(self._communicator, 1)
            there = _padded_words(there)
        handle = self._communicator.broadcast_start(there, root)
        if there.data_ptr() == tensor.data_ptr():
            return handle, lambda: None
        raw = there.view(-1).view(torch.uint8)[: tensor.nbytes]
        return handle, lambda: overwrite(tensor, raw.view(tensor.dtype))

    def _delegate(self, name: str, *arguments: Any, **named: Any) -> Work:
        self._begin()
        self._note(name)
        # This comes first: if it fails, Gloo must not be left with a call that never ends.
        made = None if name in _gloo.OF_TWO_RANKS else self._announce()
        delegated = Delegated(name, behind(arguments), self.rank(), self.size())
        work = delegated.start(method_of(self._gloo, name), **named)
        self._at_gloo.add(name, work)
        tensors = list(tensors_in(behind(arguments)))
        forget = self._at_gloo.forget
        return GlooWork(name, work, tensors, delegated, made, self._tell_recorder, forget)

    def _announce(self) -> CallWork | None:
        """Tells other ranks that this one makes a call that goes to Gloo.

        It is over when they all have. A rank that makes a call in the network instead, where
        others do not come to, would wait for them, and they for it, until the timeout; so all hear
        at once that ranks make different calls.
        """
        if not self._is_used:
            # Few groups make only such calls, and this would make them join a job.
            self._sequence += 1
            return None
        return self._start(
            "agree", [], lambda _: [(self._communicator.barrier_start(), lambda: None)]
        )

    def _note(self, name: str) -> None:
        if name not in self._delegated:
            self._delegated.add(name)
            log.info("%s: %s goes to Gloo", NAME, name)


def _delegating(name: str) -> Callable[..., Any]:
    def method(self: Group, *arguments: Any, **named: Any) -> Any:
        return self._delegate(name, *arguments, **named)

    method.__name__ = name
    return method


def _scattering(name: str) -> Callable[..., Work]:
    def method(self: Group, outputs: Any, given: Any, opts: Any = None) -> Work:
        return self._scatter(name, outputs, given, opts)

    method.__name__ = name
    return method


def _gathering(name: str) -> Callable[..., Work]:
    def method(self: Group, outputs: Any, given: Any, opts: Any = None) -> Work:
        return self._gather(name, outputs, given, opts)

    method.__name__ = name
    return method


# Other methods that this version of torch may have.
_OTHERS: dict[Callable[[str], Callable[..., Any]], tuple[str, ...]] = {
    _scattering: (
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_single",
        "reduce_scatter_single_coalesced",
        "reduce_scatter_tensor_coalesced",
    ),
    _gathering: (
        "allgather",
        "_allgather_base",
        "all_gather_single",
        "all_gather_single_coalesced",
        "allgather_into_tensor_coalesced",
    ),
    _delegating: (
        "allgather_coalesced",
        "allreduce_sparse",
        "alltoall",
        "alltoall_base",
        "all_to_all_single",
        "gather",
        "recv",
        "recv_anysource",
        "reduce",
        "scatter",
        "send",
    ),
}
for _made, _names in _OTHERS.items():
    for _name in _names:
        if can_delegate(_name):
            setattr(Group, _name, _made(_name))


def group_of(group: dist.ProcessGroup | None) -> Group | None:
    """What is behind a group, or the default group; None if it is of another backend."""
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group; call init_process_group first")
    return next((backend for backend in backends_of(group) if isinstance(backend, Group)), None)


def put_behind(group: dist.ProcessGroup, backend: Backend) -> None:
    """Has a group that torch did not make call a backend, for all types of devices."""
    kind = dist.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(kind)
    for device in ("cpu", *(name for name in STREAMS if STREAMS[name].is_available())):
        group._register_backend(torch.device(device), kind, backend)


def backends_of(group: dist.ProcessGroup) -> list[Any]:
    """What is behind a group: one for all types of devices, or several."""
    backends = [_behind(group._get_backend(device)) for device in group._device_types]
    return [backend for at, backend in enumerate(backends) if backend not in backends[:at]]


def _behind(backend: Any) -> Any:
    """What torch wraps with TORCH_DISTRIBUTED_DEBUG=DETAIL, and what a trampoline calls."""
    backend = getattr(backend, "wrapped_pg", backend)
    return getattr(backend, "python", backend)


def _in_words(statistics: dict[str, Any]) -> str:
    megabytes, skipped = statistics["bytes"] / 1e6, statistics["skipped_bytes"] / 1e6
    return (
        f"{statistics['calls']} calls of {megabytes:.1f} MB in {statistics['chunks']} packets, "
        f"{statistics['resent']} of them sent again; "
        f"{skipped:.1f} MB in {statistics['skipped']} packets were zero and not sent"
    )


def _is_awaited(opts: Any) -> bool:
    """Whether who makes a call waits for it at once, as torch's functions say.

    Older versions, such as 2.4, say so of few kinds of calls.
    """
    return not getattr(opts, "asyncOp", True)


def _send(started: list[Started]) -> None:
    """Lets packets travel while the caller does something else."""
    for handle, _ in started:
        handle.send()


def _is_small(tensors: list[torch.Tensor]) -> bool:
    """Whether the caller ends such a call that it waits for later, as its own thread."""
    return sum(tensor.nbytes for tensor in tensors) <= _SMALL


def _is_offered(tensor: torch.Tensor, op: str) -> bool:
    is_here = tensor.is_cpu or tensor.device.type in STREAMS
    if not is_here or tensor.layout != torch.strided:
        return False
    integers = INTEGERS if op == "avg" else (torch.int32, torch.int64)
    return tensor.dtype in _FLOATS or tensor.dtype in integers


def _is_scattered(tensor: torch.Tensor, op: str) -> bool:
    """Whether a reduce-scatter of such tensors is one call in the network."""
    return _is_offered(tensor, op) and not _is_wide(tensor, op)


def _is_wide(tensor: torch.Tensor, op: str) -> bool:
    """Whether a reduction of such tensors takes more than one call in the network."""
    return (op in ("max", "min") and tensor.dtype in _WIDE) or (
        op == "avg" and tensor.dtype in INTEGERS
    )


def _padded_words(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as words of 32 bits: their own memory where that can be, or a copy."""
    raw = tensor.view(-1).view(torch.uint8)
    if raw.nbytes % 4 or raw.data_ptr() % 4:
        copy = torch.zeros(raw.nbytes + 3 & ~3, dtype=torch.uint8, device="cpu")
        copy[: raw.nbytes] = raw
        raw = copy
    return raw.view(torch.int32)
