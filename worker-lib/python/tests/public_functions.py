"""A rank that calls every public function of torch.distributed.

WORKS has a check of each one by arithmetic. REFUSED has the errors of those that cannot work, and
why. A function that is in neither, because a new torch brings it, makes the test fail.
"""

import os
import types
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d

warnings.simplefilter("ignore")
MINUTE = timedelta(minutes=1)
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert ranks == 3
everyone = range(ranks)
next_rank, last_rank = (rank + 1) % ranks, (rank - 1) % ranks
cpu = torch.device("cpu")


def equal(got, wanted):
    wanted = torch.as_tensor(wanted, dtype=got.dtype)
    assert torch.equal(got, wanted), f"{got} for {wanted}"


def of(rank, count=2):
    """A rank's elements: all ranks' are different."""
    return torch.arange(float(count)) + 10 * rank


def summed(count=2):
    return sum(of(other, count) for other in everyone)


def empty(count=2):
    return torch.full((count,), -1.0)


def empties(count=2):
    return [empty(count) for _ in everyone]


def gathered():
    return torch.cat([of(other) for other in everyone])


def is_(wanted, got):
    assert got == wanted, f"{got!r} for {wanted!r}"


def init_process_group():
    dist.init_process_group("switchml", timeout=MINUTE)
    assert dist.is_initialized()


def destroy_process_group():
    dist.destroy_process_group()
    assert not dist.is_initialized()


def all_reduce():
    tensor = of(rank)
    dist.all_reduce(tensor)
    equal(tensor, summed())


def all_reduce_coalesced():
    tensors = [of(rank), of(rank, 3)]
    dist.all_reduce_coalesced(tensors)
    equal(tensors[0], summed())
    equal(tensors[1], summed(3))


def broadcast():
    for root in everyone:
        tensor = of(rank)
        dist.broadcast(tensor, root)
        equal(tensor, of(root))


def broadcast_object_list():
    objects = [{"rank": rank}]
    dist.broadcast_object_list(objects, 1)
    is_([{"rank": 1}], objects)


def barrier():
    dist.barrier()
    dist.barrier(async_op=True).wait()


def monitored_barrier():
    dist.monitored_barrier(timeout=MINUTE)
    dist.monitored_barrier(timeout=MINUTE, wait_all_ranks=True)


def all_gather():
    parts = empties()
    dist.all_gather(parts, of(rank))
    equal(torch.cat(parts), gathered())


def all_gather_coalesced():
    parts = [[empty(), empty(3)] for _ in everyone]
    dist.all_gather_coalesced(parts, [of(rank), of(rank, 3)])
    for other in everyone:
        equal(parts[other][0], of(other))
        equal(parts[other][1], of(other, 3))


def into_one(gather):
    def call():
        whole = empty(2 * ranks)
        gather(whole, of(rank))
        equal(whole, gathered())

    return call


def all_gather_object():
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    is_([{"rank": other} for other in everyone], objects)


def gather():
    parts = empties() if rank == 1 else None
    dist.gather(of(rank), parts, dst=1)
    if rank == 1:
        equal(torch.cat(parts), gathered())


def gather_object():
    objects = [None] * ranks if rank == 1 else None
    dist.gather_object({"rank": rank}, objects, dst=1)
    if rank == 1:
        is_([{"rank": other} for other in everyone], objects)


def reduce():
    tensor = of(rank)
    dist.reduce(tensor, dst=1)
    if rank == 1:
        equal(tensor, summed())


def reduce_scatter():
    part = empty()
    dist.reduce_scatter(part, list(of(rank, 2 * ranks).chunk(ranks)))
    equal(part, summed(2 * ranks).chunk(ranks)[rank])


def from_one(reduce_scatter):
    def call():
        part = empty()
        reduce_scatter(part, of(rank, 2 * ranks))
        equal(part, summed(2 * ranks).chunk(ranks)[rank])

    return call


def scatter():
    part = empty()
    dist.scatter(part, list(of(rank, 2 * ranks).chunk(ranks)) if rank == 1 else None, src=1)
    equal(part, of(1, 2 * ranks).chunk(ranks)[rank])


def scatter_object_list():
    objects = [None]
    dist.scatter_object_list(
        objects, [f"for {other}" for other in everyone] if rank == 1 else None, src=1
    )
    is_([f"for {rank}"], objects)


