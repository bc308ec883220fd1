//! Jobs at several aggregators, of which one dies in mid-call: another one goes on with what was in
//! flight, every element is right, and ranks that die later are named.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use switchml_rack::{Aggregator, Binaries, Mode, Process, Rack, Signal, in_both_modes, wait_until};
use switchml_worker::{Builder, Communicator, Error, ReduceOp, control};

use crate::loops::Loops;
use crate::lost_ranks::{LONG, LOST, RANKS, others_name_it};
use crate::peers::rack;
use crate::{Cluster, PATIENCE, SOON};

in_both_modes! {
    a_switch_that_dies_costs_time_alone,
    a_switch_whose_daemon_does_not_come_back_costs_time_alone,
}

const DEADLINE: Duration = Duration::from_secs(5);
/// Rounds in which each aggregator has work: small calls go to one after another.
const SOME: u64 = 6;

/// Large sums of each rank, and their elements.
const CALLS: usize = 30;
const LARGE: i32 = 4_000_000;

/// Aggregators in software on the hosts of a rack from this one on.
fn aggregators(binaries: &Binaries, rack: &Rack, from: usize) -> Vec<Aggregator> {
    let on = |host: usize| {
        let address = (Rack::worker_address(host), 0).into();
        Aggregator::software_on(binaries, rack.worker(host), address).unwrap()
    };
    (from..rack.workers().len()).map(on).collect()
}

fn list(aggregators: &[Aggregator]) -> String {
    aggregators.iter().map(Aggregator::control).collect::<Vec<_>>().join(",")
}

/// A job at these aggregators alone.
fn at(aggregators: &str, deadline: Duration) -> Builder {
    let settings = Communicator::builder().aggregator(aggregators).own_hosts(false);
    settings.job("train").deadline(deadline)
}

/// How long it takes until all ranks have made some more rounds.
fn time_of_progress(loops: &Loops) -> Duration {
    let begin = Instant::now();
    loops.wait_for_progress(SOME);
    begin.elapsed()
}

fn all_went_well(loops: Loops) {
    for (rank, ended) in loops.stop().into_iter().enumerate() {
        assert_eq!(ended.result, Ok(()), "rank {rank}");
    }
}

/// Two die, one after the other: by a signal that nothing survives, and by one that says goodbye.
#[test]
fn one_of_three_is_enough() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(6);
    let mut aggregators = aggregators(&binaries, &rack, 3);
    let workers = &rack.workers()[..3];
    let loops = Loops::start_with(&at(&list(&aggregators), DEADLINE), workers);
    let usual = time_of_progress(&loops);
    aggregators[1].process().kill().unwrap();
    let killed = time_of_progress(&loops);
    aggregators.remove(0).stop().unwrap();
    let stopped = time_of_progress(&loops);
    println!("{SOME} rounds take {usual:?}, with a kill {killed:?}, with an end {stopped:?}");
    assert!(killed < SOON && stopped < SOON);
    all_went_well(loops);
}

/// Both at once, so that ranks may differ in which one they find alive.
#[test]
fn two_that_die_at_once_cost_time_alone() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(6);
    let mut aggregators = aggregators(&binaries, &rack, 3);
    let workers = &rack.workers()[..3];
    let loops = Loops::start_with(&at(&list(&aggregators), DEADLINE), workers);
    for aggregator in &mut aggregators[..2] {
        aggregator.process().signal(Signal::KILL).unwrap();
    }
    println!("two deaths: {:?}", time_of_progress(&loops));
    all_went_well(loops);
}

#[test]
fn without_another_aggregator_the_job_ends() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(4);
    let mut aggregators = aggregators(&binaries, &rack, 3);
    let workers = &rack.workers()[..3];
    let loops = Loops::start_with(&at(&list(&aggregators), DEADLINE), workers);
    aggregators[0].process().kill().unwrap();
    let begin = Instant::now();
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("nobody adds up");
        assert!(
            matches!(error, Error::Control(control::Error::Lost { .. })),
            "rank {rank}: {error}"
        );
        assert!(ended.at.saturating_duration_since(begin) < SOON, "rank {rank}");
    }
}

/// The ranks' hosts, which have helped it.
#[test]
fn where_ranks_hosts_help_the_only_aggregator_may_die() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(4);
    let mut aggregators = aggregators(&binaries, &rack, 3);
    let settings = at(&list(&aggregators), DEADLINE).own_hosts(true);
    let loops = Loops::start_with(&settings, &rack.workers()[..3]);
    aggregators[0].process().kill().unwrap();
    println!("ranks' hosts go on: {:?}", time_of_progress(&loops));
    all_went_well(loops);
}

