//! What has overtaken a chunk, so that it counts as lost.

use switchml_protocol::header::Op;

use super::chunk::Chunk;
use super::outstanding::Outstanding;

/// The newest transmission known to have reached the aggregator.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    pub sequence: u64,
    /// Time that it took to the result.
    pub rtt: u64,
    /// Only chunks with smaller numbers can have been overtaken.
    pub below: u64,
}

impl Evidence {
    /// When a chunk counts as lost, if this has overtaken it.
    pub fn due(&self, entry: &Outstanding, reordering: u64) -> Option<u64> {
        let expected = entry.sent_at + self.rtt;
        let is_behind = entry.sequence <= self.sequence && entry.number < self.below;
        is_behind.then_some(expected + reordering)
    }
}

/// The newest transmission that may have: a chunk was sent again, and has its result. That may be
/// the first transmission's, which a late peer or a long queue held up, or another rank's resend
/// may have brought it about: all ranks send a chunk again whose results they miss. To take it for
/// certain would count all that is on its way as lost, and the results of that for the next proof.
#[derive(Clone, Copy, Debug)]
pub struct Doubtful {
    pub evidence: Evidence,
    /// When overtaken chunks begin to count as lost: after a round trip in which nothing that was
    /// sent once had its result.
    pub from: u64,
    /// Whether the timer sent it again.
    pub by_timer: bool,
}

impl Doubtful {
    /// When a chunk counts as lost, if this has overtaken it.
    pub fn due(&self, entry: &Outstanding, reordering: u64) -> Option<u64> {
        Some(self.evidence.due(entry, reordering)?.max(self.from))
    }
}

/// The last chunk, by number, that has its result, of each audience: the parts of an all-gather
/// come from different ranks, each at its own pace.
#[derive(Clone, Debug, Default)]
pub struct Frontiers(Vec<(u8, Frontier)>);

impl Frontiers {
    /// That of chunks like this one, if one of them has its result.
    pub fn of(&self, chunk: &Chunk) -> Option<Frontier> {
        let op = chunk.audience.op(Op::Sum);
        self.0.iter().find(|(other, _)| *other == op).map(|(_, frontier)| *frontier)
    }

    /// A chunk of this number, sent as `sequence` of all transmissions, has its result, which took
    /// so long.
    pub fn advance(&mut self, chunk: &Chunk, number: u64, sequence: u64, took: u64) {
        let op = chunk.audience.op(Op::Sum);
        let frontier = Frontier { number, sequence, took };
        match self.0.iter_mut().find(|(other, _)| *other == op) {
            Some((_, last)) if last.number >= number => {}
            Some((_, last)) => *last = frontier,
            None => self.0.push((op, frontier)),
        }
    }
}

/// The last chunk, by number, that has its result. All ranks have sent those before, too: they send
/// new chunks in that order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frontier {
    pub number: u64,
    pub sequence: u64,
    /// Time from its first transmission.
    pub took: u64,
}

impl Frontier {
    /// When a chunk that waits for lanes counts as lost, if this has overtaken it. What was sent
    /// before its PENDING has not: other ranks' lanes may be late for a long time, where the
    /// aggregator has asked for them.
    pub fn due(&self, entry: &Outstanding, reordering: u64) -> Option<u64> {
        let expected = entry.sent_at.max(entry.history.sent_at + self.took);
        let is_behind = entry.number < self.number && entry.sequence < self.sequence;
        is_behind.then_some(expected + reordering)
    }
}
