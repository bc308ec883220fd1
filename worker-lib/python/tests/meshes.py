"""A rank of four in a mesh of two by two, whose groups join their jobs when they are first used.

Argument: a folder. The rank says when it has made its groups, and makes its calls once there is a
file `go` there. It ends when there is one with the name `end`.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import switchml.torch

folder = Path(sys.argv[1])


def until(name: str) -> None:
    while not (folder / name).exists():
        time.sleep(0.01)


dist.init_process_group("switchml")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
groups = [mesh.get_group("row"), mesh.get_group("column")]
unused = [switchml.torch.statistics(group) for group in groups]
for group, statistics in zip(groups, unused):
    assert statistics["calls"] == 0, statistics
    # This call goes to Gloo, which needs no job.
    gathered = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(gathered, torch.full((1,), float(rank)), group=group)
print("made", flush=True)
until("go")

# Each rank begins with its neighbour's second group, so no rank may wait for the first group before
# it calls the second. Ranks of "row" are 2 apart, ranks of "column" 1.
order = [0, 1] if rank in (0, 3) else [1, 0]
tensors = [[torch.full((1000,), float(rank + call)) for call in range(2)] for _ in groups]
works: list[dist.Work] = []
for index in order:
    # The second call queues behind the first, which may not have joined yet.
    for tensor in tensors[index]:
        works.append(dist.all_reduce(tensor, group=groups[index], async_op=True))
for work in works:
    work.wait()
for group in groups:
    dist.barrier(group)
for index, (group, apart) in enumerate(zip(groups, (2, 1))):
    for call, tensor in enumerate(tensors[index]):
        expected = rank + (rank ^ apart) + 2.0 * call
        assert torch.equal(tensor, torch.full((1000,), expected)), (index, call, tensor)
    statistics = switchml.torch.statistics(group)
    assert statistics["calls"] == 3, statistics
    assert statistics.keys() == unused[index].keys(), statistics
print("summed", flush=True)
until("end")
# Without this barrier the store may be gone while other ranks still need it.
dist.barrier()
dist.destroy_process_group()
