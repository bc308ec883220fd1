//! How long rounds take, measured in the software data plane.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use switchml_protocol::header::Header;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::times::{SUM, Times, UNIT, bucket};
use zerocopy::FromBytes;

/// Times of the rounds of each shard's first slot, as the XDP program measures them.
#[derive(Default)]
pub struct RoundTimes(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// By shard, the beginning of the unfinished round of its first slot.
    begun: BTreeMap<u16, Instant>,
    times: Times,
}

impl RoundTimes {
    /// A packet has been served, or is its answer now.
    pub fn note(&self, outcome: Outcome, packet: &[u8]) {
        if !matches!(outcome, Outcome::Started | Outcome::Completed) {
            return;
        }
        let Ok((header, _)) = Header::ref_from_prefix(packet) else { return };
        if header.slot.get() != 0 {
            return;
        }
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (shard, now) = (header.job.get(), Instant::now());
        if outcome == Outcome::Started {
            inner.begun.insert(shard, now);
        } else if let Some(begun) = inner.begun.remove(&shard) {
            let units = now.saturating_duration_since(begun).as_nanos() / u128::from(UNIT);
            let units = units.try_into().unwrap_or(u32::MAX);
            inner.times[bucket(units)] += 1;
            inner.times[SUM] += u64::from(units);
        }
    }

    /// The times so far.
    pub fn read(&self) -> Times {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).times
    }
}
