//! Histograms of round trips that ranks report.

use proptest::prelude::*;
use switchml_protocol::bpf_types::times::{BUCKETS, SUM};

use super::*;

fn times(counts: &[u64], sum: u64) -> control::Times {
    control::Times { counts: counts.to_vec(), sum }
}

proptest! {
    /// Reports add up bucket by bucket, in any order, over all jobs and beyond their end.
    #[test]
    fn reports_of_all_ranks_add_up(
        reports in prop::collection::vec(
            (0..3u32, any::<bool>(), prop::array::uniform24(0..1u64 << 40), 0..1u64 << 40),
            0..40,
        ),
    ) {
        let mut table = table();
        let (_, first) = started(&mut table, "first", 3);
        let (_, second) = started(&mut table, "second", 3);
        let mut expected = [0u128; BUCKETS + 1];
        for (rank, is_first, counts, sum) in reports {
            let id = member(if is_first { &first } else { &second }, rank);
            table.report_round_trips(id, &times(&counts, sum)).expect("a member");
            for (expected, count) in expected.iter_mut().zip(counts.into_iter().chain([sum])) {
                *expected += u128::from(count);
            }
        }
        for rank in 0..3 {
            table.leave(member(&first, rank), "", &[]).expect("a member");
        }
        prop_assert_eq!(table.round_trips().map(u128::from), expected);
    }
}

#[test]
fn counts_stay_at_their_bound() {
    let mut table = table();
    let (_, spec) = started(&mut table, "train", 2);
    for _ in 0..2 {
        let all = times(&[u64::MAX; BUCKETS], u64::MAX);
        table.report_round_trips(member(&spec, 0), &all).expect("a member");
    }
    // Each count is an exact integer as a double; the sum is 292 years.
    let all = table.round_trips();
    assert_eq!(all[..BUCKETS], [1 << 48; BUCKETS]);
    assert_eq!(all[SUM], 1 << 53);
}

#[test]
fn another_number_of_buckets_is_refused() {
    let mut table = table();
    let (_, spec) = started(&mut table, "train", 2);
    for given in [0, BUCKETS - 1, BUCKETS + 1, 30_000] {
        let report = times(&vec![1; given], 1);
        let error = table.report_round_trips(member(&spec, 0), &report).unwrap_err();
        assert_eq!(error.to_string(), format!("round trips in {given} buckets; give 24"));
    }
    assert_eq!(*table.round_trips(), [0; BUCKETS + 1]);
}
