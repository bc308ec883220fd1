"""Hooks for DistributedDataParallel.

This module does not import `annotations` from `__future__`, because torch reads those of hooks.
"""

import torch
import torch.distributed as dist

from ._deadline import Deadline
from ._feedback import ErrorFeedback
from ._group import Group, group_of


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

    Errors are zero on average, but larger, the more ranks there are;
    docs/research/benchmarks.md has figures. With more than 32 ranks it takes 16 bits. All else is
    as for `fixed16_compress_hook`.
    """
    return _averaged_in_bits(8, group, bucket)


def fixed8_feedback_hook(
    state: ErrorFeedback, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """As `fixed8_compress_hook`, and what a step's gradients lose is added to the next one's.

    So errors do not pile up over steps: what was sent so far is the sum of all gradients, less the
    residuals in the state.
    """
    backend, gradients = _backend_for(state.process_group, bucket), bucket.buffer()
    if backend is None:
        return _averaged(state.process_group, bucket)
    residual = state.of(bucket)
    # Other types would round the added residual; in 8 bits f32 takes no more packets.
    wanted = gradients.float().add_(residual)
    averaged = backend.average_in_bits(8, wanted, residual).get_future()
    return averaged.then(lambda future: gradients.copy_(future.value()[0]))


def deadline_hook(
    state: Deadline, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages gradients of the ranks that are in when a step's time is over.

    Without late ranks, results have the same bits as without the hook. In a group of another
    backend, all ranks are waited for.
    """
    return state.average(bucket)


def _averaged_in_bits(
    bits: int, group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    backend = _backend_for(group, bucket)
    if backend is None:
        return _averaged(group, bucket)
    averaged = backend.average_in_bits(bits, bucket.buffer()).get_future()
    return averaged.then(lambda future: future.value()[0])


def _backend_for(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Group | None:
    """What averages a bucket in fewer bits; None if nothing does."""
    offered = bucket.buffer().dtype in (torch.float32, torch.float16, torch.bfloat16)
    return group_of(group) if offered else None


def _averaged(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    # Imported here and not above: torch imports this module before it is complete.
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    return allreduce_hook(group or dist.group.WORLD, bucket)
