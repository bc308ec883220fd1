"""How the ranks of a process group find their job at the aggregator, or agree on Gloo."""

import os
import uuid
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from .._communicator import Communicator
from .._error import Error
from ._group import Group, log
from ._work import NAME, backend_error

# The first one whose C++ calls methods of a Python class that is a `Backend`.
OLDEST = "2.14"


def create(options: Any, _backend_options: Any) -> Backend:
    """The process group that torch asks for."""
    if torch.__version__ < OLDEST:
        raise RuntimeError(f"torch {torch.__version__} cannot have a backend in Python; {NAME} needs torch {OLDEST} or newer")
    rank, size = options.group_rank, options.group_size
    # A group that was destroyed leaves its keys to the next one of its name; all ranks have counted as many.
    attempt = options.store.add(f"attempts/{rank}", 1)
    store = dist.PrefixStore(f"{NAME}/{attempt}", options.store)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, options.timeout)
    fallback = os.environ.get("SWITCHML_FALLBACK", "")
    if fallback not in ("", "gloo"):
        raise ValueError(f"SWITCHML_FALLBACK is {fallback!r}; gloo is allowed, or nothing")
    communicator: Communicator | None = None
    failure = ""
    try:
        communicator = _connect(store, rank, size, options.timeout)
    except Error as error:
        if not fallback:
            raise backend_error(error) from None
        failure = str(error)
    # All or none.
    reasons = _failures(store, rank, size, failure) if fallback else {}
    if communicator is not None and not reasons:
        return Group(communicator, gloo)
    if communicator is not None:
        communicator.close()
    log.warning("%s: all ranks use Gloo, because of rank %s", NAME, "; rank ".join(f"{r}: {why}" for r, why in reasons.items()))
    return gloo


def _failures(store: Any, rank: int, size: int, failure: str) -> dict[int, str]:
    """Why ranks could not connect, by rank; each tells the others of its own failure."""
    store.set(f"failure/{rank}", failure)
    failures = [store.get(f"failure/{other}").decode() for other in range(size)]
    return {other: reason for other, reason in enumerate(failures) if reason}


def _connect(store: Any, rank: int, size: int, timeout: timedelta) -> Communicator:
    """Joins the group's job, which the first rank gives its name and its aggregator."""
    if rank == 0:
        aggregator = os.environ.get("SWITCHML_AGGREGATOR") or os.environ.get("MASTER_ADDR", "")
        store.set("aggregator", aggregator)
        store.set("job", f"torch-{uuid.uuid4()}")
    aggregator = os.environ.get("SWITCHML_AGGREGATOR") or store.get("aggregator").decode()
    job = store.get("job").decode()
    return Communicator(
        aggregator=aggregator or None,
        job=job,
        rank=rank,
        world_size=size,
        timeout=timeout.total_seconds(),
        join_timeout=min(timeout.total_seconds(), _seconds("SWITCHML_JOIN_TIMEOUT", 60)),
    )


def _seconds(name: str, otherwise: float) -> float:
    given = os.environ.get(name)
    try:
        return float(given) if given else otherwise
    except ValueError:
        raise Error(f"{name} is {given!r}; a number of seconds is allowed") from None
