"""A process group for torchft: replicas that come and go sum up in the network.

    from switchml.torchft import ProcessGroupSwitchml

    manager = torchft.Manager(pg=ProcessGroupSwitchml(), ...)

Each quorum is a job of its own at the aggregator. When torchft configures the next one, calls of
the last one end, whomever they wait for.
"""

import torch
import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from .torch._create import make
from .torch._staging import STREAMS
from .torch._threads import NAME


class ProcessGroupSwitchml(ProcessGroupWrapper):
    """The replicas' process group, which torchft configures for each quorum."""

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        group = dist.ProcessGroup(store, rank, world_size)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)
        backend = make(store, rank, world_size, self._timeout)
        for device in ("cpu", *(name for name in STREAMS if STREAMS[name].is_available())):
            group._register_backend(torch.device(device), kind, backend)
        return group

    def getBackendName(self) -> str:
        return f"torchft-{NAME}"
