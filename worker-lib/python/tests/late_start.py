"""A rank that starts so many seconds after the others. Those whose clocks run 20 times as fast.

Prints a line of JSON: the sum of all ranks, or the error's text and ranks.
"""

import json
import os
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist

from switchml.torch import _rendezvous

_rendezvous.time = SimpleNamespace(monotonic=lambda: 20 * time.monotonic(), sleep=time.sleep)
time.sleep(float(sys.argv[1]))
try:
    dist.init_process_group("switchml")
except dist.DistBackendError as error:
    print(json.dumps({"text": str(error), "ranks": error.ranks}), flush=True)
    os._exit(0)
tensor = torch.ones(1)
dist.all_reduce(tensor)
print(json.dumps({"sum": tensor.item()}), flush=True)
dist.destroy_process_group()
