"""What torch builds on collectives, in the network and by Gloo.

These are accumulated gradients, fully sharded parameters, checkpoints and pipelines.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
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

# Each rank has a part of the weights, which all_gather and reduce_scatter make whole.
sharded = nn.Linear(8, 8, bias=False)
fully_shard(sharded, mesh=init_device_mesh("cpu", (ranks,)))
outputs(sharded, rank + 1).backward()
assert torch.equal(sharded.weight.grad.full_tensor(), torch.full((8, 8), mean))

# A checkpoint of those parts, read again.
saved = sharded.weight.full_tensor().clone()
checkpoint.save({"layer": sharded.state_dict()}, checkpoint_id=os.environ["FOLDER"])
with torch.no_grad():
    sharded.weight.zero_()
state = {"layer": sharded.state_dict()}
checkpoint.load(state, checkpoint_id=os.environ["FOLDER"])
sharded.load_state_dict(state["layer"])
assert saved.any() and torch.equal(sharded.weight.full_tensor(), saved)

# A pipeline of layers that each multiply by rank + 2. Its gradients are those of the product.
factors = torch.prod(torch.arange(2.0, ranks + 2))
for schedule in (ScheduleGPipe, Schedule1F1B):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, rank + 2.0)
    stage = PipelineStage(layer, rank, ranks, torch.device("cpu"))
    pipeline = schedule(
        stage, n_microbatches=4, loss_fn=lambda output, _: output.sum(), scale_grads=False
    )
    inputs = torch.arange(8.0).view(8, 1)
    if rank == 0:
        pipeline.step(inputs)
    else:
        output = pipeline.step(target=torch.zeros(8, 1))
    if rank == ranks - 1:
        assert torch.equal(output.detach(), inputs * factors), output
    assert torch.equal(layer.weight.grad, (inputs.sum() * factors / (rank + 2)).view(1, 1)), (
        layer.weight.grad
    )

dist.destroy_process_group()
print("all of it works", flush=True)
