"""What the examples can be told, and what they print: a line of JSON at a time.

The lines are for whoever compares runs and ranks.
"""

import argparse
import hashlib
import json
import pathlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import switchml.torch

# The gradients of one step are saved: a step at which the model has begun to learn.
SAVED_STEP = 40


def options(description, epochs):
    """What all examples can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", default="switchml", help="of torch.distributed")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        help="how often to train, each time from other parameters; wide.py trains once",
    )
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
    return parser.parse_args()


def wrapped(model, options):
    """The model in DDP, with the hook that was asked for."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=options.bucket_cap_mb)
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


def say_tested(guesses, targets):
    """Prints what came of data that it was not trained with."""
    loss = torch.nn.functional.cross_entropy(guesses, targets)
    say(test_loss=loss.item())
    say(accuracy=(guesses.argmax(1) == targets).float().mean().item())


def say(**what):
    """Prints a line."""
    print(json.dumps(what), flush=True)
