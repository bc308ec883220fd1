"""A rank with an RDMA NIC (section 37), whose frames are made here; its arguments are those of
`lines`."""

import secrets
import socket
import struct
import zlib
from typing import Any

from .. import lines
from ..control import ControlError
from ..path import IP_MTU, Path, Session
from .__main__ import answer
from .ipv6 import CopiesPath
from .worker import Worker

ROCE = 1 << 6

PORT = 4791
SEND_ONLY, KEY = 0x64, 0x53574D4C
IP, UDP = struct.Struct(">BBHHHBBH4s4s"), struct.Struct(">HHHH")
# BTH and DETH.
TRANSPORT = struct.Struct(">BBHIIII")
HEADERS = IP.size + UDP.size + TRANSPORT.size
ICRC = 4
DONT_FRAGMENT, MIGRATED = 0x4000, 0x40
PADDING_AND_VERSION = 0x3F
# Sizes that a NIC knows, and what it leaves of an IP MTU for headers (rule 37.6).
PATH_MTUS, ALL_HEADERS = (4096, 2048, 1024, 512, 256), 96


class QueuePair(socket.socket):
    """Sends and receives packets as a NIC's queue pair does (rules 37.1 to 37.5)."""

    def __init__(self) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
        self.setsockopt(socket.IPPROTO_IP, socket.IP_HDRINCL, 1)
        self.number = 2**16 + secrets.randbelow(2**24 - 2**17)
        self.sent = 0

    def connect(self, address: Any) -> None:
        super().connect((address[0], 0))
        self.aggregator = address
        self.ends = [socket.inet_aton(self.getsockname()[0]), socket.inet_aton(address[0])]

    def send(self, packet: Any, flags: int = 0) -> int:
        # As in frames of NICs, and never 0, for which Linux would put in another one.
        self.sent += 1
        identification = 1 + self.sent % 0xFFFF
        udp_len = UDP.size + TRANSPORT.size + len(packet) + ICRC
        ip = IP.pack(
            0x45, 0, IP.size + udp_len, identification, DONT_FRAGMENT, 64, 17, 0, *self.ends
        )
        udp = UDP.pack(0xC000 | self.number % 2**14, PORT, udp_len, 0)
        receiver = self.aggregator[1]
        transport = TRANSPORT.pack(
            SEND_ONLY, MIGRATED, 0xFFFF, receiver, self.sent % 2**24, KEY, self.number
        )
        frame = ip + udp + transport + packet
        return super().send(frame + icrc_of(frame), flags)

    def recvfrom(self, size: int, flags: int = 0) -> tuple[bytes, Any]:
        while True:
            frame, _ = super().recvfrom(size, flags)
            packet = self.packet_in(frame)
            if packet is not None:
                return packet, self.aggregator

    def packet_in(self, frame: bytes) -> bytes | None:
        """The packet in a message to this queue pair; None of anything else."""
        if len(frame) < HEADERS + ICRC or UDP.unpack_from(frame, IP.size)[1] != PORT:
            return None
        transport = TRANSPORT.unpack_from(frame, IP.size + UDP.size)
        opcode, flags, _, receiver, _, key, sender = transport
        is_message = opcode == SEND_ONLY and flags & PADDING_AND_VERSION == 0 and key == KEY
        ends = receiver % 2**24, sender % 2**24
        if not is_message or ends != (self.number, self.aggregator[1]):
            return None
        covered, icrc = frame[:-ICRC], frame[-ICRC:]
        return covered[HEADERS:] if icrc == icrc_of(covered) else None


def icrc_of(frame: bytes) -> bytes:
    """Of a frame from its IPv4 header on."""
    masked = bytearray(frame)
    # TOS, TTL and checksum of IP; UDP's checksum; the byte in front of the queue pair's number.
    for at in (1, 8, 10, 11, 26, 27, 32):
        masked[at] = 0xFF
    return zlib.crc32(bytes([0xFF] * 8) + masked).to_bytes(ICRC, "little")


class RocePath(CopiesPath):
    def open_socket(self) -> socket.socket:
        return QueuePair()

    def room(self) -> int:
        mtu = self.data.getsockopt(socket.IPPROTO_IP, IP_MTU) - ALL_HEADERS
        return next(size for size in PATH_MTUS if size <= mtu)


class RoceWorker(Worker):
    def path_of(self, session: Session) -> Path:
        if not session.capabilities & ROCE:
            raise ControlError("the data plane takes no RoCEv2")
        return RocePath(session)


if __name__ == "__main__":
    lines.main(RoceWorker, answer)