def all_to_all():
    parts = empties()
    dist.all_to_all(parts, list(of(rank, 2 * ranks).chunk(ranks)))
    equal(
        torch.cat(parts), torch.cat([of(other, 2 * ranks).chunk(ranks)[rank] for other in everyone])
    )


def all_to_all_single():
    whole = empty(2 * ranks)
    dist.all_to_all_single(whole, of(rank, 2 * ranks))
    equal(whole, torch.cat([of(other, 2 * ranks).chunk(ranks)[rank] for other in everyone]))


def send():
    """The ranks in a ring, from rank 0 on."""
    tensor = empty()
    if rank == 0:
        dist.send(of(0), 1)
        is_(2, dist.recv(tensor, 2))
        equal(tensor, of(0) + 2)
    else:
        is_(rank - 1, dist.recv(tensor, rank - 1))
        dist.send(tensor + 1, next_rank)


def recv():
    """Also from whoever sends."""
    send()
    if rank == 0:
        sources = set()
        for _ in range(ranks - 1):
            tensor = empty()
            source = dist.recv(tensor)
            equal(tensor, of(source))
            sources.add(source)
        is_({1, 2}, sources)
    else:
        dist.send(of(rank), 0)
    # Without this barrier, the sends of the next function would be received, too.
    dist.barrier()


def isend():
    tensor = empty()
    works = [dist.isend(of(rank), next_rank), dist.irecv(tensor, last_rank)]
    assert all(work.wait() for work in works) and all(work.is_completed() for work in works)
    equal(tensor, of(last_rank))


