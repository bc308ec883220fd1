"""Rank 1's program ends while a call of it is in flight that no other rank makes.

Arguments: how it ends, and a folder. Rank 1 says `in flight` before. The others wait until there is
a file `ended` in the folder, and then make that call, which tells them of rank 1.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from switchml import Communicator, Error

how, folder = sys.argv[1], Path(sys.argv[2])
rank = int(os.environ["RANK"])
# A shell's background jobs ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt_main_thread():
    """As Ctrl-C does, once that waits for the call."""

    def interrupt():
        main = threading.main_thread().ident
        waits = ("threading.py", "_communicator.py")
        while not sys._current_frames()[main].f_code.co_filename.endswith(waits):
            time.sleep(0.01)
        print("in flight", flush=True)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def until_it_has_ended():
    while not (folder / "ended").exists():
        time.sleep(0.01)


def call(group=None, **named):
    return dist.all_reduce(torch.ones(1000), group=group, **named)


def fail():
    raise MemoryError("out of memory in a step")


def in_torch():
    dist.init_process_group("switchml")
    group = dist.new_group() if how == "raises while it joins" else None
    if rank != 1:
        until_it_has_ended()
        if group is not None:
            # Rank 1 never gets there.
            return
        try:
            call()
        except dist.DistBackendError as error:
            assert error.ranks == [1], error
            return
        raise SystemExit("rank 1 was there")
    if how == "is interrupted":
        interrupt_main_thread()
        call()
    if how == "raises while a thread waits":
        threading.Thread(target=call, daemon=True).start()
        time.sleep(0.5)
    else:
        call(group, async_op=True)
    print("in flight", flush=True)
    if how == "exits":
        sys.exit(3)
    if how == "destroys its group":
        try:
            fail()
        finally:
            dist.destroy_process_group()
    fail()


def without_torch():
    if rank != 1 and "joins" in how:
        until_it_has_ended()
        return
    if rank == 1 and "joins" in how:
        interrupt_main_thread()
    with Communicator(job=how) as communicator:
        if rank == 1:
            interrupt_main_thread()
            communicator.barrier() if "barrier" in how else communicator.all_reduce(torch.ones(9))
        until_it_has_ended()
        try:
            communicator.barrier()
        except Error as error:
            assert error.ranks == [1], error
            os._exit(0)
        raise SystemExit("rank 1 was there")


if how.startswith("without torch"):
    without_torch()
else:
    in_torch()
# The store may be gone.
os._exit(0)
