"""A rank of four that are lost one after another, until one is left: the last in a call, the next
when all others meet to go on without it, the next when Gloo connects those that go on then (with a
torch in which that can be noticed).

Joining has no limit that ends a test, so the loss itself has to.
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist

import switchml.torch
from switchml.torch import _alive, _create, _regroup
from switchml.torch._group import group_of


def ends(*_):
    os.kill(os.getpid(), signal.SIGKILL)


dist.init_process_group("switchml")
rank = dist.get_rank()
_regroup._JOIN = timedelta(hours=1)
# Ranks may look at each other more often than a port's queue has room.
store = group_of(dist.group.WORLD).store
place = _alive._place(store, rank)
with _alive.watching(_alive.Watch({rank: place})):
    assert [_alive.gone() for _ in range(300)] == [[]] * 300
    assert _alive._answers(place)
if rank == 2:
    _create._meet = ends
alone = hasattr(dist.Store, "clone")
if rank == 1 and alone:
    _create.gloo_group = ends
dist.all_reduce(torch.ones(1000))
if rank == 3:
    ends()
try:
    while True:
        dist.all_reduce(torch.ones(1000))
except dist.DistBackendError as error:
    assert error.ranks == [3], error
    left = switchml.torch.regroup(error.ranks)
assert left == ([0] if alone else [0, 1]), left
sums = torch.ones(1000)
dist.all_reduce(sums)
assert torch.equal(sums, torch.full((1000,), float(len(left)))), sums
print("went on", flush=True)
# Gloo still waits for rank 1, as long as joining may take, in a thread that an exit waits for.
os._exit(0)
