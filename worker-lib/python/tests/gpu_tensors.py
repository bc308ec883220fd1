"""A rank whose tensors are on a GPU, which other ranks may share.

The first argument is the backend for `init_process_group`.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())
dist.init_process_group(sys.argv[1])
rank, ranks = dist.get_rank(), dist.get_world_size()
everyone = range(ranks)

for dtype in (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
):
    for count in (0, 1, 1000, 1_000_003):
        value = lambda other: (torch.arange(count, device="cuda") % 20 + other).to(dtype)
        for op, reduced in (
            (dist.ReduceOp.SUM, sum),
            (dist.ReduceOp.MAX, lambda values: torch.stack(values).amax(0)),
        ):
            tensor = value(rank)
            dist.all_reduce(tensor, op=op)
            assert torch.equal(tensor, reduced([value(other) for other in everyone])), (
                dtype,
                count,
                op,
            )
for root in everyone:
    tensor = torch.full((777,), rank, dtype=torch.uint8, device="cuda")
    dist.broadcast(tensor, root)
    assert (tensor == root).all(), root

# At the time of the call, a stream of the caller still computes the elements; results are used at
# once.
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(5):
        tensors = []
        for i in range(4):
            slow = torch.eye(2000, device="cuda")
            for _ in range(20):
                slow = slow @ torch.eye(2000, device="cuda")
            tensors.append(slow.t() * (rank + i))
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        future = works[3].get_future().then(lambda future: future.value()[0] * 2)
        for i, (work, tensor) in enumerate(zip(works, tensors)):
            work.wait()
            wanted = torch.eye(2000, device="cuda") * sum(other + i for other in everyone)
            assert torch.equal(tensor, wanted), i
        assert torch.equal(future.wait(), 2 * wanted)

# A tensor of the host between two of the GPU, in the order of the calls.
if "cpu:gloo" not in sys.argv[1]:
    here, there = torch.ones(5), torch.ones(5, device="cuda")
    works = [dist.all_reduce(tensor, async_op=True) for tensor in (there, here, there)]
    [work.wait() for work in works]
    assert (here == ranks).all() and (there == ranks**2).all(), (here, there)

torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(100, 500), torch.nn.ReLU(), torch.nn.Linear(500, 1)
).cuda()
model = DistributedDataParallel(model, bucket_cap_mb=0.05)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
inputs = torch.randn(64, 100, generator=torch.Generator().manual_seed(rank)).cuda()
for _ in range(10):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
least, largest = parameters.clone(), parameters.clone()
dist.all_reduce(least, op=dist.ReduceOp.MIN)
dist.all_reduce(largest, op=dist.ReduceOp.MAX)
assert torch.equal(least, largest), "the parameters differ between ranks"
dist.barrier()
dist.destroy_process_group()
print("all tensors of the GPU are right", flush=True)
