"""Whether the processes of other ranks live: each has a port that only it can close.

The port tells dead ranks from late ones, also while the next group forms. If a rank is lost then,
the others need another attempt, and not the whole limit for joining.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from pathlib import Path
from typing import Any, Hashable, Iterator, Mapping

import torch.distributed as dist

from .._error import Error
from ._work import rank_list

# The address and the port.
Place = tuple[str, int]

# Seconds for an answer from a port. None is no sign of anything.
_ANSWER = 0.2


def announce(store: dist.Store, rank: int, address: str | None) -> None:
    """Tells other ranks where to look. `address` is this host's, if it is known."""
    port = _port().getsockname()[1]
    store.set(f"alive/{rank}", json.dumps([_host(), address, port]))


def reached(store: dist.Store, rank: int, size: int) -> dict[int, Place]:
    """The ports that this rank gets through to, by rank, all of which have been announced.

    It stops at the first that gives no answer, as behind a firewall, and looks no further.
    """
    places: dict[int, Place] = {}
    for other in range(size):
        place = _place(store, other)
        if place is None or (other != rank and not _answers(place)):
            break
        places[other] = place
    return places


def remember(places: Mapping[Hashable, Place]) -> None:
    """Where the ports of members are that `lives` is asked about from now on."""
    global _remembered
    _remembered = places


def lives(member: Hashable) -> bool | None:
    """Whether the process of a member lives; None if that is not known."""
    _let_in()
    return _answers(_remembered.get(member))


def ended_members() -> list[Hashable]:
    """Those of the remembered members whose processes have ended."""
    return [member for member in _remembered if lives(member) is False]


def _place(store: dist.Store, rank: int) -> Place | None:
    """Where a rank's port is, if it is known."""
    try:
        host, address, port = json.loads(store.get(f"alive/{rank}"))
    except RuntimeError:
        # The store has ended with its process.
        return None
    if host == _host():
        address = "localhost"
    return None if address is None else (address, port)


def _answers(place: Place | None) -> bool | None:
    """Whether a port lets connections in, or refuses them; None if neither is known."""
    if place is None:
        return None
    try:
        socket.create_connection(place, _ANSWER).close()
    except ConnectionRefusedError:
        # A firewall may do that, too.
        return False
    except OSError:
        return None
    return True


class Watch:
    """The processes of ranks that form a group, each of which was reached before."""

    def __init__(self, places: dict[int, Place]) -> None:
        """By rank in the new group, where its port is."""
        self._places = places

    def is_gone(self, rank: int) -> bool:
        """Whether the process of a rank in the new group has ended for certain."""
        return rank in self._places and _answers(self._places[rank]) is False

    def gone(self) -> list[int]:
        """The ranks in the new group whose processes have ended."""
        return list(filter(self.is_gone, self._places))


# Torch makes a group in one thread at a time, and hands nothing through to whoever waits in it.
_watch: Watch | None = None
_remembered: Mapping[Hashable, Place] = {}


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Waits in here, for ranks that form a group, end if `gone` names one of them."""
    global _watch
    _watch = watch
    try:
        yield
    finally:
        _watch = None


def is_watching() -> bool:
    """Whether `gone` may ever name a rank."""
    return _watch is not None


def gone() -> list[int]:
    """The ranks of the group that is being formed whose processes have ended, if any is watched."""
    if _watch is None:
        return []
    _let_in()
    return _watch.gone()


def _let_in() -> None:
    """Others look at this process, too. A full queue would give them no answer."""
    with contextlib.suppress(BlockingIOError):
        while True:
            _port().accept()[0].close()


def ended(ranks: list[int], size: int) -> Error:
    """That these ranks of so many are gone before the group is formed."""
    return Error(f"{rank_list(ranks)} of {size} ended while the group formed", ranks)


@functools.cache
def _port() -> socket.socket:
    """A port of this process. Nobody has to accept what connects, while its queue has room."""
    if socket.has_dualstack_ipv6():
        port = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        port = socket.create_server(("", 0))
    port.setblocking(False)
    return port


@functools.cache
def _host() -> list[Any]:
    """What processes share that reach each other by their loopback interface."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, os.stat("/proc/self/ns/net").st_ino]
