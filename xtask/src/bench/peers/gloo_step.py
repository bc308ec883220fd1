"""One rank of a replayed training step with Gloo, as xtask/src/bench/models.rs starts it.

Arguments: rank, number of ranks, file of the rendezvous, file of buckets. That has a line for each
bucket: its elements, and the microseconds from the step's beginning until they are ready. A step
without computing is checked, then one is timed; rank 0 prints a line of JSON.
"""

import json
import sys
import time

import torch
import torch.distributed as dist


def step(tensors, ready):
    """Seconds of a step, whose computing is over when the last bucket is ready."""
    dist.barrier()
    begin = time.perf_counter()
    calls = []
    for tensor, at in zip(tensors, ready):
        time.sleep(max(0.0, begin + at - time.perf_counter()))
        # As DistributedDataParallel calls it.
        calls.append(dist.all_reduce(tensor, async_op=True))
    for call in calls:
        call.wait()
    return time.perf_counter() - begin


def main():
    rank, ranks, rendezvous, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    # One thread, as with torchrun.
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    with open(path) as lines:
        buckets = [[int(word) for word in line.split()] for line in lines]
    tensors = [torch.full((elements,), float(rank + 1)) for elements, _ in buckets]
    step(tensors, [0] * len(buckets))
    total = ranks * (ranks + 1) / 2
    wrong = torch.tensor(sum(int((tensor != total).sum()) for tensor in tensors))
    seconds = torch.tensor(step(tensors, [at / 1e6 for _, at in buckets]), dtype=torch.float64)
    dist.all_reduce(wrong)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"step_ms": [seconds.item() * 1e3], "out_of_bounds": wrong.item()}))
    dist.destroy_process_group()


main()
