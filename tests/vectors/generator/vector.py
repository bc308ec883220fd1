"""A vector, and how it is written: README.md beside `generate.py`."""

from collections import Counter
from dataclasses import dataclass, field

from .frame import End, Frame, multicast_mac
from .numbers import CHECKED, CONTRIBUTION, HELLO, OUTCOMES, SUM, TAGGED
from .packet import Packet

AGGREGATOR = End("02:00:00:00:00:fe", "10.0.0.254", 48864)
AGGREGATOR_V6 = End("02:00:00:00:00:fe", "fd88::fe", 48864)
FINGERPRINT = 0xFEEDF00D
EPOCH = 0x01020304
# What says in place of a counter that none moves.
UNCOUNTED = "uncounted"
# As many ports as a small rack has; ranks share them.
PORTS = 4


@dataclass
class Job:
    ranks: int
    number: int = 7
    epoch: int = EPOCH
    slots: int = 8
    group: tuple = ("239.129.2.3", 50007)
    # Ranks that have not said HELLO yet.
    newcomers: tuple = ()
    fingerprint: int = FINGERPRINT
    # Number that UDP ports are made of; jobs of the same processes have the same.
    processes: int = 7
    # Ranks in a row that share a port, a MAC and an address: those behind a combiner.
    together: int = 1
    # Over IPv6, and so without a group.
    is_v6: bool = False
    # Whether its packets have tags.
    has_keys: bool = False

    def listed(self):
        """Its ranks, or those below a combiner."""
        return range(self.ranks)

    def head(self):
        """A combiner's parent."""
        return None

    def aggregator(self):
        return AGGREGATOR_V6 if self.is_v6 else AGGREGATOR

    def place(self, rank):
        host = rank // self.together + 1
        return End(
            f"02:00:00:00:00:{host:02x}",
            f"fd88::{host:x}" if self.is_v6 else f"10.0.0.{host}",
            40000 + 100 * self.processes + rank,
        )

    def port(self, rank):
        return 1 + rank // self.together % PORTS

    def queue_pair(self, rank):
        """That by which it sends; none if it has a socket."""
        return None

    def secret(self, rank):
        return 0x5EC20000 + 0x100 * self.number + rank

    def key(self, rank=None):
        """That of a rank, or the job's."""
        own = 0xFF if rank is None else rank
        return bytes([0x5E, self.number, self.epoch % 256, own, *range(0xC0, 0xCC)])

    def keys(self, rank):
        return (self.key(rank), self.key()) if self.has_keys else None

    def contribution(self, rank, slot, round, values, op=SUM, flags=CHECKED):
        return Packet(
            kind=CONTRIBUTION,
            job=self.number,
            epoch=self.epoch,
            rank=rank,
            slot=slot,
            round=round,
            op=op,
            flags=flags | (TAGGED if self.has_keys else 0),
            fingerprint=self.fingerprint,
            aux=0xA0000000 + rank,
            values=tuple(values),
            keys=self.keys(rank),
        )

    def hello(self, rank, lanes):
        packet = self.contribution(rank, 0, 0, [0x68656C6C] * lanes, flags=0)
        return packet.changed(kind=HELLO, fingerprint=0, aux=self.secret(rank), check=0)

    def frame(self, packet, sender=None):
        """The frame in which the packet's rank, or another, sends it."""
        rank = packet.rank if sender is None else sender
        return Frame(self.place(rank), self.aggregator(), packet)


@dataclass
class Expected:
    """What becomes of a packet, and what it is counted as."""

    to: str
    counter: str
    frame: Frame = None
    # Where ranks get frames of their own: makes each, and who gets it.
    frames: object = None
    # Only a data plane that lacks this feature may react so.
    without: str = None

    def __post_init__(self):
        known = self.counter in OUTCOMES or self.counter == UNCOUNTED
        assert known, f"there is no counter {self.counter}"


