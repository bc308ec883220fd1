"""A process group for torchft: replicas that come and go sum up in the network.

    from switchml.torchft import ProcessGroupSwitchml

    manager = torchft.Manager(pg=ProcessGroupSwitchml(), ...)

Each quorum is a job of its own at the aggregator. When torchft configures the next one, calls of
the last one end, whomever they wait for.
"""

import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from .torch._create import make
from .torch._group import put_behind
from .torch._threads import NAME


class ProcessGroupSwitchml(ProcessGroupWrapper):
    """The replicas' process group, which torchft configures for each quorum."""

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        group = dist.ProcessGroup(store, rank, world_size)
        put_behind(group, make(store, rank, world_size, self._timeout))
        return group

    def getBackendName(self) -> str:
        return f"torchft-{NAME}"
