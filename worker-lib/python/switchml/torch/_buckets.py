"""DDP's buckets: which gradients each has, and where."""

import torch
import torch.distributed as dist


class Layout:
    """Of one bucket."""

    def __init__(self, bucket: dist.GradBucket) -> None:
        flat = bucket.buffer()
        self.parameters = bucket.parameters()
        self._places = [
            (part.size(), part.stride(), part.storage_offset() - flat.storage_offset())
            for part in bucket.gradients()
        ]
        self._count, self._type = flat.numel(), flat.dtype

    def holds(self, parameters: list[torch.Tensor]) -> bool:
        return list(map(id, self.parameters)) == list(map(id, parameters))

    def zeros(self) -> torch.Tensor:
        return torch.zeros(self._count, dtype=self._type, device="cpu")

    def set_gradients(self, flat: torch.Tensor) -> None:
        """Makes these the parameters' gradients, as a backward pass does."""
        for parameter, (size, stride, offset) in zip(self.parameters, self._places):
            part = flat.as_strided(size, stride, offset)
            if parameter.grad is None:
                parameter.grad = part.clone()
            else:
                parameter.grad.copy_(part)


class Layouts:
    """Of all buckets, which are settled once they come again: DDP changes them after a step."""

    def __init__(self) -> None:
        self.are_settled = False
        # Of the last step before they settled, and of the buckets that came since.
        self._last: list[Layout] = []
        self._coming: list[Layout] = []

    def __len__(self) -> int:
        return len(self._last)

    def __getitem__(self, index: int) -> Layout:
        return self._last[index]

    def note(self, bucket: dist.GradBucket) -> None:
        """Raises ValueError if settled buckets change."""
        if self.are_settled:
            at = bucket.index()
            if at >= len(self) or not self._last[at].holds(bucket.parameters()):
                raise ValueError(
                    "DDP's buckets changed since the last step; each model needs a "
                    "Deadline of its own"
                )
            return
        self._coming.append(Layout(bucket))
        if bucket.is_last():
            self.are_settled = len(self._coming) == len(self._last) and all(
                one.holds(other.parameters) for one, other in zip(self._coming, self._last)
            )
            self._last, self._coming = self._coming, []
