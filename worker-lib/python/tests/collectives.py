"""A rank that makes every kind of collective, and checks each element.

With the argument `staged`, tensors go the way of GPU tensors: by copies, and a thread that waits
for them. The streams are then those of the CPU, which do nothing.
"""

import math
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist

import switchml.torch
from switchml.torch._staging import STREAMS

if sys.argv[1:] == ["staged"]:
    STREAMS["cpu"] = SimpleNamespace(
        Stream=lambda device: torch.cpu.Stream(),
        Event=lambda blocking: torch.cpu.Event(),
        current_stream=torch.cpu.current_stream,
        stream=torch.cpu.stream,
    )
    if not hasattr(torch.cpu.Stream, "synchronize"):
        # Those of torch 2.4 lack it.
        torch.cpu.Stream.synchronize = lambda self: None

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check(name, got, wanted):
    assert torch.equal(got, wanted), f"{name} on rank {rank}: {got} for {wanted}"


def of_all(value):
    return [value(other) for other in range(ranks)]


def communicator_calls():
    return switchml.torch.statistics()["calls"]


# Whole numbers small enough for f16 and bf16: their sums are exact.
for dtype in (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
):
    for count in (0, 1, 1000, 100_003):
        value = lambda other: (torch.arange(count) % 20 + other).to(dtype)
        tensor = value(rank)
        dist.all_reduce(tensor)
        check(
            f"sum of {dtype}",
            tensor,
            (sum(of_all(lambda other: torch.arange(count) % 20 + other))).to(dtype),
        )

# int64 is exact beyond 2^32, and wraps.
huge = lambda other: torch.tensor([2**62 + 7, -(2**62), 2**33 * (other + 1), -1 - other])
tensor = huge(rank)
dist.all_reduce(tensor)
check("sum of int64", tensor, sum(of_all(huge)))

signed = lambda other: torch.tensor([float(other), -float(other), 0.5])
for op, reduced in (
    (dist.ReduceOp.MAX, torch.amax),
    (dist.ReduceOp.MIN, torch.amin),
    (dist.ReduceOp.AVG, torch.mean),
):
    tensor = signed(rank)
    dist.all_reduce(tensor, op=op)
    check(f"{op}", tensor, reduced(torch.stack(of_all(signed)), 0))


# Extrema of 64 bits, of any bits; many share their upper halves.
def wide(other):
    generator = torch.Generator().manual_seed(other)
    words = torch.randint(-(2**63), 2**63 - 1, (3000,), generator=generator)
    near = torch.randint(-5, 5, (3000,), generator=generator) * 2**32 + words % 7 - 3
    # The largest and smallest numbers in turn, and numbers near the ends of a 32-bit word.
    ends = torch.tensor(
        [2**63 - 1, -(2**63), 2**63 - 1 - 2**31, 2**31, -(2**31), -1, 0, 2**32 - 1]
    ).roll(other)
    return torch.cat((words, near, ends))


def special(other):
    values = [
        torch.inf,
        -torch.inf,
        1e308,
        -1e308,
        5e-324,
        -5e-324,
        1.0 + 2**-52,
        1.0,
        -1.0 - 2**-52,
    ]
    return torch.cat(
        (torch.tensor(values, dtype=torch.float64).roll(other), wide(other)[:6000].double())
    )


before = communicator_calls()
for op, reduced in ((dist.ReduceOp.MAX, torch.amax), (dist.ReduceOp.MIN, torch.amin)):
    for value in (
        wide,
        special,
        lambda other: wide(other)[6:].view(2, 3001).t(),
        lambda other: special(other)[7],
    ):
        tensor = value(rank)
        dist.all_reduce(tensor, op=op)
        check(f"{op} of {tensor.dtype}", tensor, reduced(torch.stack(of_all(value)), 0))
    # A NaN on any rank wins; -0.0 is less than 0.0.
    tensor = torch.tensor(
        [-torch.nan if rank == 1 else torch.inf, -0.0 if rank == 1 else 0.0], dtype=torch.float64
    )
    dist.all_reduce(tensor, op=op)
    assert tensor[0].isnan() and tensor[1].signbit() == (op == dist.ReduceOp.MIN), f"{op}: {tensor}"
# Two calls each, behind one without elements for int64, and two for f64.
assert communicator_calls() - before == 2 * (2 * 3 + 3 * 4), "they were in the network"


def average(values):
    """Of Python's integers, whose sums do not overflow: what is before the point."""
    total = sum(values)
    return abs(total) // ranks * (1 if total >= 0 else -1)


