"""Jobs without a multicast group (section 31), also over IPv6 (section 32)."""

import socket

from ..path import IP_PMTUDISC_PROBE, Path

IPV6_MTU_DISCOVER, IPV6_MTU = 23, 24


class CopiesPath(Path):
    """RESULTs to all come as copies, to the socket that sends."""

    def group_sockets(self) -> list[socket.socket]:
        return []


class Ipv6Path(CopiesPath):
    def open_socket(self) -> socket.socket:
        data = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        data.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        data.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DONTFRAG, 1)
        return data

    def room(self) -> int:
        return self.data.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU) - 40 - 8
