"""Whether the processes of other ranks live: each has a port that only it can close."""

from __future__ import annotations

import functools
import json
import os
import socket
from pathlib import Path
from typing import Any

import torch.distributed as dist

# Seconds for an answer from a port. None is no sign of anything.
_ANSWER = 0.2


def announce(store: dist.Store, rank: int, address: str | None) -> None:
    """Tells other ranks where to look. `address` is this host's, if it is known."""
    port = _port().getsockname()[1]
    store.set(f"alive/{rank}", json.dumps([_host(), address, port]))


def reached(store: dist.Store, rank: int, size: int) -> set[int]:
    """The other ranks whose ports this one gets through to, all of which have been announced.

    It stops at the first that gives no answer, as behind a firewall, and looks no further.
    """
    others: set[int] = set()
    for other in range(size):
        if other != rank and not _answers(store, other):
            break
        others.add(other)
    return others


def is_gone(store: dist.Store, rank: int) -> bool:
    """Whether the process of a rank that was reached before has ended for certain."""
    return _answers(store, rank) is False


def _answers(store: dist.Store, rank: int) -> bool | None:
    """Whether the rank's port lets connections in, or refuses them; None if neither is known."""
    try:
        host, address, port = json.loads(store.get(f"alive/{rank}"))
    except RuntimeError:
        # The store has ended with its process.
        return None
    if host == _host():
        address = "localhost"
    if address is None:
        return None
    try:
        socket.create_connection((address, port), _ANSWER).close()
    except ConnectionRefusedError:
        # A firewall may do that, too.
        return False
    except OSError:
        return None
    return True


@functools.cache
def _port() -> socket.socket:
    """A port of this process. Nobody has to accept what connects."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


@functools.cache
def _host() -> list[Any]:
    """What processes share that reach each other by their loopback interface."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, os.stat("/proc/self/ns/net").st_ino]
