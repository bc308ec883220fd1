import os
from typing import Any, Callable, final

__all__ = ["Communicator", "Handle", "OwnAggregator"]

@final
class OwnAggregator:
    def __new__(cls, towards: str, job: str) -> OwnAggregator: ...
    @property
    def peer(self) -> str: ...

@final
class Communicator:
    def __new__(
        cls,
        *,
        aggregator: str | None,
        meeting: str | None,
        peers: tuple[OwnAggregator, list[str]] | None,
        job: str | None,
        rank: int | None,
        world_size: int | None,
        deadline: float | None,
        timeout: float | None,
        join_timeout: float | None,
        data_threads: int | None,
        tls_fingerprint: str | None,
        tls_ca: str | os.PathLike[str] | None,
        tls_cert: str | os.PathLike[str] | None,
        tls_key: str | os.PathLike[str] | None,
        token_file: str | os.PathLike[str] | None,
        is_wanted: Callable[[], bool],
    ) -> Communicator: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def info(self) -> dict[str, Any]: ...
    def all_reduce_start(
        self,
        address: int,
        count: int,
        dtype: str,
        op: str,
        precision: str,
        residual: int | None,
        owner: Any,
        deferred: bool,
    ) -> Handle: ...
    def broadcast_start(
        self, address: int, count: int, dtype: str, root: int, owner: Any
    ) -> Handle: ...
    def reduce_scatter_start(
        self, address: int, count: int, dtype: str, op: str, precision: str, owner: Any
    ) -> Handle: ...
    def all_gather_start(
        self, address: int, count: int, dtype: str, owner: Any, deferred: bool
    ) -> Handle: ...
    def barrier_start(self) -> Handle: ...
    def stats(self) -> dict[str, Any]: ...
    def late_ranks(self) -> list[int]: ...
    def failure(self) -> tuple[str, list[int], bool] | None: ...
    def departed(self) -> list[int]: ...
    def set_timeout(self, timeout: float) -> None: ...
    def abort(self, without: list[int]) -> None: ...
    def close(self) -> None: ...

@final
class Handle:
    def wait(self) -> dict[str, Any]: ...
    def send(self) -> None: ...
    def is_done(self) -> bool: ...
