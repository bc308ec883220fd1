"""The sockets, and the way to an open path (sections 5 and 11)."""

import select
import socket
import time
from dataclasses import dataclass, replace

from .packet import BLOCK, HEADER, HELLO, Packet, parse

IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, IP_MTU, IP_MULTICAST_ALL = 10, 3, 14, 49
TRIES = (0.1, 0.2, 0.4)
PATIENT_TRIES = (0.1, 0.3, 0.6, 1.0, 1.0, 1.0)
RECEIVE_BUFFER = 4 << 20


class PathError(Exception):
    """The path to the aggregator does not carry what it must."""


@dataclass(frozen=True)
class Session:
    """What the control plane gave this rank."""

    job: int
    epoch: int
    rank: int
    ranks: int
    slots: int
    aggregator: tuple[str, int]
    # Empty address: none.
    group: tuple[str, int]
    hello_secret: int
    max_lanes: int
    capabilities: int


class Path:
    """A rank's sockets: packets out, and in from the aggregator alone."""

    def __init__(self, session: Session):
        self.session = session
        self.data = self.open_socket()
        self.data.connect(session.aggregator)
        self.sockets = [self.data, *self.group_sockets()]
        for each in self.sockets:
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)

    def open_socket(self) -> socket.socket:
        """One that sets Don't Fragment; HELLO finds out which sizes pass."""
        data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        data.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        return data

    def room(self) -> int:
        """Bytes of a packet that the MTU leaves beside headers of IP and UDP."""
        return self.data.getsockopt(socket.IPPROTO_IP, IP_MTU) - 20 - 8

    def group_sockets(self) -> list[socket.socket]:
        return [self.join(self.session.group)]

    def join(self, group: tuple[str, int]) -> socket.socket:
        address, port = group
        joined = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        joined.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        joined.bind((address, port))
        local = self.data.getsockname()[0]
        membership = socket.inet_aton(address) + socket.inet_aton(local)
        joined.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        return joined

    def close(self) -> None:
        for each in self.sockets:
            each.close()

    def send(self, packet: Packet) -> None:
        try:
            self.data.send(packet.to_bytes())
        except (BlockingIOError, ConnectionRefusedError):
            pass  # Lost: a resend covers it.

    def receive(self, patience: float) -> list[bytes]:
        """Packets that have come from the aggregator; waits for them so long at most."""
        ready, _, _ = select.select(self.sockets, [], [], max(patience, 0.0))
        packets = []
        for each in ready:
            while True:
                try:
                    data, source = each.recvfrom(65536)
                except (BlockingIOError, ConnectionRefusedError):
                    break
                # Address and port; over IPv6 more follows.
                if source[:2] == self.session.aggregator:
                    packets.append(data)
        return packets

    # ---- HELLO ----

    def open(self) -> int:
        """The most lanes that pass both ways."""
        largest = min((self.room() - HEADER.size) // 4, self.session.max_lanes) // BLOCK
        if self.passes(largest, TRIES):
            return largest * BLOCK
        if not self.passes(0, PATIENT_TRIES):
            raise PathError(f"{self.session.aggregator}: not even an empty HELLO came back")
        passing, failing = 0, largest
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if self.passes(middle, TRIES):
                passing = middle
            else:
                failing = middle
        if passing == 0:
            raise PathError(
                f"{self.session.aggregator}: an empty HELLO passes, but none of {BLOCK} lanes"
            )
        return passing * BLOCK

    def passes(self, blocks: int, tries: tuple[float, ...]) -> bool:
        s = self.session
        for number, patience in enumerate(tries):
            lanes = (0,) * blocks * BLOCK
            hello = Packet(
                HELLO, s.job, s.epoch, s.rank, round=number, aux=s.hello_secret, lanes=lanes
            )
            try:
                self.data.send(hello.to_bytes())
            except OSError:
                return False
            until = time.monotonic() + patience
            while (left := until - time.monotonic()) > 0:
                if any(is_echo(data, hello) for data in self.receive(left)):
                    return True
        return False


def is_echo(data: bytes, hello: Packet) -> bool:
    """The same, but for the flags and for which of the tries it is."""
    packet = parse(data)
    return packet is not None and replace(packet, flags=0, round=hello.round) == hello
