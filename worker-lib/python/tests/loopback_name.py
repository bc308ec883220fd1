"""A rank whose host's name resolves to the loopback interface, as on Debian. Gloo works anyway.

With the argument `address` the ranks have no aggregator, and only an argument of torch's says where
they meet.
"""

import os
import socket
import sys

import torch
import torch.distributed as dist

assert socket.gethostbyname(socket.gethostname()) == "127.0.1.1"
if "address" in sys.argv:
    del os.environ["SWITCHML_AGGREGATOR"]
    dist.init_process_group(
        "switchml",
        init_method=f"tcp://{os.environ.pop('MASTER_ADDR')}:{os.environ.pop('MASTER_PORT')}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
else:
    dist.init_process_group("switchml")
ranks = dist.get_world_size()
parts = [torch.zeros(1) for _ in range(ranks)]
dist.all_gather(parts, torch.tensor([float(dist.get_rank())]))
assert torch.equal(torch.cat(parts), torch.arange(float(ranks)))
tensor = torch.ones(1)
dist.all_reduce(tensor)
assert tensor == ranks
dist.barrier()
dist.destroy_process_group()
print("Gloo works", flush=True)
