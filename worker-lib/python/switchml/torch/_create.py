"""How the ranks of a process group find their job, or agree on Gloo."""

import contextlib
import functools
import json
import os
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable

import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d

from .._communicator import Communicator
from .._error import Error
from . import _settings
from ._alive import Place, announce, reached, remember
from ._gloo import address_towards, gloo_group, in_words
from ._group import Group, Kin, backends_of, group_of, log
from ._losses import Losses, note
from ._membership import Membership
from ._peers import meeting_host, own_aggregator
from ._reconfigure import Reconfigurable, ReconfigurableGroup
from ._rendezvous import STORE_ENDED, HeardError, Meeting
from ._threads import NAME
from ._trampoline import IS_BACKEND, as_backend, check
from ._work import backend_error, rank_list, see_through_holders


# Seconds that ranks have to join once all have come.
_JOINING = 60.0
# Seconds in which they do if their aggregators are the same.
_MEETING = 10.0


def create(options: Any, _backend_options: Any) -> Backend | dist.ProcessGroup:
    """The process group that torch asks for."""
    rank, size = options.group_rank, options.group_size
    if IS_BACKEND:
        record_what_groups_have()
        if options.enable_reconfigure:
            made = functools.partial(make, at_once=True)
            return ReconfigurableGroup(
                options.store, Reconfigurable(rank, size, options.timeout, made)
            )
    world = dist.group.WORLD
    first = None if isinstance(world, ReconfigurableGroup) or world is None else group_of(world)
    line = own_line(options.store) if first is None else first.kin.line
    kin = Kin(options.global_ranks_in_group or list(range(size)), line)
    return make(options.store, rank, size, options.timeout, kin)


def make(
    parent: dist.Store,
    rank: int,
    size: int,
    timeout: timedelta,
    kin: Kin,
    at_once: bool = False,
) -> Backend:
    """A group whose ranks meet in a store, and join their job at once or with their first call.

    It is one in the network, or one of Gloo's where that is allowed and necessary.
    """
    try:
        check()
    except Error as error:
        raise backend_error(error) from None
    see_through_holders()
    store = _own_keys(parent, rank)
    fallback = os.environ.get("SWITCHML_FALLBACK", "")
    if fallback not in ("", "gloo"):
        raise ValueError(f"SWITCHML_FALLBACK is {fallback!r}; set it to gloo, or leave it out")
    # The first group reports at once what is wrong. For a fallback, all ranks must know before the
    # first call.
    is_first = not dist.is_initialized()
    at_once = at_once or is_first or bool(fallback)
    try:
        met = _meet(store, rank, size, timeout, kin, parent)
    except Error as error:
        raise backend_error(error) from None
    if is_first:
        announce(parent, rank, address_towards(met.aggregator, met.host))
    membership = met.membership(met.job)
    gathering = met.membership(f"{met.job}-gathers", membership.failure)
    failure = ""
    if at_once:
        try:
            membership.communicator()
        except Error as error:
            if not fallback:
                raise backend_error(error) from None
            # The rank whose failure this one has heard of tells it itself.
            failure = "" if isinstance(error, HeardError) else str(error)
    # All ranks fall back, or none.
    reasons = _failures(store, rank, size, failure) if fallback else {}
    try:
        meeting = dist.PrefixStore("gloo", store)
        gloo = gloo_group(meeting, rank, size, timeout, met.aggregator, met.host)
    except RuntimeError as error:
        # Other ranks do not wait for this one. If the job has ended, that is no other failure.
        membership.abort()
        with contextlib.suppress(Error):
            membership.close()
        if not isinstance(error, Error):
            error = Error(f"Gloo does not connect this rank: {in_words(error)}")
        raise backend_error(error) from None
    if not reasons:
        places = _reach(parent, rank, kin) if is_first else {}
        group = Group(rank, size, (membership, gathering), gloo, timeout, parent, make, places, kin)
        return as_backend(group)
    membership.close()
    log.warning(
        "%s: all ranks use Gloo, because of rank %s",
        NAME,
        "; rank ".join(f"{r}: {why}" for r, why in reasons.items()),
    )
    return gloo


