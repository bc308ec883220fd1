//! A rank that is lost does not hang the others: they fail in time, and name it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_rack::{Mode, Process, Signal, in_both_modes};
use switchml_worker::{Error, ReduceOp};

use crate::{Cluster, PATIENCE, report};

in_both_modes! {
    a_killed_rank_is_named_by_all_others,
    a_frozen_rank_is_named_by_all_others,
    a_rank_that_is_frozen_for_less_than_the_deadline_costs_time_alone,
    a_rank_that_does_not_call_is_named_when_the_deadline_is_over,
}

const RANKS: usize = 4;
/// The rank that is lost.
const LOST: usize = 2;
/// Exit code of `switchml-worker` for a collective that failed.
const COLLECTIVE_FAILED: i32 = 4;

/// Goes on for long.
const LONG: [&str; 6] = ["-b", "16M", "-e", "16M", "-n", "10000"];

/// Starts a benchmark, and waits until it is under way.
fn start(cluster: &Cluster, arguments: &[&str]) -> Vec<Process> {
    let ranks = cluster.bench(RANKS, "long", arguments);
    let begin = Instant::now();
    // Results come in by multicast to every port, so the counter of completed rounds moves only with all ranks in.
    while cluster.counter("completed") < 1000 {
        assert!(begin.elapsed() < PATIENCE, "the benchmark does not get under way");
        sleep(Duration::from_millis(20));
    }
    ranks
}

/// All ranks but the lost one must end within `bound`, each with one line that names it.
fn others_name_it(ranks: &mut [Process], bound: Duration) {
    let begin = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != LOST) {
        let status = process.wait(bound.saturating_sub(begin.elapsed())).unwrap();
        assert_eq!(status.code(), Some(COLLECTIVE_FAILED), "rank {rank}");
        let stderr = process.stderr();
        assert_eq!(stderr.lines().count(), 1, "rank {rank}:\n{stderr}");
        assert!(stderr.contains(&format!("rank {LOST}")), "rank {rank}: {stderr}");
    }
}

fn a_killed_rank_is_named_by_all_others(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let mut ranks = start(&cluster, &LONG);
    ranks[LOST].kill().unwrap();
    others_name_it(&mut ranks, Duration::from_secs(2));
}

fn a_frozen_rank_is_named_by_all_others(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let mut ranks = start(&cluster, &LONG);
    ranks[LOST].signal(Signal::STOP).unwrap();
    // The deadline is 5 s after the last progress.
    others_name_it(&mut ranks, Duration::from_secs(7));
    // When it goes on, it hears that it is too late.
    ranks[LOST].signal(Signal::CONT).unwrap();
    let status = ranks[LOST].wait(Duration::from_secs(2)).unwrap();
    assert_eq!((status.code(), ranks[LOST].stderr().lines().count()), (Some(COLLECTIVE_FAILED), 1));
}

/// The others wait, and nothing is lost.
fn a_rank_that_is_frozen_for_less_than_the_deadline_costs_time_alone(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let ranks = start(&cluster, &["-b", "4M", "-e", "4M", "-n", "40", "-w", "1"]);
    ranks[LOST].signal(Signal::STOP).unwrap();
    // What is under way comes to a halt, which the counter shows.
    sleep(Duration::from_millis(500));
    let halted = cluster.counter("completed");
    sleep(Duration::from_millis(1500));
    assert_eq!(cluster.counter("completed"), halted, "the other ranks cannot go on alone");
    ranks[LOST].signal(Signal::CONT).unwrap();
    let report = report(ranks);
    // A round for each of 4 MiB / 1408 B chunks and their exponents, in place and out of place, 41 times: it was in the middle.
    assert!(cluster.counter("completed") > 2 * 41 * (4 << 20) / 1408, "it had not begun");
    assert!(halted < 2 * 41 * (4 << 20) / 1408, "it was over");
    assert_eq!((&report["out_of_bounds"], &report["differing"]), (&0.into(), &serde_json::json!([])));
}

/// The rank is there, and answers the control plane, but does not call: the data plane alone tells who is missing.
fn a_rank_that_does_not_call_is_named_when_the_deadline_is_over(mode: Mode) {
    const DEADLINE: Duration = Duration::from_secs(2);
    let cluster = Cluster::in_mode(RANKS, mode);
    let outcomes = cluster.run_ranks(RANKS, "absent", |rank, builder| {
        let communicator = builder.deadline(DEADLINE).connect().unwrap();
        let begin = Instant::now();
        if rank as usize == LOST {
            sleep(2 * DEADLINE);
            return None;
        }
        let error = communicator.all_reduce(&mut vec![1.0f32; 10_000], ReduceOp::Sum).unwrap_err();
        Some((error, begin.elapsed()))
    });
    let failures: Vec<_> = outcomes.into_iter().flatten().collect();
    assert_eq!(failures.len(), RANKS - 1);
    for (error, elapsed) in &failures {
        assert!(error.to_string().contains(&format!("rank {LOST}")), "{error}");
        assert_eq!(error.ranks(), [LOST as u16], "not who reported it: {error}");
        assert!(*elapsed < DEADLINE + Duration::from_secs(2), "{elapsed:?}");
    }
    // Whose deadline was over first says so itself; the others may hear of it from that one.
    let own = failures
        .iter()
        .find(|(error, _)| matches!(error, Error::MissingRanks { ranks, .. } if ranks[..] == [LOST as u16]));
    let (_, elapsed) = own.expect("a rank that saw its own deadline pass");
    assert!(*elapsed >= DEADLINE, "{elapsed:?}");
}
