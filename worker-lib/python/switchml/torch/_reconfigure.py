"""Torch's interface for groups whose ranks change: `init_process_group(enable_reconfigure=True)`.

Such a group has no ranks until `torch.distributed._reconfigure` says who they are, and again
whenever some are lost, or come. The ranks meet in a store in the process of the first of them, and
join a new job; nothing of the old one is kept. So it does not matter which ranks are lost.
"""

# Otherwise each call would evaluate the annotations of the functions that it makes.
from __future__ import annotations

import hashlib
import os
import socket
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Iterable, Iterator

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Work

from .._error import Error
from . import _gloo
from ._group import Group, Kin, Make, put_behind
from ._rendezvous import Meeting
from ._threads import NAME
from ._trampoline import Base, Options
from ._work import CallWork, backend_error

# Seconds after which ranks that have not come may be blocked in a call that waits for this one.
_PATIENCE = 5.0


@dataclass(frozen=True)
class _Member:
    """What a handle says: a process, and where the others meet if it is the first."""

    # What it was in the group that it is in.
    rank: int
    # Which process, and which of its groups.
    instance: str
    port: int
    host: str

    def handle(self) -> str:
        return f"{NAME}:{self.rank}:{self.instance}:{self.port}:{self.host}"


class Reconfigurable(Base):
    """What torch's C++ calls for such a group. It hands calls to the group of the present ranks."""

    supports_reconfigure = True

    def __init__(self, rank: int, size: int, timeout: timedelta, make: Make) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._options = Options(NAME, timeout)
        self._make = make
        # Where the others meet if this rank is the first.
        self._store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self._instance = uuid.uuid4().hex
        # By rank, those of the present group.
        self._instances: list[str] = []
        self._used: set[int] = set()
        self._present: Any = None
        # The present group's calls, if it is Gloo's.
        self._at_gloo = _gloo.InFlight()
        self._lock = threading.Lock()

    def name(self) -> str:
        return NAME

    getBackendName = name

    @property
    def options(self) -> Any:
        return self._options

    @property
    def python(self) -> Any:
        """The group of the present ranks, None if there is none."""
        return self._present

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def get_reconfigure_handle(self) -> str:
        places = (os.environ.get(name, "") for name in ("SWITCHML_AGGREGATOR", "MASTER_ADDR"))
        host = _gloo.address_towards(*places, socket.gethostname()) or "localhost"
        return _Member(self._rank, self._instance, self._store.port, host).handle()

    def reconfigure(self, opts: Any) -> Work:
        """Goes on with the ranks whose handles are given, which all call this with the same ones.

        Calls in flight end. If this fails, there is no group until another one succeeds.
        """
        limit = opts.timeout or self._options._timeout
        with self._lock:
            try:
                members = _ordered(opts.handles)
                instances = [member.instance for member in members]
                self._check(opts.uuid, instances)
                self._used.add(opts.uuid)
                rank, size = instances.index(self._instance), len(instances)
                with self._leaving(instances):
                    store = self._meeting(opts.uuid, members, limit)
                    # Only once all have come may one wait for another, or those that wait would be
                    # named, too.
                    Meeting(store, rank, size, limit.total_seconds(), home=0).come()
                present = self._make(store, rank, size, limit, Kin(instances, store, home=0))
            except Error as error:
                raise backend_error(error) from None
            except (dist.DistNetworkError, dist.DistStoreError) as error:
                why = f"rank 0, in whose process the ranks meet, is gone: {error}"
                raise backend_error(Error(why, [0])) from None
            _gloo.set_timeout(present, self._options._timeout)
            self._present, self._instances, self._rank, self._size = present, instances, rank, size
        work = CallWork("reconfigure", [], list)
        work.finish()
        return work

    def _check(self, identity: int, instances: list[str]) -> None:
        if self._instance not in instances:
            raise Error("this rank's handle is not among the given ones; all ranks give the same")
        if len(set(instances)) < len(instances):
            raise Error("a handle is given twice; give one of each rank")
        if identity in self._used:
            raise Error(f"uuid {identity} was already used; give another one each time")

    @contextmanager
    def _leaving(self, instances: list[str]) -> Iterator[None]:
        """Ends the calls in flight at first, and the present group once all have come.

        A rank that left before would be named by calls of others that wait for it. If they wait
        for this one, they come only once these calls have ended: after a while they do, and name
        the lost ranks.
        """
        present, self._present = self._present, None
        if not isinstance(present, Group):
            self._at_gloo.keep(present)
            yield
            return
        lost = [rank for rank, one in enumerate(self._instances) if one not in instances]
        others_calls = threading.Timer(_PATIENCE, present.give_up, [lost])
        others_calls.daemon = True
        if lost:
            others_calls.start()
        try:
            present.end_calls(lost)
            yield
        finally:
            others_calls.cancel()
            present.leave()

    def _meeting(self, identity: int, members: list[_Member], limit: timedelta) -> dist.Store:
        """The first rank's store. Ranks that were given other handles do not meet there."""
        first = members[0]
        store = self._store
        if first.instance != self._instance:
            store = dist.TCPStore(
                first.host, first.port, is_master=False, timeout=limit, wait_for_workers=False
            )
        instances = " ".join(member.instance for member in members)
        digest = hashlib.sha256(instances.encode()).hexdigest()
        return dist.PrefixStore(f"{identity}/{digest}", store)

    def set_timeout(self, timeout: timedelta) -> None:
        self._options._timeout = timeout
        if self._present is not None:
            _gloo.set_timeout(self._present, timeout)

    def shutdown(self) -> None:
        if self._present is not None:
            self._present.shutdown()

    def abort(self) -> None:
        if self._present is not None:
            self._present.abort()


class ReconfigurableGroup(dist.ProcessGroup):
    """Torch's group around it. A backend in Python cannot change torch's idea of its rank."""

    def __init__(self, store: dist.Store, backend: Reconfigurable) -> None:
        super().__init__(store, backend.rank(), backend.size())
        self._backend = backend
        put_behind(self, backend)

    def getRank(self) -> int:
        return self._backend.rank()

    def getSize(self) -> int:
        return self._backend.size()


def _forwarding(name: str) -> Callable[..., Any]:
    def method(self: Reconfigurable, *arguments: Any, **named: Any) -> Any:
        if self._present is None:
            raise backend_error(Error("the process group has no ranks; call _reconfigure first"))
        made = getattr(self._present, name)(*arguments, **named)
        if isinstance(made, Work) and not isinstance(self._present, Group):
            self._at_gloo.add(name, made)
        return made

    method.__name__ = name
    return method


for _name, _value in vars(Group).items():
    if _name in vars(Reconfigurable):
        continue
    if isinstance(_value, bool):
        setattr(Reconfigurable, _name, _value)
    elif callable(_value) and (not _name.startswith("_") or hasattr(Backend, _name)):
        setattr(Reconfigurable, _name, _forwarding(_name))


def _ordered(handles: Iterable[str]) -> list[_Member]:
    """The members that handles in a list name, by rank. In a set, they are in their old order."""
    members = [_member(handle) for handle in handles]
    if isinstance(handles, (set, frozenset)):
        members.sort(key=lambda member: (member.rank, member.instance))
    return members


def _member(handle: str) -> _Member:
    try:
        name, rank, instance, port, host = handle.split(":", 4)
        if name == NAME:
            return _Member(int(rank), instance, int(port), host)
    except ValueError:
        pass
    raise Error(f"{handle!r} is not a handle of a {NAME} group; get_reconfigure_handle gives it")
