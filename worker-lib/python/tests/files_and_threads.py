"""What a process group takes of its process: open files and threads, of Gloo's groups and of ours.

Argument: the number of groups to make under the usual limit of 1024 open files. Prints, as JSON,
the most that a further group of each backend took, and the number of groups made.
"""

import collections
import json
import os
import resource
import sys

import torch
import torch.distributed as dist

# The soft limit of most systems; the hard one is larger.
USUAL = 1024
# Groups before those that are counted, and groups that are.
FIRST, COUNTED = 2, 3

resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
sum_of_ranks = ranks * (ranks - 1) / 2


def now() -> tuple[collections.Counter, collections.Counter]:
    """Open files and threads, by what they are."""
    files, threads = collections.Counter(), collections.Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            files[os.readlink(f"/proc/self/fd/{number}").partition("[")[0]] += 1
        except FileNotFoundError:
            # It was that of the folder.
            pass
    for number in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{number}/comm") as name:
            threads[name.read().strip()] += 1
    return files, threads


def summed(backend: str) -> dist.ProcessGroup:
    """A group that has made a call."""
    group = dist.new_group(backend=backend)
    # More than one thread's share of a call.
    tensor = torch.full((1 << 20,), float(rank))
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, torch.full_like(tensor, sum_of_ranks)), tensor
    return group


def most(backend: str) -> tuple[int, int]:
    """The most files, and the most threads, that one more group takes."""
    groups = [summed(backend) for _ in range(FIRST)]
    files, threads = 0, 0
    for _ in range(COUNTED):
        dist.barrier(groups[0])
        before = now()
        groups.append(summed(backend))
        dist.barrier(groups[0])
        more = [after - earlier for after, earlier in zip(now(), before)]
        print(f"{backend}: {more}", file=sys.stderr)
        files, threads = max(files, more[0].total()), max(threads, more[1].total())
    for group in groups:
        dist.destroy_process_group(group)
    return files, threads


counts = {backend: most(backend) for backend in ("gloo", "switchml")}
made = [summed("switchml") for _ in range(int(sys.argv[1]))]
print(json.dumps({**counts, "groups": len(made)}), flush=True)
dist.barrier()
dist.destroy_process_group()
