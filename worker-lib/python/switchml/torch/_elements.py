"""Elements in memory, as torch reads them and as calls do.

All of this is for inference mode, which may write to any tensor. Outside of it torch refuses to
write to a tensor that was made in it.
"""

import torch

from .._error import Error


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether memory has the elements in one piece, and neither negated nor conjugated lazily."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in such memory: the tensor itself if it is in such, or a copy."""
    if is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def overwrite(tensor: torch.Tensor, values: torch.Tensor, *, non_blocking: bool = False) -> None:
    """Gives a tensor the values.

    Raises `Error` if elements that share memory, as those of an expanded tensor do, would get
    different ones.
    """
    place, first = tensor.detach(), values.view(tensor.shape)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            place, first = place.narrow(dim, 0, 1), first.narrow(dim, 0, 1)
    if place.shape != tensor.shape and not _same_bits(values, first.expand(tensor.shape)):
        raise Error(
            f"elements of a tensor of shape {tuple(tensor.shape)} share memory, and their results "
            "differ; give its .contiguous()"
        )
    place.copy_(first, non_blocking=non_blocking)


def _same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    words = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (ours, theirs)]
    return torch.equal(*words)