def _own_keys(parent: dist.Store, rank: int) -> dist.Store:
    """Where the ranks of a new group meet.

    A destroyed group leaves its keys behind. The next group of that name needs other keys, and all
    ranks have counted the same number of attempts.
    """
    try:
        attempt = parent.add(f"attempts/{rank}", 1)
    except RuntimeError as error:
        raise backend_error(Error(f"{STORE_ENDED}: {in_words(error)}")) from None
    return dist.PrefixStore(f"{NAME}/{attempt}", parent)


def _reach(store: dist.Store, rank: int, kin: Kin) -> dict[int, Place]:
    """Where the ranks' processes can be watched, which jobs that are joined later do."""
    places = reached(store, rank, len(kin.members))
    remember({kin.members[other]: place for other, place in places.items()})
    return places


def own_line(store: dist.Store) -> dist.Store:
    """A connection of this process's own to where ranks meet.

    Torch's serves one caller at a time, and Gloo's waits there take as long as ranks are late.
    """
    try:
        return store.clone()
    except (AttributeError, RuntimeError):
        # Torch 2.4 cannot clone a store, nor can all stores be cloned.
        return store


@dataclass
class _Met:
    """What the ranks of a group have told each other."""

    rank: int
    size: int
    kin: Kin
    # Of calls.
    timeout: timedelta
    # Seconds for the other ranks to come, and for all to join then.
    most: float
    joining: float
    # As host or host:port, with commas between; without any, ranks serve each other.
    aggregator: str
    # Where ranks meet, if it is known.
    host: str
    job: str
    # Why ranks do not find each other at their aggregators, if they do not, and at whose fault.
    doubt: tuple[str, list[int]] | None

    def membership(
        self, job: str, failure: Callable[[], Error | None] = lambda: None
    ) -> Membership:
        """This rank's in a job of theirs, which it joins when it is used, unless there is a failure
        by then.
        """
        made = Membership(lambda is_wanted: self._join(job, is_wanted, failure), self.kin.members)
        note(made)
        return made

    def _join(
        self, job: str, is_wanted: Callable[[], bool], failure: Callable[[], Error | None]
    ) -> Communicator:
        """Joins. Raises `switchml.Error`, and has the other ranks hear of it."""
        store = dist.PrefixStore(f"{NAME}/{job}", self.kin.line)
        losses = Losses(self.kin.members, self.rank, failure)
        me = store, self.rank, self.size, self.most, "to join its job"
        meeting = Meeting(*me, is_wanted, losses, self.kin.home)
        with meeting.telling():
            own = None if self.aggregator else own_aggregator(self.host, job)
            peers = meeting.come(own.peer if own else "")
            return self._connect(job, meeting, own and (own, peers))

    def _connect(self, job: str, meeting: Meeting, peers: Any) -> Communicator:
        # No exception object: that would keep what is in its traceback's frames, such as Gloo.
        reasons: list[tuple[type[Error], str, list[int]]] = []
        begin = time.monotonic()

        def goes_on() -> bool:
            try:
                meeting.look()
                if self.doubt is not None and time.monotonic() - begin > _MEETING:
                    raise Error(*self.doubt)
            except Error as error:
                reasons.append((type(error), str(error), error.ranks))
            return not reasons

        try:
            return Communicator(
                aggregator=self.aggregator or None,
                job=job,
                rank=self.rank,
                world_size=self.size,
                timeout=self.timeout.total_seconds(),
                join_timeout=self.joining,
                is_wanted=goes_on,
                _peers=peers,
            )
        except Error as error:
            if reasons:
                kind, text, ranks = reasons[0]
                raise kind(text, ranks) from None
            told = str(error)
            if " missing; " in told:
                # They have all come here, and nobody has chosen the job's name.
                told = (
                    f"{rank_list(error.ranks)} of {self.size} came, and did not join the job "
                    f"within {self.joining:g} s; see what that rank said last"
                )
            if self.aggregator and told.startswith(("aggregator ", "no aggregator ")):
                told += f" (SWITCHML_AGGREGATOR is {self.aggregator!r}; give host or host:port)"
            raise Error(told, error.ranks) from None


