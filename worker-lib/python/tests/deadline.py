"""A rank whose steps have a deadline, in a job of 3 in which rank 1 stalls until others are ahead.

Each rank's gradient of a step is a 1 in a place of its own, so averages say whose gradients of
which steps are in. Which ranks are late besides is up to the machine, so all that a test can say
of these is that sums are what the ranks were told. The argument is a folder for files.
"""

import hashlib
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from switchml.torch import Deadline, deadline_hook

folder = Path(sys.argv[1])
dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
STEPS = 40
# As in the documentation.
AHEAD = 8


def reach(name):
    (folder / name).touch()


def until(name):
    while not (folder / name).exists():
        time.sleep(0.01)


class Known(torch.nn.Module):
    """Each of its buckets has the gradient of a rank in a step at a place of its own."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(STEPS * ranks + 3000))
        self.second = torch.nn.Parameter(torch.zeros(STEPS * ranks + 5000))

    def forward(self, at, between):
        first = self.first[at] * 1
        # The backward pass comes to the second parameter first.
        first.register_hook(lambda _: between())
        return first + self.second[at]


def stall(step, between):
    """Where rank 1 waits until rank 0 has made steps without it."""
    if rank != 1:
        return
    if (step, between) == (10, False):
        until("made 12")
    if (step, between) == (15, True):
        until("made 15")
    if (step, between) == (25, False):
        # All steps that others can make alone, and some time for more.
        until(f"made {24 + AHEAD}")
        time.sleep(1)
        assert not (folder / f"made {25 + AHEAD}").exists(), "the others are too far ahead"


def taken(gradients, counts):
    """Which ranks' gradients of which steps are in an average over so many."""
    known = gradients[: STEPS * ranks]
    assert not gradients[STEPS * ranks :].any(), "gradients that no rank brought"
    share = 1 / max(1, counts)
    assert (((known - share).abs() < 1e-6) | (known == 0)).all(), (known.unique(), share)
    return {divmod(at, ranks) for at in known.nonzero().flatten().tolist()}


def train(model, deadline):
    """For each step: by bucket whose gradients are said to be in, and which ones are."""
    for step in range(STEPS):
        model.zero_grad()
        missed = deadline.take_missed()
        if not missed:
            stall(step, False)
            model(step * ranks + rank, lambda: stall(step, True)).backward()
        # DDP begins with one bucket for all.
        said = (deadline.ranks * 2)[:2] if step == 0 else deadline.ranks
        assert len(said) == 2, said
        parts = [model.module.second.grad, model.module.first.grad]
        found = [taken(part, len(who)) for part, who in zip(parts, said)]
        yield missed, said, found
        if rank == 0:
            reach(f"made {step}")
        if step == 20:
            # A pause in which no rank is in a step makes no steps.
            dist.barrier()
            time.sleep(1)


def check_ranks_gradients(arrived, missed, bucket, of):
    """At which steps a rank's gradients of each step arrived, and which steps it missed."""
    for step in range(STEPS):
        assert arrived[step] is None or not missed[step], f"rank {of} missed step {step}"
    for step in range(STEPS):
        in_time = [later for later in range(step, STEPS) if arrived[later] == later]
        if not missed[step] and in_time:
            assert arrived[step] is not None, f"step {step} of rank {of} is lost"
            assert arrived[step] <= in_time[0], "it came later than it could"
    if of != 1:
        return
    # What rank 1 stalled in, unless the machine was so slow that it missed that, too.
    if not missed[10]:
        assert arrived[10] > 12 and missed[11], (arrived, missed)
    if not missed[15]:
        assert arrived[15] > 15 if bucket == 1 else arrived[15] >= 15, arrived
    if not missed[25]:
        assert arrived[25] > 24 + AHEAD and all(missed[26 : 24 + AHEAD]), (arrived, missed)


def everywhere(value):
    values = [None] * ranks
    dist.all_gather_object(values, value)
    return values


