"""A rank of a job in which rank 1 is killed in the middle of a large call.

Argument: the call. The others compare what they gave with what is there after its error.
"""

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

# 12 MiB for each of three ranks.
RANKS, COUNT = 3, 3 << 20

name = sys.argv[1]
dist.init_process_group("switchml")
rank = dist.get_rank()
pattern = torch.arange(COUNT) % 1000 + 0.25
given = pattern * (rank + 1)
before = given.clone()


def call():
    """Makes the call, with the tensor `given`."""
    if name == "all_reduce":
        given.copy_(before)
        dist.all_reduce(given)
    elif name == "broadcast":
        given.copy_(before)
        dist.broadcast(given, 0)
    elif name == "reduce_scatter_tensor":
        dist.reduce_scatter_tensor(torch.empty(COUNT // RANKS), given)
    elif name == "all_gather_into_tensor":
        dist.all_gather_into_tensor(torch.empty(COUNT * RANKS), given)
    else:
        assert name == "functional all_reduce"
        functional.wait_tensor(functional.all_reduce(given, "sum", dist.group.WORLD))


call()
dist.barrier()
if rank == 1:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
try:
    while True:
        call()
except dist.DistBackendError as error:
    assert "rank 1" in str(error), error
# What a call in place may leave behind: what was given, or the result.
result = {"all_reduce": pattern * 6, "broadcast": pattern}.get(name, before)
own = given == before
off = (given - result).abs() > 0.01
assert not (off & ~own).any(), (given[off & ~own], before[off & ~own])
if name in ("all_reduce", "broadcast"):
    print(f"{(~own).sum()} of {COUNT} elements are results")
else:
    assert own.all()
assert own.all() or name != "broadcast" or rank != 0, "the source of a broadcast changed"
print("all elements are as they should be", flush=True)
# The store may be gone.
os._exit(0)
