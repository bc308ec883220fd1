//! A rank that is lost does not hang the others: they fail in time, and name it.

use std::sync::{Arc, Barrier};
use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_rack::{
    Faults, Impairment, Mode, Process, RackOptions, Signal, in_both_modes, wait_until,
};
use switchml_worker::{Error, ReduceOp};

use crate::loops::Loops;
use crate::{Cluster, PATIENCE, SOON, STANDSTILL, report};

in_both_modes! {
    a_killed_rank_is_named_by_all_others,
    a_frozen_rank_is_named_by_all_others,
    ranks_that_were_all_frozen_hear_why_when_they_go_on,
    a_rank_that_is_frozen_for_a_moment_costs_time_alone,
    a_rank_that_is_late_is_waited_for,
    a_rank_that_does_not_call_is_named_when_the_timeout_is_over,
    a_rank_whose_data_path_is_cut_is_named_by_all_others,
}

pub const RANKS: usize = 4;
/// The rank that is lost.
pub const LOST: usize = 2;
/// Exit code of `switchml-worker` for a collective that failed.
const COLLECTIVE_FAILED: i32 = 4;

/// Goes on for long.
pub const LONG: [&str; 6] = ["-b", "16M", "-e", "16M", "-n", "10000"];

/// Starts a benchmark, and waits until it makes calls.
pub fn start(cluster: &Cluster, arguments: &[&str]) -> Vec<Process> {
    let ranks = cluster.bench(RANKS, "long", arguments);
    let begin = Instant::now();
    // Results come in by multicast to every port, so the counter of completed rounds moves only
    // with all ranks in.
    while cluster.counter("completed") < 1000 {
        assert!(begin.elapsed() < PATIENCE, "the benchmark does not get under way");
        sleep(Duration::from_millis(20));
    }
    ranks
}

/// All ranks except the lost one must end soon, each with one line that names it.
pub fn others_name_it(ranks: &mut [Process]) {
    others_name(ranks, LOST);
}

/// As [`others_name_it`], for any rank.
pub fn others_name(ranks: &mut [Process], lost: usize) {
    let begin = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != lost) {
        let status = process.wait(SOON.saturating_sub(begin.elapsed())).unwrap();
        assert_eq!(status.code(), Some(COLLECTIVE_FAILED), "rank {rank}");
        let stderr = one_line(process);
        assert!(stderr.contains(&format!("rank {lost}")), "rank {rank}: {stderr}");
    }
}

/// The one line that says why a process failed; other lines say which ranks it waited for.
fn one_line(process: &Process) -> String {
    let stderr = process.stderr();
    let lines: Vec<_> = stderr.lines().filter(|line| !line.starts_with("switchml: ")).collect();
    let [line] = lines[..] else { panic!("not one line:\n{stderr}") };
    line.to_owned()
}

fn a_killed_rank_is_named_by_all_others(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let mut ranks = start(&cluster, &LONG);
    ranks[LOST].kill().unwrap();
    others_name_it(&mut ranks);
}

fn a_frozen_rank_is_named_by_all_others(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let mut ranks = start(&cluster, &LONG);
    ranks[LOST].signal(Signal::STOP).unwrap();
    // A rank that has not answered the daemon for so long counts as dead.
    others_name_it(&mut ranks);
    // When the rank continues, it is told that it is too late.
    ranks[LOST].signal(Signal::CONT).unwrap();
    let status = ranks[LOST].wait(SOON).unwrap();
    assert_eq!(status.code(), Some(COLLECTIVE_FAILED));
    check_stood_still(&ranks[LOST]);
}

/// A rank that was stopped for too long says so.
fn check_stood_still(rank: &Process) {
    let (line, allowed) = (one_line(rank), format!("and its job allows {STANDSTILL} s"));
    assert!(line.contains("this process stood still for") && line.contains(&allowed), "{line}");
}

/// All ranks are frozen, as if one host runs them all and is suspended. The daemon takes them for
/// dead, and nothing of the job is left.
fn ranks_that_were_all_frozen_hear_why_when_they_go_on(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let mut ranks = start(&cluster, &LONG);
    ranks.iter_mut().for_each(|rank| rank.signal(Signal::STOP).unwrap());
    wait_until!(PATIENCE, !cluster.list_jobs().contains(" long "), "the job goes on");
    ranks.iter_mut().for_each(|rank| rank.signal(Signal::CONT).unwrap());
    for rank in &mut ranks {
        let status = rank.wait(SOON).unwrap();
        assert_eq!(status.code(), Some(COLLECTIVE_FAILED));
        check_stood_still(rank);
    }
}

