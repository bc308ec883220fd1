"""A rank that trains by torchrun.

Arguments: a folder for checkpoints, and in which step rank 1 is killed the first time, or `never`.
The rank begins with the step of its checkpoint, if there is one. In the end it prints a line of
JSON: the step it began with, its parameters' sum, and the seconds from the kill to the end of the
first step after it.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 6

dist.init_process_group("switchml")
rank = dist.get_rank()
torch.manual_seed(7)
model = torch.nn.Linear(1000, 1, bias=False)
kept, killed = Path(sys.argv[1]) / f"rank-{rank}", Path(sys.argv[1]) / "killed"
begin, lost = 0, None
if kept.exists():
    state = torch.load(kept)
    begin = state["step"]
    model.load_state_dict(state["model"])

training = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(training.parameters(), 1e-4)
for step in range(begin, STEPS):
    elements = torch.randn(8, 1000, generator=torch.Generator().manual_seed(8 * step + rank))
    loss = training(elements).square().mean()
    optimizer.zero_grad()
    if rank == 1 and str(step) == sys.argv[2] and begin == 0:
        killed.write_text(str(time.time()))
        # The other ranks wait for this one in their backward pass.
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    optimizer.step()
    if lost is None and killed.exists():
        lost = time.time() - float(killed.read_text())
    torch.save({"step": step + 1, "model": model.state_dict()}, kept)
total = model.weight.detach().double().sum().item()
print(json.dumps({"begin": begin, "sum": total, "lost": lost}), flush=True)
dist.destroy_process_group()
