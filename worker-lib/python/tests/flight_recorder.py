"""A rank of a job in which rank 1 does not make the others' sixth call, and torch records that.

Arguments: what rank 1 does instead, and a folder that all share. `other`: it makes another call.
`none`: it makes none until the others have given up, and then has torch write the file. `killed`:
it kills itself. With `read` as the first argument torch's own analyser reads the folder's files.
"""

import os
import runpy
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

how, folder = sys.argv[1], Path(sys.argv[2])
if how == "read":
    sys.argv[1:] = [str(folder), "--prefix", "rank_", "--allow-incomplete-ranks"]
    runpy.run_module("torch.distributed.flight_recorder.fr_trace", run_name="__main__")
    sys.exit()
# Torch puts the rank behind it.
os.environ["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / "rank_")
dist.init_process_group("switchml")
rank = dist.get_rank()
for _ in range(5):
    dist.all_reduce(torch.ones(1000))
if rank == 1 and how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "none":
    dist.set_timeout(timedelta(seconds=2))
    if rank == 1:
        while not all((folder / f"given up by {other}").exists() for other in (0, 2)):
            time.sleep(0.01)
        _distributed_c10d._dump_fr_trace_file(rank, includeStackTraces=True, backend="switchml")
        os._exit(0)
try:
    work = dist.all_reduce(torch.ones(7 if rank == 1 else 1000), async_op=how == "killed")
    work.wait()
    raise SystemExit("rank 1 made the same call")
except dist.DistBackendError:
    (folder / f"given up by {rank}").touch()
# As a program that ends does; but the store may be gone.
for thread in threading.enumerate():
    if not thread.daemon and thread is not threading.main_thread():
        thread.join()
os._exit(0)