@dataclass
class Vector:
    name: str
    about: str
    guarantee: str
    # What a data plane must offer beside.
    features: tuple = ()
    events: list = field(default_factory=list)
    counters: Counter = field(default_factory=Counter)
    ranks: int = 0
    lanes: int = 32
    # By job number: its slots.
    slots: dict = field(default_factory=dict)

    # ---- What the control plane does ----

    def open(self, job):
        """Opens a job."""
        self.ranks = max(self.ranks, len(job.listed()))
        self.slots[job.number] = max(job.slots, self.slots.get(job.number, 0))
        head = (
            f"open {job.number} epoch {job.epoch:#010x} slots {job.slots}"
            f" aggregator {job.aggregator().mac} {job.aggregator()}"
            f" group {'none' if job.is_v6 else f'{job.group[0]}:{job.group[1]}'}"
            + (f" key {job.key().hex()}" if job.has_keys else "")
        )
        lines = [head] if job.head() is None else [head, job.head()]
        for rank in job.listed():
            place = job.place(rank)
            lines.append(
                f"  rank {rank} secret {job.secret(rank):#010x}"
                f" port {job.port(rank)} {place.mac} {place}{queue_pair_of(job, rank)}"
                + (f" key {job.key(rank).hex()}" if job.has_keys else "")
                + (" newcomer" if rank in job.newcomers else "")
            )
        self.events.append("\n".join(lines))
        return job

    def abort(self, job):
        self.events.append(f"abort {job.number}")

    def close(self, job):
        self.events.append(f"close {job.number}")

    def age(self, job, slot, by):
        """Adds to the numbers of the rounds that a slot holds, as if it had been used for long."""
        self.events.append(f"age {job.number} slot {slot} by {by:#010x}")

    def pause(self):
        """Longer than a combiner's patience passes."""
        self.events.append("pause")

    # ---- Packets ----

    def step(self, title, job, packet, *expected, sender=None, **fields):
        """A packet, sent from its own rank's binding or from another's.

        `fields` replace those of its frame. The first expectation holds. The others are what may
        happen instead where the guarantee is not strict.
        """
        rank = packet.rank if sender is None else sender
        self.frame(title, job.port(rank), job.frame(packet, rank).changed(**fields), *expected)

    def frame(self, title, port, frame, *expected):
        has_answer = expected[0].frame is not None or expected[0].frames is not None
        if isinstance(frame.packet, Packet) and has_answer:
            self.lanes = max(self.lanes, frame.packet.lane_count())
        lines = [f"step {title}", f"in port {port}", *written(frame)]
        for turn, this in enumerate(expected):
            to = f"port {port}" if this.to == "back" else this.to
            word = "or" if turn else "out"
            word += f" without {this.without}" if this.without else ""
            lines.append(f"{word} {to}, {this.counter}")
            if this.frame is not None:
                lines += written(this.frame(frame))
            if this.frames is not None:
                for who, copy in this.frames(frame):
                    lines += [f"to {who}", *written(copy)]
        self.counters[expected[0].counter] += 1
        self.events.append("\n".join(lines))

    # ---- Text ----

    def text(self):
        lines = [f"# {line}" for line in self.about.strip().splitlines()]
        lines += [
            "",
            f"guarantee {self.guarantee}",
            f"needs lanes {self.lanes}",
            f"needs ranks {self.ranks}",
        ]
        lines += [
            f"needs jobs {max(self.slots, default=-1) + 1}",
            f"needs slots {sum(self.slots.values())}",
        ]
        lines += [f"needs {feature}" for feature in self.features]
        for event in self.events:
            lines += ["", event]
        lines += ["", "counters"]
        lines += [f"  {name} {count}" for name, count in sorted(self.counters.items())]
        return "\n".join(lines) + "\n"


def queue_pair_of(job, rank):
    number = job.queue_pair(rank)
    return "" if number is None else f" queue_pair {number:#x}"


def written(frame):
    for data, comment in frame.rows():
        yield f"  {data:<71}  # {comment}" if comment else f"  {data}"


# ---- What is expected of a packet ----


def nobody(counter):
    return Expected("none", counter)


def uncounted():
    """Dropped before anything is counted (rule 24.16)."""
    return Expected("none", UNCOUNTED, without="lengths")


def passed(counter="not_ours"):
    """Left alone: to the data plane's host, or wherever it switches frames to."""
    return Expected("passed", counter)


def back(counter, packet):
    return Expected("back", counter, lambda frame: frame.back(packet))


def group_of(job):
    """Without a group, each rank gets a copy: that of rank 0 stands for all."""
    if job.is_v6:
        return job.place(0)
    return End(multicast_mac(job.group[0]), *job.group)


def back_to_group(job, packet):
    """To the group, by the port that it came in by alone."""
    return Expected("back", "hello", lambda frame: frame.answer(AGGREGATOR, group_of(job), packet))


def to_all(job, packet):
    return Expected(
        f"group {job.number}",
        "completed",
        lambda frame: frame.answer(job.aggregator(), group_of(job), packet),
    )


# ---- Values ----


def ramp(rank, round, count=32):
    """Lanes that tell whose they are: rank + 1 modulo 256, round and index."""
    own = (rank + 1 & 0xFF) << 24 | (round & 0xFF) << 16
    return [own | index for index in range(count)]


def sums(*contributions):
    """Lane by lane, modulo 2^32."""
    return [sum(lane) % 2**32 for lane in zip(*contributions)]


def ramp_sum(ranks, round, count=32):
    return sums(*(ramp(rank, round, count) for rank in range(ranks)))


# ---- Rounds by the book ----


def play_round(v, job, slot, round, order=None, lanes=32):
    """All ranks contribute to a round, in this order."""
    order = list(order or range(job.ranks))
    for turn, rank in enumerate(order):
        packet = job.contribution(rank, slot, round, ramp(rank, round, lanes))
        if turn == job.ranks - 1:
            expected = to_all(
                job, packet.result_for_all(ramp_sum(job.ranks, round, lanes), job.ranks)
            )
        else:
            expected = nobody("added" if turn else "started")
        verb = "completes" if turn == job.ranks - 1 else "joins" if turn else "starts"
        v.step(f"rank {rank} {verb} round {round} of slot {slot}", job, packet, expected)
