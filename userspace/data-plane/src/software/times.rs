//! How long rounds take, measured in the software data plane.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use switchml_protocol::bpf_types::times::{SHIFT, SUM, Times, bucket, sample};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::header::Header;
use zerocopy::FromBytes;

/// Times of the rounds of each shard's first slot, as the XDP program measures them.
pub struct RoundTimes {
    clock: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By shard, when its first slot's round began ([`sample`]).
    begun: BTreeMap<u16, u32>,
    times: Times,
}

impl RoundTimes {
    /// No times.
    pub fn new() -> Self {
        Self { clock: Instant::now(), inner: Mutex::default() }
    }

    /// A packet has been served, or is its answer now.
    pub fn note(&self, outcome: Outcome, packet: &[u8]) {
        if !matches!(outcome, Outcome::Started | Outcome::Completed) {
            return;
        }
        let Ok((header, _)) = Header::ref_from_prefix(packet) else { return };
        if header.slot.get() != 0 {
            return;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { begun, times } = &mut *inner;
        let now = || (self.clock.elapsed().as_nanos() >> SHIFT) as u32;
        if let Some(units) = sample(begun.entry(header.job.get()).or_default(), outcome, now) {
            times[bucket(units)] += 1;
            times[SUM] += u64::from(units);
        }
    }

    /// The times so far.
    pub fn read(&self) -> Times {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).times
    }
}
