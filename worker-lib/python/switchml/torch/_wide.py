"""What the network does not do in one reduction: extrema of 64 bits, and averages of integers.

Each function starts a reduction. It returns the call in flight, and a function that gives the
result once that call is over.

What travels is of another type than the tensor, and ranks whose tensors differ may make calls that
are equal. `tell_apart` has them hear of it.
"""

from typing import Callable

import torch

from .._communicator import Communicator, Handle
from ._delegated import INTEGERS, average
from ._elements import plain

Started = tuple[Handle, Callable[[], torch.Tensor]]

# The key of every NaN; no other value has it.
_NAN = 2**63 - 1


def tell_apart(communicator: Communicator, number: int) -> None:
    """Has ranks hear at once that they disagree, if others do this with another number, or not.

    Calls without elements send nothing, but all calls are counted, and the aggregator compares the
    numbers of those that follow.
    """
    for _ in range(number):
        communicator.all_reduce_start(torch.empty(0, dtype=torch.int32, device="cpu"))


def average_of_integers(communicator: Communicator, tensor: torch.Tensor, ranks: int) -> Started:
    """Averages of any integers, which are not rounded but cut off: as of int64, by their sums."""
    tell_apart(communicator, 1 + INTEGERS.index(tensor.dtype))
    sums = plain(tensor.detach()).to(torch.int64, copy=True)
    handle = communicator.all_reduce_start(sums, "sum")
    return handle, lambda: average(sums, ranks)


def extremum(communicator: Communicator, tensor: torch.Tensor, op: str) -> Started:
    """Extrema of int64 and f64.

    First come those of the upper words. This call is waited for, because all ranks must make calls
    in the same order. Then come those of the lower words, of the ranks whose upper words are the
    largest.
    """
    tell_apart(communicator, 1 if tensor.dtype == torch.int64 else 2)
    keys = _keys(tensor, op)
    high = (keys >> 32).to(torch.int32)
    largest = high.clone()
    communicator.all_reduce(largest, "max")
    # The lower words in the order of signed words, like the upper ones.
    low = ((keys & 0xFFFFFFFF) - 2**31).to(torch.int32)
    low[high != largest] = -(2**31)
    handle = communicator.all_reduce_start(low, "max")
    return handle, lambda: _of_keys((largest.to(torch.int64) << 32) + low + 2**31, tensor.dtype, op)


def _keys(tensor: torch.Tensor, op: str) -> torch.Tensor:
    """Contiguous int64 of which the largest stands for the extremum.

    -0.0 is less than 0.0, and a NaN wins, as for floats of 32 bits in the network.
    """
    words = plain(tensor).view(torch.int64)
    if tensor.dtype == torch.float64:
        # A negative float's magnitude falls as its integer rises: invert all bits except the sign.
        words = words ^ (words >> 63 & _NAN)
    if op == "min":
        words = ~words
    return torch.where(tensor.isnan(), _NAN, words) if tensor.dtype == torch.float64 else words


def _of_keys(keys: torch.Tensor, dtype: torch.dtype, op: str) -> torch.Tensor:
    """The inverse of `_keys`."""
    words = ~keys if op == "min" else keys
    if dtype == torch.int64:
        return words
    floats = (words ^ (words >> 63 & _NAN)).view(torch.float64)
    return torch.where(keys == _NAN, torch.nan, floats)
