"""Tensors that are negated or conjugated lazily.

Before a call reaches a process group, torch's dispatcher resolves such tensors in copies, and
forgets these: results never come back. Here the copies are known, so that our groups find the
tensors behind them. Other backends' groups get copies, as before.
"""

import threading
from typing import Any, Callable

import torch

# The kernels exist as long as this object.
_LIBRARY = torch.library.Library("c10d", "IMPL")


class _Resolved(threading.local):
    """What the call that this thread makes has instead of which tensors."""

    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []


_resolved = _Resolved()


def behind(given: Any) -> Any:
    """The arguments of a call, with the caller's own tensors in place of resolved copies."""
    if not _resolved.pairs:
        return given
    if isinstance(given, (list, tuple)):
        return [behind(item) for item in given]
    return next((tensor for copy, tensor in _resolved.pairs if copy is given), given)


def remember_what_is_resolved() -> None:
    """Has torch resolve lazy tensors of its collectives here. To be called once."""
    prefix = f"{_LIBRARY.ns}::"
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)]
    for name in (name.removeprefix(prefix) for name in names):
        for key in ("Negative", "Conjugate"):
            _LIBRARY.impl(name, _resolving(getattr(torch.ops.c10d, name)), key)


def _resolving(call: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*arguments: Any) -> Any:
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

        def resolved(argument: Any) -> Any:
            if isinstance(argument, (list, tuple)):
                return [resolved(item) for item in argument]
            if not isinstance(argument, torch.Tensor):
                return argument
            if not argument.is_neg() and not argument.is_conj():
                return argument
            pairs.append((argument.resolve_conj().resolve_neg(), argument))
            return pairs[-1][0]

        given = [resolved(argument) for argument in arguments]
        before, _resolved.pairs = _resolved.pairs, pairs
        try:
            return call(*given)
        finally:
            _resolved.pairs = before

    return kernel
