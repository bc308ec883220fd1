//! Entries of the table `losses` (`p4/include/losses.p4`), for `--drop-rate`. Without I/O.

use switchml_userspace_core::drop_rate::DropRate;

use crate::entries::{LOSSES, bits};
use crate::switch::Entry;

/// The entries that lose this share of packets.
///
/// A draw is read from its lowest bit on: Tofino draws by the time in nanoseconds, and packets that
/// come one after the other differ most in those bits. Else it would lose them in bursts.
pub fn entries(rate: DropRate) -> Vec<Entry> {
    let below = rate.threshold_of_16();
    let is_set = |bit: &u32| below >> bit & 1 == 1;
    // Of the numbers below, those that have the same bits above this one, and a 0 here.
    let numbers = |bit: u32| {
        let mask = (u32::from(u16::MAX) << bit) as u16;
        let value = (below & !(1u32 << bit)) as u16 & mask;
        let key = vec![("draw", bits(value.reverse_bits().into(), mask.reverse_bits().into()))];
        Entry { table: LOSSES.name, key, priority: 0, action: "lose", data: Vec::new() }
    };
    (0..=u16::BITS).filter(is_set).map(numbers).collect()
}
