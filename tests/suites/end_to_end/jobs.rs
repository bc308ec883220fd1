//! One aggregator, many jobs.

use switchml_rack::can_build_racks;
use switchml_worker::ReduceOp;

use crate::{Cluster, report};

#[test]
fn two_jobs_at_once_do_not_see_each_other() {
    if !can_build_racks("two_jobs_at_once_do_not_see_each_other") {
        return;
    }
    let cluster = Cluster::of(2);
    let beside = cluster.bench(2, "beside", &["-b", "256K", "-e", "256K", "-n", "20", "-w", "1"]);
    cluster.run_ranks(2, "library", |rank, builder| {
        let communicator = builder.connect().unwrap();
        for round in 0..50 {
            let mut values: Vec<i32> = (0..5000).map(|i| i + round + rank as i32).collect();
            communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            // Of ranks 0 and 1.
            let expected = |i: i32| 2 * i + 2 * round + 1;
            assert!(
                values.iter().zip(0..).all(|(&value, i)| value == expected(i)),
                "round {round}"
            );
        }
        communicator.close().unwrap();
    });
    assert_eq!(report(beside)["out_of_bounds"], 0);
}

#[test]
fn a_job_of_the_same_name_starts_anew() {
    if !can_build_racks("a_job_of_the_same_name_starts_anew") {
        return;
    }
    let cluster = Cluster::of(2);
    for session in 0..3 {
        let sums = cluster.run_ranks(2, "again", move |rank, builder| {
            let communicator = builder.connect().unwrap();
            let mut values = vec![session * 10 + rank as i32; 1000];
            communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            communicator.close().unwrap();
            values
        });
        assert!(sums.iter().flatten().all(|&sum| sum == session * 20 + 1), "session {session}");
    }
}