/// A rank of a benchmark at these aggregators.
fn bench(binaries: &Binaries, rack: &Rack, rank: usize, aggregators: &str) -> Process {
    let mut command = Command::new(&binaries.worker);
    command.args(["bench", "--aggregator", aggregators, "--job", "long", "--json", "-"]);
    command.args(["--own-hosts", "0"]);
    command.args(["--rank", &rank.to_string(), "--world-size", &RANKS.to_string()]);
    command.args(LONG);
    rack.worker(rank).spawn(&format!("worker {rank}"), command).unwrap()
}

#[test]
fn a_rank_that_dies_after_a_move_is_named() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(RANKS + 2);
    let mut aggregators = aggregators(&binaries, &rack, RANKS);
    let all = list(&aggregators);
    let mut ranks: Vec<_> = (0..RANKS).map(|rank| bench(&binaries, &rack, rank, &all)).collect();
    // They make calls as soon as all data paths are open, which takes far less.
    sleep(Duration::from_secs(3));
    aggregators[0].process().kill().unwrap();
    let has_moved = |rank: &Process| rank.stderr().contains(" goes on with the part of ");
    wait_until!(PATIENCE, ranks.iter().all(has_moved), "no rank says that it has moved");
    ranks[LOST].kill().unwrap();
    others_name_it(&mut ranks);
}

/// A switch, and two spare hosts with the software data plane.
fn with_a_switch(mode: Mode, deadline: Duration) -> (Cluster, Vec<Aggregator>, Loops) {
    let cluster = Cluster::in_mode(5, mode);
    let spare = aggregators(&cluster.binaries, &cluster.rack, 3);
    let all = [cluster.aggregator.control(), &list(&spare)].join(",");
    let loops = Loops::start_with(&at(&all, deadline), &cluster.rack.workers()[..3]);
    (cluster, spare, loops)
}

/// Both its daemon and its data plane are gone.
fn a_switch_that_dies_costs_time_alone(mode: Mode) {
    let (mut cluster, _spare, loops) = with_a_switch(mode, Duration::from_secs(2));
    cluster.aggregator.process().kill().unwrap();
    cluster.ask(&["detach"]);
    println!("the switch dies: {:?}", time_of_progress(&loops));
    all_went_well(loops);
}

/// Its data plane lives on, but nobody would tell of a rank that dies.
fn a_switch_whose_daemon_does_not_come_back_costs_time_alone(mode: Mode) {
    let (mut cluster, _spare, loops) = with_a_switch(mode, DEADLINE);
    cluster.aggregator.process().kill().unwrap();
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    while begin.elapsed() < Duration::from_secs(15) {
        longest = longest.max(time_of_progress(&loops));
    }
    println!("the daemon does not come back: {longest:?} at most");
    all_went_well(loops);
    cluster.ask(&["detach"]);
}

/// Large sums, of which each of two data threads at each aggregator has a part.
#[test]
fn large_calls_in_flight_go_on_elsewhere() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(5);
    let mut aggregators = aggregators(&binaries, &rack, 3);
    let all = list(&aggregators);
    let calls = Arc::new(AtomicUsize::new(0));
    let life = &|rank: usize| {
        let (all, calls) = (all.clone(), Arc::clone(&calls));
        rack.worker(rank).run(move || {
            let builder = Communicator::builder().aggregator(all).job("large").data_threads(2);
            let communicator = builder.rank(rank as u32).world_size(3).connect().unwrap();
            for round in 0..CALLS as i32 {
                let element = |i: i32| i.wrapping_mul(31).wrapping_add(round);
                let mut values: Vec<i32> =
                    (0..LARGE).map(|i| element(i).wrapping_add(rank as i32)).collect();
                communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                calls.fetch_add(1, Ordering::Relaxed);
                let right = |i: i32| element(i).wrapping_mul(3).wrapping_add(3);
                assert_eq!((0..).zip(&values).find(|&(i, &value)| value != right(i)), None);
            }
            let moves = communicator.stats().moves;
            communicator.close().unwrap();
            moves
        })
    };
    let moves: Vec<_> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || life(rank))).collect();
        wait_until!(PATIENCE, calls.load(Ordering::Relaxed) > CALLS, "the ranks make no calls");
        aggregators[0].process().kill().unwrap();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(moves, [1; 3]);
}
