"""The sockets, and the way to an open path."""

import select
import socket
import time
from dataclasses import dataclass

from .packet import BLOCK, CE, HEADER, HELLO, Packet, parse

IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, IP_MTU, IP_MULTICAST_ALL = 10, 3, 14, 49
IPV6_MTU_DISCOVER, IPV6_MTU = 23, 24
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
    # None if the aggregator sends copies.
    group: tuple[str, int] | None
    hello_secret: int
    max_lanes: int
    takes_empty: bool


class Path:
    """A rank's sockets: packets out, and in from the aggregator alone."""

    def __init__(self, session: Session):
        self.session = session
        # The aggregator's address decides the IP version.
        self.is_ipv6 = ":" in session.aggregator[0]
        family = socket.AF_INET6 if self.is_ipv6 else socket.AF_INET
        self.data = socket.socket(family, socket.SOCK_DGRAM)
        # Sets Don't Fragment; HELLO finds out which sizes pass.
        if self.is_ipv6:
            self.data.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IP_PMTUDISC_PROBE)
            self.data.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DONTFRAG, 1)
        else:
            self.data.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        self.data.connect(session.aggregator)
        self.sockets = [self.data]
        if session.group:
            self.sockets.append(self.join(session.group))
        for each in self.sockets:
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)

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

    def receive(self, patience: float) -> list[Packet]:
        """What has come from the aggregator; waits for it so long at most."""
        ready, _, _ = select.select(self.sockets, [], [], max(patience, 0.0))
        packets = []
        for each in ready:
            while True:
                try:
                    data, source = each.recvfrom(65536)
                except (BlockingIOError, ConnectionRefusedError):
                    break
                # Over IPv6, the source also has a flow label and a scope.
                packet = parse(data) if source[:2] == self.session.aggregator else None
                if packet:
                    packets.append(packet)
        return packets

    # ---- HELLO ----

    def open(self) -> int:
        """The most lanes that pass both ways."""
        if self.is_ipv6:
            room = self.data.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU) - 40
        else:
            room = self.data.getsockopt(socket.IPPROTO_IP, IP_MTU) - 20
        largest = min((room - 8 - HEADER.size) // 4, self.session.max_lanes) // BLOCK
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
                if any(is_echo(packet, hello) for packet in self.receive(left)):
                    return True
        return False


def is_echo(packet: Packet, hello: Packet) -> bool:
    """The same, but for the flags and for which of the tries it is."""
    fields = [
        (p.kind, p.job, p.epoch, p.rank, p.slot, p.op, p.fingerprint, p.check, p.aux, p.lanes)
        for p in (packet, hello)
    ]
    return fields[0] == fields[1] and packet.flags & ~CE == 0
