"""Trains a network whose 25 million parameters take longer to sum up than to compute.

It has wide layers, and gets few examples at a time.

    torchrun --nnodes 4 --node-rank 0 --master-addr a --master-port 29500 wide.py
"""

import time

import report
import torch
import torch.distributed as dist
from torch import nn

STEPS = 10

options = report.options(__doc__, epochs=1, width=2048)
dist.init_process_group(options.backend)
torch.manual_seed(options.seed)

width = options.width
layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())]
model = report.wrapped(nn.Sequential(*layers, nn.Linear(width, 10)), options)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
examples = torch.Generator().manual_seed(2 + dist.get_rank())

with report.Steps(model, options) as steps:
    for step in range(options.epochs * STEPS):
        inputs = torch.randn(4, width, generator=examples)
        begin = time.perf_counter()
        optimizer.zero_grad()
        if steps.begin():
            loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
            loss.backward()
        optimizer.step()
        report.say(loss=loss.item(), seconds=time.perf_counter() - begin)

report.say(parameters=report.digest(model))
dist.destroy_process_group()
