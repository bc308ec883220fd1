"""Ranks that are left go on when others are lost: in the same processes, as a smaller group.

They go on in a new job, because nothing about a job changes while it runs. The first rank that
knows which ranks are left decides it for all, by an atomic step of the store. So there are never
two groups that both go on. The new job and its sockets take 30 ms of the 60 ms of regrouping, too
little to keep the old ones for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Iterable

import torch.distributed as dist
from torch.distributed import distributed_c10d

from .._error import Error
from ._alive import Watch, watching
from ._group import group_of
from ._rendezvous import looks
from ._threads import NAME

# Members of a new group have all just met, so they do not wait for each other as long as the first
# ones, whom people start by hand.
_JOIN = timedelta(seconds=10)
# Seconds for ranks that others give as lost, and that may only have left because of others.
_GRACE = 0.05


@dataclass
class _Formation:
    """A default group made here, where its ranks met, and how many were made before it."""

    group: dist.ProcessGroup
    store: dist.Store
    number: int


# The latest that was made here.
_latest: _Formation | None = None


def regroup(lost: Iterable[int] = (), *, patience: float = 30.0) -> list[int]:
    """Makes another default group of the ranks that are left. Returns which ranks they were.

    Each rank that is left calls this when a call has failed, and gives the `ranks` of that error.
    It waits for all other ranks but those that any of them gives, and those whose process has
    ended. One that does not come within `patience` seconds is left out, too. Ranks are numbered
    again, in their order.

    All process groups are destroyed, so modules in DDP have to be wrapped again. A call may have
    failed on some ranks and not on others, which are a step ahead: exchange the state.

    The ranks meet in the store of the first default group, which must outlive the lost ranks.
    Raises `switchml.Error` on a rank that the others have gone on without, and torch's
    `DistBackendError` if the ranks that are left cannot connect.
    """
    global _latest
    before = dist.group.WORLD
    ours = group_of(before)
    if ours is None or before is None:
        raise ValueError(f"the default group is not {NAME}'s")
    at = _latest
    if at is None or at.group is not before:
        store = dist.PrefixStore(f"{NAME}/regroup", distributed_c10d._get_default_store())
        at = _Formation(before, store, 0)
    number, timeout = at.number, ours.options._timeout
    backends = distributed_c10d.get_backend_config(before)
    reached = ours.reached
    # By rank in the latest group that was to be made, which some ranks may have: the rank before.
    members, me, given = list(range(before.size())), before.rank(), set(lost)
    failure: Exception | None = None

    def watch_of(ranks: list[int]) -> Watch:
        return Watch({rank: reached[old] for rank, old in enumerate(ranks) if old in reached})

    while True:
        number += 1
        store = dist.PrefixStore(str(number), at.store)
        is_gone = watch_of(members).is_gone
        agreed = _agree(store, len(members), members.index(me), given, is_gone, patience)
        left = [members[rank] for rank in agreed]
        if me not in left:
            raise _left_out(me, left)
        if failure is not None and left == members:
            # No rank was the reason, so it would fail again. All ranks see that.
            raise failure
        members = left
        _destroy_all()
        try:
            with watching(watch_of(members)):
                _start(backends, store, members.index(me), len(members))
            break
        except dist.DistBackendError as error:
            # Other ranks may have been lost meanwhile.
            failure, given = error, set(getattr(error, "ranks", []))
    # The second name is the one before torch 2.14.
    (getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout)(timeout)
    assert dist.group.WORLD is not None
    _latest = _Formation(dist.group.WORLD, at.store, number)
    return members


def _destroy_all() -> None:
    """Destroys all groups, whatever calls are in flight."""
    for group in list(distributed_c10d._world.pg_map):
        ours = group_of(group)
        if ours is not None:
            ours.abort()
    if dist.is_initialized():
        dist.destroy_process_group()


def _start(backends: str, store: dist.Store, rank: int, size: int) -> None:
    meeting = dist.PrefixStore("group", store)
    dist.init_process_group(backends, store=meeting, rank=rank, world_size=size, timeout=_JOIN)


def _agree(
    store: dist.Store,
    size: int,
    me: int,
    lost: set[int],
    is_gone: Callable[[int], bool],
    patience: float,
) -> list[int]:
    """Those of the ranks that go on. Whoever knows it first decides it for all."""
    store.set(f"lost/{me}", json.dumps(sorted(lost)))
    come: dict[int, list[int]] = {}
    for seconds in looks():
        for rank in range(size):
            if rank not in come and store.check([f"lost/{rank}"]):
                come[rank] = json.loads(store.get(f"lost/{rank}"))
        if store.check(["members"]):
            break
        missing = set(range(size)).difference(come)
        gone = missing.intersection(set().union(*come.values()))
        if seconds > _GRACE:
            gone |= {rank for rank in missing - gone if is_gone(rank)}
        if not missing or seconds > (_GRACE if gone == missing else patience):
            # The store takes the first one.
            store.compare_set("members", "", json.dumps(sorted(come)))
            break
    members: Any = json.loads(store.get("members"))
    return members


def _left_out(me: int, members: list[int]) -> Error:
    return Error(
        f"ranks {', '.join(map(str, members))} have gone on without rank {me}, which came too late "
        "or was taken for lost; start it again, with a new job",
        [me],
    )
