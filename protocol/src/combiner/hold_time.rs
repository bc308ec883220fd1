//! How long a combiner lets a cell wait for its last rank before another key may have it (rules
//! 27.10 and 27.21): a few times the smoothed age at which partial sums are complete, in
//! microseconds.

/// A cell may wait this many times the average age.
const TIMES: u32 = 4;
/// The least hold time: ranks are never more closely in step.
const LEAST: u32 = 1_000;
/// The most hold time: other keys need the cells of ranks that pause.
const MOST: u32 = 50_000;
/// The weight of a new age in the average is one part in this many.
const WEIGHT: u32 = 8;

/// The average to begin with.
pub const FIRST: u32 = MOST / TIMES;

/// The average, after a partial sum was complete at this age.
#[inline(always)]
pub const fn average(before: u32, age: u32) -> u32 {
    let age = if age < MOST { age } else { MOST };
    before - before / WEIGHT + age / WEIGHT
}

/// The hold time that belongs to an average.
#[inline(always)]
pub const fn hold_time(average: u32) -> u32 {
    match average.saturating_mul(TIMES) {
        ..LEAST => LEAST,
        MOST.. => MOST,
        hold_time => hold_time,
    }
}
