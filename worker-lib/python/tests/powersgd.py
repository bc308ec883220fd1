"""A rank that trains with PowerSGD, whose callbacks wait for calls. Prints its losses.

Arguments: the backend, and the size of buckets in MB.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(sys.argv[1])
rank = dist.get_rank()
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 256),
    torch.nn.ReLU(),
    torch.nn.Linear(256, 256),
    torch.nn.ReLU(),
    torch.nn.Linear(256, 4),
)
model = DistributedDataParallel(model, bucket_cap_mb=float(sys.argv[2]))
# Gradients as they are in the first two steps, approximated from then on.
state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), 0.5)
generator = torch.Generator().manual_seed(100 + rank)
losses = []
for _ in range(30):
    inputs = torch.randn(32, 64, generator=generator)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(losses, flush=True)
if sys.argv[1] == "gloo":
    # If a callback that is just ending is the last to hold the group, Gloo's thread joins itself,
    # and the process aborts.
    os._exit(0)
dist.destroy_process_group()
