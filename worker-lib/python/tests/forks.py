"""A rank that forks. The child cannot use what its parent has, says so, and ends as usual."""

import os
import select
import sys
import threading

import torch
import torch.distributed as dist

from switchml import Communicator, Error
from switchml.torch._threads import CALLBACKS

# Far longer than anything takes on a busy machine.
PATIENCE = 60.0

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
communicator = Communicator(job="of the parents")


def sum_of_ones(communicator):
    tensor = torch.ones(10)
    communicator.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((10,), float(ranks))), tensor


def refused(kind, belongs, call):
    try:
        call()
    except kind as error:
        wanted = f"this is a fork of process {os.getppid()}, which the {belongs} belongs to, and"
        assert wanted in str(error), error
    else:
        raise SystemExit("it was taken")


def child(handle):
    for call in (
        lambda: dist.all_reduce(torch.ones(1)),
        dist.barrier,
        # These calls go to Gloo.
        lambda: dist.reduce(torch.ones(1), 0),
        lambda: dist.send(torch.ones(1), (rank + 1) % ranks),
    ):
        refused(dist.DistBackendError, "group", call)
    for call in (handle.wait, lambda: sum_of_ones(communicator), communicator.barrier):
        refused(Error, "communicator", call)
    communicator.close()
    called = threading.Event()
    CALLBACKS.add(called.set)
    assert called.wait(PATIENCE), "no thread runs callbacks"
    with Communicator(job="of the children") as own:
        sum_of_ones(own)


# Threads that run callbacks, and a call in flight.
called = threading.Event()
dist.all_reduce(torch.ones(1), async_op=True).get_future().add_done_callback(
    lambda _: CALLBACKS.add(called.set)
)
assert called.wait(PATIENCE)
tensor = torch.ones(10)
handle = communicator.all_reduce_start(tensor)
process = os.fork()
if process == 0:
    child(handle)
    # This exit runs the functions of atexit.
    sys.exit()
ended, _, _ = select.select([os.pidfd_open(process)], [], [], PATIENCE)
assert ended, "the child does not end"
status = os.waitpid(process, 0)[1]
assert status == 0, f"the child ended with {status}"

# The parent's are as before.
handle.wait()
assert torch.equal(tensor, torch.full((10,), float(ranks))), tensor
sum_of_ones(communicator)
communicator.close()
dist.barrier()
dist.destroy_process_group()
print("all forks have ended", flush=True)
