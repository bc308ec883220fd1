//! What contributions hold: numbers whose sum says which contributions are in it, and how often
//! each.

/// Lanes of a packet that are in use; the others are zero.
pub const LANES: usize = 8;
/// Hexadecimal digits of a lane: each counts one contribution.
const DIGITS: usize = 8;

/// The lanes in use.
pub type Tally = [u32; LANES];

/// What the contribution of that number holds: a one in its own digit.
pub fn of(contribution: usize) -> Tally {
    let mut tally = Tally::default();
    tally[contribution / DIGITS] = 1 << (4 * (contribution % DIGITS));
    tally
}

/// What a result holds if these contributions are in it, once each.
pub fn sum(contributions: impl Iterator<Item = usize>) -> Tally {
    contributions
        .map(of)
        .fold(Tally::default(), |sum, one| std::array::from_fn(|lane| sum[lane] + one[lane]))
}

/// Whether some contribution is in it more than twice.
pub fn exceeds_two(tally: &Tally) -> bool {
    tally.iter().any(|lane| lane & 0xCCCC_CCCC != 0 || lane & (lane >> 1) & 0x1111_1111 != 0)
}
