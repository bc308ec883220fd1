"""All-reduce through an in-network aggregator.

    from switchml import Communicator

    # RANK, WORLD_SIZE and SWITCHML_AGGREGATOR come from the environment.
    with Communicator() as communicator:
        communicator.all_reduce(gradients, "avg")  # a NumPy array or a torch CPU tensor, in place

`switchml.torch` is the backend for `torch.distributed`.
"""

from ._communicator import Communicator, Handle
from ._error import Error
from ._settings import Settings

__all__ = ["Communicator", "Error", "Handle", "Settings"]
