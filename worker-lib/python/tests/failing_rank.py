"""A rank of a job in which rank 1 fails after a while, in the way that the first argument says.

With a second argument, DDP makes the calls in its backward pass, by the hook of that name, or none.

Each of the others prints a line of JSON with what it saw: seconds from the beginning of the failing
call, and the exception's type, text and ranks.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import switchml.torch

wrong, hook = [*sys.argv[1:], None][:2]
# What rank 1 gives instead. Byte tensors go to Gloo.
instead = {"type": torch.ones(7, dtype=torch.uint8), "long": torch.ones(250, dtype=torch.int64)}
dist.init_process_group("switchml")
rank = dist.get_rank()
# It makes no call before rank 1 fails, and then one that goes to Gloo.
unused = dist.new_group()
if hook is not None:
    # A bucket for each of the layers.
    layers = [torch.nn.Linear(100, 100) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
    if hook != "none":
        module = default_hooks if hasattr(default_hooks, hook) else switchml.torch
        state = switchml.torch.Deadline(model, 3600) if hook == "deadline_hook" else None
        model.register_comm_hook(state, getattr(module, hook))
    examples = torch.ones(1, 100)


def step():
    """What all ranks call, again and again."""
    if hook is not None:
        model(examples).sum().backward()
    else:
        dist.all_reduce(torch.ones(1000, dtype=torch.int32 if wrong == "long" else None))


begin = time.monotonic()
try:
    for i in range(50):
        begin = time.monotonic()
        if rank == 1 and i == 20:
            if wrong == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(instead.get(wrong, torch.ones(7)))
        step()
except dist.DistBackendError as error:
    seen = {"seconds": time.monotonic() - begin, "text": str(error), "ranks": error.ranks}
    print(json.dumps(seen), flush=True)
else:
    raise SystemExit("nothing was seen")
if wrong == "killed":
    try:
        dist.all_gather_object([None] * dist.get_world_size(), rank, unused)
        raise SystemExit("Gloo has a rank that is gone")
    except dist.DistBackendError as error:
        assert " (in allgather of " in str(error), error
    # Torch's own store may have been on the rank that is gone.
    os._exit(0)

# No rank is lost, so regrouping must end where it cannot work.
aggregator = os.environ["SWITCHML_AGGREGATOR"]
os.environ["SWITCHML_AGGREGATOR"] = "127.0.0.1:1"
try:
    switchml.torch.regroup()
    raise SystemExit("there is an aggregator at port 1")
except dist.DistBackendError as error:
    assert "no aggregator answers at 127.0.0.1:1" in str(error), error
os.environ["SWITCHML_AGGREGATOR"] = aggregator

# The same processes join another job.
dist.init_process_group("switchml")
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert torch.equal(tensor, torch.full((3,), float(dist.get_world_size())))
dist.destroy_process_group()
print("and again", flush=True)
