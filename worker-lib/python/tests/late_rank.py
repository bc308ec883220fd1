"""A rank of a job in which rank 1 is late.

Arguments: by how many seconds, the group's timeout in seconds, and whether the group is `used`
before or `unused`. If it is `tried`, it is used, and the others first wait for 7 s alone. If it is
`lowered`, it is used, and gets that timeout afterwards; if `early`, before it is used. Each rank
prints a line of JSON: the result of all_reduce, or its error's text and ranks.
"""

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

late, timeout = map(float, sys.argv[1:3])
dist.init_process_group("switchml")
is_changed = sys.argv[3] in ("lowered", "early")
group = dist.new_group(timeout=timedelta(seconds=1800 if is_changed else timeout))
if sys.argv[3] == "early":
    distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)
if sys.argv[3] != "unused":
    dist.all_reduce(torch.ones(1000), group=group)
if sys.argv[3] == "lowered":
    distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)
if dist.get_rank() == 1:
    time.sleep(late)
tensor = torch.ones(1000)
try:
    work = dist.all_reduce(tensor, group=group, async_op=True)
    if sys.argv[3] == "tried" and dist.get_rank() != 1:
        try:
            work.wait(timedelta(seconds=7))
        except dist.DistBackendError as error:
            print(json.dumps({"tried": str(error), "ranks": error.ranks}), flush=True)
    work.wait()
except dist.DistBackendError as error:
    print(json.dumps({"text": str(error), "ranks": error.ranks}), flush=True)
    if sys.argv[3] == "unused" and dist.get_rank() != 1:
        # The late rank finds the first one's store.
        time.sleep(late)
    # The other ranks may be gone already, and torch's own store with them.
    os._exit(0)
print(json.dumps({"sums": sorted(set(tensor.tolist()))}), flush=True)
dist.destroy_process_group()
