"""Broadcasts whose root needs no lanes (section 34)."""

from ..packet import CHECKED, EVERYONE, Packet
from .empty import EmptyExchanger

DONE = 9
# Added to the root, the op of a sum for all other ranks.
ALL_BUT = 128
AUDIENCES = 1 << 5


class AudienceExchanger(EmptyExchanger):
    def results_of(self, answer: Packet) -> list[tuple[int, tuple[int, ...]]]:
        if answer.kind != DONE:
            return super().results_of(answer)
        s = self.path.session
        is_for_all = (answer.job, answer.epoch, answer.rank) == (s.job, s.epoch, EVERYONE)
        is_right = answer.flags & CHECKED and answer.check == answer.right_check(1)
        if not (is_for_all and is_right):
            return []
        named = [
            (number, entry)
            for number, entry in self.outstanding.items()
            if self.names(answer, entry.packet)
        ]
        return [(self.complete(number, entry), entry.packet.lanes) for number, entry in named]

    def names(self, done: Packet, sent: Packet) -> bool:
        """Rule 13.3."""
        place = sent.slot << 16 | sent.round % 2**16
        is_of_call = (done.fingerprint, done.op) == (sent.fingerprint, sent.op)
        return is_of_call and sent.op == ALL_BUT + self.path.session.rank and place in done.lanes
