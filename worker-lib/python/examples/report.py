"""What the examples can be told, and what they print: a line of JSON at a time.

The lines are for whoever compares runs and ranks.
"""

import argparse
import hashlib
import json
import pathlib
import random
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import switchml.torch

# The gradients of one step are saved: a step at which the model has begun to learn.
SAVED_STEP = 40
# Steps between two tests of whether training is over.
TESTED_EVERY = 5
# With --stalls: the share of steps in which a rank stalls, and for how many seconds.
STALLS, STALL = 0.05, 0.2


def options(description, epochs, width=None):
    """What all examples can be told, and a width where there is one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", default="switchml", help="of torch.distributed")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        help="how often to train, each time from other parameters; wide.py trains once",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first parameters")
    parser.add_argument(
        "--until",
        type=float,
        metavar="SHARE",
        help="end a training once so much of the test set is right, and print the seconds until "
        "then, without those of testing; digits.py, text.py and ngram.py",
    )
    if width is not None:
        parser.add_argument("--width", type=int, default=width, help="of the widest layer")
    parser.add_argument(
        "--bucket-cap-mb",
        type=float,
        default=25,
        help="DistributedDataParallel's; 25 is what it has by itself",
    )
    parser.add_argument(
        "--compression",
        choices=["none", "fixed16", "fixed8", "bf16", "powersgd"],
        default="none",
        help="of gradients; fixed8 with error feedback",
    )
    parser.add_argument(
        "--gradients",
        type=pathlib.Path,
        help=f"folder for this rank's gradients of step {SAVED_STEP}, without compression",
    )
    parser.add_argument(
        "--stalls",
        action="store_true",
        help=f"in {STALLS:.0%}% of the steps a rank, drawn at random, sleeps for {STALL} s",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        metavar="SECONDS",
        help="how long steps wait for late ranks [default: for ever]",
    )
    given = parser.parse_args()
    if given.deadline is not None and (given.compression != "none" or given.gradients is not None):
        parser.error("--deadline goes without --compression and --gradients")
    return given


def wrapped(model, options):
    """The model in DDP, with the hook that was asked for."""
    ddp = DistributedDataParallel(
        model, bucket_cap_mb=options.bucket_cap_mb, broadcast_buffers=options.deadline is None
    )
    if options.gradients is not None:
        ddp.register_comm_hook(Saving(options.gradients), Saving.hook)
    elif options.compression == "fixed16":
        ddp.register_comm_hook(None, switchml.torch.fixed16_compress_hook)
    elif options.compression == "fixed8":
        feedback = switchml.torch.ErrorFeedback(ddp)
        ddp.register_comm_hook(feedback, switchml.torch.fixed8_feedback_hook)
    elif options.compression == "bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif options.compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


class Steps:
    """A model's steps, with the stalls and the deadline that were asked for.

        with report.Steps(model, options) as steps:
            for inputs, targets in batches:
                optimizer.zero_grad()
                if steps.begin():
                    loss(model(inputs), targets).backward()
                optimizer.step()

    With stalls it prints when each step begins, and with a deadline what became of this rank's
    contributions.
    """

    def __init__(self, ddp, options):
        # All ranks draw the same, because each goes through all steps.
        self._drawn = random.Random(torch.initial_seed()) if options.stalls else None
        self._deadline = None
        # Steps that were over without this rank, and buckets that it brought.
        self._missed, self._brought = 0, 0
        if options.deadline is not None:
            self._deadline = switchml.torch.Deadline(ddp, options.deadline)
            ddp.register_comm_hook(self, Steps._average)

    def _average(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._brought += 1
        return switchml.torch.deadline_hook(self._deadline, bucket)

    def begin(self):
        """Whether there is something to compute: the next step is not over without this rank."""
        if self._drawn is not None:
            say(begin=time.time())
        missed = self._deadline is not None and self._deadline.take_missed()
        self._missed += missed
        if self._drawn is not None:
            rank = self._drawn.randrange(dist.get_world_size())
            if self._drawn.random() < STALLS and rank == dist.get_rank():
                time.sleep(STALL)
        return not missed

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self._deadline is None:
            return
        self._deadline.__exit__(kind, error, trace)
        if kind is None:
            counts = self._deadline.counts._asdict()
            say(contributions={"missed": self._missed, "brought": self._brought, **counts})


class Saving:
    """Files of a step's gradients, as f32 in native order."""

    def __init__(self, folder):
        self.folder, self.calls = folder, {}
        folder.mkdir(parents=True, exist_ok=True)

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        call = self.calls[bucket.index()] = self.calls.get(bucket.index(), 0) + 1
        if call == SAVED_STEP:
            name = f"{bucket.index()}-{dist.get_rank()}.f32"
            bucket.buffer().numpy().tofile(self.folder / name)
        return default_hooks.allreduce_hook(None, bucket)


def digest(model):
    """Equal if and only if all parameters are, bit for bit."""
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().numpy())
    return bits.hexdigest()


def seeds(options):
    """A seed for each training."""
    return range(options.seed, options.seed + options.seeds)


def say_step(loss, model, options):
    """Prints what is known after a step. Digests are left out where training is timed."""
    if options.until is None:
        say(loss=loss.item(), parameters=digest(model))
    else:
        say(loss=loss.item())


class Test:
    """Data that a model in DDP is not trained with, and whether training may end."""

    def __init__(self, model, inputs, targets, options):
        self.model, self.inputs, self.targets = model, inputs, targets.flatten()
        self.until = options.until
        self.steps, self.seconds = 0, 0.0
        self.since = time.perf_counter()

    def is_passed(self):
        """Whether training is over after this step: rank 0 tests, and tells the others."""
        self.steps += 1
        if self.until is None or self.steps % TESTED_EVERY != 0:
            return False
        self.seconds += time.perf_counter() - self.since
        share = torch.zeros(1)
        if dist.get_rank() == 0:
            share += self._share(self._guesses())
        dist.broadcast(share, 0)
        self.since = time.perf_counter()
        passed = share.item() >= self.until
        if passed:
            say(seconds=self.seconds)
        return passed

    def say(self):
        """Prints loss and share of what is right in the end."""
        guesses = self._guesses()
        say(test_loss=torch.nn.functional.cross_entropy(guesses, self.targets).item())
        say(accuracy=self._share(guesses).item())

    def _guesses(self):
        self.model.eval()
        with torch.no_grad():
            guesses = self.model.module(self.inputs).flatten(0, -2)
        self.model.train()
        return guesses

    def _share(self, guesses):
        return (guesses.argmax(1) == self.targets).float().mean()


def say(**what):
    """Prints a line."""
    print(json.dumps(what), flush=True)
