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
    # Each step needs few rows of the table: the gradients of the others are zero.
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



def bounds(bits, chunk):
    """How far an average of a chunk of all ranks' gradients may be off, an element and in RMS.

    In 16 bits: a step of 2^(E+L-14) on each rank, rounded to the nearest. In 8 bits the chunk's
    rotated elements are below 8 times the norm of their column in all but one chunk in 10^8
    (Hoeffding's inequality), and B is up to a sixteenth above them; a rank's share is K steps of
    2B / K, evenly rounded, and the rotation spreads that over the 128 elements of a column.
    """
    if bits == 16:
        worst = chunk.abs().max() * 2.0 ** ((ranks - 1).bit_length() - 15)
        return worst, worst
    columns = torch.nn.functional.pad(chunk, (0, -chunk.shape[1] % 128)).view(ranks, 128, -1)
    limit = 17 / 16 * 8 * columns.norm(dim=1).max()
    step = 2 * limit / (255 // ranks)
    return step / 2, step / (12 * 128) ** 0.5


def errors_are_bounded(bits):
    """Compresses random gradients of different magnitudes, and holds them against the truth."""
    lanes = switchml.torch._group.group_of(None)._communicator.info["chunk_lanes"]
    length = lanes * 32 // bits
    generator = torch.Generator().manual_seed(200 + rank)
    count = 20 * length + 77
    gradients = torch.randn(count, generator=generator) * torch.logspace(0, -6, count)
    every = [torch.empty(0)] * ranks
    dist.all_gather_object(every, gradients)
    model = DistributedDataParallel(torch.nn.Linear(count, 1, bias=False), bucket_cap_mb=100)
    hooks = {16: switchml.torch.fixed16_compress_hook, 8: switchml.torch.fixed8_compress_hook}
    model.register_comm_hook(None, hooks[bits])
    model(gradients).sum().backward()
    errors = model.module.weight.grad[0].double() - torch.stack(every).double().mean(0)
    chunks = zip(errors.split(length), torch.stack(every).double().split(length, 1))
    for error, chunk in chunks:
        worst, root_mean_square = bounds(bits, chunk)
        rounding = 2.0**-22 * chunk.abs().max()
        found = error.abs().max(), error.square().mean().sqrt()
        print(bits, *(f"{x:.1e}" for x in (*found, worst, root_mean_square)), flush=True)
        assert found[0] <= worst + rounding, f"{bits} bits: {found[0]} of {worst}"
        assert found[1] <= root_mean_square + rounding, f"{bits} bits: {found[1]} in RMS"
        assert found[1] > worst / 1000, "too good to be true: not compressed"


errors_are_bounded(16)
errors_are_bounded(8)

hooks = [
    default_hooks.allreduce_hook,
    default_hooks.fp16_compress_hook,
    default_hooks.bf16_compress_hook,
]
# The share of packets that these hooks need.
fewer = {switchml.torch.fixed16_compress_hook: 0.6, switchml.torch.fixed8_compress_hook: 0.35}
for hook in (*hooks, *fewer):
    losses, others = train(hook)
    print(hook.__name__, losses[0], losses[-1], others, flush=True)
    if hook is switchml.torch.fixed8_compress_hook:
        # The errors of its gradients are tested above; here is tested that it learns.
        assert losses[-1] < 0.7 * losses[0], losses
    else:
        assert max(abs(a - b) for a, b in zip(plain, losses)) < 0.005, (
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
