//! Times by powers of two.

use switchml_protocol::bpf_types::times::{BUCKETS, bound_seconds, bucket, seconds};

#[test]
fn a_time_is_below_the_bound_of_its_bucket_and_no_other_before() {
    // In units of 1024 ns: 0, 1, 2 to 3, 4 to 7, ...
    let by_hand = [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11)];
    for (units, expected) in by_hand {
        assert_eq!(bucket(units), expected, "{units}");
    }
    assert_eq!(bucket((1 << 22) - 1), 22);
    // 2^22 × 1024 ns are 4.3 s.
    assert_eq!((bucket(1 << 22), bucket(u32::MAX)), (BUCKETS - 1, BUCKETS - 1));
    assert!((bound_seconds(0) - 1.024e-6).abs() < 1e-12);
    assert!((bound_seconds(22) - 4.294_967_296).abs() < 1e-9);
    assert_eq!(bound_seconds(BUCKETS - 1), f64::INFINITY);
    assert!((seconds(1_000_000) - 1.024).abs() < 1e-9);
}
