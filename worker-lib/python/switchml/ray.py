"""Sums in the network for actors of Ray: collective groups, and compiled graphs.

    import ray.util.collective as collective
    import switchml.ray

    switchml.ray.register()  # in each process: the driver, and each actor
    collective.init_collective_group(world_size, rank, backend="switchml")
    collective.allreduce(gradients)  # a NumPy array or a torch tensor, in place

In a compiled graph, give `allreduce.bind` the transport `SwitchmlCommunicator(actors)`. Ray Train
needs nothing from here, only `TorchConfig(backend="switchml")`.

Both are process groups of torch: what runs in the network, and what goes to Gloo, is the same as
for `torch.distributed`. So are the variables: `SWITCHML_AGGREGATOR` of rank 0 counts, and without
it the ranks serve each other.
"""

import json
import logging
import socket
import uuid
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from ._error import Error
from .torch._create import make, own_line, seconds_in
from .torch._group import Kin, put_behind
from .torch._rendezvous import looks
from .torch._threads import NAME

# The version that the tests run.
_TESTED = "2.60.0"

try:
    import ray
    from ray.experimental import internal_kv
    from ray.experimental.channel.cpu_communicator import CPUCommunicator
    from ray.experimental.util.types import ReduceOp
    from ray.util.collective import types
    from ray.util.collective.backend_registry import _global_registry, register_collective_backend
    from ray.util.collective.collective_group.base_collective_group import BaseGroup
except ImportError as error:
    if error.name == "ray":
        raise ImportError(f"switchml.ray needs Ray: pip install ray=={_TESTED}") from None
    raise ImportError(
        f"Ray {ray.__version__} is too old or too new for switchml.ray: {error}; Ray {_TESTED} "
        "works"
    ) from None

log = logging.getLogger("switchml.ray")

# Seconds after which the log says that rank 0 is late, and for its process to take a connection.
_LATE, _ANSWER = 5.0, 1.0


def register() -> None:
    """Makes the backend known to `ray.util.collective` in this process, once."""
    if not _global_registry.is_registered(NAME):
        register_collective_backend(NAME, SwitchmlGroup)


