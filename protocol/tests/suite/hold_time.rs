//! How long cells of a combiner hold values.

use switchml_protocol::combiner::hold_time::{FIRST, average, hold_time};

#[test]
fn it_follows_what_is_usual_within_bounds() {
    let after = |from, age| (0..100).fold(from, |before, _| average(before, age));
    assert_eq!(hold_time(FIRST), 50_000);
    let usual = after(FIRST, 1_000);
    assert!((3_900..4_100).contains(&hold_time(usual)), "{}", hold_time(usual));
    let short = after(usual, 3);
    assert_eq!(hold_time(short), 1_000);
    assert_eq!(hold_time(after(short, u32::MAX)), 50_000);
}
