use crate::entries::{LOSSES, most_ternary};
use crate::losses::entries;
use crate::switch::{Entry, Match};

fn is_lost(entries: &[Entry], draw: u16) -> bool {
    let matches = |entry: &Entry| match entry.key[..] {
        [("draw", Match::Ternary { value, mask })] => u64::from(draw) & mask == value,
        _ => panic!("{entry:?}"),
    };
    entries.iter().any(matches)
}

#[test]
fn as_many_draws_of_65536_are_lost_as_the_rate_says() {
    // Times 65536: 3276.8, 0.066, which is 1 at least, and 65535.3.
    let counts = [("0", 0), ("0.05", 3277), ("0.000001", 1), ("0.99999", 65535), ("1", 65536)];
    for (rate, count) in counts {
        let entries = entries(rate.parse().unwrap());
        let lost = (0..=u16::MAX).filter(|draw| is_lost(&entries, *draw)).count();
        assert_eq!(lost, count, "{rate}");
        assert!(entries.len() <= most_ternary(LOSSES.name, 0), "{rate}: {entries:?}");
    }
}

/// Packets that come one after the other have draws one after the other, or a step apart.
#[test]
fn losses_are_spread() {
    let entries = entries("0.25".parse().unwrap());
    for step in [1, 7, 67] {
        let lost = |n: &u16| is_lost(&entries, n * step);
        // Every fourth.
        assert_eq!(
            (0..400).filter(lost).collect::<Vec<_>>(),
            (0..400).step_by(4).collect::<Vec<_>>()
        );
    }
}
