"""The backend `switchml` for `torch.distributed`.

    torch.distributed.init_process_group("switchml")

all_reduce (sum, avg, max, min), broadcast and barrier run in the network. All other collectives go
to a Gloo group of the same ranks. The aggregator's address is SWITCHML_AGGREGATOR of the group's
first rank; several have commas between. Without it, ranks serve each other. A group's `timeout` is
how long its calls wait for ranks that are late, and how long ranks wait for each other to come,
unless SWITCHML_JOIN_TIMEOUT says less, in seconds. The first group joins at once, others with their
first call. All ranks set the same.

SWITCHML_FALLBACK=gloo makes all ranks of a group use Gloo if any of them cannot reach the
aggregator. Without it, that is an error.
"""

from typing import Any

import torch.distributed as dist

from ._create import correct_what_is_recorded, create, heed_set_timeouts
from ._deadline import Deadline
from ._feedback import ErrorFeedback
from ._group import group_of
from ._hooks import (
    deadline_hook,
    fixed8_compress_hook,
    fixed8_feedback_hook,
    fixed16_compress_hook,
)
from ._lazy import remember_what_is_resolved
from ._regroup import regroup
from ._staging import STREAMS
from ._threads import NAME
from ._trampoline import IS_BACKEND

__all__ = [
    "Deadline",
    "ErrorFeedback",
    "deadline_hook",
    "fixed16_compress_hook",
    "fixed8_compress_hook",
    "fixed8_feedback_hook",
    "regroup",
    "statistics",
]


def statistics(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """The statistics of a group's calls that have returned on this rank, without those by Gloo.

    Without an argument, they are those of the default group. `calls` and `bytes` count calls and
    their elements' bytes. `chunks` packets were sent once, and `resent` again. `skipped` packets,
    with `skipped_bytes` bytes of elements, were not sent because their elements are zero on all
    ranks. `seconds` is the sum over calls. `late` has, by rank, how many seconds that rank was
    waited for.

    Raises ValueError for a group of another backend; one that fell back to Gloo is one.
    """
    backend = group_of(group)
    if backend is None:
        raise ValueError(f"the group is not {NAME}'s")
    return backend.statistics()


def _register() -> None:
    """Makes the backend known to torch, once."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", *STREAMS])
        remember_what_is_resolved()
    if not IS_BACKEND:
        heed_set_timeouts()
        correct_what_is_recorded()


_register()
