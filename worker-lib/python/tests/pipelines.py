"""Pipelines over ranks, which send to each other."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()

# A pipeline of layers that each multiply by rank + 2. Its gradients are the gradients of the
# product.
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