/// The other ranks wait, and nothing is lost.
fn a_rank_that_is_frozen_for_a_moment_costs_time_alone(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let ranks = start(&cluster, &["-b", "4M", "-e", "4M", "-n", "40", "-w", "1"]);
    ranks[LOST].signal(Signal::STOP).unwrap();
    // Work in flight comes to a halt, which the counter shows.
    sleep(Duration::from_millis(500));
    let halted = cluster.counter("completed");
    sleep(Duration::from_millis(1500));
    assert_eq!(cluster.counter("completed"), halted, "the other ranks cannot go on alone");
    ranks[LOST].signal(Signal::CONT).unwrap();
    let report = report(ranks);
    // A round for each of 4 MiB / 1408 B chunks and their exponents, in place and out of place, 41
    // times: it was in the middle.
    assert!(cluster.counter("completed") > 2 * 41 * (4 << 20) / 1408, "it had not begun");
    assert!(halted < 2 * 41 * (4 << 20) / 1408, "it was over");
    assert_eq!(
        (&report["out_of_bounds"], &report["differing"]),
        (&0.into(), &serde_json::json!([]))
    );
}

/// The rank is there, and takes longer than the aggregator may take to answer: as with a
/// checkpoint, a compilation, or a slow disk.
fn a_rank_that_is_late_is_waited_for(mode: Mode) {
    const LATE: Duration = Duration::from_secs(8);
    let cluster = Cluster::in_mode(RANKS, mode);
    let outcomes = cluster.run_ranks(RANKS, "late", |rank, builder| {
        let communicator = builder.connect().unwrap();
        communicator.barrier().unwrap();
        let begin = Instant::now();
        if rank as usize == LOST {
            sleep(LATE);
        }
        // Small, and of several data threads.
        let mut results = Vec::new();
        for count in [1000, 1 << 20] {
            let mut values: Vec<i32> = (0..count).map(|i| i * (rank as i32 + 1)).collect();
            communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            results.push(values);
        }
        communicator.close().unwrap();
        (results, begin.elapsed())
    });
    for (results, elapsed) in outcomes {
        assert!(elapsed >= LATE - Duration::from_secs(1), "it did not wait: {elapsed:?}");
        // 1 + 2 + 3 + 4 times the index.
        let wrong =
            |values: &Vec<i32>| (0..).zip(values).any(|(i, value)| *value != 10i32.wrapping_mul(i));
        assert!(!results.iter().any(wrong));
    }
}

/// The rank keeps its control connection, but no data packet of it passes: it gives up, and the
/// other ranks hear of that by the control plane.
fn a_rank_whose_data_path_is_cut_is_named_by_all_others(mode: Mode) {
    const DEADLINE: Duration = Duration::from_secs(8);
    let cluster =
        Cluster::new(RackOptions { workers: RANKS, mode, wires: true, ..RackOptions::default() });
    let join = |loss: f64| {
        let faults = move |rank, _| Faults {
            loss: if rank == LOST { loss } else { 0.0 },
            ..Faults::default()
        };
        Impairment::in_rack(&cluster.binaries, &cluster.rack, 1, faults).unwrap()
    };
    let whole = join(0.0);
    let loops = Loops::start(&cluster, "cut", DEADLINE);
    whole.stop().unwrap();
    let cut = join(1.0);
    let begin = Instant::now();
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("one of them adds nothing up");
        assert!(ended.at.saturating_duration_since(begin) < SOON, "rank {rank}: {error}");
        if rank == LOST {
            assert!(matches!(error, Error::AggregatorSilent { .. }), "{error}");
        } else {
            let text = error.to_string();
            assert!(
                text.contains(&format!("rank {LOST} (")) && text.contains("does not answer"),
                "rank {rank}: {text}"
            );
            assert_eq!(error.ranks(), [LOST as u16], "rank {rank}: {text}");
        }
    }
    cut.stop().unwrap();
}

/// The rank is there, and answers the control plane, but does not call: only the data plane tells
/// which rank is missing.
fn a_rank_that_does_not_call_is_named_when_the_timeout_is_over(mode: Mode) {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let cluster = Cluster::in_mode(RANKS, mode);
    let over = Arc::new(Barrier::new(RANKS));
    let outcomes = cluster.run_ranks(RANKS, "absent", move |rank, builder| {
        let communicator = builder.timeout(TIMEOUT).connect().unwrap();
        let begin = Instant::now();
        if rank as usize == LOST {
            over.wait();
            return None;
        }
        let result = communicator.all_reduce(&mut vec![1.0f32; 10_000], ReduceOp::Sum);
        let elapsed = begin.elapsed();
        over.wait();
        Some((result.unwrap_err(), elapsed))
    });
    let failures: Vec<_> = outcomes.into_iter().flatten().collect();
    assert_eq!(failures.len(), RANKS - 1);
    for (error, elapsed) in &failures {
        assert!(error.to_string().contains(&format!("rank {LOST}")), "{error}");
        assert_eq!(error.ranks(), [LOST as u16], "not who reported it: {error}");
        assert!(*elapsed < TIMEOUT + SOON, "{elapsed:?}");
    }
    // The rank whose timeout passes first reports it itself; the others may hear of it from that
    // rank.
    let own = failures.iter().find(
        |(error, _)| matches!(error, Error::MissingRanks { ranks, .. } if **ranks == [LOST as u16]),
    );
    let (_, elapsed) = own.expect("a rank that saw its own timeout pass");
    assert!(*elapsed >= TIMEOUT, "{elapsed:?}");
}
