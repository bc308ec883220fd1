"""How the ranks of a process group find their job, or agree on Gloo."""

import contextlib
import functools
import os
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable

import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d

from .._communicator import Communicator
from .._error import Error
from ._alive import announce, ended, gone, reached
from ._gloo import address_towards, gloo_group
from ._group import Group, backends_of, group_of, log
from ._membership import Membership
from ._peers import exchange
from ._reconfigure import Reconfigurable, ReconfigurableGroup
from ._rendezvous import wait_for_ranks
from ._threads import NAME
from ._trampoline import IS_BACKEND, as_backend, check
from ._work import backend_error, see_through_holders


def create(options: Any, _backend_options: Any) -> Backend | dist.ProcessGroup:
    """The process group that torch asks for."""
    if IS_BACKEND:
        record_what_groups_have()
        if options.enable_reconfigure:
            ranks = options.group_rank, options.group_size
            made = functools.partial(make, at_once=True)
            return ReconfigurableGroup(options.store, Reconfigurable(*ranks, options.timeout, made))
    return make(options.store, options.group_rank, options.group_size, options.timeout)


def make(
    parent: dist.Store, rank: int, size: int, timeout: timedelta, at_once: bool = False
) -> Backend:
    """A group whose ranks meet in a store, and join their job at once or with their first call.

    It is one in the network, or one of Gloo's where that is allowed and necessary.
    """
    try:
        check()
    except Error as error:
        raise backend_error(error) from None
    see_through_holders()
    # A destroyed group leaves its keys behind. The next group of that name needs other keys, and
    # all ranks have counted the same number of attempts.
    attempt = parent.add(f"attempts/{rank}", 1)
    store = dist.PrefixStore(f"{NAME}/{attempt}", parent)
    fallback = os.environ.get("SWITCHML_FALLBACK", "")
    if fallback not in ("", "gloo"):
        raise ValueError(f"SWITCHML_FALLBACK is {fallback!r}; set it to gloo, or leave it out")
    # The first group reports at once what is wrong. For a fallback, all ranks must know before the
    # first call.
    is_first = not dist.is_initialized()
    at_once = at_once or is_first or bool(fallback)
    limit = _seconds("SWITCHML_JOIN_TIMEOUT", 60 if at_once else timeout.total_seconds())
    try:
        met = _meet(store, rank, size, timeout, min(timeout.total_seconds(), limit))
    except Error as error:
        raise backend_error(error) from None
    if is_first:
        announce(parent, rank, address_towards(met.aggregator, os.environ.get("MASTER_ADDR", "")))
    membership = Membership(lambda is_wanted: met.join(met.job, is_wanted))
    gathering = Membership(lambda is_wanted: met.join(f"{met.job}-gathers", is_wanted))
    failure = ""
    if at_once:
        try:
            membership.communicator()
        except Error as error:
            if not fallback:
                raise backend_error(error) from None
            failure = str(error)
    # All ranks fall back, or none.
    reasons = _failures(store, rank, size, failure) if fallback else {}
    try:
        meeting = dist.PrefixStore("gloo", store)
        gloo = gloo_group(meeting, rank, size, timeout, met.aggregator)
    except RuntimeError as error:
        # Other ranks do not wait for this one. If the job has ended, that is no other failure.
        membership.abort()
        with contextlib.suppress(Error):
            membership.close()
        if not isinstance(error, Error):
            error = Error(f"Gloo does not connect this rank: {error}")
        raise backend_error(error) from None
    if not reasons:
        reachable = reached(parent, rank, size) if is_first else set()
        group = Group(rank, size, (membership, gathering), gloo, timeout, parent, make, reachable)
        return as_backend(group)
    membership.close()
    log.warning(
        "%s: all ranks use Gloo, because of rank %s",
        NAME,
        "; rank ".join(f"{r}: {why}" for r, why in reasons.items()),
    )
    return gloo


