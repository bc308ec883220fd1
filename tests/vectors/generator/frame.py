"""A frame: Ethernet, IPv4 and UDP around a packet.

Section 5 of docs/protocol.md; RFC 791, 768, 1112.
"""

from dataclasses import dataclass, replace

ECN_MASK, ECN_CE, ECN_ECT0 = 3, 3, 2
DONT_FRAGMENT = 0x4000


def ones_complement_sum(data):
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def ip_bytes(text):
    return bytes(int(part) for part in text.split("."))


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
    udp_checksum: int = 0xBEEF
    ethertype: int = 0x0800
    # Bytes in front of the EtherType.
    tags: bytes = b""
    version_ihl: int = 0x45
    protocol: int = 17
    # What the headers say, where that is not what is right.
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
            + self.ethertype.to_bytes(2, "big")
        )

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

    def udp(self):
        udp_len = self.right_udp_len() if self.udp_len is None else self.udp_len
        fields = (self.source.udp, self.destination.udp, udp_len, self.udp_checksum)
        return b"".join(field.to_bytes(2, "big") for field in fields)

    def to_bytes(self):
        return (self.ethernet() + self.ipv4() + self.udp() + self.payload() + self.padding)[
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
            udp_checksum=0,
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
        e, i, u = self.ethernet().hex(), self.ipv4().hex(), self.udp().hex()
        yield (
            f"{e[0:12]} {e[12:24]} {e[24:]}",
            f"Ethernet to {self.destination.mac} from {self.source.mac}",
        )
        yield (
            f"{i[0:2]} {i[2:4]} {i[4:8]} {i[8:12]} {i[12:16]} {i[16:18]} {i[18:20]} {i[20:24]} "
            f"{i[24:32]} {i[32:40]}",
            f"IPv4 from {self.source.ip} to {self.destination.ip}",
        )
        yield (
            f"{u[0:4]} {u[4:8]} {u[8:12]} {u[12:16]}",
            f"UDP from {self.source.udp} to {self.destination.udp}",
        )
        if isinstance(self.packet, bytes):
            if self.packet:
                yield self.packet.hex(), "no packet of the protocol"
        else:
            yield from self.packet.rows()
        if self.padding:
            yield self.padding.hex(), "padding"
