"""Fully sharded parameters, and checkpoints of them."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
mean = (ranks + 1) / 2

# Each rank has a part of the weights; all_gather and reduce_scatter combine them.
sharded = nn.Linear(8, 8, bias=False)
fully_shard(sharded, mesh=init_device_mesh("cpu", (ranks,)))
# The gradient of each weight is rank + 1.
sharded(torch.full((1, 8), rank + 1.0)).sum().backward()
assert torch.equal(sharded.weight.grad.full_tensor(), torch.full((8, 8), mean))

# Saves and loads a checkpoint of these parts.
saved = sharded.weight.full_tensor().clone()
checkpoint.save({"layer": sharded.state_dict()}, checkpoint_id=os.environ["FOLDER"])
with torch.no_grad():
    sharded.weight.zero_()
state = {"layer": sharded.state_dict()}
checkpoint.load(state, checkpoint_id=os.environ["FOLDER"])
sharded.load_state_dict(state["layer"])
assert saved.any() and torch.equal(sharded.weight.full_tensor(), saved)

dist.destroy_process_group()
print("all of it works", flush=True)
