"""A rank whose settings may differ from those of other ranks. Prints its error in a line of JSON.

If SWITCHML_AGGREGATOR is `own`, it has an aggregator of its own. Argument: a file that ends the
rank once it is there. Torch's store is in the process of rank 0, and other ranks may come late.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from switchml import _native
from switchml.torch import _create

_create._MEETING = 1.0
if os.environ["SWITCHML_AGGREGATOR"] == "own":
    aggregator = _native.OwnAggregator(os.environ["MASTER_ADDR"], "of rank 1 alone")
    address, secret = aggregator.peer.split("/")
    os.environ.update(SWITCHML_AGGREGATOR=address, SWITCHML_TOKEN=secret)
begin = time.monotonic()
try:
    dist.init_process_group("switchml")
except dist.DistBackendError as error:
    seen = {"seconds": time.monotonic() - begin, "text": str(error), "ranks": error.ranks}
    print(json.dumps(seen), flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
    os._exit(0)
raise SystemExit("nothing was seen")
