"""Gloo, for collectives that do not run in the network."""

import ctypes
import errno
import os
import resource
import socket
import threading
from datetime import timedelta
from typing import Callable

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Work

from ._alive import ended, gone, is_watching

# Calls that a group's end does not wait for, and that torch takes for over only once a caller has
# waited for them.
OF_TWO_RANKS = ("send", "recv", "recv_anysource")
# Seconds between looks at whether other ranks live.
_PAUSE = 0.05


def gloo_group(
    store: dist.Store, rank: int, size: int, timeout: timedelta, aggregator: str, host: str
) -> Backend:
    """A Gloo group on the interface that GLOO_SOCKET_IFNAME names.

    If that is not set, it is on the interface that leads to the aggregator, or else to the host
    where ranks meet. Raises
    `switchml.Error` if ranks end meanwhile whose processes are watched.
    """
    address = None
    if not os.environ.get("GLOO_SOCKET_IFNAME"):
        address = address_towards(aggregator, host)
    if address is None:
        return _connected(lambda met: dist.ProcessGroupGloo(met, rank, size, timeout), store, size)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    # Gloo itself takes the address of the host's name, which is 127.0.1.1 on Debian.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return _connected(lambda met: dist.ProcessGroupGloo(met, rank, size, options), store, size)


def _connected(
    connect: Callable[[dist.Store], Backend], store: dist.Store, size: int
) -> Backend:
    """The group, unless a rank that is watched ends before it is connected.

    Nothing ends Gloo's own wait before its timeout, so a thread is left waiting then, with a store
    of its own, as one serves a single caller at a time. Torch 2.4 cannot clone a store.
    """
    if not is_watching() or not hasattr(store, "clone"):
        return connect(store)
    own = store.clone()
    made: list[Backend | Exception] = []

    def run() -> None:
        try:
            made.append(connect(own))
        except Exception as error:
            made.append(error)

    thread = threading.Thread(target=run, name=f"{__name__} connect")
    thread.start()
    thread.join(_PAUSE)
    while thread.is_alive():
        if lost := gone():
            raise ended(lost, size)
        thread.join(_PAUSE)
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


def in_words(error: RuntimeError) -> str:
    """What Gloo says, with the remedy if the process has too many open files."""
    if os.strerror(errno.EMFILE) not in str(error):
        return str(error)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"{error}; this process may have {limit} files, and each group takes some: raise the limit "
        f"(`ulimit -n {2 * limit}`)"
    )


def set_timeout(group: Backend, timeout: timedelta) -> None:
    """Has a Gloo group's later calls wait so long."""
    # The second name is the one before torch 2.14.
    (getattr(group, "set_timeout", None) or group._set_default_timeout)(timeout)


class InFlight:
    """A Gloo group's calls that may not be over, also those that no caller has any more."""

    def __init__(self) -> None:
        self._works: set[Work] = set()

    def add(self, name: str, work: Work) -> None:
        if name not in OF_TWO_RANKS:
            # In a copy, because other threads' calls end meanwhile.
            self._works.difference_update([w for w in list(self._works) if w.is_completed()])
            self._works.add(work)

    def forget(self, work: Work) -> None:
        """It is over. Without this, its tensors would stay until the next call."""
        self._works.discard(work)

    def keep(self, group: Backend) -> None:
        """Keeps the group until the process ends, with all that it has, if there are any.

        Its end would wait for them, and other ranks may never come.
        """
        if not all(work.is_completed() for work in list(self._works)):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        self._works = set()


def address_towards(*places: str) -> str | None:
    """This host's address on the route to the first of the places (host or host:port).

    Addresses of the loopback interface do not count.
    """
    for place in places:
        try:
            found = socket.getaddrinfo(_host_of(place), 9, type=socket.SOCK_DGRAM) if place else []
        except OSError:
            continue
        for family, kind, protocol, _, there in found:
            with socket.socket(family, kind, protocol) as route:
                try:
                    # This sends nothing: it only looks up the route.
                    route.connect(there)
                except OSError:
                    continue
                address: str = route.getsockname()[0]
            if not address.startswith("127.") and address != "::1":
                return address
    return None


def _host_of(place: str) -> str:
    """`host` of `host`, `host:port`, `[host]:port` and IPv6 addresses."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    host, _, port = place.rpartition(":")
    return host if host and port.isdigit() and ":" not in host else place
