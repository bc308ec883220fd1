"""The control plane: how a rank comes into its job, and leaves it (section 22)."""

import queue
import sys
import threading
from pathlib import Path as File
from typing import Any

import grpc  # type: ignore[import-untyped]

from .packet import VERSION
from .path import Session

PROTO = File(__file__).resolve().parents[2] / "control/proto"
sys.path.append(str(PROTO))
# The messages are generated from the file at run time, so no generated file can be out of date.
messages, services = grpc.protos_and_services("switchml.proto")


# The bit of the capabilities that the core needs.
CHECKED_MAXIMA = 1 << 0


class ControlError(Exception):
    """The job does not come about, or has ended."""


class Control:
    """A rank's membership; the stream of events is its sign of life."""

    def __init__(self, aggregator: str, job: str, rank: int, ranks: int, patience: float):
        self.patience = patience
        self.ranks = ranks
        self.channel = grpc.insecure_channel(aggregator)
        self.stub = services.AggregatorStub(self.channel)
        request = messages.JoinRequest(
            job_name=job, rank=rank, world_size=ranks, data_threads=1, protocol_version=VERSION
        )
        self.stream = self.stub.Join(request)
        self.events: queue.Queue[Any] = queue.Queue()
        # The reason why the job was aborted, if that happened between calls.
        self.aborted: str | None = None
        threading.Thread(target=self.listen, daemon=True).start()
        self.assigned = self.wait_for("assigned")
        # What each request begins with.
        self.member = messages.MemberId(
            job=self.assigned.job,
            epoch=self.assigned.epoch,
            rank=rank,
            secret=self.assigned.control_secret,
        )

    def listen(self) -> None:
        try:
            for event in self.stream:
                if event.WhichOneof("event") == "aborted":
                    self.aborted = f"aborted: {event.aborted.reason}"
                self.events.put(event)
        except grpc.RpcError as error:
            self.aborted = self.aborted or f"the stream of events broke: {error.details()}"
        self.events.put(None)

    def wait_for(self, wanted: str) -> Any:
        """What the first event of this name says; those before it are passed."""
        while True:
            try:
                event = self.events.get(timeout=self.patience)
            except queue.Empty:
                raise ControlError(f"no event {wanted!r} within {self.patience} s") from None
            if event is None or event.WhichOneof("event") == "aborted":
                raise ControlError(self.aborted or f"the stream of events ended before {wanted!r}")
            if event.WhichOneof("event") == wanted:
                return getattr(event, wanted)

    def session(self) -> Session:
        a = self.assigned
        if not a.capabilities & CHECKED_MAXIMA or a.further_shards or a.job_key:
            raise ControlError("the job has maxima without a check word, shards or packet tags")
        return Session(
            job=a.job,
            epoch=a.epoch,
            rank=self.member.rank,
            ranks=self.ranks,
            slots=a.slots,
            aggregator=(a.data_address, a.data_port),
            group=(a.group_address, a.group_port),
            hello_secret=a.hello_secret,
            max_lanes=a.max_lanes,
            capabilities=a.capabilities,
        )

    def ready(self, lanes: int) -> int:
        """The lanes of a full chunk."""
        request = messages.ReadyRequest(member=self.member, lanes=lanes)
        self.stub.Ready(request, timeout=self.patience)
        return int(self.wait_for("started").lanes)

    def leave(self, error: str = "") -> None:
        request = messages.LeaveRequest(member=self.member, error=error)
        self.stub.Leave(request, timeout=self.patience)
        self.channel.close()
