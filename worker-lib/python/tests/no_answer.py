"""A rank whose aggregator does not answer. Prints the error, or the sum if it falls back."""

import logging

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.WARNING)
try:
    dist.init_process_group("switchml")
except dist.DistBackendError as error:
    print(f"refused: {error}", flush=True)
else:
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    print(
        f"fell back: {tensor.tolist()} by {dist.get_backend()}, {dist.get_backend_config()}",
        flush=True,
    )
    group = dist.new_group()
    dist.all_reduce(tensor, group=group)
    print(f"again: {tensor.tolist()} by {dist.get_backend(group)}", flush=True)
    dist.destroy_process_group()
