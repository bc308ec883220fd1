"""A rank of a DistributedDataParallel job whose all-reduces overlap the backward pass.

The model has two buckets or more. Nothing here depends on how fast a machine is: each pass waits
for what must be able to happen meanwhile.
"""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# Far longer than anything takes on a busy machine.
PATIENCE = timedelta(seconds=60)


class Gate(torch.autograd.Function):
    """The identity, whose backward pass waits."""

    wait = staticmethod(lambda: None)

    @staticmethod
    def forward(context, tensor):
        return tensor.clone()

    @staticmethod
    def backward(context, gradient):
        Gate.wait()
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(100, 100) for _ in range(4))

    def forward(self, tensor):
        # In the backward pass the first layer comes last, after the gate.
        tensor = Gate.apply(self.layers[0](tensor))
        for layer in self.layers[1:]:
            tensor = layer(tensor)
        return tensor


dist.init_process_group("switchml")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
# Buckets of a pass: how many are done when each is issued.
issued = []
done = 0
one_is_done = threading.Event()


def hook(_, bucket):
    """What DDP does without one, and when."""
    issued.append(done)
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)
    if rank == 0 and len(issued) == buckets:
        store.set("rank 0 has issued all", "")

    def note(future):
        global done
        done += 1
        one_is_done.set()
        return future.value()[0]

    return work.get_future().then(note)


model = DistributedDataParallel(Model(), bucket_cap_mb=0.02)
model.register_comm_hook(None, hook)
buckets = None


def step(begin=lambda: None):
    """One pass."""
    global done
    issued.clear()
    done = 0
    one_is_done.clear()
    loss = model(torch.ones(8, 100)).sum()
    dist.barrier()
    begin()
    loss.backward()


def wait_for_a_bucket():
    assert one_is_done.wait(PATIENCE.total_seconds()), "no bucket is done while the pass goes on"


# After the first pass DDP cuts new buckets.
step()
Gate.wait = wait_for_a_bucket
step()
buckets = len(issued)
assert buckets >= 2 and issued[0] == 0 < issued[-1], issued
Gate.wait = lambda: None


def wait_for_rank_0():
    if rank == 1:
        store.wait(["rank 0 has issued all"], PATIENCE)


# Rank 0's pass goes on while its first bucket waits for rank 1.
step(wait_for_rank_0)
if rank == 0:
    assert issued == [0] * buckets, issued
print("all-reduces overlap the backward pass", flush=True)
dist.destroy_process_group()
