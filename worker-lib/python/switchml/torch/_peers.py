"""Ranks that have no aggregator serve each other, by one in each process."""

import os
import socket

from .. import _native


def own_aggregator(job: str) -> _native.OwnAggregator:
    """One of this process for a job, at the address from which its host reaches the first rank."""
    # Without that rank's address, it is that of this host's own name.
    return _native.OwnAggregator(os.environ.get("MASTER_ADDR") or socket.gethostname(), job)
