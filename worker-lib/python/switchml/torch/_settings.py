"""What ranks have set in their environment, and have to set alike."""

import os
from collections import Counter

from .._error import Error
from ._work import rank_list

Settings = dict[str, str]

_AGGREGATOR = "SWITCHML_AGGREGATOR"
# What a variable stands for that is not set.
_UNSET = {"SWITCHML_FALLBACK": "", "SWITCHML_OWN_HOSTS": "1", "SWITCHML_WEIGHTS": ""}


def own_settings() -> Settings:
    """Those of this rank."""
    settings = {name: os.environ.get(name) or unset for name, unset in _UNSET.items()}
    # The order of aggregators does not matter.
    given = os.environ.get(_AGGREGATOR, "").split(",")
    return {_AGGREGATOR: ",".join(sorted(place.strip() for place in given)), **settings}


def check(settings: list[Settings]) -> None:
    """Raises `switchml.Error` if ranks, given in their order, have set what cannot go together."""
    for name in _UNSET:
        if len({each[name] for each in settings}) > 1:
            raise Error(*_differs(settings, name))
    # Ranks take the first one's aggregator, unless they have set their own name for it.
    if not settings[0][_AGGREGATOR] and any(each[_AGGREGATOR] for each in settings):
        raise Error(*_differs(settings, _AGGREGATOR))


def doubt(settings: list[Settings]) -> tuple[str, list[int]] | None:
    """Why ranks may not meet at their aggregators, which may have several names; and whose fault
    that is.
    """
    names = {each[_AGGREGATOR] for each in settings if each[_AGGREGATOR]}
    return _differs(settings, _AGGREGATOR) if len(names) > 1 else None


def _differs(settings: list[Settings], name: str) -> tuple[str, list[int]]:
    values = [each[name] for each in settings]
    (most, _), *_ = Counter(values).most_common(1)
    of = {value: [at for at, other in enumerate(values) if other == value] for value in values}
    said = [f"{value or 'not set'} on {rank_list(ranks)}" for value, ranks in of.items()]
    different = [rank for rank, value in enumerate(values) if value != most]
    return f"{name} is {', '.join(said)}; set the same on all ranks", different
