"""A rank of a job that adds up until it is told to end, beside another job or a stranger.

Arguments: the value that each rank of the job adds; `alone`, or `torch` for torch's process group;
and a file that ends the job once it is there. The rank says that it starts, and prints a line of
JSON at its end: the sums that it got, and the error that ended it, if one did. It says `settled`
once it has joined a job, or never will, and `adds up` after its first call.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from switchml import Communicator

value, kind, end = float(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
sums: set[float] = set()


def run(all_reduce):
    """Adds up until all ranks have seen the file: each tells the others by the second element."""
    while True:
        tensor = torch.tensor([value, float(end.exists()), 1.0])
        all_reduce(tensor)
        told, have_seen, ranks = tensor.tolist()
        if not sums:
            print("adds up", flush=True)
        sums.add(told)
        if have_seen == ranks:
            return
        # Many such jobs run beside each other.
        time.sleep(0.1)


def report(error):
    print("settled", flush=True)
    print(json.dumps({"sums": sorted(sums), "error": error}), flush=True)
    # Torch's own store may be gone with another process.
    os._exit(0)


print("starts", flush=True)
try:
    if kind == "torch":
        dist.init_process_group("switchml")
        print("settled", flush=True)
        run(dist.all_reduce)
    else:
        communicator = Communicator(deadline=30)
        print("settled", flush=True)
        run(communicator.all_reduce)
        communicator.close()
except Exception as error:  # Whatever it is, the test reads it.
    report(str(error))
report(None)
