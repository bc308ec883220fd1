//! A histogram of times, as data planes and ranks keep it: powers of two, which cost a BPF program
//! next to nothing.

/// Nanoseconds of a unit: a microsecond, nearly.
pub const UNIT: u64 = 1 << SHIFT;
/// A clock's nanoseconds shifted by so many bits are units.
pub const SHIFT: u32 = 10;

/// Buckets. That of index b counts times of less than 2^b units, and not those of the buckets
/// before it; the last one all that are longer, from 4.3 s on.
pub const BUCKETS: usize = 24;

/// Counts by bucket, and behind them the sum of all times, in units.
pub type Times = [u64; BUCKETS + 1];

/// Index of the sum.
pub const SUM: usize = BUCKETS;

/// The bucket of a time in units.
#[inline(always)]
pub const fn bucket(units: u32) -> usize {
    let bits = (u32::BITS - units.leading_zeros()) as usize;
    if bits < BUCKETS { bits } else { BUCKETS - 1 }
}

/// Below which the times of a bucket are, in seconds; of the last there is no such bound.
pub fn bound_seconds(bucket: usize) -> f64 {
    if bucket + 1 < BUCKETS { seconds(1 << bucket) } else { f64::INFINITY }
}

/// So many units, in seconds.
pub fn seconds(units: u64) -> f64 {
    (units * UNIT) as f64 / 1e9
}
