//! Results that have overtaken a chunk, so that it counts as lost.

use switchml_protocol::wire::header::Op;

use super::chunk::Chunk;
use super::outstanding::Outstanding;

/// The newest transmission known to have reached the aggregator.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    pub sequence: u64,
    /// Time from the transmission to the result.
    pub rtt: u64,
    /// Only chunks with smaller numbers can have been overtaken.
    pub below: u64,
}

impl Evidence {
    /// When a chunk counts as lost, if this transmission has overtaken it.
    pub fn due(&self, entry: &Outstanding, reordering: u64) -> Option<u64> {
        let expected = entry.sent_at + self.rtt;
        let is_behind = entry.sequence <= self.sequence && entry.number < self.below;
        is_behind.then_some(expected + reordering)
    }
}

/// The newest transmission that may have reached the aggregator: a chunk was sent again, and has
/// its result. The result may answer the first transmission, delayed by a late peer or a long
/// queue, or another rank's resend: all ranks send a chunk again whose result they miss. If it
/// counted as certain, everything in flight would count as lost, and its results would be the next
/// such proof.
#[derive(Clone, Copy, Debug)]
pub struct Doubtful {
    pub evidence: Evidence,
    /// When overtaken chunks begin to count as lost: after a round trip without a result of any
    /// chunk that was sent once.
    pub from: u64,
    /// Whether the timer caused the resend.
    pub by_timer: bool,
}

impl Doubtful {
    /// When a chunk counts as lost, if this transmission has overtaken it.
    pub fn due(&self, entry: &Outstanding, reordering: u64) -> Option<u64> {
        Some(self.evidence.due(entry, reordering)?.max(self.from))
    }
}

/// The last chunk, by number, with a result, for each audience: the parts of an all-gather come
/// from different ranks, each at its own pace.
#[derive(Clone, Debug, Default)]
pub struct Frontiers(Vec<(u8, Frontier)>);

impl Frontiers {
    /// The frontier of chunks with this chunk's audience, if one of them has its result.
    pub fn of(&self, chunk: &Chunk) -> Option<Frontier> {
        let op = chunk.audience.op(Op::Sum);
        self.0.iter().find(|(other, _)| *other == op).map(|(_, frontier)| *frontier)
    }

    /// Notes the result of chunk `number`, sent as transmission `sequence`, after a time of `took`
    /// ns.
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

/// The last chunk, by number, with a result. All ranks have sent the chunks before it, because they
/// send new chunks in that order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frontier {
    pub number: u64,
    pub sequence: u64,
    /// Time from the chunk's first transmission to its result.
    pub took: u64,
}

impl Frontier {
    /// When a chunk that waits for lanes counts as lost, if this chunk has overtaken it. Chunks
    /// sent before its PENDING have not: other ranks' lanes may be late for long if the aggregator
    /// asked for them.
    pub fn due(&self, entry: &Outstanding, reordering: u64) -> Option<u64> {
        let expected = entry.sent_at.max(entry.history.sent_at + self.took);
        let is_behind = entry.number < self.number && entry.sequence < self.sequence;
        is_behind.then_some(expected + reordering)
    }
}
