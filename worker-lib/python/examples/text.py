"""Trains a small transformer to guess the next character of text that it makes itself.

    torchrun --nnodes 4 --node-rank 0 --master-addr a --master-port 29500 text.py
"""

import random

import report
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CONTEXT = 64
ALPHABET = " .abcdefghijklmnopqrstuvwxyz"
NOUNS = ["cat", "dog", "bird", "fox", "hen", "goat"]
VERBS = ["see", "call", "follow", "help", "find"]


def sentence(draw):
    """A verb's ending follows from its subject; the second clause turns the first one round."""
    subject, object_ = draw.sample(NOUNS, 2)
    verb, (many, are_many) = draw.choice(VERBS), (draw.random() < 0.5, draw.random() < 0.5)
    subject, object_ = subject + "s" * many, object_ + "s" * are_many
    sees, is_seen = verb + "s" * (not many), verb + "s" * (not are_many)
    return f"the {subject} {sees} the {object_} and the {object_} {is_seen} the {subject}. "


def text(seed, length):
    """So many pieces of text, each with the character that follows: character numbers."""
    draw = random.Random(seed)
    characters = ""
    while len(characters) <= length * CONTEXT:
        characters += sentence(draw)
    return torch.tensor(
        [ALPHABET.index(character) for character in characters[: length * CONTEXT + 1]]
    )


def pieces(seed, length):
    """Inputs and targets: the characters, and those that follow them."""
    characters = text(seed, length)
    return TensorDataset(
        characters[:-1].view(length, CONTEXT), characters[1:].view(length, CONTEXT)
    )


class Transformer(nn.Module):
    """Two layers that look back only."""

    def __init__(self, width=64):
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


options = report.options(__doc__, epochs=8)
dist.init_process_group(options.backend)
torch.manual_seed(1)

train, test = pieces(1, 1024), pieces(2, 256)
model = DistributedDataParallel(Transformer(), bucket_cap_mb=options.bucket_cap_mb)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
sampler = DistributedSampler(train)
batches = DataLoader(train, batch_size=8, sampler=sampler)

for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        report.say(loss=loss.item(), parameters=report.digest(model))

model.eval()
with torch.no_grad():
    inputs, targets = test.tensors
    right = model.module(inputs).argmax(2) == targets
report.say(accuracy=right.float().mean().item())
dist.destroy_process_group()
