"""One rank of the benchmark with Gloo, by torch.distributed.

xtask/src/bench/team.rs says what it is told, and what it prints.

Arguments: rank, number of ranks, file of the rendezvous, file of commands.
"""

import json
import sys
import time

import torch
import torch.distributed as dist


def pattern(rank, count):
    """The elements of a rank: sums of them are exact in f32."""
    i = torch.arange(count, dtype=torch.int64)
    return ((i * 40503 + rank * 9973) % 65521 - 32760).float() / 32768


def machine_ticks():
    """Ticks in which the processors were not ours (idle, waiting, stolen), and those in softirq."""
    with open("/proc/stat") as stat:
        fields = [int(field) for field in stat.readline().split()[1:]]
    return fields[3] + fields[4] + fields[7], fields[6]


def agree(value, op):
    """A number of all ranks."""
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor, op)
    return tensor.item()


def measure(rank, ranks, copies, count, warmup, iters, broadcast):
    def call(tensor):
        if broadcast:
            dist.broadcast(tensor, 0)
        else:
            dist.all_reduce(tensor)

    mine = pattern(rank, count)
    tensors = [mine.clone() for _ in range(copies)]
    dist.barrier()
    for i in range(warmup):
        call(tensors[i % copies])
    dist.barrier()
    ticks, cpu, begin = machine_ticks(), time.process_time(), time.perf_counter()
    for i in range(warmup, warmup + iters):
        call(tensors[i % copies])
    seconds = time.perf_counter() - begin
    cpu, ticks_after = time.process_time() - cpu, machine_ticks()
    last = warmup + iters - 1
    if broadcast:
        expected = pattern(0, count)
    else:
        total = sum(pattern(other, count) for other in range(ranks))
        expected = total * float(ranks) ** (last // copies)
    return {
        "wrong": int(agree(float((tensors[last % copies] != expected).sum()), dist.ReduceOp.SUM)),
        "seconds": agree(seconds, dist.ReduceOp.MAX),
        "reporter_seconds": seconds,
        "process_seconds": agree(cpu, dist.ReduceOp.SUM),
        "idle_ticks": ticks_after[0] - ticks[0],
        "softirq_ticks": ticks_after[1] - ticks[1],
    }


def main():
    rank, ranks, rendezvous, commands = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    # One thread, as with torchrun.
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    with open(commands) as lines:
        for line in lines:
            number, *command = (int(word) for word in line.split())
            result = measure(rank, ranks, *command)
            if rank == 0:
                print(json.dumps({"command": number, **result}, separators=(",", ":")), flush=True)


main()
