"""A rank whose calls torch's profiler sees: which, of what, and how long they take."""

import json
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LATE = 0.3

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
model = DistributedDataParallel(torch.nn.Linear(3, 1))


def profiled(call):
    """The names and seconds of calls in the network, in their order, and all of the trace.

    Some end on the thread that made them.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        call()
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(path := os.path.join(folder, "trace"))
        trace = json.loads(Path(path).read_text())
    events = [event for event in profile.events() if event.name.startswith("switchml:")]
    assert all(event.count == 1 for event in events), events
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.time_range.elapsed_us() / 1e6) for event in events], trace


def names(events):
    return [name.removeprefix("switchml:") for name, _ in events]


def calls():
    dist.all_reduce(torch.ones(2, 3))
    works = [
        dist.broadcast(torch.ones(5, dtype=torch.int64), 0, async_op=True),
        dist.reduce_scatter_tensor(torch.ones(4), torch.ones(4 * ranks), async_op=True),
        dist.all_gather_into_tensor(torch.ones(20_000 * ranks), torch.ones(20_000), async_op=True),
    ]
    for work in works:
        work.wait()
    dist.barrier()


events, trace = profiled(calls)
wanted = ["all_reduce", "broadcast", "reduce_scatter", "all_gather", "barrier"]
assert names(events) == wanted, events
assert any(
    event["name"] == "c10d::allreduce_" and [[2, 3]] in event["args"]["Input Dims"]
    for event in trace["traceEvents"]
), "the shapes are in the trace"


def late():
    """Rank 1 makes the call that long after rank 0."""
    if rank == 1:
        store.wait(["called"])
        time.sleep(LATE)
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    if rank == 0:
        store.set("called", "")
    work.wait()


((_, seconds),), _ = profiled(late)
assert rank != 0 or seconds >= LATE, seconds

# Calls in a backward pass, which nobody waits for by name; and a call that goes to Gloo.
events, _ = profiled(lambda: model(torch.ones(1, 3)).sum().backward())
assert names(events) == ["all_reduce"], events
events, trace = profiled(lambda: dist.reduce(torch.ones(3), 0))
assert names(events) == ["agree"], events
assert any(event["name"] == "gloo:reduce" for event in trace["traceEvents"]), "Gloo tells its own"
# The profiler leaves nothing behind.
dist.all_reduce(torch.ones(3))
dist.barrier()
dist.destroy_process_group()
print("all calls are in the traces", flush=True)
