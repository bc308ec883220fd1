"""Writes tokens with a language model that is cut over the ranks (tensor parallelism), batch 1.

    torchrun --nnodes 4 --node-rank 0 --master-addr a --master-port 29500 generate.py

The model is built like Llama and has random weights: what it writes means nothing, but takes as
long. Rank 0 prints tokens per second, of the prompt all at once (prefill) and of those that follow
one by one (decode). Each layer sums up a vector of `--width` floats a token over the ranks, twice.
"""

import argparse
import time

import report
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

VOCABULARY = 1024
OF_A_HEAD = 64

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--backend", default="switchml", help="of torch.distributed")
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--prompt", type=int, default=64, help="tokens")
parser.add_argument("--tokens", type=int, default=64, help="to write")
parser.add_argument(
    "--cut",
    choices=["by-hand", "dtensor", "not"],
    default="by-hand",
    help="how sums get over the ranks: all_reduce in the model, torch's plan (DTensor), or the "
    "whole model on each rank",
)
parser.add_argument(
    "--silent",
    action="store_true",
    help="make no sums: the tokens are wrong, the time is that of all the rest",
)
options = parser.parse_args()


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.queries, self.keys, self.values, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )

    def forward(self, inputs, past):
        """Looks at `past`, the keys and values so far, to which it adds."""
        length = inputs.shape[0]
        # A rank may have some of the heads.
        split = lambda projected: projected.view(length, -1, OF_A_HEAD).transpose(0, 1)
        place = past[0].shape[1] if past else 0
        queries, keys = (
            turned(split(project(inputs)), place) for project in (self.queries, self.keys)
        )
        new = keys, split(self.values(inputs))
        past[:] = [torch.cat(pair, 1) for pair in zip(past, new)] if past else new
        seen = nn.functional.scaled_dot_product_attention(
            queries, past[0], past[1], is_causal=length > 1
        )
        return self.output(seen.transpose(0, 1).reshape(length, -1))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before_attention, self.before_wide = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, inputs, past):
        inputs = inputs + self.attention(self.before_attention(inputs), past)
        there = self.before_wide(inputs)
        return inputs + self.down(nn.functional.silu(self.gate(there)) * self.up(there))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, options.width)
        self.layers = nn.ModuleList(Layer(options.width) for _ in range(options.layers))
        self.last = nn.RMSNorm(options.width)
        self.guesses = nn.Linear(options.width, VOCABULARY, bias=False)

    def forward(self, tokens, pasts):
        there = self.tokens(tokens)
        for layer, past in zip(self.layers, pasts):
            there = layer(there, past)
        return self.guesses(self.last(there[-1:]))


def turned(heads, place):
    """Rotary position embeddings, from this place on."""
    places = torch.arange(place, place + heads.shape[1])
    rates = 10_000.0 ** (-torch.arange(0, OF_A_HEAD, 2) / OF_A_HEAD)
    angles = torch.outer(places.float(), rates)
    even, odd = heads[..., ::2], heads[..., 1::2]
    pair = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    return torch.stack(pair, -1).flatten(-2)


class Summed(nn.Module):
    """A linear layer of which each rank has some inputs."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, inputs):
        outputs = self.linear(inputs)
        if not options.silent:
            dist.all_reduce(outputs)
        return outputs


def cut_by_hand(model):
    """Leaves each rank its part of the outputs, or inputs, of the large layers."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def keep(linear, dim):
        linear.weight = nn.Parameter(linear.weight.chunk(ranks, dim)[rank].clone())
        return linear

    for layer in model.layers:
        attention = layer.attention
        for linear in (attention.queries, attention.keys, attention.values, layer.gate, layer.up):
            keep(linear, 0)
        attention.output = Summed(keep(attention.output, 1))
        layer.down = Summed(keep(layer.down, 1))


def cut_by_plan(model):
    """As `cut_by_hand`, by torch's own means."""
    if options.silent:
        _functional_collectives.all_reduce = lambda outputs, **_: outputs
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {
        **{f"attention.{name}": ColwiseParallel() for name in ("queries", "keys", "values")},
        **{name: ColwiseParallel() for name in ("gate", "up")},
        **{name: RowwiseParallel() for name in ("attention.output", "down")},
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)


def write(model):
    """The tokens, and the seconds that the prompt and the other tokens took."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCABULARY, (options.prompt,), generator=generator)
    pasts = [[] for _ in model.layers]
    written, times = [], [time.perf_counter()]
    for _ in range(options.tokens):
        tokens = model(tokens, pasts).argmax(-1)
        written.append(tokens.item())
        times.append(time.perf_counter())
    return written, times[1] - times[0], times[-1] - times[1]


dist.init_process_group(options.backend)
torch.manual_seed(1)
model = Model()
if options.cut == "dtensor":
    cut_by_plan(model)
elif options.cut != "not":
    cut_by_hand(model)
with torch.inference_mode():
    # Once to warm up.
    write(model)
    dist.barrier()
    written, prefill, decode = write(model)
if dist.get_rank() == 0:
    report.say(
        prefill=options.prompt / prefill,
        decode=(options.tokens - 1) / decode,
        written=written,
    )
dist.destroy_process_group()
