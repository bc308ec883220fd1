"""A process group's job at the aggregator, which its ranks join when they need it."""

import threading
from typing import Any, Callable, Hashable, Iterator, Sequence

from .._communicator import Communicator
from .._error import Error
from ._work import rank_list

# Statistics of a job that was never joined.
_NO_CALLS: dict[str, Any] = {
    "calls": 0,
    "bytes": 0,
    "seconds": 0.0,
    "chunks": 0,
    "skipped": 0,
    "skipped_bytes": 0,
    "empty": 0,
    "rooms": 0,
    "resent": 0,
    "late": {},
}


class Membership:
    """A rank's membership in a job, from the first time that it is asked for.

    A mesh of several dimensions makes dozens of groups, and most of them never call anything that
    runs in the network.
    """

    def __init__(
        self, join: Callable[[Callable[[], bool]], Communicator], members: Sequence[Hashable] = ()
    ) -> None:
        # Who the ranks are, in all groups alike.
        self.members = members
        # The function that joins. It asks now and then whether to continue.
        self._join = join
        self._communicator: Communicator | None = None
        # The failure to join. Ranks that could not join have not made the call that the others may
        # have made, so they do not try again. This is no exception object: that would keep
        # everything in its traceback's frames, such as Gloo, whose threads must not outlive the
        # group.
        self._failed: tuple[str, list[int]] | None = None
        self._is_given_up = False
        # Seconds that calls wait for late ranks, if it was changed.
        self._timeout: float | None = None
        self._lock = threading.Lock()

    def communicator(self) -> Communicator:
        """Joins, if this was not done before: returns once all ranks have.

        Raises `switchml.Error`, and the same one at every later call.
        """
        with self._lock:
            if self._failed is not None:
                raise Error(*self._failed)
            if self._communicator is None:
                try:
                    self._communicator = self._join(lambda: not self._is_given_up)
                except Error as error:
                    self._failed = (str(error), error.ranks)
                    raise
                if self._timeout is not None:
                    self._communicator.set_timeout(self._timeout)
            return self._communicator

    def is_joined(self) -> bool:
        """Whether `communicator` returns at once."""
        return self._communicator is not None

    def set_timeout(self, seconds: float) -> None:
        """Calls wait so long for late ranks, those in flight, too."""
        self._timeout = seconds
        joined = self._communicator
        if joined is not None:
            joined.set_timeout(seconds)

    def statistics(self) -> dict[str, Any]:
        """Those of the calls so far."""
        joined = self._communicator
        return dict(_NO_CALLS) if joined is None else joined.stats()

    def late_ranks(self) -> list[int]:
        """The ranks that calls in flight have waited for for long."""
        joined = self._communicator
        return [] if joined is None else joined.late_ranks()

    def failure(self) -> Error | None:
        """Why the job has failed, if it was joined and has."""
        joined = self._communicator
        return None if joined is None else joined.failure()

    def losses(self) -> Iterator[tuple[Error, bool]]:
        """What the job has heard of ranks at fault, and whether these may live all the same."""
        joined = self._communicator
        if joined is None:
            return
        if failure := joined.failure():
            yield failure, not joined.lost()
        if departed := joined.departed():
            yield Error(f"{rank_list(departed)} left an earlier group", departed), True

    def abort(self, without: Sequence[int] = ()) -> None:
        """Ends all calls in flight, whomever they wait for, and does not go on joining.

        If the other ranks go on without some, the errors name these.
        """
        self._is_given_up = True
        joined = self._communicator
        if joined is not None:
            joined.abort(without)

    def close(self) -> None:
        """Leaves the job, and does not join it any more. Raises `switchml.Error`."""
        with self._lock:
            self._failed = self._failed or ("the process group is destroyed", [])
            if self._communicator is not None:
                self._communicator.close()


def added(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """The statistics of both."""
    both = {key: ours[key] + theirs[key] for key in ours if key != "late"}
    late = dict(ours["late"])
    for rank, seconds in theirs["late"].items():
        late[rank] = late.get(rank, 0.0) + seconds
    return {**both, "late": late}
