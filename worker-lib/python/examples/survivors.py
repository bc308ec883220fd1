"""Trains on when ranks are lost, without a restart.

    RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=29500 python survivors.py   # and so on

After every `--lose` steps the last rank kills itself. The others repeat the step without it. All
batches are the same however many share them, and so are the parameters in the end; in an epoch each
example is in one of them. Prints a line of JSON for each step.
"""

import argparse
import json
import os
import signal
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

import switchml.torch

# Of all ranks together: 1 to 4 ranks get equal parts.
BATCH = 96

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--lose", type=int, default=0, help="a rank after so many steps; 0: none")
options = parser.parse_args()

dist.init_process_group("switchml")
digits = load_digits()
# An epoch's batches, all of them whole.
batches = len(digits.target) // BATCH
images = torch.tensor(digits.images, dtype=torch.float32).view(-1, 64)[: batches * BATCH] / 16
labels = torch.tensor(digits.target)[: batches * BATCH]
torch.manual_seed(1)
# Without kinks, where a last bit may decide: losses differ by no more than rounding.
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
training = nn.parallel.DistributedDataParallel(model)


def examples(step):
    """This rank's part of the step's batch, which depends on nothing but the step."""
    epoch, batch = divmod(step, batches)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    return order.view(batches, BATCH)[batch, dist.get_rank() :: dist.get_world_size()]


def say(**what):
    print(json.dumps(what), flush=True)


def train(step):
    """One step. Returns the loss of the whole batch."""
    part = examples(step)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(training(images[part]), labels[part])
    loss.backward()
    dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
    optimizer.step()
    return loss.item()


def go_on(step, lost):
    """Trains on without the lost ranks. Returns with which step."""
    global training
    switchml.torch.regroup(lost)
    # A rank may have finished the step that has failed on others, which take over its state.
    size = dist.get_world_size()
    furthest = torch.tensor(step * size + dist.get_rank())
    dist.all_reduce(furthest, dist.ReduceOp.MAX)
    step, ahead = divmod(furthest.item(), size)
    for parameter in model.parameters():
        momentum = optimizer.state[parameter].setdefault(
            "momentum_buffer", torch.zeros_like(parameter)
        )
        dist.broadcast(parameter.data, ahead)
        dist.broadcast(momentum, ahead)
    training = nn.parallel.DistributedDataParallel(model)
    return step


step, failure = 0, None
while step < options.steps:
    is_last = dist.get_rank() == dist.get_world_size() - 1 > 0
    if options.lose and is_last and step and step % options.lose == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if failure is not None:
            step, failure = go_on(step, failure.ranks), None
        loss = train(step)
        step += 1
        say(step=step, loss=loss, ranks=dist.get_world_size(), time=time.time())
    except dist.DistBackendError as error:
        say(failed=str(error), time=time.time())
        failure = error
dist.destroy_process_group()
