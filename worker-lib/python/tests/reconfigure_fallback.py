"""A rank of a group that is reconfigured without an aggregator, with Gloo instead, and with one.

Arguments: a folder that all share, and an address where no aggregator is.
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import switchml.torch

folder, nowhere = sys.argv[1:]
aggregator = os.environ["SWITCHML_AGGREGATOR"]
rank, size = int(os.environ["RANK"]), 3
store = dist.FileStore(f"{folder}/store")


def reconfigure(uuid, handles):
    dist._reconfigure(uuid, handles, timeout=timedelta(seconds=60)).wait()


def meet(when):
    store.set(f"{when}/{rank}", "")
    for other in range(size):
        store.get(f"{when}/{other}")


def sums_are_right(ranks):
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    expected = sum(range(1, ranks + 1))
    assert torch.equal(tensor, torch.full((1000,), float(expected))), tensor


def calls_in_the_network():
    try:
        return switchml.torch.statistics()["calls"]
    except ValueError:
        return None


def go_on_without_rank_2(uuid, call):
    """That never makes this call, and its process goes on: the others do not wait for it."""
    if rank < 2:
        call()
        begin = time.monotonic()
        reconfigure(uuid, handles[:2])
        sums_are_right(2)
        assert time.monotonic() - begin < 30
    meet(f"after {uuid}")


dist.init_process_group(
    "switchml", store=store, rank=rank, world_size=size, enable_reconfigure=True
)
store.set(f"handle/{rank}", dist._get_reconfigure_handle())
handles = [store.get(f"handle/{other}").decode() for other in range(size)]

os.environ["SWITCHML_AGGREGATOR"] = nowhere
try:
    reconfigure(1, handles)
    raise SystemExit("there is an aggregator")
except dist.DistBackendError as error:
    text = str(error)
    assert f"no aggregator answers at {nowhere}" in text, text
    assert "\n" not in text and text.endswith("give host or host:port)"), text

os.environ["SWITCHML_FALLBACK"] = "gloo"
reconfigure(2, handles)
sums_are_right(size)
assert calls_in_the_network() is None
assert dist.get_backend() == "switchml"
go_on_without_rank_2(3, lambda: dist.all_reduce(torch.ones(5), async_op=True))

os.environ["SWITCHML_AGGREGATOR"] = ""
reconfigure(4, handles)
sums_are_right(size)
assert calls_in_the_network() == 1

os.environ["SWITCHML_AGGREGATOR"] = aggregator
reconfigure(5, handles)
sums_are_right(size)
assert calls_in_the_network() == 1
meet("summed")
# Small ones go to Gloo.
gathered = [torch.ones(1) for _ in range(size)]
go_on_without_rank_2(6, lambda: dist.all_gather(gathered, torch.ones(1), async_op=True))
print("all sums are right", flush=True)
# Gloo's calls without rank 2 never end.
os._exit(0)
