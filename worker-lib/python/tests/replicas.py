"""A replica of three that torchft manages, of which replica 1 is killed and comes back.

Arguments: torchft's lighthouse as host:port, which replica 0 runs; a file without which no replica
begins; and after how many steps this one is killed, or `never`. It says when it is ready, and then
prints a line of JSON for each step that it committed: how many replicas took part, whether it was
one of them, and the mean of what they gave. All end when the killed one takes part again.
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

back = replica == 1 and killed_after == "never"
ended = False
steps = 0
while not ended:
    manager.start_quorum()
    # The last element tells all in the same step that the killed one takes part again. Torchft
    # replaces what a replica gives by zeros while it lacks the others' state.
    gradient = torch.full((1001,), given)
    gradient[-1] = float(back)
    if str(steps) == killed_after:
        os.kill(os.getpid(), signal.SIGKILL)
    manager.allreduce(gradient).wait()
    if manager.should_commit():
        steps += 1
        ended = gradient[-1].item() > 0
        line = {
            "replicas": manager.num_participants(),
            "takes_part": manager.is_participating(),
            "means": gradient[:-1].unique().tolist(),
        }
        print(json.dumps(line), flush=True)
manager.shutdown()
