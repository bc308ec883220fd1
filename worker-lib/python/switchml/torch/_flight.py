"""Torch's flight recorder: when a call fails, what it has of the last calls goes to a file.

Since 2.15 torch records the calls of all groups. Only backends in C++ can tell it of a failure.

The file is written only if the user names one: it has stack traces, which take more than a second,
and that slows other threads. With 3 ranks, one of which was killed, the other two had their next
sum after 77 ms without a file, and after 1.2 to 1.5 s with one.
"""

import contextlib
import os
import threading

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from ._threads import NAME

# Torch's name for the file, to which it adds the rank.
_FILE = "TORCH_FR_DUMP_TEMP_FILE"


def write() -> None:
    """Has torch write the calls of this process to its file, if one is named.

    That takes more than a second, and slows other threads, also those that regroup. A program that
    ends waits for it.
    """
    # An older torch has no such recorder, and one of size 0 has no group.
    recorded = getattr(distributed_c10d._world, "pg_flight_recorder_hooks", None)
    if recorded and _FILE in os.environ:
        with contextlib.suppress(RuntimeError, ValueError):
            # A program that already ends starts no threads, or has no default group.
            rank = dist.get_rank()
            # The end would not wait for a daemon, which the thread that runs this may be.
            threading.Thread(
                target=_write, args=(rank,), name=f"{NAME}-recorder", daemon=False
            ).start()


def _write(rank: int) -> None:
    _distributed_c10d._dump_fr_trace_file(rank, includeStackTraces=True, backend=NAME)
