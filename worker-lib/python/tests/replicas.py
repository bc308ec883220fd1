"""A replica of three that torchft manages, of which replica 1 is killed and comes back.

Arguments: torchft's lighthouse as host:port, which replica 0 runs; a file without which no replica
begins; and after how many steps this one is killed, or `never`. It says when it is ready, and then
prints a line of JSON for each step that the replicas committed: how many they were, and the mean of
what they gave. It ends when the killed one is back.
"""

import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torchft import Manager
from torchft.coordination import LighthouseServer

from switchml.torchft import ProcessGroupSwitchml

place, begin, killed_after = sys.argv[1:]
replica = int(os.environ["RANK"])
# The average of all three is 3, of 0 and 2 alone 3.5.
given = (1.0, 2.0, 6.0)[replica]

if replica == 0:
    # The name keeps the server running to the end. It goes on without a replica that has sent no
    # heartbeat for 5 s, as after a kill, but not without one that a busy machine makes late.
    lighthouse = LighthouseServer(bind=place, min_replicas=2, join_timeout_ms=60_000)
# The store where replicas meet, and the ranks of each replica, if it had several.
host = socket.gethostname()
store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupSwitchml(timeout=timedelta(seconds=20)),
    load_state_dict=lambda state: None,
    state_dict=lambda: {},
    min_replica_size=2,
    timeout=timedelta(seconds=20),
    rank=0,
    world_size=1,
    store_addr=host,
    store_port=store.port,
    lighthouse_addr=f"http://{place}",
    replica_id=f"replica-{replica}",
    # Otherwise the replica that first takes over the others' state would give zeros.
    init_sync=False,
)
# From here on the lighthouse knows this replica.
print("ready", flush=True)
while not Path(begin).exists():
    time.sleep(0.01)

# The numbers of replicas, without repetitions. The last step is the same on all.
phases: list[int] = []
end = [3] if replica == 1 and killed_after == "never" else [3, 2, 3]
steps = 0
while phases[-len(end) :] != end:
    manager.start_quorum()
    gradient = torch.full((1000,), given)
    if str(steps) == killed_after:
        os.kill(os.getpid(), signal.SIGKILL)
    manager.allreduce(gradient).wait()
    if manager.should_commit():
        steps += 1
        replicas = manager.num_participants()
        if phases[-1:] != [replicas]:
            phases.append(replicas)
        print(json.dumps({"replicas": replicas, "means": gradient.unique().tolist()}), flush=True)
manager.shutdown()
