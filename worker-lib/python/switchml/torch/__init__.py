"""The backend `switchml` for `torch.distributed`.

    torch.distributed.init_process_group("switchml")

all_reduce (sum, avg, max, min), broadcast and barrier run in the network; all other collectives go to a Gloo group of the same
ranks. The aggregator's address is SWITCHML_AGGREGATOR of the group's first rank, or else MASTER_ADDR's host. A group's `timeout` is how
long its calls wait for ranks that are late, but connected. SWITCHML_JOIN_TIMEOUT is how many seconds ranks wait for each other at the
aggregator (60 unless set).
SWITCHML_FALLBACK=gloo makes all ranks of a group use Gloo if any of them cannot reach the aggregator; otherwise that is an error.
"""

from typing import Any

import torch.distributed as dist

from ._create import create
from ._group import group_of
from ._hooks import fixed16_compress_hook
from ._staging import STREAMS
from ._threads import NAME

__all__ = ["fixed16_compress_hook", "register", "statistics"]


def statistics(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """What all calls of a group took that have returned on this rank, those that went to Gloo aside; of the default group unless one is given.

    `bytes` of elements in `calls` calls: `chunks` packets were sent once and `resent` again. `skipped` more, of `skipped_bytes` bytes of elements, did not
    have to be sent, because their elements are zero on all ranks. `seconds` is the sum over calls, and `late` has the seconds that ranks were
    waited for, by rank. Raises ValueError for a group of another backend, which includes one that fell back to Gloo.
    """
    backend = group_of(group)
    if backend is None:
        raise ValueError(f"the group is not {NAME}'s")
    return backend.statistics()


def register() -> None:
    """Makes the backend known to torch, once; torch calls it when it is imported."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", *STREAMS])


register()
