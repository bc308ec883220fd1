//! The pool of slots, and which of them are lent to jobs.

use std::ops::Range;

/// Most slots that a shard of a job gets: several windows of the largest bundles, so that a slot that lost a packet does not
/// hold up the others.
pub const MAX_PER_SHARD: u32 = 512;
/// Fewest slots that a job is started with.
pub const MIN_PER_JOB: u32 = 16;
/// Fewest slots of a shard of a job that has several: two windows of the largest bundle.
pub const MIN_PER_SHARD: u32 = 128;

/// Lends ranges of slots out of one pool, first fit.
#[derive(Debug)]
pub struct SlotPool {
    size: u32,
    /// In order, disjoint, none empty.
    lent: Vec<Range<u32>>,
}

impl SlotPool {
    /// A pool of `size` slots, none of them lent.
    pub fn new(size: u32) -> Self {
        Self { size, lent: Vec::new() }
    }

    /// Number of slots in the pool.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Number of slots that are not lent.
    pub fn free(&self) -> u32 {
        self.size - self.lent.iter().map(|range| range.end - range.start).sum::<u32>()
    }

    /// Lends a job of so many shards its slots: a power of two, at most half of what is free so that the next job finds room as well,
    /// within [`MIN_PER_JOB`] and [`MAX_PER_SHARD`] for each shard. `None` when no gap holds [`MIN_PER_JOB`].
    pub fn lend(&mut self, shards: u32) -> Option<Range<u32>> {
        let half = self.free() / 2;
        let mut slots = power_of_two_up_to(half).clamp(MIN_PER_JOB, shards * MAX_PER_SHARD);
        while slots >= MIN_PER_JOB {
            if let Some((position, first)) = self.first_gap(slots) {
                let range = first..first + slots;
                self.lent.insert(position, range.clone());
                return Some(range);
            }
            slots /= 2;
        }
        None
    }

    /// Lends these slots, which a job has already. False, and nothing lent, unless all are in the pool and free.
    pub fn claim(&mut self, range: &Range<u32>) -> bool {
        let position = self.lent.partition_point(|lent| lent.end <= range.start);
        let free_until = self.lent.get(position).map_or(self.size, |next| next.start);
        let is_free = range.start < range.end && range.end <= free_until;
        if is_free {
            self.lent.insert(position, range.clone());
        }
        is_free
    }

    /// Takes back a range that [`Self::lend`] or [`Self::claim`] gave.
    pub fn take_back(&mut self, range: &Range<u32>) {
        self.lent.retain(|lent| lent != range);
    }

    /// The first gap of at least `slots`: its start, and its position among the lent ranges.
    fn first_gap(&self, slots: u32) -> Option<(usize, u32)> {
        let ends = std::iter::once(0).chain(self.lent.iter().map(|range| range.end));
        let starts = self.lent.iter().map(|range| range.start).chain(std::iter::once(self.size));
        ends.zip(starts).enumerate().find(|(_, (end, start))| start - end >= slots).map(|(i, (end, _))| (i, end))
    }
}

/// The largest power of two that is at most `n`, 0 for 0.
pub(crate) fn power_of_two_up_to(n: u32) -> u32 {
    n.checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn jobs_get_half_of_what_is_free() {
        let mut pool = SlotPool::new(1024);
        let lent: Vec<_> = std::iter::from_fn(|| pool.lend(1)).collect();
        let sizes: Vec<_> = lent.iter().map(ExactSizeIterator::len).collect();
        assert_eq!(sizes, [512, 256, 128, 64, 32, 16, 16]);
        assert_eq!(pool.free(), 0);
    }

    #[test]
    fn a_job_gets_no_more_than_the_maximum() {
        let mut pool = SlotPool::new(1 << 20);
        assert_eq!(pool.lend(1), Some(0..MAX_PER_SHARD));
        assert_eq!(pool.lend(1), Some(MAX_PER_SHARD..2 * MAX_PER_SHARD));
    }

    #[test]
    fn the_first_gap_is_used_again() {
        let mut pool = SlotPool::new(64);
        let (first, second) = (pool.lend(1).unwrap(), pool.lend(1).unwrap());
        assert_eq!((first.clone(), second), (0..32, 32..48));
        pool.take_back(&first);
        assert_eq!(pool.lend(1), Some(0..16));
    }

    #[test]
    fn a_pool_too_small_for_one_job_lends_nothing() {
        assert_eq!(SlotPool::new(MIN_PER_JOB - 1).lend(1), None);
        assert_eq!(SlotPool::new(MIN_PER_JOB).lend(1), Some(0..MIN_PER_JOB));
    }

    proptest! {
        /// Whatever the order of lending and taking back: ranges lie in the pool, never overlap, are powers of two
        /// within the limits, and nothing gets lost.
        #[test]
        fn ranges_are_disjoint_and_nothing_is_lost(size in 0u32..5000, steps in prop::collection::vec(any::<(bool, u8)>(), 0..200)) {
            let mut pool = SlotPool::new(size);
            let mut held: Vec<Range<u32>> = Vec::new();
            for (lend, which) in steps {
                if lend {
                    let shards = 1 << (which % 4);
                    match pool.lend(shards) {
                        Some(range) => {
                            prop_assert!(range.end <= size);
                            prop_assert!(range.len().is_power_of_two());
                            prop_assert!((MIN_PER_JOB as usize..=shards as usize * MAX_PER_SHARD as usize).contains(&range.len()));
                            prop_assert!(held.iter().all(|other| range.end <= other.start || other.end <= range.start));
                            held.push(range);
                        }
                        None => {
                            let mut used = vec![false; size as usize];
                            held.iter().for_each(|range| used[range.start as usize..range.end as usize].fill(true));
                            let longest_gap = used.split(|used| *used).map(<[bool]>::len).max().unwrap_or(0);
                            prop_assert!(longest_gap < MIN_PER_JOB as usize);
                        }
                    }
                } else if !held.is_empty() {
                    let range = held.swap_remove(usize::from(which) % held.len());
                    pool.take_back(&range);
                }
                let lent: usize = held.iter().map(ExactSizeIterator::len).sum();
                prop_assert_eq!(pool.free() as usize, size as usize - lent);
            }
            // Another pool takes the ranges over, in whatever order, each once.
            let mut next = SlotPool::new(size);
            for range in &held {
                prop_assert!(next.claim(range));
                prop_assert!(!next.claim(range));
                prop_assert!(!next.claim(&(range.end - 1..range.end)));
            }
            prop_assert_eq!(next.free(), pool.free());
            prop_assert_eq!(next.lend(1), pool.lend(1));
            prop_assert!(!next.claim(&(size..size + 1)));
        }
    }
}
