"""A rank whose aggregator does not answer. Prints the error, or the sum if it falls back."""

import gc
import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist


def of_gloo():
    """Gloo's threads."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:
            # The thread has just ended.
            pass
    return [name for name in names if "gloo" in name]


logging.basicConfig(level=logging.WARNING)
# Without the garbage collector, an object in a reference cycle outlives its group.
gc.disable()
try:
    dist.init_process_group("switchml")
except dist.DistBackendError as error:
    print(f"refused: {error}", flush=True)
else:
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    print(
        f"fell back: {tensor.tolist()} by {dist.get_backend()}, {dist.get_backend_config()}",
        flush=True,
    )
    group = dist.new_group()
    dist.all_reduce(tensor, group=group)
    print(f"again: {tensor.tolist()} by {dist.get_backend(group)}", flush=True)
    dist.destroy_process_group()
    del group
    end = time.monotonic() + 60
    while names := of_gloo():
        assert time.monotonic() < end, f"the group is destroyed, and there are {names}"
        time.sleep(0.01)
