//! One aggregator, many jobs.

use std::sync::{Arc, Barrier};
use std::thread;

use switchml_rack::needs_racks;
use switchml_worker::{Communicator, ReduceOp};

use crate::{Cluster, report};

#[test]
fn two_jobs_at_once_do_not_see_each_other() {
    needs_racks!();
    let cluster = Cluster::of(2);
    let beside = cluster.bench(2, "beside", &["-b", "256K", "-e", "256K", "-n", "20", "-w", "1"]);
    cluster.run_ranks(2, "library", |rank, builder| {
        let communicator = builder.connect().unwrap();
        for round in 0..50 {
            let mut values: Vec<i32> = (0..5000).map(|i| i + round + rank as i32).collect();
            communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            // The sum over ranks 0 and 1.
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

/// The hosts have processors for two data threads of each, so the first jobs have two. All join at
/// once, like the tasks of an array job. The kernel takes some 20 ms for each change of a map of
/// maps, and such a job needs four: one after another they would take 8 s and more.
#[test]
fn two_hundred_jobs_at_once_finish() {
    const JOBS: usize = 200;
    needs_racks!();
    let cluster = Cluster::of(2);
    let all_there = Arc::new(Barrier::new(2 * JOBS + 1));
    thread::scope(|scope| {
        for (job, rank) in (0..2 * JOBS).map(|i| (i / 2, i % 2)) {
            let builder = Communicator::builder()
                .aggregator(cluster.aggregator.control())
                .job(format!("job {job}"))
                .rank(rank as u32)
                .world_size(2);
            let (namespace, all_there) = (cluster.rack.worker(rank), all_there.clone());
            // The namespace does one thing at a time; a thread that it starts belongs to it.
            let life = move || {
                let connected = builder.connect();
                all_there.wait();
                // Until the jobs have been listed.
                all_there.wait();
                let communicator = connected.unwrap();
                add_up(&communicator, job, rank);
                communicator.close().unwrap();
            };
            let thread = namespace.run(move || thread::spawn(life));
            scope.spawn(|| thread.join().unwrap());
        }
        all_there.wait();
        let jobs = cluster.list_jobs();
        all_there.wait();
        assert_eq!(jobs.matches("started").count(), JOBS, "{jobs}");
    });
    assert!(cluster.has_all_slots_free());
    cluster.stop();
}

fn add_up(communicator: &Communicator, job: usize, rank: usize) {
    for round in 0..10 {
        let mut values: Vec<i32> =
            (0..5000).map(|i| (i * (rank + 1) + 1000 * job + round) as i32).collect();
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        // The sum over ranks 0 and 1.
        let expected = |i: usize| (3 * i + 2000 * job + 2 * round) as i32;
        assert!(values.iter().zip(0..).all(|(sum, i)| *sum == expected(i)), "job {job}");
    }
}

#[test]
fn a_job_of_the_same_name_starts_anew() {
    needs_racks!();
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
