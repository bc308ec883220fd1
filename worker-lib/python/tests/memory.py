"""A rank whose tensors lie in memory in any way, and are made in inference mode or not.

Each call is made with each kind of tensor, for what it gives and for its results, in the network
and by Gloo.
"""

import itertools

import torch
import torch.distributed as dist

from switchml import Communicator

dist.init_process_group("switchml")
rank, ranks = dist.get_rank(), dist.get_world_size()
everyone = range(ranks)
ROOT = 1


def strided(values):
    return torch.stack((values, values.new_full(values.shape, 99)), -1)[..., 0]


def negated(values):
    """Their lazily negated negatives, in one piece; `.conj().imag` gives such in strides."""
    return torch._neg_view(-values)


def conjugated(values):
    lazy = values.conj_physical().conj()
    assert lazy.is_conj()
    return lazy


def plain(values):
    return values.clone()


def layouts(dtype):
    if dtype.is_complex:
        return (plain, strided, conjugated)
    # Torch has lazily negated ones as parts of complex numbers.
    is_part = dtype in (torch.float32, torch.float64)
    return (plain, strided, negated) if is_part else (plain, strided)


def value(dtype, count, of):
    """A rank's elements, which no other has. Sums and products of them are exact in all types."""
    values = torch.arange(count) % 3 + of + 1
    return torch.complex(values.double(), -values.double()).to(dtype) if dtype.is_complex else (
        values.to(dtype)
    )


class Case:
    """Tensors of a type, lying in memory in a way."""

    def __init__(self, dtype, layout, count):
        self.dtype, self.layout, self.count = dtype, layout, count

    def given(self, of=rank, times=1):
        return self.layout(value(self.dtype, times * self.count, of))

    def empty(self, times=1):
        return self.layout(torch.full((times * self.count,), 77).to(self.dtype))

    def wanted(self, of, times=1):
        return value(self.dtype, times * self.count, of)

    def all(self, times=1):
        return [self.wanted(other, times) for other in everyone]


def all_reduce(op, reduced):
    def call(case):
        tensor = case.given()
        yield lambda: dist.all_reduce(tensor, op)
        yield tensor, reduced(torch.stack(case.all()))

    return call


def coalesced(case):
    tensors = [case.given(), case.given(times=2)]
    yield lambda: dist.all_reduce_coalesced(tensors)
    yield torch.cat(tensors), torch.cat([sum(case.all()), sum(case.all(2))])


def broadcast(case):
    tensor = case.given()
    yield lambda: dist.broadcast(tensor, ROOT)
    yield tensor, case.wanted(ROOT)


def reduce(case):
    tensor = case.given()
    yield lambda: dist.reduce(tensor, ROOT)
    yield (tensor, sum(case.all())) if rank == ROOT else (tensor, tensor)


def gather(case):
    tensor, parts = case.given(), [case.empty() for _ in everyone]
    yield lambda: dist.gather(tensor, parts if rank == ROOT else None, ROOT)
    yield (torch.cat(parts), torch.cat(case.all())) if rank == ROOT else (tensor, case.wanted(rank))


def scatter(case):
    tensor, parts = case.empty(), list(case.given(times=ranks).chunk(ranks))
    yield lambda: dist.scatter(tensor, parts if rank == ROOT else None, ROOT)
    yield tensor, case.wanted(ROOT, ranks).chunk(ranks)[rank]


def all_gather(case):
    tensor, parts = case.given(), [case.empty() for _ in everyone]
    yield lambda: dist.all_gather(parts, tensor)
    yield torch.cat(parts), torch.cat(case.all())


def all_gather_into_tensor(case):
    tensor, whole = case.given(), case.empty(ranks)
    yield lambda: dist.all_gather_into_tensor(whole, tensor)
    yield whole, torch.cat(case.all())


def all_gather_in_place(case):
    whole = case.empty(ranks)
    part = whole.chunk(ranks)[rank]
    with torch.inference_mode(whole.is_inference()):
        part.copy_(case.wanted(rank))
    yield lambda: dist.all_gather_into_tensor(whole, part)
    yield whole, torch.cat(case.all())


def reduce_scatter(case):
    tensor, parts = case.empty(), list(case.given(times=ranks).chunk(ranks))
    yield lambda: dist.reduce_scatter(tensor, parts)
    yield tensor, sum(case.all(ranks)).chunk(ranks)[rank]


def reduce_scatter_tensor(case):
    tensor, whole = case.empty(), case.given(times=ranks)
    yield lambda: dist.reduce_scatter_tensor(tensor, whole)
    yield tensor, sum(case.all(ranks)).chunk(ranks)[rank]


def all_to_all_single(case):
    whole, given = case.empty(ranks), case.given(times=ranks)
    yield lambda: dist.all_to_all_single(whole, given)
    yield whole, torch.cat([each.chunk(ranks)[rank] for each in case.all(ranks)])