@functools.cache
def record_what_groups_have() -> None:
    """Makes torch record a group that fell back as one of Gloo's.

    Otherwise it records the backend that was asked for, once `create` has returned.
    """
    record = distributed_c10d._register_pg_in_world

    # Its name is that of torch's argument.
    def corrected(pg: dist.ProcessGroup, **named: Any) -> None:
        if _fell_back(pg, named["backend_name"]):
            named.update(
                (key, named[key].replace(NAME, "gloo"))
                for key in ("backend_name", "backend_config")
            )
        record(pg, **named)

    distributed_c10d._register_pg_in_world = corrected


@functools.cache
def correct_what_is_recorded() -> None:
    """The same in a torch that has no function that records. It is there before any group."""
    make = distributed_c10d._new_process_group_helper

    def corrected(*arguments: Any, **named: Any) -> Any:
        made = make(*arguments, **named)
        group, world = made[0], distributed_c10d._world
        # Ranks that are not in the group have another object.
        if isinstance(group, dist.ProcessGroup):
            name, store = world.pg_map[group]
            if _fell_back(group, name):
                world.pg_map[group] = (name.replace(NAME, "gloo"), store)
                config = world.pg_backend_config[group]
                world.pg_backend_config[group] = config.replace(NAME, "gloo")
        return made

    distributed_c10d._new_process_group_helper = corrected


@functools.cache
def heed_set_timeouts() -> None:
    """Makes torch set timeouts of our groups in a version that knows only its own backends."""
    set_timeout = distributed_c10d._set_pg_timeout

    def corrected(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        group = group or dist.group.WORLD
        ours = group_of(group) if isinstance(group, dist.ProcessGroup) else None
        if ours is not None:
            ours.set_timeout(timeout)
        # Torch's own function serves other types of device; without any it warns.
        if ours is None or len(backends_of(group)) > 1:
            set_timeout(timeout, group)

    distributed_c10d._set_pg_timeout = corrected


def _fell_back(group: dist.ProcessGroup, backend_name: str) -> bool:
    if isinstance(group, ReconfigurableGroup):
        return False
    return NAME in backend_name and group_of(group) is None


def _failures(store: Any, rank: int, size: int, failure: str) -> dict[int, str]:
    """Why ranks could not connect, by rank. Each rank tells the others of its own failure."""
    store.set(f"failure/{rank}", failure)
    failures = [store.get(f"failure/{other}").decode() for other in range(size)]
    return {other: reason for other, reason in enumerate(failures) if reason}


def _meet(
    store: Any, rank: int, size: int, timeout: timedelta, kin: Kin, gloos: dist.Store
) -> _Met:
    """What the environment of this rank does not say is taken from the first rank.

    Raises `switchml.Error` with the ranks that do not come in time, or have other settings.
    """
    given = os.environ.get("SWITCHML_AGGREGATOR", "")
    limit = seconds_in("SWITCHML_JOIN_TIMEOUT")
    most = timeout.total_seconds()
    most = most if limit is None else min(most, limit)
    losses = Losses(kin.members, rank)
    meeting = Meeting(store, rank, size, most, losses=losses, home=kin.home, gloos=gloos)
    said = {
        "aggregator": given,
        "job": f"torch-{uuid.uuid4()}",
        "settings": _settings.own_settings(),
    }
    with meeting.telling():
        all_said = [json.loads(text) for text in meeting.come(json.dumps(said))]
        settings = [each["settings"] for each in all_said]
        _settings.check(settings)
    first = all_said[0]
    return _Met(
        rank=rank,
        size=size,
        kin=kin,
        timeout=timeout,
        most=most,
        joining=min(most, _JOINING) if limit is None else most,
        aggregator=given or first["aggregator"],
        host=meeting_host(store),
        job=first["job"],
        doubt=_settings.doubt(settings),
    )


def seconds_in(name: str) -> float | None:
    given = os.environ.get(name)
    try:
        return float(given) if given else None
    except ValueError:
        raise Error(f"{name} is {given!r}; give a number of seconds") from None