@dataclass
class _Met:
    """What the ranks of a group have told each other."""

    store: dist.Store
    rank: int
    size: int
    # Of calls, and of joining, which is in seconds.
    timeout: timedelta
    most: float
    # As host or host:port, with commas between; without any, ranks serve each other.
    aggregator: str
    job: str

    def join(self, job: str, is_wanted: Callable[[], bool]) -> Communicator:
        """Joins a job of theirs. Raises `switchml.Error`."""
        try:
            peers = None
            if not self.aggregator:
                meeting = dist.PrefixStore(job, self.store)
                peers = exchange(meeting, job, self.rank, self.size, self.most, is_wanted)
            return Communicator(
                aggregator=self.aggregator or None,
                job=job,
                rank=self.rank,
                world_size=self.size,
                timeout=self.timeout.total_seconds(),
                join_timeout=self.most,
                is_wanted=lambda: is_wanted() and not gone(),
                _peers=peers,
            )
        except Error as error:
            if lost := gone():
                raise ended(lost, self.size) from None
            told = str(error)
            if self.aggregator and told.startswith(("aggregator ", "no aggregator ")):
                told += f" (SWITCHML_AGGREGATOR is {self.aggregator!r}; give host or host:port)"
            raise Error(told, error.ranks) from None


@functools.cache
def record_what_groups_have() -> None:
    """Makes torch record a group that fell back as one of Gloo's.

    Otherwise it records the backend that was asked for, once `create` has returned.
    """
    record = distributed_c10d._register_pg_in_world

    # Its name is that of torch's argument.
    def corrected(pg: dist.ProcessGroup, **named: Any) -> None:
        if _fell_back(pg, named["backend_name"]):
            named.update(
                (key, named[key].replace(NAME, "gloo"))
                for key in ("backend_name", "backend_config")
            )
        record(pg, **named)

    distributed_c10d._register_pg_in_world = corrected


@functools.cache
def correct_what_is_recorded() -> None:
    """The same in a torch that has no function that records. It is there before any group."""
    make = distributed_c10d._new_process_group_helper

    def corrected(*arguments: Any, **named: Any) -> Any:
        made = make(*arguments, **named)
        group, world = made[0], distributed_c10d._world
        # Ranks that are not in the group have another object.
        if isinstance(group, dist.ProcessGroup):
            name, store = world.pg_map[group]
            if _fell_back(group, name):
                world.pg_map[group] = (name.replace(NAME, "gloo"), store)
                config = world.pg_backend_config[group]
                world.pg_backend_config[group] = config.replace(NAME, "gloo")
        return made

    distributed_c10d._new_process_group_helper = corrected


@functools.cache
def heed_set_timeouts() -> None:
    """Makes torch set timeouts of our groups in a version that knows only its own backends."""
    set_timeout = distributed_c10d._set_pg_timeout

    def corrected(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        group = group or dist.group.WORLD
        ours = group_of(group) if isinstance(group, dist.ProcessGroup) else None
        if ours is not None:
            ours.set_timeout(timeout)
        # Torch's own function serves other types of device; without any it warns.
        if ours is None or len(backends_of(group)) > 1:
            set_timeout(timeout, group)

    distributed_c10d._set_pg_timeout = corrected


def _fell_back(group: dist.ProcessGroup, backend_name: str) -> bool:
    if isinstance(group, ReconfigurableGroup):
        return False
    return NAME in backend_name and group_of(group) is None


def _failures(store: Any, rank: int, size: int, failure: str) -> dict[int, str]:
    """Why ranks could not connect, by rank. Each rank tells the others of its own failure."""
    store.set(f"failure/{rank}", failure)
    failures = [store.get(f"failure/{other}").decode() for other in range(size)]
    return {other: reason for other, reason in enumerate(failures) if reason}


def _meet(store: Any, rank: int, size: int, timeout: timedelta, most: float) -> _Met:
    """What the environment of this rank does not say is taken from the first rank.

    Raises `switchml.Error` with the ranks that did not come within `most` seconds.
    """
    given = os.environ.get("SWITCHML_AGGREGATOR", "")
    if rank == 0:
        store.set("aggregator", given)
        store.set("job", f"torch-{uuid.uuid4()}")
    wait_for_ranks(store, {0: "job"}, size, most)
    aggregator, job = (store.get(key).decode() for key in ("aggregator", "job"))
    # The store is in the first rank's process, which must not end before all others have read.
    store.set(f"has read/{rank}", "")
    if rank == 0:
        wait_for_ranks(store, {r: f"has read/{r}" for r in range(size)}, size, most)
    return _Met(store, rank, size, timeout, most, given or aggregator, job)


def _seconds(name: str, otherwise: float) -> float:
    given = os.environ.get(name)
    try:
        return float(given) if given else otherwise
    except ValueError:
        raise Error(f"{name} is {given!r}; give a number of seconds") from None
