"""A frame: Ethernet, IPv4 or IPv6, and UDP around a packet.

Section 5 of docs/spec; RFC 791, 8200, 768, 1112.
"""

from dataclasses import dataclass, replace
from ipaddress import ip_address

ECN_MASK, ECN_CE, ECN_ECT0 = 3, 3, 2
DONT_FRAGMENT = 0x4000


def ones_complement_sum(data):
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def ip_bytes(text):
    return ip_address(text).packed


def mac_bytes(text):
    return bytes.fromhex(text.replace(":", ""))


def multicast_mac(group):
    """RFC 1112: 01:00:5e and the group's low 23 bits."""
    _, second, third, fourth = ip_bytes(group)
    return f"01:00:5e:{second & 0x7F:02x}:{third:02x}:{fourth:02x}"


@dataclass(frozen=True)
class End:
    """Where packets come from and go to."""

    mac: str
    ip: str
    udp: int

    def __str__(self):
        return f"[{self.ip}]:{self.udp}" if self.is_v6() else f"{self.ip}:{self.udp}"

    def is_v6(self):
        return ":" in self.ip


@dataclass(frozen=True)
class Frame:
    source: End
    destination: End
    # A Packet; or bytes, where it is none.
    packet: object
    # What a sender's host may put there; answers have values of their own.
    tos: int = 0
    id: int = 0x1234
    fragment: int = DONT_FRAGMENT
    ttl: int = 63
    # None if it is right.
    udp_checksum: int = 0xBEEF
    # None for that of the source's address.
    ethertype: int = None
    # Bytes in front of the EtherType.
    tags: bytes = b""
    version_ihl: int = 0x45
    protocol: int = 17
    # Of IPv6.
    version: int = 6
    flow: int = 0x12345
    # What the headers say, where that is not what is right. The first is IPv6's payload length.
    total_len: int = None
    udp_len: int = None
    ip_checksum: int = None
    # Bytes behind the IP packet.
    padding: bytes = b""
    # Length that the frame is cut to.
    cut: int = None

    def changed(self, **fields):
        return replace(self, **fields)

    def payload(self):
        return self.packet if isinstance(self.packet, bytes) else self.packet.to_bytes()

    def ethernet(self):
        return (
            mac_bytes(self.destination.mac)
            + mac_bytes(self.source.mac)
            + self.tags
            + self.right_ethertype().to_bytes(2, "big")
        )

    def right_ethertype(self):
        if self.ethertype is not None:
            return self.ethertype
        return 0x86DD if self.source.is_v6() else 0x0800

    def ip(self):
        return self.ipv6() if self.source.is_v6() else self.ipv4()

    def right_udp_len(self):
        return 8 + len(self.payload())

    def ipv4(self):
        udp_len = self.right_udp_len() if self.udp_len is None else self.udp_len
        total_len = 20 + udp_len if self.total_len is None else self.total_len
        head = bytes([self.version_ihl, self.tos]) + total_len.to_bytes(2, "big")
        head += (
            self.id.to_bytes(2, "big")
            + self.fragment.to_bytes(2, "big")
            + bytes([self.ttl, self.protocol])
        )
        ends = ip_bytes(self.source.ip) + ip_bytes(self.destination.ip)
        checksum = 0xFFFF - ones_complement_sum(head + ends)
        if self.ip_checksum is not None:
            checksum = self.ip_checksum
        return head + checksum.to_bytes(2, "big") + ends

    def ipv6(self):
        udp_len = self.right_udp_len() if self.udp_len is None else self.udp_len
        payload_len = udp_len if self.total_len is None else self.total_len
        return (
            (self.version << 28 | self.tos << 20 | self.flow).to_bytes(4, "big")
            + payload_len.to_bytes(2, "big")
            + bytes([self.protocol, self.ttl])
            + ip_bytes(self.source.ip)
            + ip_bytes(self.destination.ip)
        )

    def udp(self):
        udp_len = self.right_udp_len() if self.udp_len is None else self.udp_len
        checksum = self.right_checksum() if self.udp_checksum is None else self.udp_checksum
        fields = (self.source.udp, self.destination.udp, udp_len, checksum)
        return b"".join(field.to_bytes(2, "big") for field in fields)

    def right_checksum(self):
        """RFC 768; RFC 8200, section 8.1."""
        without = self.changed(udp_checksum=0).udp()
        ends = ip_bytes(self.source.ip) + ip_bytes(self.destination.ip)
        length = len(without + self.payload())
        pseudo_header = ends + length.to_bytes(4, "big") + (17).to_bytes(4, "big")
        total = ones_complement_sum(pseudo_header + without + self.payload())
        return 0xFFFF - total or 0xFFFF

    def to_bytes(self):
        return (self.ethernet() + self.ip() + self.udp() + self.payload() + self.padding)[
            : self.cut
        ]

    # ---- Answers ----

    def answer(self, source, destination, packet):
        """A frame that a data plane makes out of this one."""
        tos = self.tos & ~ECN_MASK | ECN_ECT0 if self.tos & ECN_MASK == ECN_CE else self.tos
        return Frame(
            source,
            destination,
            packet,
            tos=tos,
            id=0,
            fragment=DONT_FRAGMENT,
            ttl=64,
            udp_checksum=None if source.is_v6() else 0,
            tags=self.tags,
            flow=self.flow,
        )

    def back(self, packet):
        """A unicast answer."""
        return self.answer(self.destination, self.source, packet)

    # ---- For readers ----

    def rows(self):
        """Lines of bytes, each with what they say."""
        if self.cut is not None or self.tags:
            data = self.to_bytes().hex()
            for start in range(0, len(data), 64):
                yield data[start : start + 64], ""
            return
        e, i, u = self.ethernet().hex(), self.ip().hex(), self.udp().hex()
        yield (
            f"{e[0:12]} {e[12:24]} {e[24:]}",
            f"Ethernet to {self.destination.mac} from {self.source.mac}",
        )
        if self.source.is_v6():
            yield (
                f"{i[0:8]} {i[8:12]} {i[12:14]} {i[14:16]}",
                f"IPv6 from {self.source.ip} to {self.destination.ip}",
            )
            yield i[16:48], ""
            yield i[48:80], ""
        else:
            yield (
                f"{i[0:2]} {i[2:4]} {i[4:8]} {i[8:12]} {i[12:16]} {i[16:18]} {i[18:20]} {i[20:24]} "
                f"{i[24:32]} {i[32:40]}",
                f"IPv4 from {self.source.ip} to {self.destination.ip}",
            )
        yield (
            f"{u[0:4]} {u[4:8]} {u[8:12]} {u[12:16]}",
            f"UDP from {self.source.udp} to {self.destination.udp}",
        )
        yield from self.packet_rows()
        if self.padding:
            yield self.padding.hex(), "padding"

    def packet_rows(self):
        if not isinstance(self.packet, bytes):
            yield from self.packet.rows()
        elif self.packet:
            yield self.packet.hex(), "no packet of the protocol"
