//! Ranks that have left normally, and will not contribute any more.

use switchml_protocol::ranks::Ranks;

use super::failure::Failure;

/// See the [module's documentation](self).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Departed {
    ranks: Ranks,
    /// Transmissions before the newest of the news.
    sequence: u64,
}

impl Departed {
    pub fn note(&mut self, ranks: &Ranks, sequence: u64) {
        if !ranks.without(&self.ranks).is_empty() {
            *self = Self { ranks: self.ranks.union(ranks), sequence };
        }
    }

    /// Rule 14.9: fails when `seen`, what a PENDING says, lacks one of them.
    ///
    /// A rank leaves after its last result, so the aggregator has all its contributions before
    /// others are told that it left. But a PENDING may be older: it counts only if it answers a
    /// packet that was sent after the news, which `aux` tells. The check word does not cover `aux`:
    /// if it is corrupted, that can end a session, but never change a sum.
    pub fn check(&self, seen: &Ranks, aux: u32) -> Result<(), Failure> {
        let missing = self.ranks.without(seen);
        let is_fresh = aux.wrapping_sub(self.sequence as u32) as i32 > 0;
        if is_fresh && !missing.is_empty() { Err(Failure::Departed(missing)) } else { Ok(()) }
    }
}
