"""Trains a network whose parameters are cut among the ranks: FSDP, or ZeRO's optimizer.

Or makes only the calls that this is made of, over and over.

    torchrun --nnodes 4 --node-rank 0 --master-addr a --master-port 29500 sharded.py fsdp
"""

import argparse
import time

import report
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, STEPS = 1024, 8, 10
# Elements of a call's whole tensor: 16 MiB.
ELEMENTS = 4 << 20

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("what", choices=["scatter", "gather", "both", "fsdp", "prefetch", "zero"])
parser.add_argument("--backend", default="switchml", help="of torch.distributed")
options = parser.parse_args()

dist.init_process_group(options.backend)
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)


def calls():
    """A reduce-scatter, an all-gather, or both at once, as a step."""
    given, part = torch.ones(ELEMENTS), torch.zeros(ELEMENTS // ranks)
    whole, own = torch.zeros(ELEMENTS), torch.full((ELEMENTS // ranks,), float(rank))

    def step(_):
        works = []
        if options.what in ("scatter", "both"):
            works.append(dist.reduce_scatter_tensor(part, given, async_op=True))
        if options.what in ("gather", "both"):
            works.append(dist.all_gather_into_tensor(whole, own, async_op=True))
        for work in works:
            work.wait()
        return part.mean() + whole.mean()

    return step


def training():
    """A step of training, with few examples: what travels takes longer than to compute."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    if options.what in ("fsdp", "prefetch"):
        # This module exists from torch 2.6 on.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (ranks,))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        # On CPUs, where there are no streams, all-gathers block unless this is set. Then the next
        # layer's all-gather overlaps the reduce-scatter of this layer's gradients.
        model._set_unshard_async_op(options.what == "prefetch")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    else:
        model = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=0.01
        )
    examples = torch.Generator().manual_seed(2 + rank)

    def step(_):
        inputs = torch.randn(4, WIDTH, generator=examples)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        return loss

    return step


make_step = calls() if options.what in ("scatter", "gather", "both") else training()
for number in range(STEPS):
    dist.barrier()
    begin = time.perf_counter()
    result = make_step(number)
    report.say(loss=result.item(), seconds=time.perf_counter() - begin)
dist.destroy_process_group()
