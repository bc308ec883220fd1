"""Where the ranks of a group meet: they wait for each other in a store, and hear who gives up.

They meet in torch's store before they join a job.
"""

import json
import logging
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

from .._error import Error
from ._alive import ended, gone
from ._losses import Losses
from ._threads import NAME
from ._work import rank_list

log = logging.getLogger("switchml.torch")

STORE_ENDED = (
    "the store where ranks meet has ended, which is in the process of rank 0 unless another one "
    "was given"
)
# Seconds between looks into the store, at first and later.
_SHORT_PAUSE, _LONG_PAUSE = 0.001, 0.05
# Seconds that ranks take at most to come if all live.
_SOON = 0.1
# Seconds after which the log says who is late, and how often it says so again.
_LATE, _AGAIN = 5.0, 60.0
# Seconds in which a job hears of a rank with which the store has ended.
_NEWS = 10.0
# Seconds for the others to hear why a rank gives up, in whose process the store may be.
_FAREWELL = 2.0


class HeardError(Error):
    """Another rank's reason to give up."""


def looks() -> Iterator[float]:
    """The moments to look into a store, in seconds from now."""
    begin, pause = time.monotonic(), _SHORT_PAUSE
    while True:
        yield time.monotonic() - begin
        time.sleep(pause)
        pause = min(2 * pause, _LONG_PAUSE)


@dataclass
class Meeting:
    """A rank at the place where those of a group wait for each other once."""

    store: Any
    rank: int
    size: int
    # Seconds that it waits for the others.
    most: float
    # What they wait for.
    purpose: str = "to form a group"
    is_wanted: Callable[[], bool] = lambda: True
    # What this process knows of the ranks by other means.
    losses: Losses | None = None
    # The rank in whose process the store is, if that is known.
    home: int | None = None
    # Where they would meet as ranks of Gloo, if they may.
    gloos: Any = None
    # Since when the store has not answered, and how.
    _silence: tuple[float, str] | None = field(default=None, init=False)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Has the other ranks hear of an error in here."""
        try:
            yield
        except Error as error:
            self._give_up(error)
            raise

    def come(self, said: str = "") -> list[str]:
        """Says something to the other ranks. Returns what each has said, once all have come.

        Raises `switchml.Error` with the ranks that have not come in time or have ended, or with the
        reason for which another rank has given up.
        """
        self._ask(lambda: self._announce(said))
        told, is_fit = _LATE, False
        for seconds in looks():
            # Others may have given up before the last rank came.
            self.look(seconds > _SOON)
            if self._has("all"):
                self._check_fit(list(range(self.size)))
                return [self._text(f"said/{other}") for other in range(self.size)]
            if not is_fit and self._has("size/0"):
                self._check_fit([0])
                is_fit = True
            if seconds > min(told, self.most) and (missing := self._missing()):
                self._be_late(missing, seconds)
                told += _AGAIN
        raise AssertionError("there is no end of looks")

    def look(self, may_be_lost: bool = True) -> None:
        """Raises the reason for which waiting makes no sense any more, if there is one."""
        if not self.is_wanted():
            raise Error("the process group is destroyed")
        if may_be_lost and (ranks := gone()):
            raise ended(ranks, self.size)
        if may_be_lost and self.losses is not None and (error := self.losses.lost()):
            raise error
        if self._has("failed"):
            text, ranks = json.loads(self._text("failed"))
            raise HeardError(text, ranks)

    def _announce(self, said: str) -> bool:
        self.store.set(f"said/{self.rank}", said)
        self.store.set(f"size/{self.rank}", str(self.size))
        if self.store.add("come", 1) == self.size:
            self.store.set("all", "")
        return True

    def _give_up(self, error: Error) -> None:
        """Tells the other ranks why this one does not come. The first one who does so is believed.

        Returns when those that are there have heard it, because the store may be in this process.
        """
        text, ranks = str(error), error.ranks
        if not ranks:
            text, ranks = f"rank {self.rank} has given up: {text}", [self.rank]
        try:
            if self._silence is None:
                self.store.compare_set("failed", "", json.dumps([text, ranks]))
                heard = self.store.add("heard", 1)
                for seconds in looks():
                    if seconds > _FAREWELL or heard >= self.store.add("come", 0):
                        break
                    heard = self.store.add("heard", 0)
        except RuntimeError:
            # The store has ended: nobody can be told.
            pass

    def _check_fit(self, others: list[int]) -> None:
        """Raises if one of these ranks, which have come, expects another number of ranks."""
        for other in others:
            if (expected := int(self._text(f"size/{other}"))) != self.size:
                (low, one), (high, another) = sorted([(self.rank, self.size), (other, expected)])
                raise Error(
                    f"WORLD_SIZE is {one} on rank {low}, and {another} on rank {high}; give all "
                    "ranks the same",
                    [high],
                )

    def _missing(self) -> list[int]:
        missing = [rank for rank in range(self.size) if not self._has(f"said/{rank}")]
        if self._silence is not None:
            # Nobody knows.
            return []
        # Torch's store has the first rank wait until the others have connected to it.
        is_of_first = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        return missing[1:] if is_of_first and len(missing) > 1 and missing[0] == 0 else missing

    def _be_late(self, missing: list[int], seconds: float) -> None:
        """Says for which ranks this one waits. Raises that if it does not wait any longer."""
        if others := [rank for rank in missing if self._is_gloos(rank)]:
            raise Error(
                f"{rank_list(others)} formed this group with Gloo; choose {NAME} on all ranks (for "
                "vLLM: set SWITCHML_VLLM=1 on all nodes)",
                others,
            )
        ranks = f"{rank_list(missing)} of {self.size}"
        hint = ""
        if missing == [0] and self.home is None:
            hint = f"; if it is there, it may wait for more ranks: is its WORLD_SIZE {self.size}?"
        if seconds > self.most:
            raise Error(
                f"{ranks} did not come within the timeout of {self.most:g} s {self.purpose}; start "
                "what is missing, or give it more time (SWITCHML_JOIN_TIMEOUT, or `timeout`)"
                f"{hint}",
                missing,
            )
        waits = f"has waited {seconds:.0f} s for {ranks} {self.purpose}{hint}"
        log.warning("%s: rank %s %s", NAME, self.rank, waits)

    def _is_gloos(self, rank: int) -> bool:
        """Whether a rank has come with torch's Gloo, which says so below the number of a device."""
        gloos = self.gloos
        return gloos is not None and bool(self._ask(lambda: gloos.check([f"0/{rank}"])))

    def _has(self, key: str) -> bool:
        return bool(self._ask(lambda: self.store.check([key])))

    def _text(self, key: str) -> str:
        """What is there. If the store has ended, the reason is raised."""
        while (text := self._ask(lambda: self.store.get(key))) is None:
            time.sleep(_LONG_PAUSE)
        return str(text.decode())

    def _ask(self, ask: Callable[[], Any]) -> Any:
        """What the store answers. Once it has ended, that is None until the reason is known."""
        if self._silence is None:
            try:
                return ask()
            except RuntimeError as error:
                # Torch's C++ frames follow. The object would keep what is in its traceback.
                self._silence = time.monotonic(), str(error).partition("\n")[0]
        since, why = self._silence
        loss = None
        if self.losses is not None:
            loss = self.losses.lost() or self.losses.ended_with_store()
        if loss is not None:
            raise loss
        if self.home is not None:
            gone_with_it = f"rank {self.home}, in whose process the ranks meet, is gone"
            raise Error(f"{gone_with_it}: {why}", [self.home])
        if time.monotonic() - since > _NEWS:
            raise Error(f"{STORE_ENDED}: {why}")
        return None
