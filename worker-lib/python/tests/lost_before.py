"""A rank of a job in which one is lost before it joins another job, where the others wait for it.

Arguments: which rank, and how: it `dies`, `leaves` in good order, or `cannot` join because it may
open no more files. Each other rank prints a line of JSON for each of the jobs that it then joins,
that of the all-gathers and that of a group without rank 0 (unless that is lost): its error's text
and ranks, and the seconds until then.
"""

import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist

lost, how = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("switchml")
rank, size = dist.get_rank(), dist.get_world_size()
group = dist.new_group(list(range(1 if lost else 0, size)))
dist.all_reduce(torch.ones(1))
if rank == lost and how == "dies":
    os._exit(0)
if rank == lost and how == "leaves":
    sys.exit()
if rank == lost:
    most = len(os.listdir("/proc/self/fd")) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def gather():
    dist.all_gather_into_tensor(torch.zeros(100000 * size), torch.ones(100000))


def reduce():
    dist.all_reduce(torch.ones(1000), group=group)


for call in (gather, *([reduce] if rank or not lost else [])):
    begin = time.monotonic()
    try:
        call()
    except dist.DistBackendError as error:
        seen = {"seconds": time.monotonic() - begin, "text": str(error), "ranks": error.ranks}
        print(json.dumps(seen), flush=True)
    else:
        raise SystemExit("nothing was seen")
# The store is in the first rank's process.
store, done = dist.distributed_c10d._get_default_store(), "done/{}".format
if rank:
    store.set(done(rank), "") if lost else None
else:
    store.wait([done(other) for other in range(1, size) if other != lost])
os._exit(0)
