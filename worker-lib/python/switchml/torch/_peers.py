"""Ranks that have no aggregator serve each other, by one in each process."""

import os
import socket

import torch.distributed as dist

from .. import _native


def own_aggregator(host: str, job: str) -> _native.OwnAggregator:
    """One of this process for a job, at the address from which its host reaches the first rank's.

    If that host is not known, it is at the address of this host's own name.
    """
    return _native.OwnAggregator(host or socket.gethostname(), job)


def meeting_host(store: dist.Store) -> str:
    """The host where ranks meet; empty if it is not known.

    MASTER_ADDR is not set where a program gives torch an address (`init_method="tcp://…"`) or a
    store.
    """
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return os.environ.get("MASTER_ADDR", "") or str(getattr(store, "host", ""))
