"""What reduce-scatters and all-gathers are given: of each tensor a rank has a part.

Torch has a function for each of these: a whole in one tensor, in a list of its parts, and several
tensors at once.
"""

import threading
from dataclasses import dataclass
from typing import Any

import torch

from ._elements import is_plain, overwrite
from ._staging import STREAMS


@dataclass
class Parted:
    """A rank's part of a tensor, and the whole: in one piece, or in a list of parts."""

    part: torch.Tensor
    whole: torch.Tensor | list[torch.Tensor]

    def fits(self, ranks: int) -> bool:
        """Whether all parts are alike, and in memory that the host can use or copy."""
        wholes = [self.whole] if isinstance(self.whole, torch.Tensor) else self.whole
        return (
            sum(tensor.numel() for tensor in wholes) == ranks * self.part.numel()
            and all(tensor.numel() == wholes[0].numel() for tensor in wholes)
            and all(
                tensor.dtype == self.part.dtype
                and tensor.device == self.part.device
                and tensor.layout == torch.strided
                for tensor in (self.part, *wholes)
            )
            and self.part.device.type in ("cpu", *STREAMS)
        )

    def copied(self, scratch: "Scratch") -> torch.Tensor:
        """A copy of the whole, in one piece."""
        wholes = [self.whole] if isinstance(self.whole, torch.Tensor) else self.whole
        flat = scratch.take(sum(tensor.numel() for tensor in wholes), self.part)
        for tensor, place in zip(wholes, flat.chunk(len(wholes))):
            place.view(tensor.shape).copy_(tensor.detach())
        return flat

    def gathering(self, rank: int, ranks: int) -> torch.Tensor:
        """Memory for the whole in one piece, with this rank's part in its place.

        It is the whole itself if that is in one piece, at an address for words.
        """
        whole = self.whole
        if (
            isinstance(whole, torch.Tensor)
            and is_plain(whole)
            and whole.data_ptr() % torch.int32.itemsize == 0
        ):
            flat = whole.detach().view(-1)
        else:
            flat = torch.empty(
                ranks * self.part.numel(), dtype=self.part.dtype, device=self.part.device
            )
        own = flat.chunk(ranks)[rank] if flat.numel() else flat
        if own.data_ptr() != self.part.data_ptr() or not is_plain(self.part):
            own.copy_(self.part.detach().reshape(-1))
        return flat

    def take_part(self, flat: torch.Tensor, rank: int) -> None:
        """Copies this rank's part of the whole to where it is wanted."""
        size = self.part.numel()
        _copy(self.part, flat[rank * size : (rank + 1) * size])

    def take_whole(self, flat: torch.Tensor) -> None:
        """Copies the whole to where it is wanted, unless it is there."""
        whole = self.whole
        if isinstance(whole, torch.Tensor):
            if whole.data_ptr() != flat.data_ptr():
                _copy(whole, flat)
            return
        for tensor, part in zip(whole, flat.chunk(len(whole))):
            _copy(tensor, part)


class Scratch:
    """Memory that calls use one after the other. New memory costs more than to copy into it."""

    # Few calls are in flight, and memory for more of them is not worth keeping.
    _MOST = 2

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def take(self, count: int, like: torch.Tensor) -> torch.Tensor:
        """Elements of that type, on that device, that nobody else uses."""
        with self._lock:
            for at, flat in enumerate(self._free):
                if (flat.numel(), flat.dtype, flat.device) == (count, like.dtype, like.device):
                    return self._free.pop(at)
        return torch.empty(count, dtype=like.dtype, device=like.device)

    def give_back(self, flat: torch.Tensor) -> None:
        """Nobody uses these any more."""
        with self._lock:
            self._free = [*self._free, flat][-self._MOST :]


def parted(parts: Any, wholes: Any) -> list[Parted]:
    """Of one tensor, or of several."""
    if isinstance(parts, torch.Tensor):
        return [Parted(parts, wholes)]
    return [Parted(part, whole) for part, whole in zip(parts, wholes)]


def as_words(flat: torch.Tensor, ranks: int) -> torch.Tensor | None:
    """The same memory in elements that travel as they are; None if parts are of odd lengths.

    That must not depend on what may differ between ranks, such as an address.
    """
    for dtype in (torch.int32, torch.float16):
        if flat.nbytes % (ranks * dtype.itemsize) == 0:
            return flat.view(torch.uint8).view(dtype)
    return None


def _copy(tensor: torch.Tensor, values: torch.Tensor) -> None:
    overwrite(tensor, values)
    if tensor.device.type in STREAMS:
        # After this, any stream may use the tensor.
        STREAMS[tensor.device.type].current_stream(tensor.device).synchronize()
