"""Tensors of a GPU by way of memory of the host."""

from types import ModuleType
from typing import Any

import torch

from ._elements import overwrite

# The supported devices, and the module with their streams.
STREAMS: dict[str, ModuleType | Any] = {"cuda": torch.cuda}


class Staged:
    """A tensor of a GPU and its copy in pinned memory.

    Both copies have streams of their own, so that neither holds up what the caller computes. The
    first copy begins when the caller's stream has done all that it had to do at the time of the
    call. Nothing blocks until `arrived`.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        device = tensor.device
        streams = STREAMS[device.type]
        self._tensor, self._device = tensor.detach(), device
        # Torch keeps pinned memory for the next tensor of this size.
        self.host = torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=device.type != "cpu"
        )
        stream = streams.Stream(device)
        stream.wait_stream(streams.current_stream(device))
        with streams.stream(stream):
            self.host.copy_(self._tensor, non_blocking=True)
        # With `blocking`, a thread that waits for the event sleeps.
        self._event = streams.Event(blocking=True)
        self._event.record(stream)

    def arrived(self) -> None:
        """Waits until the elements are in the host's memory."""
        self._event.synchronize()

    def give_back(self) -> None:
        """Copies the elements to the GPU, and waits until any stream may use them there."""
        streams = STREAMS[self._device.type]
        stream = streams.Stream(self._device)
        with streams.stream(stream):
            overwrite(self._tensor, self.host, non_blocking=True)
        self._event.record(stream)
        self._event.synchronize()
