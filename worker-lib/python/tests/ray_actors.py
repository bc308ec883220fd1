"""Actors of Ray: all calls of collective groups, and of compiled graphs; who is lost is named.

Arguments: numbers of actors. Says at the end that all works.
"""

import os
import subprocess
import sys
import tempfile
import time
from functools import reduce
from pathlib import Path

import numpy as np
import ray
import ray.util.collective as collective
import torch
from ray.dag import InputNode, MultiOutputNode
from ray.experimental.collective import allgather, allreduce, reducescatter
from ray.experimental.util.types import ReduceOp as GraphOp
from ray.util.collective.types import ReduceOp

from switchml.ray import SwitchmlCommunicator, register

# Seconds in which a lost actor is named. Calls wait for 1800 s for one that is late.
SOON = 60
COMBINE = {
    "SUM": lambda a, b: a + b,
    "PRODUCT": lambda a, b: a * b,
    "MIN": min,
    "MAX": max,
}
KINDS = [np.array, lambda values, dtype: torch.tensor(values, dtype=getattr(torch, dtype))]


@ray.remote(num_cpus=0, scheduling_strategy="SPREAD")
class Actor:
    def __init__(self, rank, ranks):
        register()
        register()
        self.rank, self.ranks = rank, ranks

    def join(self, name):
        collective.init_collective_group(self.ranks, self.rank, "switchml", name)

    def leave(self, name):
        collective.destroy_collective_group(name)

    def sum_up(self, name):
        """A sum, or what the error says, and whether that came soon."""
        array, begin = np.full(1000, self.rank + 1, np.float32), time.monotonic()
        try:
            collective.allreduce(array, name)
        except RuntimeError as error:
            return str(error), time.monotonic() - begin < SOON
        return array[0], True

    def make_all_calls(self, name):
        for kind in KINDS:
            for dtype in ("float32", "float64", "int32", "int64", "uint8"):
                self._make_calls(name, lambda values: kind(values, dtype=dtype))
        large = np.arange(1 << 18, dtype=np.float32)
        collective.allreduce(large, name)
        assert (large == np.arange(1 << 18) * self.ranks).all()

    def _make_calls(self, name, make):
        mine, all_ranks = self.rank, range(self.ranks)
        for op in ReduceOp:
            total = lambda values: reduce(COMBINE[op.name], values)  # noqa: E731
            # Small enough for products of bytes.
            wanted = [total(1 + rank % 2 for rank in all_ranks), total(2 for _ in all_ranks)]
            given = [1 + mine % 2, 2]
            tensor = make(given)
            collective.allreduce(tensor, name, op)
            assert tensor.tolist() == wanted, (op, tensor)
            tensor = make(given)
            collective.reduce(tensor, 1, name, op)
            assert tensor.tolist() == (wanted if mine == 1 else given), (op, tensor)
            tensor, parts = make([0]), [make([1 + (mine + part) % 2]) for part in all_ranks]
            collective.reducescatter(tensor, parts, name, op)
            assert tensor.tolist() == [total(1 + (rank + mine) % 2 for rank in all_ranks)]
            assert [part.tolist() for part in parts] == [[1 + (mine + p) % 2] for p in all_ranks]
        tensor = make([mine] * 3)
        collective.broadcast(tensor, 1, name)
        assert tensor.tolist() == [1] * 3, tensor
        tensors = [make([[9, 9]]) for _ in all_ranks]
        collective.allgather(tensors, make([[mine, mine + 1]]), name)
        assert [each.tolist() for each in tensors] == [[[rank, rank + 1]] for rank in all_ranks]
        tensor = make([0])
        if mine == 0:
            collective.send(make([7]), 1, name)
        elif mine == 1:
            collective.recv(tensor, 0, name)
            assert tensor.tolist() == [7], tensor
        collective.barrier(name)

    def refuse(self, array, name):
        """What the errors say of an array of Ray's store, and of another kind of tensor."""
        said = []
        for wrong in (array, memoryview(b"1234")):
            try:
                collective.get_group_handle(name).allreduce([wrong])
            except (TypeError, ValueError) as error:
                said.append(str(error))
        return said

    def end(self):
        os._exit(1)

    def make(self, count):
        if count < 0 and self.rank == 0:
            os._exit(1)
        return torch.arange(abs(count), dtype=torch.float32) + self.rank

    def passed(self, tensor):
        return tensor


