"""Small calls end on the thread that waits for them, with what arithmetic says, and in one call.

A thread takes over only if nobody waits soon.
"""

import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import switchml.torch

dist.init_process_group("switchml", timeout=timedelta(seconds=60))
rank, ranks = dist.get_rank(), dist.get_world_size()
total = ranks * (ranks + 1) // 2


def calls():
    """The number of calls in the network so far."""
    return switchml.torch.statistics()["calls"]


def of_ranks(scale=1.0, count=1):
    """What each rank has, one after the other."""
    return torch.cat([torch.full((count,), scale * (other + 1)) for other in range(ranks)])


# Sums that torch's functions wait for, or a caller waits for later; compiled graphs call the last.
for count in (1, 352, 1024, 4096, 1 << 16):
    before = calls()
    summed = torch.full((count,), rank + 1.0)
    dist.all_reduce(summed)
    late = torch.full((count,), rank + 1.0)
    dist.all_reduce(late, async_op=True).wait()
    given = torch.full((count,), rank + 1.0)
    there = functional.all_reduce(given, "sum", dist.group.WORLD)
    for sums in (summed, late, there):
        assert torch.equal(sums + 0, torch.full((count,), float(total)))
    assert torch.equal(given, torch.full((count,), rank + 1.0))
    assert calls() - before == 3, calls() - before

# All-gathers, in one tensor and in lists: of words, halves of words, and what travels as neither.
for count in (1, 3, 1000, 20_000):
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        before = calls()
        own = torch.full((count,), rank + 1).to(dtype)
        whole = torch.empty(ranks * count, dtype=dtype)
        dist.all_gather_into_tensor(whole, own)
        assert torch.equal(whole, of_ranks(count=count).to(dtype)), (whole, dtype)
        parts = [torch.empty_like(own) for _ in range(ranks)]
        dist.all_gather(parts, own, async_op=True).wait()
        assert torch.equal(torch.cat(parts), whole)
        there = functional.all_gather_tensor(own, 0, dist.group.WORLD)
        assert torch.equal(there + 0, whole)
        assert calls() - before == 3, calls() - before
before = calls()
odd = torch.full((3,), rank + 1, dtype=torch.uint8)
whole = torch.empty(3 * ranks, dtype=torch.uint8)
dist.all_gather_into_tensor(whole, odd)
assert torch.equal(whole, of_ranks(count=3).to(torch.uint8))
# It goes to Gloo, after a barrier.
assert calls() - before == 1, calls() - before

# As many as may be in flight, which are waited for from the last to the first.
tensors = [torch.full((100,), (rank + 1.0) * number) for number in range(50)]
works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
for number, (tensor, work) in reversed([*enumerate(zip(tensors, works))]):
    work.wait()
    assert torch.equal(tensor, torch.full((100,), float(total * number)))
    assert work.is_completed() and work.is_success()

# Nobody waits: others get what they wait for nevertheless, and callers may ask instead.
tensor = torch.full((10,), rank + 1.0)
work = dist.all_reduce(tensor, async_op=True)
message = torch.zeros(1)
if rank == 0:
    # The last rank sends once it has the sum.
    dist.recv(message, ranks - 1)
    assert message == total
else:
    work.wait()
    if rank == ranks - 1:
        dist.send(tensor[:1].clone(), 0)
begin = time.monotonic()
while not work.is_completed():
    assert time.monotonic() - begin < 60
    time.sleep(0.001)
assert torch.equal(tensor, torch.full((10,), float(total)))

# Callbacks, limits, and more than one thread that waits.
tensor = torch.full((10,), rank + 1.0)
work = dist.all_reduce(tensor, async_op=True)
assert work.get_future().then(lambda done: done.value()[0].sum().item()).wait() == 10 * total
tensor = torch.full((10,), rank + 1.0)
work = dist.all_reduce(tensor, async_op=True)
assert work.wait(timedelta(seconds=60))
tensor = torch.full((10,), rank + 1.0)
work = dist.all_reduce(tensor, async_op=True)
threads = [threading.Thread(target=work.wait) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert torch.equal(tensor, torch.full((10,), float(total)))

# Work that is dropped, and a group that ends with a call in flight.
dist.all_reduce(torch.full((10,), 1.0), async_op=True)
last = torch.full((10,), rank + 1.0)
work = dist.all_reduce(last, async_op=True)
dist.destroy_process_group()
assert torch.equal(last, torch.full((10,), float(total)))
print("all small calls are right", flush=True)