class SwitchmlGroup(BaseGroup):
    """The backend "switchml" of `ray.util.collective`.

    Each call gets lists with one tensor, as Ray makes them of its functions' arguments: a torch
    tensor, or a NumPy array, of any shape. Results come in place. What the network does not add up,
    such as products, `send` and `recv`, goes to Gloo.

    Ranks have 1800 s, or `SWITCHML_JOIN_TIMEOUT` seconds, to come to the first call.

    Raises `RuntimeError` in one line if a rank is lost or does not come, `TypeError` for another
    kind of tensor, and `ValueError` for a read-only array where a result belongs.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        # Ray has one store for all namespaces.
        namespace = ray.get_runtime_context().namespace
        self._group = _form(f"{namespace}/{group_name}", rank, world_size)

    @classmethod
    def backend(cls) -> str:
        return NAME.upper()

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        self._group.shutdown()

    def allreduce(self, tensor: list[Any], options: Any = types.AllReduceOptions()) -> None:
        _all_reduce(self._group, _result(tensor), options.reduceOp)

    def reduce(self, tensor: list[Any], options: Any = types.ReduceOptions()) -> None:
        # The network gives all ranks the sum. Only the root's tensor may change.
        is_root = options.root_rank == self.rank
        result = _result(tensor) if is_root else _given(tensor[0]).detach().clone()
        _all_reduce(self._group, result, options.reduceOp)

    def broadcast(self, tensor: list[Any], options: Any = types.BroadcastOptions()) -> None:
        is_root = options.root_rank == self.rank
        opts = dist.BroadcastOptions()
        opts.rootRank, opts.rootTensor = options.root_rank, 0
        value = _given(tensor[0]) if is_root else _result(tensor)
        _wait(self._group.broadcast([value], _awaited(opts)))

    def allgather(
        self, tensor_list: list[list[Any]], tensor: list[Any], options: Any = None
    ) -> None:
        results = [_result([each]) for each in tensor_list[0]]
        opts = _awaited(AllgatherOptions())
        _wait(self._group.allgather([results], [_given(tensor[0])], opts))

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        options: Any = types.ReduceScatterOptions(),
    ) -> None:
        opts = _reducing(dist.ReduceScatterOptions(), options.reduceOp)
        given = [_given(each) for each in tensor_list[0]]
        _wait(self._group.reduce_scatter([_result(tensor)], [given], opts))

    def barrier(self, options: Any = None) -> None:
        _wait(self._group.barrier(_awaited(dist.BarrierOptions())))

    def send(self, tensor: list[Any], options: Any) -> None:
        _wait(self._group.send([_given(tensor[0])], options.dst_rank, 0))

    def recv(self, tensor: list[Any], options: Any) -> None:
        _wait(self._group.recv([_result(tensor)], options.src_rank, 0))


class SwitchmlCommunicator(CPUCommunicator):
    """A transport for collectives in a compiled graph, between actors that have no GPU.

        sums = ray.experimental.collective.allreduce.bind(
            nodes, transport=SwitchmlCommunicator(actors)
        )

    The first actor is rank 0. Tensors that go from one actor to another take Ray's own way. An
    actor's call raises `RuntimeError` in one line if another actor is lost.
    """

    def __init__(self, actors: list[Any]) -> None:
        super().__init__(len(actors), actors)
        # The actors get copies of this object, before they have a group.
        self._name = str(uuid.uuid4())
        self._group: Any = None

    def initialize(self, rank: int) -> None:
        super().initialize(rank)
        self._group = _form(self._name, rank, self.get_world_size())

    def allreduce(self, send_buf: Any, recv_buf: Any, op: Any = ReduceOp.SUM) -> None:
        if recv_buf is not send_buf:
            recv_buf.copy_(send_buf)
        _all_reduce(self._group, recv_buf, op)

    def allgather(self, send_buf: Any, recv_buf: Any) -> None:
        opts = _awaited(AllgatherOptions())
        _wait(self._group._allgather_base(recv_buf, send_buf, opts))

    def reducescatter(self, send_buf: Any, recv_buf: Any, op: Any = ReduceOp.SUM) -> None:
        opts = _reducing(dist.ReduceScatterOptions(), op)
        _wait(self._group._reduce_scatter_base(recv_buf, send_buf, opts))

    def destroy(self) -> None:
        # An actor may be in a call for which another one never comes.
        if self._group is not None:
            self._group.abort()


for _kind in (SwitchmlGroup, SwitchmlCommunicator):
    if _kind.__abstractmethods__:
        raise ImportError(
            f"Ray {ray.__version__} is too new for switchml.ray: a {_kind.__base__.__name__} has "
            f"{', '.join(sorted(_kind.__abstractmethods__))}; Ray {_TESTED} works"
        )


def _form(name: str, rank: int, size: int) -> Any:
    """A group of ranks that meet by Ray's store, where rank 0 says where torch's is."""
    key = f"{NAME}/{name}"
    timeout = dist.constants.default_pg_timeout
    if rank == 0:
        host = ray.util.get_node_ip_address()
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        internal_kv._internal_kv_put(key, json.dumps([host, store.port]))
    else:
        host, port = _first(key, name, size, timeout.total_seconds())
        store = dist.TCPStore(host, port, is_master=False)
    try:
        group = dist.ProcessGroup(store, rank, size)
        # Nobody knows which of them are ranks of another group.
        kin = Kin([object() for _ in range(size)], own_line(store), home=0)
        put_behind(group, make(store, rank, size, timeout, kin))
    finally:
        # All have come, or none may. A later group of that name meets elsewhere.
        if rank == 0:
            internal_kv._internal_kv_del(key)
    return group


def _first(key: str, name: str, size: int, seconds: float) -> tuple[str, int]:
    """The address and port of torch's store in the process of rank 0, once it lives.

    That of an earlier group may be left, if its rank 0 was killed.
    """
    limit = seconds_in("SWITCHML_JOIN_TIMEOUT")
    most = seconds if limit is None else min(seconds, limit)
    is_told = False
    for waited in looks():
        said = internal_kv._internal_kv_get(key)
        if said is not None:
            host, port = json.loads(said)
            try:
                socket.create_connection((host, port), _ANSWER).close()
                return host, port
            except OSError:
                pass
        if waited > most:
            raise Error(
                f"rank 0 of {size} did not come to the group {name} within {most:g} s; start what "
                "is missing, or give it more time (SWITCHML_JOIN_TIMEOUT)",
                [0],
            )
        if waited > _LATE and not is_told:
            log.warning("%s: a rank waits for rank 0 of %s of the group %s", NAME, size, name)
            is_told = True
    raise AssertionError("there is no end of looks")


def _given(tensor: Any) -> torch.Tensor:
    """A tensor that is only read, in place."""
    if isinstance(tensor, torch.Tensor):
        return tensor
    if type(tensor).__module__ == "numpy":
        # Torch warns of a read-only one, such as Ray's store gives.
        return torch.from_numpy(tensor if tensor.flags.writeable else tensor.copy())
    raise TypeError(f"{NAME} takes NumPy arrays and torch tensors, and this is a {type(tensor)}")


def _result(tensor: list[Any]) -> torch.Tensor:
    """The one tensor, in which a result belongs."""
    flags = getattr(tensor[0], "flags", None)
    if flags is not None and not flags.writeable:
        raise ValueError("the array is read-only, as Ray's store gives it; give a copy (.copy())")
    return _given(tensor[0])


def _all_reduce(group: Any, tensor: torch.Tensor, op: Any) -> None:
    _wait(group.allreduce([tensor], _reducing(dist.AllreduceOptions(), op)))


def _reducing(opts: Any, op: Any) -> Any:
    """Torch's options of a call with one of Ray's operators, which it names alike."""
    opts.reduceOp = getattr(dist.ReduceOp, op.name)
    return _awaited(opts)


def _awaited(opts: Any) -> Any:
    """The options of a call for which its caller waits at once, which is faster."""
    opts.asyncOp = False
    return opts


def _wait(work: Any) -> None:
    # A small call is over without such an object.
    if work is not None:
        work.wait()
