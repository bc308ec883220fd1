"""A packet as a message of RoCEv2, and the jobs of ranks that send so: section 37 of
docs/spec."""

import zlib
from dataclasses import dataclass, replace

from .frame import ECN_MASK, End, Frame
from .vector import AGGREGATOR, Expected, Job, group_of

PORT = 4791
SEND_ONLY, KEY, PARTITION = 0x64, 0x53574D4C, 0xFFFF
# "Migrated", as queue pairs without an alternate path say; no padding, version 0.
MIGRATED = 0x40
ICRC_BYTES = 4


@dataclass(frozen=True)
class Message(Frame):
    """A frame whose UDP datagram is a message."""

    # Queue pairs.
    sender: int = 0
    receiver: int = AGGREGATOR.udp
    opcode: int = SEND_ONLY
    flags: int = MIGRATED
    partition: int = PARTITION
    # Bytes in front of the numbers of the receiver and the sender, and the packet's number.
    reserved: int = 0
    also_reserved: int = 0
    psn: int = 0
    key: int = KEY
    # None if it is right.
    icrc: int = None
    # Bytes of the message that are there, if not all; IP and UDP say so.
    length: int = None

    def transport(self):
        """BTH and DETH."""
        fields = (
            (self.opcode, 1),
            (self.flags, 1),
            (self.partition, 2),
            (self.reserved << 24 | self.receiver, 4),
            (self.psn, 4),
            (self.key, 4),
            (self.also_reserved << 24 | self.sender, 4),
        )
        return b"".join(value.to_bytes(size, "big") for value, size in fields)

    def right_udp_len(self):
        whole = len(self.transport()) + len(super().payload()) + ICRC_BYTES
        return 8 + (whole if self.length is None else self.length)

    def right_icrc(self):
        """Rule 37.5. Ethernet's CRC-32 is zlib's."""
        masked = bytearray(self.ip() + self.udp() + self.transport() + super().payload())
        # TOS, TTL and checksum of IP; UDP's checksum; the byte in front of the receiver.
        for at in (1, 8, 10, 11, 26, 27, 32):
            masked[at] = 0xFF
        return zlib.crc32(bytes([0xFF] * 8) + masked)

    def icrc_bytes(self):
        icrc = self.right_icrc() if self.icrc is None else self.icrc
        return icrc.to_bytes(ICRC_BYTES, "little")

    def payload(self):
        return (self.transport() + super().payload() + self.icrc_bytes())[: self.length]

    # ---- Answers ----

    def back(self, packet):
        aggregator = replace(self.destination, udp=PORT)
        return message_out_of(self, aggregator, replace(self.source, udp=PORT), self.sender, packet)

    # ---- For readers ----

    def packet_rows(self):
        if self.length is not None:
            yield self.payload().hex(), "a message that is cut"
            return
        t = self.transport().hex()
        yield (
            f"{t[0:2]} {t[2:4]} {t[4:8]} {t[8:16]} {t[16:24]} {t[24:32]} {t[32:40]}",
            f"BTH and DETH, queue pair {self.sender:#x} to {self.receiver:#x}",
        )
        yield from super().packet_rows()
        yield self.icrc_bytes().hex(), "ICRC" if self.icrc is None else "wrong ICRC"


def message_out_of(frame, source, destination, receiver, packet):
    """A message that a data plane makes out of a frame: not capable of ECN (rule 37.5)."""
    answer = frame.answer(source, destination, packet)
    return Message(
        source,
        destination,
        packet,
        tos=frame.tos & ~ECN_MASK,
        id=answer.id,
        ttl=answer.ttl,
        udp_checksum=0,
        sender=AGGREGATOR.udp,
        receiver=receiver,
    )


@dataclass
class MixedJob(Job):
    """A job some of whose ranks have queue pairs."""

    by_roce: tuple = ()

    def queue_pair(self, rank):
        """Its low 16 bits are another number than the rank's UDP port in other jobs."""
        return 0xAB9000 + rank if rank in self.by_roce else None

    def place(self, rank):
        home = super().place(rank)
        return replace(home, udp=PORT) if rank in self.by_roce else home

    def frame(self, packet, sender=None):
        rank = packet.rank if sender is None else sender
        return self.message(packet, rank) if rank in self.by_roce else super().frame(packet, rank)

    def message(self, packet, rank):
        """A message from the rank's host, as NICs choose UDP ports and packet numbers."""
        source = replace(self.place(rank), udp=0xC123 + rank)
        destination = replace(AGGREGATOR, udp=PORT)
        number = self.queue_pair(rank) or 0xAB9000 + rank
        return Message(source, destination, packet, sender=number, psn=0x1234 + rank)

    def datagram(self, packet, rank):
        """From a socket of the rank's host."""
        place = super().place(rank)
        return Frame(End(place.mac, place.ip, place.udp), AGGREGATOR, packet)


def to_ranks(job, packet):
    """Rule 5.3: each rank with a queue pair gets its own, the others the group's."""

    def frames(frame):
        if len(job.by_roce) < job.ranks:
            yield "group", frame.answer(AGGREGATOR, group_of(job), packet)
        for rank in sorted(job.by_roce):
            to, number = job.place(rank), job.queue_pair(rank)
            source = replace(AGGREGATOR, udp=PORT)
            yield f"rank {rank}", message_out_of(frame, source, to, number, packet)

    return Expected(f"ranks {job.number}", "completed", frames=frames)
