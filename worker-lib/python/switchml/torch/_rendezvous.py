"""Waits for what ranks leave for each other in a store."""

import time
from typing import Any, Callable, Iterator

from .._error import Error
from ._alive import ended, gone
from ._work import rank_list

# Seconds between looks into the store, at first and later.
_SHORT_PAUSE, _LONG_PAUSE = 0.001, 0.05
# Seconds that ranks take at most to come if all live.
_SOON = 0.1


def looks() -> Iterator[float]:
    """The moments to look into a store, in seconds from now."""
    begin, pause = time.monotonic(), _SHORT_PAUSE
    while True:
        yield time.monotonic() - begin
        time.sleep(pause)
        pause = min(2 * pause, _LONG_PAUSE)


def wait_for_ranks(
    store: Any,
    keys: dict[int, str],
    size: int,
    most: float,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Returns once the store has these keys, each of which a rank sets.

    Raises `switchml.Error` with the ranks that have not done so within `most` seconds, or whose
    process has ended.
    """
    for seconds in looks():
        if store.check(list(keys.values())):
            return
        if not is_wanted():
            raise Error("the process group is destroyed", [])
        if seconds > _SOON and (lost := gone()):
            raise ended(lost, size)
        if seconds > most:
            missing = [rank for rank, key in keys.items() if not store.check([key])]
            if missing:
                raise Error(
                    f"{rank_list(missing)} of {size} did not come within {most:g} s; start what "
                    "is missing, or give it more time (SWITCHML_JOIN_TIMEOUT, or `timeout`)",
                    missing,
                )
