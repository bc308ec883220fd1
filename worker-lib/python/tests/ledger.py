"""Late gradients are given exactly once: random orders of what a rank and its thread do.

Gradients are integers, so that sums are exact.
"""

import random

import torch

from switchml.torch._ledger import IN_TIME, LATE, NOTHING, Average, Counts, Ledger


class Run:
    """A ledger, and beside it plain sums of what a rank brought and gave."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.buckets, self.ahead = self.random.randint(1, 4), self.random.randint(1, 3)
        self.ledger = Ledger(self.buckets, self.ahead)
        self.owed = [0] * self.buckets
        # Places that the rank has brought or missed, that it waits for, and that calls are over of.
        self.brought, self.waits, self.over = 0, [], 0
        self.late, self.missed = 0, 0
        # Places of what was brought and not given yet, by bucket, and what was given when.
        self.left = [[] for _ in range(self.buckets)]
        self.given_in_time = self.given_late = 0

    def rank(self):
        """The rank's next action: it waits for a step's averages before the next step."""
        if self.waits and (self.brought % self.buckets == 0 or self.random.random() < 0.3):
            average = self.ledger.taken(self.waits[0])
            assert (average is not None) == (self.waits[0] < self.over)
            if average is not None:
                assert average.gradients.item() == self.waits.pop(0)
            return
        step_is_over = self.over >= self.brought + self.buckets
        if self.brought % self.buckets == 0 and self.random.random() < 0.5:
            missed = self.ledger.miss()
            assert (missed is not None) == step_is_over
            if missed is not None:
                places = list(range(self.brought, self.brought + self.buckets))
                assert [average.gradients.item() for average in missed] == places
                self.brought += self.buckets
                self.missed += 1
            return
        brought = self.random.randint(1, 1000)
        assert self.ledger.bring(torch.tensor([float(brought)])) == self.brought
        self.owed[self.brought % self.buckets] += brought
        self.left[self.brought % self.buckets].append(self.brought)
        self.late += self.over > self.brought
        self.waits.append(self.brought)
        self.brought += 1

    def thread(self):
        """The thread's next call, if it can be made; the rank may go on meanwhile."""
        is_late = self.random.random() < 0.3
        place, is_brought = self.over, self.brought > self.over
        is_far = place // self.buckets >= self.brought // self.buckets + self.ahead
        must_wait = self.ledger.must_wait(place, is_late)
        assert must_wait == (not is_brought and (is_far or not is_late))
        if must_wait:
            return
        bucket = place % self.buckets
        said = self.ledger.says(place)
        owes = self.owed[bucket] != 0
        assert said == (IN_TIME if is_brought else LATE if owes else NOTHING)
        assert owes or said != IN_TIME
        while self.random.random() < 0.3:
            self.rank()
        if said != NOTHING:
            given = self.ledger.give(place)
            assert given is not None and given.item() == self.owed[bucket], (given, self.owed)
            self.owed[bucket] = 0
            in_time = place in self.left[bucket]
            self.given_in_time += in_time
            self.given_late += len(self.left[bucket]) - in_time
            self.left[bucket] = []
        left = sum(map(len, self.left))
        assert self.ledger.counts() == Counts(self.given_in_time, self.given_late, left)
        self.ledger.average(place, Average(torch.tensor([float(place)]), []))
        self.over += 1


late = missed = 0
for seed in range(400):
    run = Run(seed)
    for _ in range(300):
        run.random.choice([run.rank, run.thread])()
    # What is left is all that was not given.
    for bucket, owed in enumerate(run.owed):
        left = run.ledger.give(bucket)
        assert (0 if left is None else left.item()) == owed
    late, missed = late + run.late, missed + run.missed
assert late > 1000 and missed > 1000, (late, missed)
print("all was given once")
