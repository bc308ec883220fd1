"""Hooks for DistributedDataParallel.

This module does not import `annotations` from `__future__`, because torch reads those of hooks.
"""

import torch
import torch.distributed as dist

from ._group import group_of


def fixed16_compress_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages gradients in fixed point of 16 bits, for half of the packets.

        model.register_comm_hook(None, switchml.torch.fixed16_compress_hook)

    The elements of a packet (about 700) share a binary point. Each has 15 bits and a sign, less
    log2 of the number of ranks. So an average is off by at most 2^-14 times the largest of the
    packet's elements with 2 ranks, 2^-13 with 4, 2^-12 with 8. Results have the same bits on all
    ranks. Gradients of f64 are averaged as they are. So are those in groups of other backends; a
    group that fell back to Gloo is one.
    """
    return _averaged_in_bits(16, group, bucket)


def fixed8_compress_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages gradients in 8 bits, for a quarter of the packets.

        model.register_comm_hook(None, switchml.torch.fixed8_compress_hook)

    Errors are zero on average, but larger, the more ranks there are; docs/benchmarks.md has
    figures. With more than 32 ranks it takes 16 bits. All else is as for `fixed16_compress_hook`.
    """
    return _averaged_in_bits(8, group, bucket)


def _averaged_in_bits(
    bits: int, group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    backend, gradients = group_of(group), bucket.buffer()
    if backend is None or gradients.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        # Not above: torch imports this module before it is complete.
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(group or dist.group.WORLD, bucket)
    averaged = backend.average_in_bits(bits, gradients).get_future()
    return averaged.then(lambda future: future.value()[0])
