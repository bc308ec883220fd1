"""A rank whose gradients are known numbers, averaged in 8 bits with and without error feedback.

The expected values are sums of those numbers.
"""

import io
import pickle

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import switchml.torch
from switchml.torch import ErrorFeedback

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
STEPS = 60


class Known(torch.nn.Module):
    """Its gradients are its inputs. They come in another order than DDP supposes at first."""

    SIZES = {"first": 3000, "second": 1000, "third": 2000, "fourth": 500}

    def __init__(self, dtype=torch.float32):
        super().__init__()
        for name, size in self.SIZES.items():
            setattr(self, name, torch.nn.Parameter(torch.zeros(size, dtype=dtype)))

    def forward(self, inputs):
        total = torch.zeros(())
        for name in reversed(self.SIZES):
            total = total + (getattr(self, name) * inputs[name].to(self.first.dtype)).sum()
        return total


def inputs(step, of=rank):
    """Of very different magnitudes, and with a part that all ranks have in every step."""
    generator = torch.Generator().manual_seed(int(1000 * step) + of)
    return {
        name: torch.randn(size, generator=generator) * torch.logspace(0, -3, size) + 0.1
        for name, size in Known.SIZES.items()
    }


def wrapped(model, group=None):
    # Two parameters in a bucket, more or less.
    return DistributedDataParallel(model, bucket_cap_mb=0.012, process_group=group)


def sent(model, steps):
    """The gradients of steps, all in f64, one after the other. In every third two are summed."""
    for step in steps:
        model.zero_grad()
        if step % 3 == 0:
            with model.no_sync():
                model(inputs(step + 0.5)).backward()
        model(inputs(step)).backward()
        yield torch.cat([getattr(model.module, name).grad for name in Known.SIZES]).double()


def truth():
    """What all ranks' gradients are together, divided by the number of ranks."""
    total = 0
    for step in range(STEPS):
        for seed in [step, step + 0.5][: 1 + (step % 3 == 0)]:
            for other in range(ranks):
                total = total + torch.cat(list(inputs(seed, other).values())).double()
    return total / ranks


def average(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    return tensor


def lost(state):
    """The residuals of all ranks, averaged, in the parameters' order."""
    residuals = state.state_dict()["residuals"]
    assert set(residuals) == set(Known.SIZES), residuals.keys()
    return average(torch.cat([residuals[name] for name in Known.SIZES]).double())


def worst(difference):
    return difference.abs().max().item()


# The last residuals hold exactly what the sum lacks, apart from roundings of f32 in 60 steps of
# magnitudes below 8, by 2^-20 each. DDP makes other buckets after the first step.
plain = wrapped(Known())
state = ErrorFeedback(plain)
buckets = set()


def watching_hook(state: ErrorFeedback, bucket: dist.GradBucket) -> torch.futures.Future[
    torch.Tensor
]:
    buckets.add(tuple(parameter.numel() for parameter in bucket.parameters()))
    return switchml.torch.fixed8_feedback_hook(state, bucket)


plain.register_comm_hook(state, watching_hook)
before = switchml.torch.statistics()["chunks"]
total = sum(sent(plain, range(STEPS)))
packets = switchml.torch.statistics()["chunks"] - before
with_feedback = worst(total + lost(state) - truth())
roundings = STEPS * 8 * 2**-20
assert with_feedback < roundings, f"{with_feedback} of {roundings}"
assert len(buckets) > 2 and sum(map(sum, buckets)) > 6500, f"the same buckets: {buckets}"
owed = worst(lost(state))
assert 0 < owed < 0.5, owed

# Without feedback, errors pile up.
other = wrapped(Known())
other.register_comm_hook(None, switchml.torch.fixed8_compress_hook)
without = worst(sum(sent(other, range(STEPS))) - truth())
assert without > 20 * roundings, f"{without}, and with feedback {with_feedback}"

# f16 loses no more than its own roundings, one per step.
halves = wrapped(Known(torch.float16))
state_of_halves = ErrorFeedback(halves.module)
halves.register_comm_hook(state_of_halves, switchml.torch.fixed8_feedback_hook)
in_f16 = worst(sum(sent(halves, range(STEPS))) + lost(state_of_halves) - truth())
print(with_feedback, roundings, owed, without, in_f16, packets, buckets, flush=True)
assert in_f16 < STEPS * 8 * 2**-11, in_f16

# A checkpoint goes on with the same bits as the state that it was taken of.
file = io.BytesIO()
torch.save(state.state_dict(), file)
file.seek(0)
later = range(STEPS, STEPS + 5)


def bits(state, model):
    """In a group of its own: the dither is another for each call of a group."""
    group = dist.new_group()
    state.process_group = group
    model = wrapped(model, group)
    model.register_comm_hook(state, switchml.torch.fixed8_feedback_hook)
    return list(sent(model, later)), state.state_dict()["residuals"]


expected, left = bits(state, plain.module)
restored = Known()
again = ErrorFeedback(restored)
again.load_state_dict(torch.load(file))
found, left_again = bits(again, restored)
assert all(torch.equal(a, b) for a, b in zip(expected, found)), "other gradients"
assert left.keys() == left_again.keys() and all(torch.equal(left[k], left_again[k]) for k in left)
fresh = Known()
forgetful, _ = bits(ErrorFeedback(fresh), fresh)
assert not torch.equal(expected[0], forgetful[0]), "the residuals made no difference"


def complaint(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    raise SystemExit(f"{call} was accepted")


saved = state.state_dict()
wrong = {**saved, "rank": (rank + 1) % ranks}
text = complaint(lambda: again.load_state_dict(wrong), ValueError)
assert text == (
    f"residuals of rank {(rank + 1) % ranks} of {ranks}, and this is rank {rank} of {ranks}; load "
    "what this rank saved, or nothing"
), text
wrong = {**saved, "residuals": {"first": torch.zeros(7)}}
text = complaint(lambda: again.load_state_dict(wrong), ValueError)
assert text.startswith("a residual of first, of shape (7,)"), text
text = complaint(lambda: pickle.dumps(state), TypeError)
assert text.endswith("save its state_dict()"), text
dist.destroy_process_group()
