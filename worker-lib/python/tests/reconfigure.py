"""A rank of a group that is reconfigured: four ranks, one of which is killed, and one that joins.

Arguments: a folder that all share, and the name of this process, `0` to `3` or `joins`.
"""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder, name = sys.argv[1:]
FIRST = ["0", "1", "2", "3"]
LEFT = ["1", "2", "3"]
# What happens to one process must not matter to the others, so no process has the store.
store = dist.FileStore(f"{folder}/store")


def handles_of(names, when):
    """Their handles, by way of the store."""
    if name in names:
        store.set(f"{when}/{name}", dist._get_reconfigure_handle())
    return [store.get(f"{when}/{other}").decode() for other in names]


def is_(expected, found):
    assert expected == found, f"{expected} expected, {found} found"


def raises(function, *parts):
    """The error that it raises, which has these parts."""
    try:
        function()
    except dist.DistBackendError as error:
        assert all(part in str(error) for part in parts), error
        return error
    raise SystemExit(f"{parts} was not raised")


def reconfigure(uuid, handles, seconds=60):
    dist._reconfigure(uuid, handles, timeout=timedelta(seconds=seconds)).wait()


def sums_are_right(names):
    """In the network, by Gloo, and in DDP, whose C++ divides by the number of ranks."""
    is_((len(names), names.index(name)), (dist.get_world_size(), dist.get_rank()))
    mine, everyone = 1 + int(name) if name.isdigit() else 50, len(names)
    theirs = [1 + int(other) if other.isdigit() else 50 for other in names]
    for count in (3, 100_000):
        tensor = torch.full((count,), float(mine))
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((count,), float(sum(theirs)))), tensor
    tensor = torch.tensor(mine)
    dist.broadcast(tensor, everyone - 1)
    is_(theirs[-1], tensor.item())
    objects = [None] * everyone
    dist.all_gather_object(objects, name)
    is_(names, objects)
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model(torch.tensor([[float(mine)]])).sum().backward()
    gradient = model.module.weight.grad.item()
    assert abs(gradient - sum(theirs) / everyone) < 1e-5, gradient


def ranks_change_their_order():
    handles = handles_of(FIRST, "order")
    reconfigure(10, handles[::-1])
    sums_are_right(FIRST[::-1])
    # In a set they keep their order.
    reconfigure(11, set(handles_of(FIRST, "set")))
    sums_are_right(FIRST[::-1])
    reconfigure(12, handles)
    sums_are_right(FIRST)


def what_is_wrong_changes_nothing():
    handles = handles_of(FIRST, "wrong")
    others = [handle for other, handle in zip(FIRST, handles) if other != name]
    raises(lambda: reconfigure(12, handles), "uuid 12 was already used")
    raises(lambda: reconfigure(20, others), "this rank's handle is not among the given ones")
    raises(lambda: reconfigure(20, []), "this rank's handle is not among the given ones")
    raises(lambda: reconfigure(20, handles + handles[:1]), "a handle is given twice")
    raises(lambda: reconfigure(20, [*handles, "gloo:0:1"]), "'gloo:0:1' is not a handle")
    sums_are_right(FIRST)


def calls_in_flight_name_who_is_left_out():
    """Rank 3 takes no part in them, and lives on as a group of its own.

    Nor does rank 2, which goes on first, while the others wait for it.
    """
    handles = handles_of(FIRST, "flight")
    if name == "3":
        handles_of(FIRST, "in flight")
        reconfigure(33, handles[3:])
        sums_are_right(["3"])
    else:
        calls = []
        if name != "2":
            calls = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(3)]
            gathered = [torch.ones(1) for _ in FIRST]
            calls.append(dist.all_gather(gathered, torch.ones(1), async_op=True))
        handles_of(FIRST, "in flight")
        time.sleep(0 if name == "2" else 0.5)
        begin = time.monotonic()
        reconfigure(30, handles[:3])
        for call in calls:
            # Whoever of the others was first says why.
            is_([3], raises(call.wait, "rank 3").ranks)
        sums_are_right(FIRST[:3])
        assert time.monotonic() - begin < 20
    reconfigure(31, handles)
    sums_are_right(FIRST)


def a_blocked_call_ends_because_others_go_on():
    """Rank 2, which ranks 0 and 1 wait for, goes on without rank 3, which is only slow."""
    handles = handles_of(FIRST, "blocked")
    if name in "01":
        is_([3], raises(lambda: dist.all_reduce(torch.ones(5)), "rank 3").ranks)
    if name != "3":
        reconfigure(34, handles[:3])
        sums_are_right(FIRST[:3])
    handles_of(FIRST, "after the blocked call")
    reconfigure(35, handles)
    sums_are_right(FIRST)


def who_does_not_come_is_named():
    handles = handles_of(FIRST, "late")
    said = "switchml: rank {} of 4 did not come within the timeout of 2 s to form a group"
    for late in (0, 2):
        if name != str(late):
            begin = time.monotonic()
            error = raises(lambda: reconfigure(40 + late, handles, 2), said.format(late))
            is_([late], error.ranks)
            assert time.monotonic() - begin < 20, error
            raises(lambda: dist.all_reduce(torch.ones(1)), "call _reconfigure first")
        # The late one goes on only once all others have given up.
        handles_of(FIRST, f"after {late}")
    reconfigure(43, handles)
    sums_are_right(FIRST)


def an_aborted_group_goes_on():
    # An abort ends the last call of ranks that lack its results.
    handles_of(FIRST, "before the abort")
    dist.get_backend_impl(device=torch.device("cpu")).abort()
    raises(lambda: dist.all_reduce(torch.ones(1)))
    reconfigure(50, handles_of(FIRST, "abort"))
    sums_are_right(FIRST)


def a_killed_rank_is_left_out():
    """The first one, in whose process the ranks met."""
    if name == "0":
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    error = raises(lambda: dist.all_reduce(torch.ones(5)), "rank 0")
    is_([0], error.ranks)
    reconfigure(60, handles_of(LEFT, "left"))
    sums_are_right(LEFT)


rank = int(name) if name.isdigit() else 0
size = 4 if name.isdigit() else 1
dist.init_process_group(
    "switchml", store=store if size == 4 else dist.HashStore(), rank=rank, world_size=size,
    enable_reconfigure=True,
)
assert dist._supports_reconfigure()
raises(lambda: dist.all_reduce(torch.ones(1)), "the process group has no ranks")
if name.isdigit():
    reconfigure(1, handles_of(FIRST, "first"))
    sums_are_right(FIRST)
    ranks_change_their_order()
    what_is_wrong_changes_nothing()
    calls_in_flight_name_who_is_left_out()
    a_blocked_call_ends_because_others_go_on()
    who_does_not_come_is_named()
    an_aborted_group_goes_on()
    a_killed_rank_is_left_out()
reconfigure(70, handles_of([*LEFT, "joins"], "joined"))
sums_are_right([*LEFT, "joins"])
dist.destroy_process_group()
print("all sums are right", flush=True)
