"""A process group for torchft: replicas that come and go sum up in the network.

    from switchml.torchft import ProcessGroupSwitchml

    manager = torchft.Manager(pg=ProcessGroupSwitchml(), ...)

Each quorum is a job of its own at the aggregator. When torchft configures the next one, calls of
the last one end, whomever they wait for.
"""

import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from .torch._create import make, own_line
from .torch._group import Kin, put_behind
from .torch._threads import NAME


class ProcessGroupSwitchml(ProcessGroupWrapper):
    """The replicas' process group, which torchft configures for each quorum."""

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        group = dist.ProcessGroup(store, rank, world_size)
        # Replicas of a quorum are no ranks of another group.
        kin = Kin([object() for _ in range(world_size)], own_line(store))
        put_behind(group, make(store, rank, world_size, self._timeout, kin))
        return group

    def getBackendName(self) -> str:
        return f"torchft-{NAME}"
