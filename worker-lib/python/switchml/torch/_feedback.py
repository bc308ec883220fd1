"""Error feedback: what gradients lose in 8 bits in one step is added to those of the next.

(Seide et al., "1-bit stochastic gradient descent", 2014; Karimireddy et al., "Error feedback fixes
SignSGD and other gradient compression schemes", 2019.)
"""

from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class ErrorFeedback:
    """What this rank's gradients have lost and are still to bring: `fixed8_feedback_hook`'s state.

        state = switchml.torch.ErrorFeedback(model)
        model.register_comm_hook(state, switchml.torch.fixed8_feedback_hook)

    `model` is what DDP trains, wrapped or not. Each rank has residuals of its own: an f32 for each
    parameter, known by the parameter's name, so that they stay with it when DDP makes other
    buckets. Save `state_dict()` in a checkpoint of each rank.
    """

    def __init__(
        self, model: torch.nn.Module, process_group: dist.ProcessGroup | None = None
    ) -> None:
        self.process_group = process_group
        module = model.module if isinstance(model, DistributedDataParallel) else model
        self._shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        # Residuals by parameter; parts of `_buckets` as soon as the parameter is in a bucket.
        self._residuals: dict[str, torch.Tensor] = {}
        # Residuals by the names of a bucket's parameters.
        self._buckets: dict[tuple[str, ...], torch.Tensor] = {}

    def of(self, bucket: dist.GradBucket) -> torch.Tensor:
        """The residuals of a bucket's gradients, flat as they are, in place."""
        names = tuple(self._name(parameter) for parameter in bucket.parameters())
        if names not in self._buckets:
            # Parameters move to this bucket from other buckets, which no longer exist.
            self._buckets = {
                others: flat
                for others, flat in self._buckets.items()
                if set(others).isdisjoint(names)
            }
            self._buckets[names] = self._gathered(names, bucket.buffer())
        return self._buckets[names]

    def _gathered(self, names: tuple[str, ...], gradients: torch.Tensor) -> torch.Tensor:
        flat = torch.zeros_like(gradients, dtype=torch.float32)
        parts = flat.split([self._shapes[name].numel() for name in names])
        for name, part in zip(names, parts):
            place = part.view(self._shapes[name])
            if name in self._residuals:
                place.copy_(self._residuals[name])
            self._residuals[name] = place
        return flat

    def _name(self, parameter: torch.Tensor) -> str:
        if id(parameter) not in self._names:
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} does not belong to the model "
                "that ErrorFeedback was made for; give it the model that DDP trains"
            )
        return self._names[id(parameter)]

    def state_dict(self) -> dict[str, Any]:
        """A copy of this rank's residuals, for this rank's checkpoint; not while a step runs."""
        return {
            "rank": dist.get_rank(self.process_group),
            "world_size": dist.get_world_size(self.process_group),
            "residuals": {name: place.clone() for name, place in self._residuals.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with these residuals. Raises ValueError if they are another rank's or model's.

        With another number of ranks, go on without: that loses a step's rounding, no more.
        """
        here = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        if (state["rank"], state["world_size"]) != here:
            raise ValueError(
                f"residuals of rank {state['rank']} of {state['world_size']}, and this is rank "
                f"{here[0]} of {here[1]}; load what this rank saved, or nothing"
            )
        for name, residual in state["residuals"].items():
            if self._shapes.get(name) != residual.shape:
                raise ValueError(
                    f"a residual of {name}, of shape {tuple(residual.shape)}, and the model has no "
                    "such parameter; load what was saved with this model"
                )
        self._buckets = {}
        self._residuals = {name: residual.clone() for name, residual in state["residuals"].items()}

    def __getstate__(self) -> NoReturn:
        raise TypeError("ErrorFeedback belongs to a model's parameters; save its state_dict()")
