"""A job whose ranks add up the job's number for a while."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("switchml")
number = torch.full((1000,), float(sys.argv[1]))
for _ in range(50):
    total = number.clone()
    dist.all_reduce(total)
    assert torch.equal(total, number * dist.get_world_size()), total
    time.sleep(0.1)
if dist.get_rank() == 0:
    print("job", sys.argv[1], "is right", flush=True)
dist.destroy_process_group()
