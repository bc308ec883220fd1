"""A rank of a DistributedDataParallel job whose all-reduces overlap the backward pass.

The model has two buckets or more.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# Far longer than a pass takes on a busy machine.
PAUSE = 1.0


class Pause(torch.autograd.Function):
    """The identity, whose backward pass takes a while."""

    seconds = 0.0

    @staticmethod
    def forward(context, tensor):
        return tensor.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(Pause.seconds)
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(100, 100) for _ in range(4))

    def forward(self, tensor):
        # In the backward pass the first layer comes last, behind the pause.
        tensor = Pause.apply(self.layers[0](tensor))
        for layer in self.layers[1:]:
            tensor = layer(tensor)
        return tensor


dist.init_process_group("switchml")
rank = dist.get_rank()
issued, done = [], []


def hook(_, bucket):
    """What DDP does without one, and when."""
    issued.append(time.monotonic())
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)

    def note(future):
        done.append(time.monotonic())
        return future.value()[0]

    return work.get_future().then(note)


model = DistributedDataParallel(Model(), bucket_cap_mb=0.02)
model.register_comm_hook(None, hook)


def step(late=0.0):
    """One pass, which rank 1 begins so many seconds later."""
    issued.clear()
    done.clear()
    loss = model(torch.ones(8, 100)).sum()
    dist.barrier()
    time.sleep(late if rank == 1 else 0)
    loss.backward()


# After the first pass DDP cuts buckets anew.
step()
Pause.seconds = PAUSE
step()
assert len(issued) == len(done) >= 2, (issued, done)
assert done[0] < issued[-1], f"the first bucket was not done during the pass: {issued}, {done}"
assert issued[-1] - issued[0] > PAUSE, "the pause is between the buckets"
Pause.seconds = 0.0
step(late=PAUSE)
if rank == 0:
    assert issued[-1] < done[0], (
        f"the pass did not go on while the first bucket waited for rank 1: {issued}, {done}"
    )
print("all-reduces overlap the backward pass", flush=True)
dist.destroy_process_group()
