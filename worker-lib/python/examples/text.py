"""Trains a small transformer to guess the next character of text that it makes itself.

    torchrun --nnodes 4 --node-rank 0 --master-addr a --master-port 29500 text.py
"""

import report
import torch
import torch.distributed as dist
from sentences import ALPHABET, text
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CONTEXT = 64


def pieces(seed, length):
    """Inputs and targets: so many pieces of text, and for each character the one that follows."""
    characters = text(seed, length * CONTEXT + 1)
    return TensorDataset(
        characters[:-1].view(length, CONTEXT), characters[1:].view(length, CONTEXT)
    )


class Transformer(nn.Module):
    """Two layers that look back only."""

    def __init__(self, width):
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(width, len(ALPHABET))

    def forward(self, inputs):
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        there = self.characters(inputs) + self.places.weight
        return self.output(self.layers(there, mask=mask, is_causal=True))


options = report.options(__doc__, epochs=8, width=64)
dist.init_process_group(options.backend)

train, test = pieces(1, 1024), pieces(2, 256)


def train_once(seed):
    """From the first parameters that the seed gives."""
    torch.manual_seed(seed)
    model = report.wrapped(Transformer(options.width), options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = DistributedSampler(train)
    batches = DataLoader(train, batch_size=8, sampler=sampler)
    tested = report.Test(model, *test.tensors, options)

    with report.Steps(model, options) as steps:
        for epoch in range(options.epochs):
            sampler.set_epoch(epoch)
            for inputs, targets in batches:
                optimizer.zero_grad()
                if steps.begin():
                    guesses = model(inputs).flatten(0, 1)
                    loss = nn.functional.cross_entropy(guesses, targets.flatten())
                    loss.backward()
                optimizer.step()
                report.say_step(loss, model, options)
                if tested.is_passed():
                    return
    tested.say()


for seed in report.seeds(options):
    train_once(seed)
dist.destroy_process_group()
