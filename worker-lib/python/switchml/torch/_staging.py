"""Tensors of a GPU by way of memory of the host."""

from collections.abc import MutableMapping
from types import ModuleType
from typing import Any, Protocol

import torch

from ._elements import overwrite

# The supported devices, and the module with their streams.
STREAMS: dict[str, ModuleType | Any] = {"cuda": torch.cuda}


class Staged:
    """A tensor of a GPU and its copy in pinned memory.

    Both copies have streams of their own, so that neither holds up what the caller computes. The
    first copy begins when the caller's stream has done all that it had to do when this was made.
    Nothing blocks until `arrived`.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        device = tensor.device
        streams = STREAMS[device.type]
        self._tensor, self._device = tensor.detach(), device
        # Torch keeps pinned memory for the next tensor of this size.
        with torch.inference_mode():
            self.host = torch.empty(
                tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=device.type != "cpu"
            )
        self._stream = streams.Stream(device)
        self._stream.wait_stream(streams.current_stream(device))
        # With `blocking`, a thread that waits for the event sleeps.
        self._event = streams.Event(blocking=True)

    def fetch(self) -> None:
        """Begins to copy the elements to the host's memory."""
        with torch.inference_mode(), STREAMS[self._device.type].stream(self._stream):
            self.host.copy_(self._tensor, non_blocking=True)
        self._event.record(self._stream)

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


class Call(Protocol):
    """A call, which ends at some time."""

    def until_over(self) -> None: ...


class Staging:
    """The tensors of a GPU among those of a call; `last` is the last call on each memory.

    As on a stream, a call sees what an earlier one leaves in a tensor of both.
    """

    def __init__(
        self, tensors: list[torch.Tensor], work: Call, last: MutableMapping[int, Call]
    ) -> None:
        self.there = tensors
        self._earlier: list[Call] = []
        self._staged = {
            i: Staged(tensor) for i, tensor in enumerate(tensors) if tensor.device.type in STREAMS
        }
        if not self._staged:
            return
        self.there = [
            self._staged[i].host if i in self._staged else tensor
            for i, tensor in enumerate(tensors)
        ]
        memory = {tensors[i].untyped_storage().data_ptr() for i in self._staged}
        self._earlier = [other for at in memory if (other := last.get(at)) is not None]
        last.update(dict.fromkeys(memory, work))
        if not self._earlier:
            self._fetch()

    def __bool__(self) -> bool:
        return bool(self._staged)

    def arrive(self) -> None:
        """Waits until the elements are in the host's memory."""
        if self._earlier:
            for other in self._earlier:
                other.until_over()
            self._fetch()
        for copy in self._staged.values():
            copy.arrived()

    def give_back(self) -> None:
        """Copies the elements to the GPU, and waits until any stream may use them there."""
        for copy in self._staged.values():
            copy.give_back()

    def _fetch(self) -> None:
        for copy in self._staged.values():
            copy.fetch()
