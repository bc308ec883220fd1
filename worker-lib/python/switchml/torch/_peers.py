"""Ranks that have no aggregator serve each other: they exchange the addresses of their own."""

import os
import socket
import time
from typing import Any, Callable

from .. import _native
from .._error import Error

# Seconds between looks into the store, at first and later.
_SHORT_PAUSE, _LONG_PAUSE = 0.001, 0.05


def exchange(
    store: Any, rank: int, size: int, most: float, is_wanted: Callable[[], bool]
) -> tuple[_native.OwnAggregator, list[str]]:
    """This rank's own aggregator, and the addresses of all ranks' own, by rank.

    Raises `switchml.Error` with the ranks that did not come within `most` seconds.
    """
    # The address from which the host reaches the first rank; without one, that of its own name.
    own = _native.OwnAggregator(os.environ.get("MASTER_ADDR") or socket.gethostname())
    keys = [f"own/{other}" for other in range(size)]
    store.set(keys[rank], own.address)
    begin, pause = time.monotonic(), _SHORT_PAUSE
    while not store.check(keys):
        if not is_wanted():
            raise Error("the process group is destroyed", [])
        if time.monotonic() - begin > most:
            missing = [other for other, key in enumerate(keys) if not store.check([key])]
            if missing:
                named = ", ".join(map(str, missing))
                raise Error(
                    f"ranks {named} of {size} did not come within {most:g} s; start them, or set "
                    "SWITCHML_JOIN_TIMEOUT to more seconds",
                    missing,
                )
        time.sleep(pause)
        pause = min(2 * pause, _LONG_PAUSE)
    return own, [store.get(key).decode() for key in keys]
