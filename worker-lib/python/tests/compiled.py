"""A compiled DDP runs what is behind its group as it is, as with Gloo."""

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel


def breaks_of(group):
    """Where the compiler gives up, in a model whose buffers a forward pass broadcasts."""
    torch._dynamo.reset()
    counters.clear()
    layers = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        compiled(torch.ones(4, 8)).sum().backward()
    return set(counters["graph_break"])


dist.init_process_group("switchml")
ours, gloos = breaks_of(dist.group.WORLD), breaks_of(dist.new_group(backend="gloo"))
assert ours == gloos, ours - gloos
dist.destroy_process_group()
print("nothing was traced", flush=True)
