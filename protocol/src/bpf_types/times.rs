//! A histogram of times, as data planes and ranks keep it: powers of two, which cost a BPF program
//! next to nothing.

use crate::outcome::Outcome;

/// Nanoseconds of a unit: a microsecond, nearly.
pub const UNIT: u64 = 1 << SHIFT;
/// The shift that turns a clock's nanoseconds into units.
pub const SHIFT: u32 = 10;

/// Number of buckets. Bucket b counts times below 2^b units that no earlier bucket counts; the last
/// one also counts all longer times, from 4.3 s on.
pub const BUCKETS: usize = 24;

/// Counts by bucket, followed by the sum of all times, in units.
pub type Times = [u64; BUCKETS + 1];

/// Index of the sum.
pub const SUM: usize = BUCKETS;

/// The bucket of a time in units.
#[inline(always)]
pub const fn bucket(units: u32) -> usize {
    let bits = (u32::BITS - units.leading_zeros()) as usize;
    if bits < BUCKETS { bits } else { BUCKETS - 1 }
}

/// Times the rounds of a slot: takes note of what became of its packet. `begun` is when the round
/// began, 0 if it is complete. Returns how long a round took that completes.
#[inline(always)]
pub fn sample(begun: &mut u32, outcome: Outcome, now: impl FnOnce() -> u32) -> Option<u32> {
    match outcome {
        Outcome::Started => {
            *begun = now() | 1;
            None
        }
        Outcome::Completed if *begun != 0 => Some(now().wrapping_sub(core::mem::take(begun))),
        _ => None,
    }
}

/// The upper bound of the times of a bucket, in seconds; the last bucket has none.
pub fn bound_seconds(bucket: usize) -> f64 {
    if bucket + 1 < BUCKETS { seconds(1 << bucket) } else { f64::INFINITY }
}

/// `units` in seconds.
pub fn seconds(units: u64) -> f64 {
    (units * UNIT) as f64 / 1e9
}
