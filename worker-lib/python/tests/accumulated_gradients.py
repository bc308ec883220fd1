"""Gradients that are accumulated over steps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
mean = (ranks + 1) / 2


def outputs(model, value):
    """Of a layer without bias, so that the gradient of each weight is `value`."""
    return model(torch.full((1, 8), float(value))).sum()


# Gradients stay a rank's own within no_sync, and are averaged with the next ones.
layer = DistributedDataParallel(nn.Linear(8, 8, bias=False))
with layer.no_sync():
    outputs(layer, rank + 1).backward()
assert torch.equal(layer.module.weight.grad, torch.full((8, 8), rank + 1.0))
outputs(layer, 10 * (rank + 1)).backward()
assert torch.equal(layer.module.weight.grad, torch.full((8, 8), 11 * mean))

dist.destroy_process_group()
print("all of it works", flush=True)
