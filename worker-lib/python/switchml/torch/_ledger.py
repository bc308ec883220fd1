"""What a rank brings to steps that do not wait for it, and what it gives of that, exactly once.

There are no threads, clock or calls here. Buckets are counted over all steps: with 3 buckets, place
7 is bucket 1 of step 2.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

# What a rank says of a bucket before it is summed up: it gives nothing, gradients of earlier steps
# alone, or this step's.
NOTHING, LATE, IN_TIME = range(3)


@dataclass
class Average:
    """A bucket's average over the ranks that gave something."""

    gradients: torch.Tensor
    ranks: list[int]


class Counts(NamedTuple):
    """What became of the buckets that a rank brought: how many were given when, or are left."""

    in_time: int
    late: int
    left: int


class Ledger:
    """A rank's gradients that are not given yet, and averages that it has not come to yet."""

    def __init__(self, buckets: int, ahead: int) -> None:
        self._buckets, self._ahead = buckets, ahead
        # Places before this one were brought, or missed.
        self._brought = 0
        # What was brought and not given yet, by bucket: a sum, and of how many it is.
        self._kept: list[torch.Tensor | None] = [None] * buckets
        self._left = [0] * buckets
        self._in_time = self._late = 0
        # Averages that the rank has not come to yet, by place.
        self._averages: dict[int, Average] = {}

    def bring(self, gradients: torch.Tensor) -> int:
        """The rank has these gradients for the next place, which this returns."""
        place = self._brought
        self._brought += 1
        bucket = place % self._buckets
        kept = self._kept[bucket]
        self._kept[bucket] = gradients if kept is None else kept.add_(gradients)
        self._left[bucket] += 1
        return place

    def miss(self) -> list[Average] | None:
        """The averages of the rank's next step, if all are there: it has no part in it then."""
        places = range(self._brought, self._brought + self._buckets)
        if self._brought % self._buckets or not all(place in self._averages for place in places):
            return None
        self._brought = places.stop
        return [self._averages.pop(place) for place in places]

    def must_wait(self, place: int, is_late: bool) -> bool:
        """Whether this place's call has to wait for the rank's gradients.

        That is so before the deadline, and for steps too far ahead of the rank's own.
        """
        if self._brought > place:
            return False
        step = place // self._buckets
        return not is_late or step >= self._brought // self._buckets + self._ahead

    def says(self, place: int) -> int:
        """What the rank gives in this place's call, if the call is made now."""
        if self._brought > place:
            return IN_TIME
        return NOTHING if self._kept[place % self._buckets] is None else LATE

    def give(self, place: int) -> torch.Tensor | None:
        """What the rank gives in this place's call: all that it has, which is now given."""
        bucket = place % self._buckets
        given, self._kept[bucket] = self._kept[bucket], None
        # Of what is given, the last one at most is of this place.
        in_time = int(self._brought > place)
        self._in_time += in_time
        self._late += self._left[bucket] - in_time
        self._left[bucket] = 0
        return given

    def counts(self) -> Counts:
        return Counts(self._in_time, self._late, sum(self._left))

    def average(self, place: int, average: Average) -> None:
        """This place's call is over."""
        self._averages[place] = average

    def has(self, place: int) -> bool:
        """Whether this place's average is there, and was not taken."""
        return place in self._averages

    def taken(self, place: int) -> Average | None:
        """The average of a place that was brought, once; None if it is not there yet."""
        return self._averages.pop(place, None)
