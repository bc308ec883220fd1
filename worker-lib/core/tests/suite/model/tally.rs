//! Values of contributions: numbers whose sum tells which contributions are in it, and how often.

/// Lanes of a packet that are in use; the others are zero.
pub const LANES: usize = 8;
/// Hexadecimal digits of a lane: each counts one contribution.
const DIGITS: usize = 8;

/// The lanes in use.
pub type Tally = [u32; LANES];

/// The values of contribution number `contribution`: a one in its own digit.
pub fn of(contribution: usize) -> Tally {
    let mut tally = Tally::default();
    tally[contribution / DIGITS] = 1 << (4 * (contribution % DIGITS));
    tally
}

/// The values of a result that has these contributions once each.
pub fn sum(contributions: impl Iterator<Item = usize>) -> Tally {
    contributions
        .map(of)
        .fold(Tally::default(), |sum, one| std::array::from_fn(|lane| sum[lane] + one[lane]))
}

/// Whether some contribution is in a tally more than twice.
pub fn exceeds_two(tally: &Tally) -> bool {
    tally.iter().any(|lane| lane & 0xCCCC_CCCC != 0 || lane & (lane >> 1) & 0x1111_1111 != 0)
}