def batch_isend_irecv():
    tensor = empty()
    operations = [
        dist.P2POp(dist.isend, of(rank), next_rank),
        dist.P2POp(dist.irecv, tensor, last_rank),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    equal(tensor, of(last_rank))


def send_object_list():
    objects = [None]
    if rank == 0:
        dist.send_object_list([{"from": 0}], 1)
    elif rank == 1:
        is_(0, dist.recv_object_list(objects, 0))
        is_([{"from": 0}], objects)
        dist.send_object_list(objects, 2)
    else:
        is_(1, dist.recv_object_list(objects, 1))
        is_([{"from": 0}], objects)


def sums_in(group, members):
    """That a group works, in the network and by Gloo, and is another than that of all."""
    if rank not in members:
        assert group is dist.GroupMember.NON_GROUP_MEMBER or group is None, group
        return
    is_("switchml", dist.get_backend(group))
    is_(list(members), dist.get_process_group_ranks(group))
    tensor = of(rank)
    dist.all_reduce(tensor, group=group)
    equal(tensor, sum(of(other) for other in members))
    parts = [empty() for _ in members]
    dist.all_gather(parts, of(rank), group=group)
    equal(torch.cat(parts), torch.cat([of(other) for other in members]))


def new_group():
    group = dist.new_group([0, 2], timeout=MINUTE)
    sums_in(group, [0, 2])
    if rank != 1:
        is_(rank // 2, dist.get_group_rank(group, rank))
        is_(rank, dist.get_global_rank(group, rank // 2))
        dist.destroy_process_group(group)


def new_subgroups():
    group, groups = dist.new_subgroups(group_size=ranks)
    is_(1, len(groups))
    sums_in(group, everyone)


def new_subgroups_by_enumeration():
    group, _ = dist.new_subgroups_by_enumeration([[0, 1], [2]])
    sums_in(group, [0, 1] if rank < 2 else [2])


def split_group():
    group = dist.split_group(split_ranks=[[0, 2], [1]], timeout=MINUTE)
    sums_in(group, [1] if rank == 1 else [0, 2])
    # Parts of a part, and a rank that is in none.
    if rank != 1:
        sums_in(dist.split_group(group, [[0], [1]]), [rank])
    try:
        sums_in(dist.split_group(split_ranks=[[0, 2]]), [0, 2])
    except dist.DistBackendError as error:
        is_(
            (
                1,
                "switchml: rank 1 is in no part of the group; split_group needs it in one, "
                "use new_group if it is in none",
            ),
            (rank, str(error)),
        )


def shrink_group():
    group = dist.new_group(timeout=MINUTE)
    sums_in(group, everyone)
    if rank != 1:
        sums_in(dist.shrink_group([1], group), [0, 2])


def get_backend_impl():
    backend = dist.get_backend_impl(device=cpu)
    is_(("switchml", rank, ranks), (backend.name(), backend.rank(), backend.size()))
    # C++ looks for a backend's attributes in the class, and recurses if they are missing. None of
    # them may recurse forever.
    ends = {"abort", "shutdown"}
    for name in (name for name in dir(Backend) if not name.startswith("__") and name not in ends):
        for argument in ((), (cpu,), (MINUTE,)):
            try:
                value = getattr(backend, name)
                if callable(value):
                    value(*argument)
            except RecursionError:
                raise
            except Exception:
                # The method is not offered, or takes other arguments.
                pass
    is_("switchml", backend.options.backend)


def get_pg_count():
    before = dist.get_pg_count()
    group = dist.new_group()
    is_(before + 1, dist.get_pg_count())
    # Other ranks may still be connecting their Gloo to this rank's.
    dist.barrier()
    dist.destroy_process_group(group)


def set_timeout():
    dist.set_timeout(MINUTE / 2)
    is_(MINUTE / 2, dist.get_backend_impl(device=cpu).options._timeout)
    all_reduce()
    all_gather()


def record_comm():
    with dist.record_comm("a name for profiles"):
        all_reduce()


def init_device_mesh():
    mesh = dist.init_device_mesh("cpu", (ranks,))
    tensor = of(rank)
    dist.all_reduce(tensor, group=mesh.get_group())
    equal(tensor, summed())


def levels():
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.INFO)
    is_(dist.DebugLevel.INFO, dist.get_debug_level())
    dist.set_debug_level_from_env()
    is_(before, dist.get_debug_level())


def rendezvous():
    """By a scheme of one's own: a store for the ranks to meet."""
    dist.register_rendezvous_handler(
        "mine", lambda url, **_: iter([(dist.HashStore(), rank, ranks)])
    )
    store, *place = next(dist.rendezvous("mine://here"))
    store.set("key", "value")
    is_((b"value", [rank, ranks]), (store.get("key"), place))


# Functions in the order in which they are called.
WORKS = {
    "init_process_group": init_process_group,
    "is_initialized": lambda: is_(True, dist.is_initialized()),
    "get_rank": lambda: is_(rank, dist.get_rank()),
    "get_world_size": lambda: is_(ranks, dist.get_world_size()),
    "get_backend": lambda: is_("switchml", dist.get_backend()),
    "get_backend_config": lambda: is_("cpu:switchml,cuda:switchml", dist.get_backend_config()),
    "get_backend_impl": get_backend_impl,
    "get_default_backend_for_device": lambda: is_(
        "gloo", dist.get_default_backend_for_device("cpu")
    ),
    "get_process_group_ranks": lambda: is_(
        [0, 1, 2],
        dist.get_process_group_ranks(None if torch.__version__ >= "2.9" else dist.group.WORLD),
    ),
    "get_group_rank": lambda: is_(rank, dist.get_group_rank(dist.group.WORLD, rank)),
    "get_global_rank": lambda: is_(1, dist.get_global_rank(dist.group.WORLD, 1)),
    "get_node_local_rank": lambda: is_(5, dist.get_node_local_rank(fallback_rank=5)),
    "get_pg_count": get_pg_count,
    "get_debug_level": levels,
    "set_debug_level": levels,
    "set_debug_level_from_env": levels,
    "is_available": lambda: is_(True, dist.is_available()),
    "is_backend_available": lambda: is_(True, dist.is_backend_available("switchml")),
    "is_gloo_available": lambda: is_(True, dist.is_gloo_available()),
    "is_torchelastic_launched": lambda: is_(False, dist.is_torchelastic_launched()),
    "all_reduce": all_reduce,
    "all_reduce_coalesced": all_reduce_coalesced,
    "broadcast": broadcast,
    "broadcast_object_list": broadcast_object_list,
    "barrier": barrier,
    "monitored_barrier": monitored_barrier,
    "all_gather": all_gather,
    "all_gather_coalesced": all_gather_coalesced,
    "all_gather_into_tensor": into_one(dist.all_gather_into_tensor),
    "all_gather_single": into_one(lambda *tensors: dist.all_gather_single(*tensors)),
    "all_gather_object": all_gather_object,
    "gather": gather,
    "gather_object": gather_object,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_tensor": from_one(dist.reduce_scatter_tensor),
    "reduce_scatter_single": from_one(lambda *tensors: dist.reduce_scatter_single(*tensors)),
    "scatter": scatter,
    "scatter_object_list": scatter_object_list,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "send": send,
    "recv": recv,
    "isend": isend,
    "irecv": isend,
    "batch_isend_irecv": batch_isend_irecv,
    "send_object_list": send_object_list,
    "recv_object_list": send_object_list,
    "new_group": new_group,
    "new_subgroups": new_subgroups,
    "new_subgroups_by_enumeration": new_subgroups_by_enumeration,
    "shrink_group": shrink_group,
    "split_group": split_group,
    "set_timeout": set_timeout,
    "record_comm": record_comm,
    "init_device_mesh": init_device_mesh,
    "rendezvous": rendezvous,
    "destroy_process_group": destroy_process_group,
}

# Calls, and their errors in one line. Torch's C++ never asks a backend in Python for the first two,
# and Gloo does not have them either. `new_group` makes groups of fewer ranks.
GATHER = "Backend switchml does not support gather_single"
REFUSED = {
    "gather_single": (lambda: dist.gather_single(of(rank), empty(2 * ranks), dst=rank), GATHER),
    "gather_into_tensor": (
        lambda: dist.gather_into_tensor(of(rank), empty(2 * ranks), dst=rank),
        GATHER,
    ),
}

if torch.__version__ < "2.15":
    # The function only splits groups of GPUs.
    SPLIT = "No device associated with the default pg, not safe to split any process groups"
    REFUSED["split_group"] = (WORKS.pop("split_group"), SPLIT)

# Functions that older torch offers only for its own backends, or that its Gloo lacks.
OLDER = {
    "monitored_barrier": ("2.14", "monitored_barrier is only implemented for GLOO backend."),
    "all_to_all": ("2.14", "Backend gloo does not support alltoall"),
}
for name, (version, wanted) in OLDER.items():
    if torch.__version__ < version:
        REFUSED[name] = (WORKS.pop(name), wanted)

# Functions that have nothing to do with a backend: what else this build of torch has, and its
# debugger.
ELSEWHERE = {
    "is_mpi_available",
    "is_nccl_available",
    "is_ucc_available",
    "is_xccl_available",
    "supports_complex",
    "breakpoint",
}
# A function that is tested with others, and cannot be called twice.
ELSEWHERE |= {"register_rendezvous_handler"}

# Functions that the oldest tested versions lack, and the first tested version that has them.
FIRST = {
    "get_default_backend_for_device": "2.9",
    "split_group": "2.9",
    "all_gather_single": "2.14",
    "gather_into_tensor": "2.14",
    "gather_single": "2.14",
    "get_backend_impl": "2.14",
    "record_comm": "2.14",
    "reduce_scatter_single": "2.14",
    "set_timeout": "2.14",
    "shrink_group": "2.14",
}
for name, version in FIRST.items():
    if torch.__version__ < version:
        assert not hasattr(dist, name), f"torch {torch.__version__} has {name}"
        WORKS.pop(name, None)
        REFUSED.pop(name, None)

functions = (types.FunctionType, types.BuiltinFunctionType)
public = {
    name
    for name in distributed_c10d.__all__
    if isinstance(getattr(distributed_c10d, name), functions)
}
public |= {
    name
    for name in dir(dist)
    if not name.startswith("_") and isinstance(getattr(dist, name), functions)
}
unknown = public - set(WORKS) - set(REFUSED) - ELSEWHERE
assert not unknown, (
    f"torch {torch.__version__} has functions that nobody has tried with this backend: "
    f"{sorted(unknown)}"
)

failed = []
for name, call in WORKS.items():
    try:
        call()
    except Exception as error:
        failed.append(f"{name}: {error!r}")
    # All refusals are tested once there is a group.
    if name == "init_device_mesh":
        for refused, (call, wanted) in REFUSED.items():
            try:
                call()
            except Exception as error:
                if str(error) != wanted:
                    failed.append(f"{refused}: {error!r} for {wanted!r}")
            else:
                failed.append(f"{refused} works: WORKS is its place")
assert not failed, failed
print(
    f"all {len(public)} functions of torch {torch.__version__}: all of them work, or say why not",
    flush=True,
)
