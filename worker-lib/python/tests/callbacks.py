"""A rank whose callbacks wait for calls that they make, and which asks calls for their state."""

import atexit
import logging
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

# Far longer than anything takes on a busy machine.
PATIENCE = 60.0

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()


def summed(group=None):
    """A future of the number of ranks in a group, as a sum."""
    return dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future()


def gathered():
    """The same by way of Gloo."""
    parts = [torch.zeros(1) for _ in range(ranks)]
    return (
        dist.all_gather(parts, torch.ones(1), async_op=True)
        .get_future()
        .then(lambda _: [torch.cat(parts).sum()])
    )


def asked(name, start):
    """Asks a call how it is, before and after the other ranks make it, too."""
    if rank == 0:
        work = start()
        assert not work.is_completed() and not work.get_future().done(), (
            f"{name} is done before all ranks have made it"
        )
        store.set(f"{name} is under way", "")
    else:
        store.wait([f"{name} is under way"])
        work = start()
    end = time.monotonic() + PATIENCE
    while not work.is_completed():
        assert time.monotonic() < end, f"{name} is never completed"
        time.sleep(0.001)
    assert work.wait() and work.wait() and work.wait(timedelta(seconds=PATIENCE)), name
    # So long that C++ and Python's locks cannot wait for it.
    assert work.wait(timedelta(seconds=10**10)), name
    assert work.is_completed() and work.is_success() and work.exception() is None, name
    assert work.get_future().done(), name
    return work


for count in (1, 100_000):
    tensor = torch.ones(count)
    work = asked(f"all_reduce of {count}", lambda: dist.all_reduce(tensor, async_op=True))
    assert torch.equal(work.result()[0], torch.full((count,), float(ranks)))
parts = [torch.zeros(1) for _ in range(ranks)]
asked("all_gather", lambda: dist.all_gather(parts, torch.tensor([float(rank)]), async_op=True))
assert torch.equal(torch.cat(parts), torch.arange(float(ranks)))

# A call whose maker waits for it, where torch says so, is over at once. Torch takes None for it.
# If more is to be done than the library's call, as with elements that are not in one piece, there
# is an object, whose future comes later.
opts = dist.AllreduceOptions()
if hasattr(opts, "asyncOp"):
    opts.asyncOp = False
    tensor = torch.ones(1)
    assert dist.group.WORLD.allreduce([tensor], opts) is None and tensor[0] == ranks
    pieces = torch.ones(4)
    work = dist.group.WORLD.allreduce([pieces[::2]], opts)
    assert work.is_completed() and work.is_success()
    future = work.get_future()
    assert future.done() and future.value()[0][0] == ranks
    assert future.then(lambda done: done.value()[0][1] + 1).wait() == ranks + 1
    assert pieces.tolist() == [ranks, 1, ranks, 1]

# A wait that is over before the call is.
if rank == 0:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    try:
        work.wait(timedelta(milliseconds=20))
    except dist.DistBackendError as error:
        assert "not done after 0.02 s" in str(error), error
    else:
        raise SystemExit("it waited for longer than it was told to")
    store.set("waited", "")
else:
    store.wait(["waited"])
    work = dist.all_reduce(torch.ones(1), async_op=True)
work.wait()


# A callback waits for a call whose callback waits for a call, and so on.
def chain(depth, start):
    """As many sums as `depth`, each in the callback of the one before."""
    then = lambda done: done.value()[0] + (chain(depth - 1, start).wait() if depth > 1 else 0)
    return start().then(then)


assert chain(5, summed).wait() == 5 * ranks
assert chain(3, gathered).wait() == 3 * ranks
# Calls alternate between the network and Gloo.
starts = iter([summed, gathered] * 3)
assert chain(6, lambda: next(starts)()).wait() == 6 * ranks

# A callback waits for a call that was made after its own, and for the result of that call's
# callback.
first, second = summed(), dist.all_reduce(torch.ones(1), async_op=True)
later = second.get_future().then(lambda done: 2 * done.value()[0])
assert (
    first.then(lambda done: done.value()[0] + later.wait() + (second.wait() and 1)).wait()
    == 3 * ranks + 1
)

# Calls of several groups, each in a callback of another group's call.
groups = [dist.new_group(list(range(ranks))) for _ in range(3)]
future = summed(groups[0])
for group in (*groups[1:], None, groups[0]):
    future = future.then(lambda done, group=group: [done.value()[0] + summed(group).wait()[0]])
assert future.wait()[0] == 5 * ranks

# A callback makes a call while another one is in flight. Here all ranks do that, but the library
# cannot know. It warns once.
heard = []
logging.getLogger("switchml.torch").addFilter(lambda record: heard.append(record.getMessage()))
for turn in range(2):
    made = threading.Event()

    def inside(_):
        # Torch runs the callback at once, on this thread, if the sum is there already.
        if threading.current_thread() is not threading.main_thread():
            made.wait()
        work = dist.all_reduce(torch.ones(1), async_op=True)
        if rank == 0:
            store.set(f"made inside {turn}", "")
        return work.wait()

    if rank != 0:
        # The wait ensures that rank 0's sum is not there before its callback.
        store.wait([f"attached {turn}"])
    first = summed().then(inside)
    if rank == 0:
        store.set(f"attached {turn}", "")
    else:
        store.wait([f"made inside {turn}"])
    work = dist.all_reduce(torch.ones(1), async_op=True)
    made.set()
    assert first.wait() and work.wait()
if rank == 0:
    assert (
        len(heard) == 1
        and "a callback makes a call while one that was made elsewhere is in flight" in heard[0]
    ), heard

# Many callbacks at once: each is called once.
called = []
futures = [summed().then(lambda done, i=i: called.append(i) or done.value()[0]) for i in range(200)]
assert torch.futures.wait_all(futures) == [ranks] * 200 and sorted(called) == list(range(200)), (
    called
)


# An exception in a callback reaches its own future, and no other.
def fails(done):
    raise ValueError("this callback fails")


failed, fine = summed().then(fails), summed()
try:
    failed.wait()
except Exception as error:
    assert "this callback fails" in str(error), error
else:
    raise SystemExit("nothing was raised")
assert fine.wait()[0] == ranks

# A callback that runs until the interpreter ends, when it can make no calls any more: on rank 0,
# whose sum is not there before its callback. Torch runs later callbacks at once, on this thread.
if rank == 0:
    ending = threading.Event()
    atexit.register(ending.set)
    summed().then(lambda _: ending.wait() and dist.all_reduce(torch.ones(1)))
    store.set("runs to the end", "")
else:
    store.wait(["runs to the end"])
    summed().wait()

# A call that fails: rank 1's tensor has another shape.
work = dist.all_reduce(torch.ones(7 if rank == 1 else 1000), async_op=True)
heard = []
work.get_future().add_done_callback(lambda done: heard.append(done))
try:
    work.wait()
except dist.DistBackendError as error:
    assert error.ranks == [1], error
else:
    raise SystemExit("nothing was raised")
assert (
    work.is_completed()
    and not work.is_success()
    and "made different calls" in str(work.exception())
), work.exception()
try:
    work.get_future().wait()
except Exception as error:
    assert "made different calls" in str(error), error
else:
    raise SystemExit("nothing was raised")

print("all callbacks were called", flush=True)
