//! How long rounds take.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use switchml_protocol::header::Header;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::times::{SUM, Times, UNIT, bucket};
use zerocopy::FromBytes;

/// Of the first slot of each shard, as the XDP program takes them.
#[derive(Default)]
pub struct RoundTimes(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// By shard, since when its first slot has a round that is not complete.
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

    /// What was taken so far.
    pub fn read(&self) -> Times {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).times
    }
}
