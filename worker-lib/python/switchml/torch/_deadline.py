"""Steps that end at a deadline, with the ranks that are in.

A thread makes the calls, so that a late rank does not keep the others waiting: at the deadline its
thread gives what there is. Before each bucket's call a small one says who gives something. It is of
integers, apart from the gradients: ones among small gradients would cost these precision.

The deadline counts from the end of the step before, which all ranks see at nearly the same time.

A step is made of whole calls, in a job of its own, so nothing below the torch backend knows of
deadlines. All ranks see the same answer to the small call, and so divide by the same count and go
on alike. What a rank gives, and when, is decided in `_ledger`. `cargo xtask train --stalls`
measures what this gains.
"""

import atexit
import math
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ._buckets import Layouts
from ._group import group_of
from ._ledger import IN_TIME, Average, Counts, Ledger
from ._threads import NAME
from ._work import after_backward

# How many steps a late rank's thread makes without it. It keeps their averages.
_AHEAD = 8


class Deadline:
    """Lets DDP's steps end without late ranks: `deadline_hook`'s state.

        model = DistributedDataParallel(module, broadcast_buffers=False)
        with switchml.torch.Deadline(model, 0.1) as deadline:
            model.register_comm_hook(deadline, switchml.torch.deadline_hook)
            for inputs, targets in batches:
                optimizer.zero_grad()
                if not deadline.take_missed():
                    loss(model(inputs), targets).backward()
                optimizer.step()

    A step waits for ranks until `seconds` after the end of the step before, and averages over those
    that are in. A late rank's gradients go with its next call, once. All ranks get the same
    averages. There are no steps while no rank is in one, and a rank that is 8 steps late is waited
    for.

    All ranks of the default group make it, and close it after their last step.
    """

    def __init__(self, model: DistributedDataParallel, seconds: float) -> None:
        _check(model, seconds)
        self._process_group = model.process_group
        self._rank = dist.get_rank(self._process_group)
        self._size = dist.get_world_size(self._process_group)
        self._seconds = seconds
        self._layouts = Layouts()
        # The averages of the last step, by bucket.
        self._last: list[Average] = []
        # Buckets of the steps before those with a deadline.
        self._of_all = 0
        # For the thread's calls alone; None where another backend averages, without deadlines.
        self._group = self._own_group()
        self._thread: threading.Thread | None = None
        # Until when a call waits for this rank's gradients.
        self._limit = 0.0
        # Guards all that follows.
        self._changed = threading.Condition()
        self._ledger: Ledger | None = None
        # What this rank has brought and waits for, by place.
        self._awaited: dict[int, torch.futures.Future[None]] = {}
        self._error: Exception | None = None
        self._closed = False
        # A thread that returns from a wait needs the interpreter.
        atexit.register(self._abandon)

    def _own_group(self) -> dist.ProcessGroup | None:
        backend = group_of(self._process_group)
        if backend is None:
            return None
        ranks = dist.get_process_group_ranks(self._process_group)
        return dist.new_group(ranks, timeout=backend.options._timeout)

    @property
    def ranks(self) -> list[list[int]]:
        """Whose gradients are in the last step's averages, by bucket in DDP's order."""
        return [average.ranks for average in self._last]

    @property
    def counts(self) -> Counts:
        """How many buckets this rank has given in time and late so far, and how many are left."""
        with self._changed:
            counts = Counts(0, 0, 0) if self._ledger is None else self._ledger.counts()
        return counts._replace(in_time=self._of_all + counts.in_time)

    def take_missed(self) -> bool:
        """Whether the next step is over without this rank. Its averages are in `.grad` then."""
        with self._changed:
            self._raise()
            missed = None if self._ledger is None else self._ledger.miss()
            self._changed.notify_all()
        if missed is None:
            return False
        for at, average in enumerate(missed):
            self._layouts[at].set_gradients(average.gradients)
        self._last = missed
        return True

    def average(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The average of a bucket of this rank's next step, once it is there."""
        if not bucket.buffer().is_cpu:
            raise ValueError("a deadline is for gradients on CPUs only; train without it")
        is_with_thread = self._layouts.are_settled and self._group is not None
        self._layouts.note(bucket)
        if bucket.index() == 0:
            self._last = []
        if not is_with_thread:
            return self._average_of_all(bucket)
        if self._ledger is None:
            self._start()
        return self._average_in_time(bucket)

    def _average_of_all(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """As DDP without a hook."""
        gradients = bucket.buffer().mul_(1.0 / self._size)
        self._last.append(Average(gradients, list(range(self._size))))
        self._of_all += 1
        work = dist.all_reduce(gradients, group=self._process_group, async_op=True)
        assert work is not None
        after_backward(work.wait)
        return work.get_future().then(lambda future: future.value()[0])

    def _start(self) -> None:
        self._ledger = Ledger(len(self._layouts), _AHEAD)
        self._thread = threading.Thread(target=self._run, name=f"{NAME}-deadline", daemon=True)
        self._thread.start()

    def _average_in_time(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        assert self._ledger is not None
        # As DDP without a hook divides, so that a step with all ranks has the same bits.
        share = torch.mul(bucket.buffer(), 1.0 / self._size)
        arrived: torch.futures.Future[None] = torch.futures.Future()
        with self._changed:
            self._raise()
            place = self._ledger.bring(share)
            self._awaited[place] = arrived
            self._changed.notify_all()
        average = arrived.then(lambda _: self._take(place))
        after_backward(lambda: self._wait_for(arrived))
        # It may have arrived before.
        self._complete()
        return average

    def _take(self, place: int) -> torch.Tensor:
        assert self._ledger is not None
        with self._changed:
            average = self._ledger.taken(place)
            if average is None:
                self._raise()
        assert average is not None
        self._last.append(average)
        return average.gradients

    def _wait_for(self, arrived: torch.futures.Future[None]) -> None:
        with self._changed:
            self._changed.wait_for(arrived.done)
            self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _complete(self) -> None:
        """Completes the futures of what is there, or of all if the thread has ended."""
        assert self._ledger is not None
        with self._changed:
            over = [
                self._awaited.pop(place)
                for place in sorted(self._awaited)
                if self._error is not None or self._ledger.has(place)
            ]
        for arrived in over:
            arrived.set_result(None)
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            with torch.no_grad():
                self._make_calls()
        except Exception as error:
            with self._changed:
                self._error = error
        self._complete()

    def _make_calls(self) -> None:
        assert self._ledger is not None
        place, count = 0, len(self._layouts)
        while (lanes := self._agree(place)) is not None:
            average = self._sum(place, [rank for rank in range(self._size) if lanes[rank]])
            with self._changed:
                # One that has closed takes no averages.
                if not self._closed:
                    self._ledger.average(place, average)
            self._complete()
            place += 1
            if place % count == 0:
                self._limit = time.monotonic() + self._seconds

    def _agree(self, place: int) -> list[int] | None:
        """What each rank says that it gives to this place; None once all ranks have closed.

        If no rank is in the step, it does not begin. When one is, after such a pause, nobody knows
        since when, and the others get their time from then on.
        """
        begins = place % len(self._layouts) == 0
        is_pause = place == 0
        while True:
            said = torch.zeros(self._size + 1, dtype=torch.int32, device="cpu")
            said[self._rank], said[self._size] = self._says(place)
            dist.all_reduce(said, group=self._group)
            *lanes, closed = said.tolist()
            if closed == self._size:
                return None
            is_begun = not begins or IN_TIME in lanes
            if is_begun and not is_pause:
                return lanes
            is_pause = not is_begun
            self._limit = time.monotonic() + self._seconds

    def _says(self, place: int) -> tuple[int, bool]:
        """What this rank gives, once it has this place's gradients or is late; has it closed?"""
        assert self._ledger is not None
        with self._changed:
            while not self._closed:
                left = self._limit - time.monotonic()
                if not self._ledger.must_wait(place, left <= 0):
                    break
                self._changed.wait(left if left > 0 else None)
            return self._ledger.says(place), self._closed

    def _sum(self, place: int, ranks: list[int]) -> Average:
        """The average over these ranks: zeros if all are late."""
        assert self._ledger is not None
        given = None
        if self._rank in ranks:
            with self._changed:
                given = self._ledger.give(place)
        if given is None:
            given = self._layouts[place % len(self._layouts)].zeros()
        if ranks:
            dist.all_reduce(given, group=self._group)
            if len(ranks) < self._size:
                given.mul_(self._size / len(ranks))
        return Average(given, ranks)

    def close(self) -> None:
        """Returns when all ranks have closed. Steps that others still make are without this one."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        atexit.unregister(self._abandon)
        self._raise()

    def _abandon(self) -> None:
        """Ends the thread without the other ranks, which hear of an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        atexit.unregister(self._abandon)
        if self._thread is not None and self._thread.is_alive():
            backend = group_of(self._group)
            assert backend is not None
            backend.abort()
            self._thread.join()

    def __enter__(self) -> "Deadline":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()


def _check(model: DistributedDataParallel, seconds: float) -> None:
    """Raises ValueError for what ranks would wait for without a deadline."""
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(f"a {type(model).__name__}, and a deadline is for DistributedDataParallel")
    if not 0 < seconds <= threading.TIMEOUT_MAX or math.isnan(seconds):
        raise ValueError(f"a deadline of {seconds} s; it has to be above 0")
    if model.broadcast_buffers and any(True for _ in model.module.buffers()):
        raise ValueError(
            "with a deadline, a model that has buffers needs DistributedDataParallel(…, "
            "broadcast_buffers=False), because each forward pass would wait for all ranks"
        )
    if model.find_unused_parameters:
        raise ValueError(
            "with a deadline, DistributedDataParallel cannot find_unused_parameters, because each "
            "backward pass would wait for all ranks"
        )
