//! Ranks that have left in good order, and will not contribute any more.

use super::failure::Failure;

/// See the [module's documentation](self).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Departed {
    /// Bitmap of the ranks.
    ranks: u64,
    /// Transmissions before the newest of the news.
    sequence: u64,
}

impl Departed {
    pub fn note(&mut self, ranks: u64, sequence: u64) {
        if ranks & !self.ranks != 0 {
            *self = Self { ranks: self.ranks | ranks, sequence };
        }
    }

    /// Fails when `seen`, a PENDING's bitmap, says that one of them is missing.
    ///
    /// A rank leaves after its last result, so the aggregator has all its contributions before
    /// anyone hears that it left. But a PENDING may have been on its way for longer: it counts if
    /// it answers a packet that was sent after the news. `aux` tells which; corrupted, which the
    /// check word does not show, it costs a session at worst, never a sum.
    pub fn check(&self, seen: u64, aux: u32) -> Result<(), Failure> {
        let missing = self.ranks & !seen;
        let is_fresh = aux.wrapping_sub(self.sequence as u32) as i32 > 0;
        if missing != 0 && is_fresh { Err(Failure::Departed(missing)) } else { Ok(()) }
    }
}