def actors_of(ranks):
    return [Actor.remote(rank, ranks) for rank in range(ranks)]


def on_all(actors, method, *arguments):
    return ray.get([getattr(actor, method).remote(*arguments) for actor in actors])


def check_groups(ranks):
    actors, total = actors_of(ranks), sum(range(1, ranks + 1))
    on_all(actors, "join", "first")
    on_all(actors, "make_all_calls", "first")
    said = ray.get(actors[0].refuse.remote(np.zeros(1_000_000), "first"))
    assert "read-only" in said[0] and "NumPy arrays and torch tensors" in said[1], said
    # The same name again, and another one.
    on_all(actors, "leave", "first")
    on_all(actors, "join", "first")
    on_all(actors, "join", "second")
    assert on_all(actors, "sum_up", "second") == [(total, True)] * ranks
    sums = [actor.sum_up.remote("first") for actor in actors[1:]]
    actors[0].end.remote()
    for text, is_soon in ray.get(sums):
        assert is_soon and "rank 0" in str(text), text
    for actor in actors[1:]:
        ray.kill(actor)
    # Others take the name.
    actors = actors_of(ranks)
    on_all(actors, "join", "first")
    assert on_all(actors, "sum_up", "first") == [(total, True)] * ranks
    for actor in actors:
        ray.kill(actor)


def check_declared_group():
    """A group that the driver declares, and that actors join with their first call."""
    register()
    actors = actors_of(2)
    collective.create_collective_group(actors, 2, [0, 1], "switchml", "declared")
    assert on_all(actors, "sum_up", "declared") == [(3, True)] * 2
    for actor in actors:
        ray.kill(actor)


def check_graphs(ranks):
    actors = actors_of(ranks)

    def graph(call, **how):
        with InputNode() as count:
            nodes = [actor.make.bind(count) for actor in actors]
            transport = SwitchmlCommunicator(actors)
            results = call.bind(nodes, transport=transport, **how)
            results = [actor.passed.bind(each) for actor, each in zip(actors, results)]
            return MultiOutputNode(results).experimental_compile()

    given = [[rank, rank + 1.0, rank + 2.0, rank + 3.0] for rank in range(ranks)]
    sums = [sum(column) for column in zip(*given)]
    for call, how, wanted in (
        (allreduce, {}, [sums] * ranks),
        (allreduce, {"op": GraphOp.MAX}, [given[-1]] * ranks),
        (allreduce, {"op": GraphOp.AVG}, [[total / ranks for total in sums]] * ranks),
        (allgather, {}, [sum(given, [])] * ranks),
        (reducescatter, {}, [sums[4 * r // ranks : 4 * (r + 1) // ranks] for r in range(ranks)]),
    ):
        compiled = graph(call, **how)
        for _ in range(3):
            results = [tensor.tolist() for tensor in ray.get(compiled.execute(4))]
            assert results == wanted, (call, how, results)
        compiled.teardown()
    if len(ray.nodes()) > 1:
        # Ray 2.60.0 then loses the whole node: a check of its own fails there, in
        # `HandlePushMutableObject`.
        return
    compiled, begin = graph(allreduce), time.monotonic()
    try:
        ray.get(compiled.execute(-4))
    except ray.exceptions.RayError as error:
        assert time.monotonic() - begin < SOON, error
    else:
        raise AssertionError("a graph without an actor has a result")


def check_versions():
    """One line says that Ray is not the one it takes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ray").mkdir()
        (Path(folder) / "ray" / "__init__.py").write_text("__version__ = '2.9.0'\n")
        paths = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-c", "import switchml.ray"]
        ended = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
        )
    last = ended.stderr.splitlines()[-1]
    assert "ImportError: Ray 2.9.0 is too old or too new for switchml.ray" in last, ended.stderr


if __name__ == "__main__":
    names = [name for name in os.environ if name.startswith(("SWITCHML_", "GLOO_"))]
    variables = {name: os.environ[name] for name in names}
    ray.init(address="auto", runtime_env={"env_vars": variables})
    check_versions()
    check_declared_group()
    for ranks in map(int, sys.argv[1:]):
        check_groups(ranks)
        check_graphs(ranks)
        print(f"{ranks} actors", flush=True)
    print("all of it works", flush=True)
