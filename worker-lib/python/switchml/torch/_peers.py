"""Ranks that have no aggregator serve each other: they exchange the addresses of their own."""

import os
import socket
from typing import Any, Callable

from .. import _native
from ._rendezvous import wait_for_ranks


def exchange(
    store: Any, job: str, rank: int, size: int, most: float, is_wanted: Callable[[], bool]
) -> tuple[_native.OwnAggregator, list[str]]:
    """This rank's own aggregator, and the addresses of all ranks' own, by rank.

    Raises `switchml.Error` with the ranks that did not come within `most` seconds.
    """
    # The address from which the host reaches the first rank; without one, that of its own name.
    own = _native.OwnAggregator(os.environ.get("MASTER_ADDR") or socket.gethostname(), job)
    keys = {other: f"own/{other}" for other in range(size)}
    store.set(keys[rank], own.address)
    wait_for_ranks(store, keys, size, most, is_wanted)
    return own, [store.get(key).decode() for key in keys.values()]
