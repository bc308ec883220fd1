"""A rank of a DistributedDataParallel job; its first argument is the backend. Prints losses and a digest of the parameters after each step."""

import hashlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(sys.argv[1])
rank = dist.get_rank()
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(20, 300), torch.nn.BatchNorm1d(300), torch.nn.ReLU(), torch.nn.Linear(300, 4)
)
# Small buckets: several are in flight during each backward pass.
model = DistributedDataParallel(model, bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
generator = torch.Generator().manual_seed(100 + rank)
truth = torch.randn(20, 4, generator=torch.Generator().manual_seed(7))
for step in range(20):
    inputs = torch.randn(128, 20, generator=generator)
    labels = (inputs @ truth).argmax(1)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    mean = total.item() / dist.get_world_size()
    bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"step {step} loss {mean:.6f} parameters {bits}", flush=True)
dist.destroy_process_group()
