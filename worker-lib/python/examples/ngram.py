"""Trains 11 million parameters to guess the next character of text from the 32 before it.

(Bengio et al., "A neural probabilistic language model", 2003.)

    torchrun --nnodes 4 --node-rank 0 --master-addr a --master-port 29500 ngram.py
"""

import report
import torch
import torch.distributed as dist
from sentences import ALPHABET, text
from torch import nn

CONTEXT = 32
STEPS = 60
BATCH = 64

options = report.options(__doc__, epochs=4, width=3072)
dist.init_process_group(options.backend)

train, test = text(1, 64 * 1024), text(2, 16 * 1024)
# Sizes of a character, of the first layer, and of the second layer.
sizes = [64, options.width, options.width // 2]


def at(characters, ends):
    """The characters before each of these places."""
    return characters[ends.unsqueeze(1) + torch.arange(-CONTEXT, 0)]


def train_once(seed):
    """From the first parameters that the seed gives."""
    torch.manual_seed(seed)
    places = torch.Generator().manual_seed(3 + dist.get_rank())
    model = nn.Sequential(
        nn.Embedding(len(ALPHABET), sizes[0]),
        nn.Flatten(),
        nn.Linear(CONTEXT * sizes[0], sizes[1]),
        nn.ReLU(),
        nn.Linear(sizes[1], sizes[2]),
        nn.ReLU(),
        nn.Linear(sizes[2], len(ALPHABET)),
    )
    model = report.wrapped(model, options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ends = torch.arange(CONTEXT, len(test), 4)
    tested = report.Test(model, at(test, ends), test[ends], options)

    with report.Steps(model, options) as steps:
        for epoch in range(options.epochs):
            for step in range(STEPS):
                ends = torch.randint(CONTEXT, len(train), (BATCH,), generator=places)
                optimizer.zero_grad()
                if steps.begin():
                    loss = nn.functional.cross_entropy(model(at(train, ends)), train[ends])
                    loss.backward()
                optimizer.step()
                report.say(loss=loss.item())
                if tested.is_passed():
                    return
            report.say(parameters=report.digest(model))
    tested.say()


for seed in report.seeds(options):
    train_once(seed)
dist.destroy_process_group()
