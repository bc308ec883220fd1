"""Has vLLM on CPUs add up in the network. vLLM loads this as a plugin, in each of its processes.

Nothing changes unless SWITCHML_VLLM=1 is set.
"""

import logging
import multiprocessing
import os

# vLLM prints what its own loggers' children say.
log = logging.getLogger("vllm.switchml")

_SETTING = "SWITCHML_VLLM"
# The version that the tests run.
_TESTED = "0.32.0"


def register() -> None:
    """Has vLLM name this project's backend where it would name Gloo."""
    given = os.environ.get(_SETTING, "0")
    if given not in ("0", "1"):
        raise ValueError(f"{_SETTING} is {given!r}; set it to 1, or leave it out")
    if given == "0":
        return
    reason = _choose()
    # It has no groups, and its workers say the same.
    if multiprocessing.current_process().name.startswith("EngineCore"):
        return
    if reason is None:
        log.info(
            "switchml: all_reduce and all_gather between the processes of a group run in the "
            "network (%s); objects, and calls of vLLM's cpu_group, run on Gloo. Set %s=1 on all "
            "nodes",
            _whose_aggregator(),
            _SETTING,
        )
    else:
        log.error("switchml is not used, although %s=1 is set: %s", _SETTING, reason)


def _choose() -> str | None:
    """Chooses the backend. Says why not, if it cannot."""
    import vllm
    from vllm.platforms import current_platform

    platform = type(current_platform)
    if not current_platform.is_cpu():
        return f"it serves vLLM on CPUs, and this is {platform.__name__}"
    backend = getattr(platform, "dist_backend", None)
    if backend not in ("gloo", "switchml"):
        return (
            f"vLLM {vllm.__version__} is too old or too new: {platform.__name__}.dist_backend is "
            f"{backend!r} instead of 'gloo'; vLLM {_TESTED} works"
        )
    if os.environ.get("VLLM_DISTRIBUTED_USE_SPLIT_GROUP", "0") == "1":
        return "VLLM_DISTRIBUTED_USE_SPLIT_GROUP=1 makes groups that only Gloo has; leave it out"
    # Torch may not have looked for backends, and vLLM takes Gloo for one that it does not find.
    from .torch._threads import NAME

    platform.dist_backend = NAME
    return None


def _whose_aggregator() -> str:
    aggregator = os.environ.get("SWITCHML_AGGREGATOR")
    return f"aggregator {aggregator}" if aggregator else "aggregator: that of rank 0, or none"
