"""A rank's membership in a job."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Sequence

from . import _memory, _native
from ._error import Error

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._settings import Settings


class Handle:
    """A call in flight. Its tensor, if it has one, must be left alone until it is over."""

    def __init__(self, native: _native.Handle) -> None:
        self._native = native

    def wait(self) -> dict[str, Any]:
        """Waits until the result is in the tensor, and returns the call's statistics.

        Raises `switchml.Error`.
        """
        return self._native.wait()

    def send(self) -> None:
        """Sends the first packets of a deferred call, so that they travel until it is waited for.

        This waits for nothing, and wakes up no other thread.
        """
        self._native.send()

    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._native.is_done()


class Communicator:
    """A rank's membership in a job of `world_size` ranks, and the collectives among them.

    Every rank makes the same calls in the same order, with the same number and type of elements.

    Keyword arguments are the settings in `switchml.Settings`. One that is not given comes from the
    environment, as torchrun and srun set it, or is the default. Times are in seconds.

    `is_wanted`, if given, is asked ten times a second while the ranks join; once it says no,
    joining ends with an error.

    Tensors are contiguous torch CPU tensors or writable buffers such as NumPy arrays, and are used
    in place. Methods release the GIL while they wait, and let handlers of signals run. In a fork of
    the process all calls raise an error.
    """

    def __init__(
        self,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        _peers: tuple[_native.OwnAggregator, list[str]] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self._native = _native.Communicator(is_wanted=is_wanted, peers=_peers, **settings)

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._native.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._native.world_size

    @property
    def info(self) -> dict[str, Any]:
        """What was agreed when the communicator was made."""
        return self._native.info

    def all_reduce(
        self,
        tensor: Any,
        op: str = "sum",
        precision: str | int = "exact",
        residual: Any = None,
    ) -> dict[str, Any]:
        """Replaces the tensor by the reduction over all ranks; returns the call's statistics.

        `op` is "sum", "avg", "max" or "min". `precision` is "exact", or the bits of an element
        that travel in a sum or an average of f32, f16 or bf16: 16 for half the packets, 8 for a
        quarter. `residual`, if given, is a tensor of the same type and length. It is overwritten
        with what this rank's elements lose by that: each, less what it adds to the sum. Add it to
        what this rank reduces next, and errors do not pile up (error feedback). Where elements are
        NaN or infinite it is 0.

        In sums and averages of floats NaN and infinities stay where they are if the tensor has at
        most 1024 elements of f32, f16 or bf16, and `precision` is "exact". Otherwise one makes all
        elements of its packet NaN, hundreds of them.
        """
        return self.all_reduce_start(tensor, op, precision, residual, deferred=True).wait()

    def all_reduce_start(
        self,
        tensor: Any,
        op: str = "sum",
        precision: str | int = "exact",
        residual: Any = None,
        *,
        deferred: bool = False,
    ) -> Handle:
        """Starts an all-reduce and returns at once. Any number may be in flight.

        If it is `deferred`, it runs only once it is waited for, or asked whether it is done, or
        dropped. That is faster for a caller that waits at once: no other thread is woken up.
        """
        address, count, dtype, owner = _memory.of(tensor)
        lost: int | None = None
        if residual is not None:
            lost, *like, its_owner = _memory.of(residual)
            if like != [count, dtype]:
                raise ValueError(
                    f"a residual of {like[0]} elements of {like[1]} for {count} of {dtype}; give "
                    "one like the tensor"
                )
            owner = (owner, its_owner)
        native = self._native.all_reduce_start
        return Handle(native(address, count, dtype, op, str(precision), lost, owner, deferred))

    def broadcast(self, tensor: Any, root: int) -> dict[str, Any]:
        """Replaces the tensor by rank `root`'s; returns the call's statistics."""
        return self.broadcast_start(tensor, root).wait()

    def broadcast_start(self, tensor: Any, root: int) -> Handle:
        """Starts a broadcast and returns at once."""
        address, count, dtype, owner = _memory.of(tensor)
        return Handle(self._native.broadcast_start(address, count, dtype, root, owner))

    def reduce_scatter(
        self, tensor: Any, op: str = "sum", precision: str | int = "exact"
    ) -> dict[str, Any]:
        """Replaces this rank's part of the tensor by its reduction over all ranks.

        Rank r's part of n elements is n * r // world_size up to n * (r + 1) // world_size. What the
        other parts hold then is not specified. `op` and `precision` are as of `all_reduce`. Returns
        the call's statistics.
        """
        return self.reduce_scatter_start(tensor, op, precision).wait()

    def reduce_scatter_start(
        self, tensor: Any, op: str = "sum", precision: str | int = "exact"
    ) -> Handle:
        """Starts a reduce-scatter and returns at once."""
        address, count, dtype, owner = _memory.of(tensor)
        native = self._native.reduce_scatter_start
        return Handle(native(address, count, dtype, op, str(precision), owner))

    def all_gather(self, tensor: Any) -> dict[str, Any]:
        """Replaces each rank's part of the tensor, as of `reduce_scatter`, by that rank's.

        Returns the call's statistics.
        """
        return self.all_gather_start(tensor, deferred=True).wait()

    def all_gather_start(self, tensor: Any, *, deferred: bool = False) -> Handle:
        """Starts an all-gather and returns at once. `deferred` is as of `all_reduce_start`."""
        address, count, dtype, owner = _memory.of(tensor)
        native = self._native.all_gather_start
        return Handle(native(address, count, dtype, owner, deferred))

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.barrier_start().wait()

    def barrier_start(self) -> Handle:
        """Starts a call that is over when every rank has made it, and returns at once."""
        return Handle(self._native.barrier_start())

    def stats(self) -> dict[str, Any]:
        """The statistics of all calls that have returned, added up."""
        return self._native.stats()

    def late_ranks(self) -> list[int]:
        """The ranks that calls in flight have waited for for 5 s or longer, ascending."""
        return self._native.late_ranks()

    def failure(self) -> Error | None:
        """Why the job has failed, if it has. No call is needed to hear of it."""
        failed = self._native.failure()
        return None if failed is None else Error(*failed[:2])

    def lost(self) -> list[int]:
        """The ranks whose loss is the reason why the job has failed, if it is."""
        failed = self._native.failure()
        return failed[1] if failed is not None and failed[2] else []

    def departed(self) -> list[int]:
        """The ranks that have left normally so far, ascending."""
        return self._native.departed()

    def set_timeout(self, seconds: float) -> None:
        """Has calls wait so long for connected ranks from now on, those in flight, too."""
        self._native.set_timeout(seconds)

    def abort(self, without: Sequence[int] = ()) -> None:
        """Ends all calls in flight, and all later ones, whomever they wait for.

        They raise `switchml.Error`. Those of the other ranks do, too, and name this rank, or the
        ranks that it gives because it goes on without them.
        """
        self._native.abort(list(without))

    def close(self) -> None:
        """Waits for the calls in flight, then leaves the job."""
        self._native.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # This runs after an exception too, so that ranks that wait for this one hear that it left.
        # Then nobody waits for calls in flight, and other ranks may never make them.
        if kind is not None:
            self.abort()
        try:
            self.close()
        except Error:
            if kind is None:
                raise
