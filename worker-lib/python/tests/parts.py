"""Reduce-scatter and all-gather, in each of torch's forms, in the network."""

import itertools

import torch
import torch.distributed as dist

import switchml.torch

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
everyone = range(ranks)

# Elements of a part: too small for an all-gather in the network, and large enough.
SIZES = (1, 6, 40_000)


def value(of: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return ((torch.arange(count) * 3 + 5 * of) % 11 - 3).to(dtype)


def equal(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(found, wanted), f"{what}: {found}, not {wanted}"


def reduced(op: str, count: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.stack([value(other, count, torch.float64) for other in everyone])
    result = {"sum": values.sum(0), "avg": values.mean(0), "max": values.max(0)[0]}[op]
    return result.to(dtype)


OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX}
FLOATS = (torch.float32, torch.float64, torch.bfloat16)
for dtype, (name, op), size in itertools.product((*FLOATS, torch.int32), OPS.items(), SIZES):
    is_double = name == "max" and dtype == torch.float64
    if is_double or (name == "avg" and dtype in (torch.int32, torch.bfloat16)):
        # Gloo's, or its own way of rounding.
        continue
    what = f"reduce_scatter_tensor of {size} {dtype}, {name}"
    given, part = value(rank, ranks * size, dtype), torch.zeros(size, dtype=dtype)
    dist.reduce_scatter_tensor(part, given, op)
    wanted = reduced(name, ranks * size, dtype).chunk(ranks)[rank]
    if name == "avg":
        assert torch.allclose(part, wanted, rtol=1e-5, atol=1e-5), what
    else:
        equal(what, part, wanted)
    equal(f"{what}, what was given", given, value(rank, ranks * size, dtype))

TYPES = (*FLOATS, torch.int64, torch.uint8, torch.bool, torch.complex64)
for dtype, size in itertools.product(TYPES, SIZES):
    what = f"all_gather_into_tensor of {size} {dtype}"
    own, whole = value(rank, size, dtype), torch.zeros(ranks * size, dtype=dtype)
    dist.all_gather_into_tensor(whole, own)
    wanted = torch.cat([value(other, size, dtype) for other in everyone])
    equal(what, whole, wanted)
    # The input is its own part of the whole.
    whole = torch.zeros(ranks * size, dtype=dtype)
    whole.chunk(ranks)[rank].copy_(own)
    dist.all_gather_into_tensor(whole, whole.chunk(ranks)[rank])
    equal(f"{what}, in place", whole, wanted)
    # The outputs are a list of tensors that are not contiguous.
    parts = [torch.zeros(2, size, dtype=dtype).t()[:, 0] for _ in everyone]
    dist.all_gather(parts, own)
    equal(f"{what}, in a list", torch.cat(parts), wanted)

# A matrix of which each rank has some rows.
rows = torch.zeros(ranks * 100, 333)
dist.all_gather_into_tensor(rows, torch.full((100, 333), float(rank)))
equal("rows", rows[:, 7], torch.arange(float(ranks)).repeat_interleave(100))

# On one rank the whole is at an odd address.
whole = torch.zeros(ranks * 40_000 + 1, dtype=torch.uint8)[int(rank == 0) :][: ranks * 40_000]
dist.all_gather_into_tensor(whole, value(rank, 40_000, torch.uint8))
wanted = torch.cat([value(other, 40_000, torch.uint8) for other in everyone])
equal("at an odd address", whole, wanted)

# Lists of parts, and both calls at once; their results come through the future, too.
SIZE = 50_000
given = [torch.full((SIZE,), float(rank + other)) for other in everyone]
part, whole = torch.zeros(SIZE), torch.zeros(ranks * SIZE)
scattering = dist.reduce_scatter(part, given, async_op=True)
gathering = dist.all_gather_into_tensor(whole, torch.full((SIZE,), float(rank)), async_op=True)
future = scattering.get_future().then(lambda done: done.value()[0] * 2)
gathering.wait()
scattering.wait()
total = float(sum(other + rank for other in everyone))
equal("reduce_scatter of a list", part, torch.full((SIZE,), total))
equal("its future", future.wait(), torch.full((SIZE,), 2 * total))
equal("all-gather beside it", whole, torch.arange(float(ranks)).repeat_interleave(SIZE))

# Several at once.
wholes = [torch.zeros(ranks * size) for size in SIZES]
with dist._coalescing_manager():
    for size, whole in zip(SIZES, wholes):
        dist.all_gather_into_tensor(whole, value(rank, size, torch.float32))
for size, whole in zip(SIZES, wholes):
    wanted = torch.cat([value(other, size, torch.float32) for other in everyone])
    equal("coalesced all-gather", whole, wanted)
parts = [torch.zeros(size) for size in SIZES]
with dist._coalescing_manager():
    for size, part in zip(SIZES, parts):
        dist.reduce_scatter_tensor(part, value(rank, ranks * size, torch.float32))
for size, part in zip(SIZES, parts):
    wanted = reduced("sum", ranks * size, torch.float32).chunk(ranks)[rank]
    equal("coalesced reduce-scatter", part, wanted)

statistics = switchml.torch.statistics()
assert statistics["chunks"] > 1000 and statistics["empty"] > 300, statistics
dist.destroy_process_group()
print("all parts are right", flush=True)
