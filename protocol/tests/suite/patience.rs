//! The patience of a combiner.

use switchml_protocol::patience::{FIRST, average, patience};

#[test]
fn it_follows_what_is_usual_within_bounds() {
    let after = |from, age| (0..100).fold(from, |before, _| average(before, age));
    assert_eq!(patience(FIRST), 50_000);
    let usual = after(FIRST, 1_000);
    assert!((3_900..4_100).contains(&patience(usual)), "{}", patience(usual));
    let short = after(usual, 3);
    assert_eq!(patience(short), 1_000);
    assert_eq!(patience(after(short, u32::MAX)), 50_000);
}
