//! Which ranks make a job slow, and why.

use super::*;
use crate::lateness::Late;

/// A running job of 3 ranks with 352 lanes; rank 2's link has 1 Gb/s, the others' 10.
fn job() -> (Table, Opened) {
    let mut table = table();
    let links = [10, 10, 1].map(|gigabits| gigabits * 1_000_000_000);
    let mut effects = Vec::new();
    for (rank, of_rank) in (0..).zip(links) {
        let link = Link { of_rank, own: None };
        effects = table.join(&Joiner { link, ..joiner("train", rank, 3) }).expect("joined").1;
    }
    let spec = opened(&effects);
    for rank in 0..3 {
        table.ready(member(&spec, rank), 352, HEARD).expect("ready");
    }
    (table, spec)
}

/// A rank's packets in its first 10 s.
fn path(in_calls_ms: u64, sent: u64, lost: u64) -> control::Path {
    control::Path { joined_ms: 10_000, in_calls_ms, sent, resent: lost, pending: 0, lost }
}

/// What is said if the ranks report so, and the last rank's packets come so late.
fn said(reports: [control::Path; 3], late_ms: u64) -> Option<String> {
    let (mut table, spec) = job();
    for (rank, report) in (0..).zip(reports) {
        table.report_path(member(&spec, rank), report).expect("a member");
    }
    let late = Late { rank: 2, by: Duration::from_millis(late_ms) };
    table.slow(spec.number, if late_ms > 0 { std::slice::from_ref(&late) } else { &[] })
}

#[test]
fn a_rank_that_loses_packets_is_named_with_the_part_that_it_loses() {
    let well = path(9_000, 100_000, 10);
    // 5,000 of 100,000.
    let said_so = said([well, path(9_000, 100_000, 5_000), well], 0);
    assert_eq!(said_so.as_deref(), Some("rank 1 (10.0.0.2) loses 5 % of its packets"));
    // The cause, also if the rank is late as a consequence.
    assert_eq!(said([well, path(9_000, 100_000, 5_000), well], 40), said_so);
    // A queue that overflows: 9,500 packets of 352 × 4 + 32 + 28 bytes in 6 s: 18.6 Mb/s.
    let slow = said([path(6_000, 10_000, 0), path(6_000, 10_000, 0), path(6_000, 10_000, 500)], 36);
    assert_eq!(
        slow.as_deref(),
        Some(
            "rank 2 (10.0.0.3) loses 5 % of its packets and is late: its link or processor carries \
             18.6 Mb/s; its interface has 1.0 Gb/s, the others' 10.0 Gb/s"
        )
    );
    // Others seem to lose some, too.
    let some = path(9_000, 100_000, 2_000);
    assert_eq!(said([some, path(9_000, 100_000, 5_000), some], 0), said_so);
    let both = said([well, path(9_000, 100_000, 5_000), path(9_000, 100_000, 4_000)], 0);
    let names = "rank 1 (10.0.0.2), rank 2 (10.0.0.3)";
    assert_eq!(both, Some(format!("{names} lose 5 % of their packets")));
    assert_eq!(said([well; 3], 0), None, "1 of 10,000");
    assert_eq!(said([path(9_000, 100, 20); 3], 0), None, "too few packets");
}

#[test]
fn a_rank_whose_packets_come_late_has_a_slow_link_if_it_is_in_calls_as_long_as_others() {
    // 10,000 packets of 352 × 4 + 32 + 28 bytes in 6 s: 19.6 Mb/s.
    let well = path(6_000, 10_000, 0);
    assert_eq!(
        said([well; 3], 36).as_deref(),
        Some(
            "rank 2 (10.0.0.3) is 36 ms behind the others: its link or processor carries 19.6 \
             Mb/s and loses nothing; its interface has 1.0 Gb/s, the others' 10.0 Gb/s"
        )
    );
    // It computes twice as long as the others.
    assert_eq!(
        said([path(9_000, 10_000, 0), path(9_500, 10_000, 0), path(3_000, 10_000, 0)], 36)
            .as_deref(),
        Some(
            "rank 2 (10.0.0.3) is late to calls by 36 ms: its process spends 30 % of the time in \
             calls, the others 90 %"
        )
    );
    assert_eq!(said([well; 3], 0), None);
}

#[test]
fn the_last_report_counts_from_the_one_before() {
    let (mut table, spec) = job();
    let id = member(&spec, 1);
    table.report_path(id, path(5_000, 50_000, 20_000)).expect("a member");
    let later = control::Path { joined_ms: 20_000, ..path(15_000, 150_000, 20_000) };
    table.report_path(id, later).expect("a member");
    assert_eq!(table.slow(spec.number, &[]), None, "it loses none any more");
    // All that it has told.
    assert_eq!(table.list()[0].members[1].path, Some(later));
}

#[test]
fn strangers_report_nothing_and_a_job_that_does_not_run_is_not_slow() {
    let (mut table, spec) = job();
    let id = MemberId { secret: 1, ..member(&spec, 1) };
    table.report_path(id, path(9_000, 100_000, 50_000)).expect_err("not its secret");
    assert_eq!(table.slow(spec.number, &[]), None);
    table.report_path(member(&spec, 1), path(9_000, 100_000, 50_000)).expect("a member");
    assert!(table.slow(spec.number, &[]).is_some());
    table.leave(member(&spec, 0), "failed", &[]).expect("a member");
    assert_eq!(table.slow(spec.number, &[]), None);
}
