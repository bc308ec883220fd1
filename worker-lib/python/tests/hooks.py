"""A rank that trains one model several times, with and without torch's hooks that compress.

It compares losses, parameters and packets.
"""

import hashlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import switchml.torch

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()


def train(hook):
    """Losses by step, and how many packets the gradients took."""
    torch.manual_seed(1)
    # Of the table's rows each step needs few: the gradients of the others are zero.
    model = torch.nn.Sequential(
        torch.nn.EmbeddingBag(2000, 64),
        torch.nn.Linear(64, 300),
        torch.nn.ReLU(),
        torch.nn.Linear(300, 4),
    )
    model = DistributedDataParallel(model, bucket_cap_mb=0.1)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    generator = torch.Generator().manual_seed(100 + rank)
    losses, before = [], switchml.torch.statistics()
    for step in range(40):
        words = torch.randint(0, 40, (64, 5), generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(words), words.amax(1) // 10)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    after = switchml.torch.statistics()
    bits = hashlib.sha256(
        b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    ).hexdigest()
    digests = [None] * ranks
    dist.all_gather_object(digests, bits)
    assert digests == [bits] * ranks, f"{hook}: the parameters differ between ranks"
    return losses, {
        key: after[key] - before[key] for key in ("bytes", "chunks", "skipped", "skipped_bytes")
    }


plain, packets = train(None)
print(plain[0], plain[-1], packets, flush=True)
assert plain[-1] < 0.7 * plain[0], f"it learns: {plain}"
# Nine rows of ten, and their packets, are zero; more than half of the gradients are.
assert 2 * packets["skipped_bytes"] > packets["bytes"], packets

hooks = [
    default_hooks.allreduce_hook,
    default_hooks.fp16_compress_hook,
    default_hooks.bf16_compress_hook,
]
# Which part of the packets they take.
fewer = {switchml.torch.fixed16_compress_hook: 0.6, switchml.torch.fixed8_compress_hook: 0.35}
for hook in (*hooks, *fewer):
    losses, others = train(hook)
    print(hook.__name__, losses[0], losses[-1], others, flush=True)
    bound = 0.05 if hook is switchml.torch.fixed8_compress_hook else 0.005
    assert max(abs(a - b) for a, b in zip(plain, losses)) < bound, (
        f"{hook.__name__}: {losses} for {plain}"
    )
    if hook in fewer:
        assert others["chunks"] < fewer[hook] * packets["chunks"], (
            f"fewer packets: {others} for {packets}"
        )

# A gradient of f64 is not compressed.
model = DistributedDataParallel(torch.nn.Linear(1000, 1, dtype=torch.float64))
model.register_comm_hook(None, switchml.torch.fixed16_compress_hook)
model(torch.full((1, 1000), 1.0 + rank * 2**-40, dtype=torch.float64)).sum().backward()
mean = sum(1.0 + other * 2**-40 for other in range(ranks)) / ranks
assert (model.module.weight.grad == mean).all(), model.module.weight.grad
dist.destroy_process_group()