def send(case):
    """To the next rank, from the one before."""
    tensor, given = case.empty(), case.given()

    def call():
        works = [dist.isend(given, (rank + 1) % ranks), dist.irecv(tensor, (rank - 1) % ranks)]
        for work in works:
            work.wait()

    yield call
    yield tensor, case.wanted((rank - 1) % ranks)


SUM = all_reduce(dist.ReduceOp.SUM, lambda values: values.sum(0))
SUMS = (SUM, coalesced, reduce, reduce_scatter, reduce_scatter_tensor)
GATHERS = (all_gather, all_gather_into_tensor, all_gather_in_place)
ANY = (broadcast, gather, scatter, *GATHERS, all_to_all_single, send)
ORDERED = (
    all_reduce(dist.ReduceOp.MAX, lambda values: values.amax(0)),
    all_reduce(dist.ReduceOp.PRODUCT, lambda values: values.prod(0)),
)
AVERAGE = all_reduce(dist.ReduceOp.AVG, lambda values: values.to(torch.float64).mean(0).trunc())
CALLS = {
    torch.float32: (*SUMS, *ANY, *ORDERED),
    torch.float64: (*SUMS, *ANY, *ORDERED),
    torch.bfloat16: (SUM, broadcast, all_gather),
    torch.int32: (*SUMS, *ANY, *ORDERED, AVERAGE),
    torch.int64: (*SUMS, *ANY, *ORDERED, AVERAGE),
    torch.uint8: (SUM, broadcast, reduce, AVERAGE),
    # Gloo has no other calls for this type.
    torch.complex64: (broadcast, *GATHERS),
}
# Refusals of torch itself, before it asks any backend, and of an older Gloo.
REFUSALS = ("unresolved conjugated", "ProcessGroupGloo does not support")

# Few elements, and enough for an all-gather in the network.
for dtype, count in itertools.product(CALLS, (5, 16_384)):
    calls = [call for call in CALLS[dtype] if count == 5 or call in GATHERS]
    for layout in layouts(dtype):
        for make, made_in, called_in in itertools.product(calls, (False, True), (False, True)):
            with torch.inference_mode(made_in):
                steps = make(Case(dtype, layout, count))
                call = next(steps)
            what = f"{make.__qualname__} of {count} {dtype}, {layout.__name__}, made in inference "
            what += f"mode: {made_in}, called in it: {called_in}"
            try:
                with torch.inference_mode(called_in):
                    call()
            except Exception as error:
                if any(refusal in str(error) for refusal in REFUSALS):
                    continue
                raise SystemExit(f"{what}: {error}") from error
            found, wanted = next(steps)
            assert torch.equal(found.resolve_conj().resolve_neg(), wanted.to(found.dtype)), (
                f"{what} on rank {rank}: {found}, not {wanted}"
            )

# Elements that share memory, on all ranks or on one rank.
tensor = torch.tensor([rank + 1.0]).expand(7)
dist.all_reduce(tensor)
assert torch.equal(tensor, torch.full((7,), float(sum(range(1, ranks + 1))))), tensor
tensor = torch.full((2, 1), rank + 1).expand(2, 3)
dist.all_reduce(tensor, op=dist.ReduceOp.PRODUCT)
assert (tensor == torch.tensor(range(1, ranks + 1)).prod()).all(), tensor
part = torch.zeros(3)
dist.scatter(part, [torch.tensor([7.0]).expand(3)] * ranks if rank == 0 else None, 0)
assert (part == 7).all(), part
tensor = torch.ones(1).expand(3) if rank == 0 else torch.arange(3.0)
try:
    dist.all_reduce(tensor)
except dist.DistBackendError as error:
    wanted = (
        "switchml: elements of a tensor of shape (3,) share memory, and their results differ; give "
        "its .contiguous() (in all_reduce of 12 bytes, "
    )
    assert rank == 0 and str(error).startswith(wanted), (rank, error)
else:
    assert rank != 0 and torch.equal(tensor, 1 + (ranks - 1) * torch.arange(3.0)), tensor

# The device on which torch makes tensors by default does not matter.
torch.set_default_device("meta")
tensors = [torch.ones(3, dtype=dtype, device="cpu") for dtype in (torch.bool, torch.int64)]
dist.barrier()
dist.broadcast(tensors[0], 0)
dist.all_reduce(tensors[1])
torch.set_default_device(None)
assert tensors[0].all() and (tensors[1] == ranks).all(), tensors
dist.barrier()
dist.destroy_process_group()

# A communicator's own calls work in place, and make no copy that could resolve a negated view.
with Communicator(job="memory") as communicator:
    try:
        communicator.all_reduce(negated(torch.ones(3)))
    except ValueError as error:
        assert "call .resolve_neg() on it" in str(error), error
    else:
        raise SystemExit("a lazily negated view was taken")
    tensor = negated(torch.ones(3)).resolve_neg()
    communicator.all_reduce(tensor)
    assert (tensor == ranks).all(), tensor
print("all memory is right", flush=True)
