"""Ranks whose calls would travel alike, or in different jobs, and that differ: both hear of it."""

from functools import partial

import torch
import torch.distributed as dist

dist.init_process_group("switchml")
rank = dist.get_rank()


def reduced(op, dtype, count):
    return partial(dist.all_reduce, torch.ones(count, dtype=dtype), op)


def broadcast(dtype, count):
    return partial(dist.broadcast, torch.ones(count, dtype=dtype), 0)


def gathered(count):
    return partial(dist.all_gather_into_tensor, torch.zeros(2 * count), torch.ones(count))


MAX, MIN, AVG, SUM = dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.AVG, dist.ReduceOp.SUM

# The call of rank 0, and the other call of rank 1.
CASES = {
    "64 bits and 32": (reduced(MAX, torch.int64, 8), reduced(MAX, torch.int32, 8)),
    "integers and floats": (reduced(MIN, torch.int64, 8), reduced(MIN, torch.float64, 8)),
    "averages and sums": (reduced(AVG, torch.int64, 8), reduced(SUM, torch.int64, 8)),
    "averages of two types": (reduced(AVG, torch.int32, 8), reduced(AVG, torch.int64, 8)),
    "types of one size": (broadcast(torch.float32, 8), broadcast(torch.int32, 8)),
    "as many bytes": (broadcast(torch.int64, 8), broadcast(torch.int32, 16)),
    "bytes and words": (broadcast(torch.uint8, 32), broadcast(torch.int32, 8)),
    "a small part of a whole, and a large one": (gathered(16), gathered(16384)),
    "wholes and sums": (gathered(16384), reduced(SUM, torch.float32, 16384)),
}

for name, calls in CASES.items():
    # Calls that differ are the end of a group.
    group = dist.new_group(backend="switchml")
    dist.all_reduce(torch.ones(1), group=group)
    try:
        calls[rank](group=group)
    except dist.DistBackendError as error:
        assert "made different calls" in str(error), error
    else:
        raise SystemExit(f"{name}: nothing was raised")

dist.destroy_process_group()
