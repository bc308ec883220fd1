"""Trains a network whose parameters are sharded over the ranks of a host, and replicated by hosts.

Shards stay inside the host: NCCL moves them on GPUs, Gloo on CPUs. Their gradients are summed
between hosts in the network.

    torchrun --nnodes 2 --nproc-per-node 8 --node-rank 0 --master-addr a --master-port 29500 hsdp.py
"""

import os

import report
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH = 512
STEPS = 20

options = report.options(__doc__, epochs=1)
device, within = ("cuda", "nccl") if torch.cuda.is_available() else ("cpu", "gloo")
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group(within)
ranks_of_host = int(os.environ["LOCAL_WORLD_SIZE"])
mesh = init_device_mesh(
    device,
    (dist.get_world_size() // ranks_of_host, ranks_of_host),
    mesh_dim_names=("replicate", "shard"),
    backend_override={"replicate": options.backend, "shard": within},
)
torch.manual_seed(1)
layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).to(device)
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
examples = torch.Generator().manual_seed(2 + dist.get_rank())
inputs = torch.randn(64, WIDTH, generator=examples).to(device)
targets = inputs[:, :10].argmax(1)

for step in range(options.epochs * STEPS):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    report.say(loss=loss.item())
dist.destroy_process_group()
