"""Ranks that a process has lost: each job of its groups hears within seconds, by itself.

So jobs that the process joins meanwhile need not wait for these ranks.
"""

import threading
import time
import weakref
from typing import Callable, Hashable, Sequence

from .._error import Error
from . import _alive
from ._membership import Membership
from ._work import rank_list

# Seconds between looks at whether a process lives that a job blames: at first, and at most.
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 60.0

# The jobs of this process.
_memberships: "weakref.WeakSet[Membership]" = weakref.WeakSet()
_lock = threading.Lock()


def note(membership: Membership) -> None:
    """Has other jobs' joining end when this one has lost one of their ranks."""
    with _lock:
        _memberships.add(membership)


class Losses:
    """What the jobs of this process know of the ranks of one that is being joined."""

    def __init__(
        self,
        members: Sequence[Hashable],
        rank: int,
        failure: Callable[[], Error | None] = lambda: None,
    ) -> None:
        """`members` says who the ranks are, in all groups alike; this process's is `rank`.

        A `failure` means that they will not all join.
        """
        self._failure = failure
        self._members = list(members)
        self._others = {member for at, member in enumerate(members) if at != rank}
        # By member that somebody blames and that lives: when to look again, and the pause then.
        self._alive: dict[Hashable, tuple[float, float]] = {}

    def lost(self) -> Error | None:
        """Why the ranks do not all join, if that is known. A loss is the reason for a failure."""
        with _lock:
            others = list(_memberships)
        for other in others:
            for failure, may_live in other.losses():
                blamed = [other.members[rank] for rank in failure.ranks]
                mine = self._others.intersection(blamed)
                ended = [member for member in mine if self._has_ended(member, may_live)]
                if ended:
                    return self._told(ended, str(failure))
        return self._failure()

    def ended_with_store(self) -> Error | None:
        """The rank in whose process the store was, which is another reason to end."""
        ended = _alive.ended_members()
        if mine := [member for member in ended if member in self._others]:
            return self._told(mine, "the store where ranks meet was in its process")
        if ended:
            who = "rank " + ", ".join(map(str, ended))
            return Error(f"the store where ranks meet has ended with {who} of all")
        return None

    def _has_ended(self, member: Hashable, may_live: bool) -> bool:
        now = time.monotonic()
        due, pause = self._alive.get(member, (0.0, _FIRST_PAUSE))
        if now < due:
            return False
        lives = _alive.lives(member)
        # A rank that cannot be asked is lost if a job has failed because of it.
        if lives is False or (lives is None and not may_live):
            return True
        self._alive[member] = now + pause, min(2 * pause, _LAST_PAUSE)
        return False

    def _told(self, ended: list[Hashable], why: str) -> Error:
        ranks = sorted(self._members.index(member) for member in ended)
        size = len(self._members)
        others = sorted(member for member in ended if isinstance(member, int))
        # A subgroup numbers its ranks anew.
        also = f" ({rank_list(others)} of all)" if others and others != ranks else ""
        return Error(f"{rank_list(ranks)} of {size}{also} ended before joining: {why}", ranks)
