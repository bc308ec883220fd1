//! What has overtaken a chunk, so that it counts as lost.

use super::outstanding::Outstanding;

/// The newest transmission known to have reached the aggregator.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    pub sequence: u64,
    /// Time that it took to the result.
    pub rtt: u64,
    /// When overtaken chunks begin to count as lost.
    pub from: u64,
    /// Whether it was the timer's. Then the result may be that of the first transmission, which a
    /// late peer or a long queue held up until just now.
    pub doubtful: bool,
}

impl Evidence {
    /// When a chunk counts as lost, if this has overtaken it.
    pub fn due(&self, entry: &Outstanding, reordering: u64) -> Option<u64> {
        let expected = entry.sent_at + self.rtt;
        (entry.sequence <= self.sequence).then_some((expected + reordering).max(self.from))
    }
}

/// The last chunk, by number, that has its result. All ranks have sent those before, too: they send
/// new chunks in that order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frontier {
    pub number: u64,
    /// Time from its first transmission.
    pub took: u64,
}

impl Frontier {
    /// When a chunk that waits for lanes counts as lost, if this has overtaken it.
    pub fn due(&self, entry: &Outstanding, reordering: u64) -> Option<u64> {
        let expected = entry.sent_at.max(entry.history.sent_at + self.took);
        (entry.number < self.number).then_some(expected + reordering)
    }
}