def late_gradients_arrive_once():
    # A bucket for each parameter.
    model = DistributedDataParallel(Known(), bucket_cap_mb=0.01)
    with Deadline(model, 0.3) as deadline:
        model.register_comm_hook(deadline, deadline_hook)
        steps = list(train(model, deadline))
    assert not any("deadline" in thread.name for thread in threading.enumerate())

    # All ranks saw the same, but for the steps that they missed.
    seen = everywhere([(said, found) for _, said, found in steps])
    assert all(other == seen[0] for other in seen)
    missed = everywhere([missed for missed, _, _ in steps])
    # DDP begins with one bucket for all, which is found twice.
    in_time, late = [-1] * ranks, [0] * ranks
    for bucket in range(2):
        arrived = {}
        for step, (_, said, found) in enumerate(steps):
            assert {of for _, of in found[bucket]} == set(said[bucket]), (step, said, found)
            for gradient in found[bucket]:
                assert gradient not in arrived, f"{gradient} came twice"
                assert gradient[0] <= step
                arrived[gradient] = step
                counts = late if step > gradient[0] else in_time
                counts[gradient[1]] += 1
        for of in range(ranks):
            check_ranks_gradients(
                [arrived.pop((step, of), None) for step in range(STEPS)], missed[of], bucket, of
            )
        assert not arrived, arrived
    counted = everywhere(tuple(deadline.counts))
    assert [counts[:2] for counts in counted] == list(zip(in_time, late)), (counted, in_time, late)
    for step, (_, _, found) in enumerate(steps):
        assert any(of == step for of, _ in found[0]), f"no rank was in step {step}"
    assert everywhere(digest(model)) == [digest(model)] * ranks


def digest(model):
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().numpy())
    return bits.hexdigest()


def trained(seconds):
    """The parameters' bits after each step, without the hook if there is no deadline."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(60, 200), torch.nn.Tanh(), torch.nn.Linear(200, 9)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    deadline = Deadline(model, seconds) if seconds else None
    if deadline:
        model.register_comm_hook(deadline, deadline_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    bits = []
    for _ in range(10):
        optimizer.zero_grad()
        if deadline:
            assert not deadline.take_missed()
        model(torch.randn(8, 60, generator=generator)).square().sum().backward()
        optimizer.step()
        bits.append(digest(model))
        if deadline:
            assert deadline.ranks == [[0, 1, 2]] * len(deadline.ranks) != [], deadline.ranks
    if deadline:
        deadline.close()
    return bits


def another_model_is_refused():
    model, other = (DistributedDataParallel(torch.nn.Linear(2, 1)) for _ in range(2))
    with Deadline(model, 3600) as deadline:
        for one in (model, other):
            one.register_comm_hook(deadline, deadline_hook)
        for _ in range(4):
            model(torch.ones(1, 2)).backward()
        try:
            other(torch.ones(1, 2)).backward()
        except (RuntimeError, ValueError) as error:
            assert "each model needs a Deadline of its own" in str(error), error
            return
    raise SystemExit("another model was accepted")


def complaint(model, seconds):
    try:
        Deadline(model, seconds)
    except ValueError as error:
        return str(error)
    raise SystemExit(f"{model} was accepted with {seconds} s")


late_gradients_arrive_once()
assert trained(3600) == trained(None), "other bits without late ranks"
another_model_is_refused()
linear = torch.nn.Linear(2, 2)
assert "a Linear" in complaint(linear, 1)
assert "above 0" in complaint(DistributedDataParallel(linear), float("nan"))
assert "above 0" in complaint(DistributedDataParallel(linear), 0)
assert "broadcast_buffers=False" in complaint(
    DistributedDataParallel(torch.nn.Sequential(linear, torch.nn.BatchNorm1d(2))), 1
)
assert "find_unused_parameters" in complaint(
    DistributedDataParallel(linear, find_unused_parameters=True), 1
)
dist.destroy_process_group()
print("all that was late came once", flush=True)
