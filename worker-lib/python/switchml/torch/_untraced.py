"""Keeps torch.compile out of this package: what a compiled model calls here is to run as it is."""

import functools
import sys

# The compiler's module that knows what to leave alone.
_RULES = "torch._dynamo.trace_rules"


def keep_out() -> None:
    """Has the compiler trace no function of this package, once it is there.

    DDP imports it before it makes its first call.
    """
    if _RULES in sys.modules:
        _keep_out()


@functools.cache
def _keep_out() -> None:
    sys.modules[_RULES].add(__name__.partition(".")[0])
