//! The number of slots that a job gets. All jobs get the same: the numbers in the data plane have
//! equal shares of its slots, in order. So running jobs need not give up slots when another job
//! comes (`docs/research/scaling.md`).

/// Most slots of a number: several windows of the largest bundles, so that one slot with a lost
/// packet does not stop the others.
pub const MAX_SHARE: u32 = 512;

/// The slots of each of `numbers` numbers in a pool of fixed size: a power of two, because a
/// switch's tables match slots by a mask.
pub fn share(pool: u32, numbers: u16) -> u32 {
    power_of_two_up_to(pool / u32::from(numbers)).min(MAX_SHARE)
}

/// The largest power of two that is at most `n`, 0 for 0.
pub(crate) fn power_of_two_up_to(n: u32) -> u32 {
    n.checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fit_the_pool() {
        assert_eq!(share(10_240, 16), 512);
        assert_eq!(share(4_096, 16), 256);
        assert_eq!(share(4_095, 16), 128);
        assert_eq!(share(1 << 20, 16), MAX_SHARE);
        assert_eq!(share(15, 16), 0);
    }
}
