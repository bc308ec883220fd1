"""A rank of a job that adds up every 50 ms, until a rank is lost.

Argument: the backend. Each rank says that it `adds up` after its tenth call, and prints a line of
JSON when a call fails: the time of the system's clock, and the exception's text.
"""

import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist

# Gloo waits for a host that is cut off until this timeout, which is 30 minutes by default.
dist.init_process_group(sys.argv[1], timeout=datetime.timedelta(seconds=20))
rank = dist.get_rank()
try:
    for call in range(10_000):
        dist.all_reduce(torch.ones(1000))
        if call == 10:
            print("adds up", flush=True)
        time.sleep(0.05)
except Exception as error:  # Gloo raises several types.
    print(json.dumps({"time": time.time(), "text": str(error)}), flush=True)
# The store may be gone with rank 0.
os._exit(0)