def integers(dtype):
    """Elements of all ranks: sums of both signs, and near the ends of the type."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    if dtype == torch.int64:
        # Sums of int64 wrap, as in all of torch.
        least, most = -(most // ranks), most // ranks
    return of_all(lambda other: [other, max(-2 * other, least), 7, most, least, most - other])


before = communicator_calls()
for dtype in INTEGERS:
    values = integers(dtype)
    averages = torch.tensor([average(each) for each in zip(*values)], dtype=dtype)
    tensor = torch.tensor(values[rank], dtype=dtype)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    check(f"average of {dtype}", tensor, averages)
# Each average is one call, after as many calls without elements as tell its type. Nobody waits for
# these: the last may return after the average.
end = time.monotonic() + 60
while communicator_calls() - before != 5 + (1 + 2 + 3 + 4 + 5):
    assert time.monotonic() < end, "they were in the network"
    time.sleep(0.001)
# Averages that Gloo computes.
for dtype in (*INTEGERS, torch.float32, torch.float64):
    values = integers(dtype) if dtype in INTEGERS else of_all(lambda other: [1.5 * other, -other])
    mean = average if dtype in INTEGERS else lambda each: sum(each) / ranks
    averages = torch.tensor([mean(each) for each in zip(*values)], dtype=dtype)
    tensor = torch.tensor(values[rank], dtype=dtype)
    dist.reduce(tensor, dst=1, op=dist.ReduceOp.AVG)
    check(f"average of {dtype} on one rank", tensor, averages if rank == 1 else tensor)
    if dtype in INTEGERS:
        part = torch.zeros(len(averages), dtype=dtype)
        whole = torch.tensor(values[rank] * ranks, dtype=dtype)
        dist.reduce_scatter_tensor(part, whole, op=dist.ReduceOp.AVG)
        check(f"reduce_scatter of averages of {dtype}", part, averages)

# Reductions that the network does not have.
tensor = torch.tensor([rank + 1])
dist.all_reduce(tensor, op=dist.ReduceOp.PRODUCT)
check("product", tensor, torch.tensor([rank + 1 for rank in range(ranks)]).prod().view(1))
for dtype, op in ((torch.uint8, dist.ReduceOp.SUM), (torch.float32, dist.ReduceOp.PRODUCT)):
    tensors = [torch.full((count,), rank + 1, dtype=dtype) for count in (2, 3)]
    dist.all_reduce_coalesced(tensors, op=op)
    reduced = sum if op == dist.ReduceOp.SUM else math.prod
    for count, tensor in zip((2, 3), tensors):
        wanted = reduced(of_all(lambda other: other + 1))
        check(f"coalesced {op} of {dtype}", tensor, torch.full((count,), wanted, dtype=dtype))

# A tensor that is not contiguous.
tensor = (torch.arange(12.0) + rank).view(3, 4).t()
dist.all_reduce(tensor)
check("transposed", tensor, sum(of_all(lambda other: (torch.arange(12.0) + other).view(3, 4).t())))

for dtype in (torch.bool, torch.uint8, torch.float16, torch.float32, torch.complex64):
    for root in range(ranks):
        value = lambda other: ((torch.arange(7) + other) % 3).to(dtype)
        tensor = value(rank)
        dist.broadcast(tensor, root)
        check(f"broadcast of {dtype} from {root}", tensor, value(root))

# Several calls in flight; their results come through the future, too.
tensors = [torch.full((5000,), float(i + rank)) for i in range(8)]
works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
doubled = [work.get_future().then(lambda future: future.value()[0] * 2) for work in works]
for i, (work, future) in enumerate(zip(works, doubled)):
    work.wait()
    wanted = torch.full((5000,), float(sum(i + other for other in range(ranks))))
    check("one of several", tensors[i], wanted)
    check("its future", future.wait(), 2 * wanted)

# Tensors of a GPU are in the order of the calls, as on a stream; others need `wait` in between.
if sys.argv[1:] == ["staged"]:
    tensor = torch.ones(50_000)
    works = [dist.all_reduce(other, async_op=True) for other in (tensor, tensor[10:], tensor)]
    [work.wait() for work in works]
    check("a tensor in three calls", tensor[10:], torch.full((49_990,), float(ranks**3)))
    check("its start in two calls", tensor[:10], torch.full((10,), float(ranks**2)))

# Calls that Gloo makes.
parts = [torch.zeros(3) for _ in range(ranks)]
dist.all_gather(parts, torch.full((3,), float(rank)))
check("all_gather", torch.stack(parts)[:, 0], torch.arange(float(ranks)))
objects = [None] * ranks
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": other} for other in range(ranks)]
if rank == 0:
    dist.send(torch.ones(3), 1)
elif rank == 1:
    tensor = torch.zeros(3)
    dist.recv(tensor, 0)
    check("recv", tensor, torch.ones(3))
dist.barrier()

# A group of some ranks has its own job.
some = dist.new_group([0, 1])
if rank < 2:
    tensor = torch.tensor([1.0 + rank])
    dist.all_reduce(tensor, group=some)
    check("group", tensor, torch.tensor([3.0]))

dist.destroy_process_group()
print(f"all collectives are right with torch {torch.__version__}", flush=True)
