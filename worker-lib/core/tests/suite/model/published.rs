//! The published algorithm (SwitchML, NSDI 2021, algorithm 3) in place of section 8: one bit of
//! pool version in the packet and no round, a bitmap and a count per version. That bit is the
//! lowest bit of the round here.

use super::tally::Tally;

/// One version of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    seen: u64,
    count: u16,
    pub values: Tally,
}

/// What the aggregator does with a contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    Drop,
    /// The version's values go to all.
    ToAll,
    /// The version's values go to the sender.
    ToSender,
}

/// Serves the contribution of a rank to one version of a slot.
pub fn serve(
    slot: &mut [Version; 2],
    ranks: u16,
    version: usize,
    rank: u16,
    values: &Tally,
) -> Served {
    let bit = 1 << rank;
    if slot[version].seen & bit != 0 {
        return if slot[version].count == 0 { Served::ToSender } else { Served::Drop };
    }
    slot[version].seen |= bit;
    slot[1 - version].seen &= !bit;
    let pool = &mut slot[version];
    pool.count = (pool.count + 1) % ranks;
    let first = pool.count == 1 % ranks;
    pool.values =
        if first { *values } else { std::array::from_fn(|lane| pool.values[lane] + values[lane]) };
    if pool.count == 0 { Served::ToAll } else { Served::Drop }
}
