//! Several ranks of a host: they add up in memory that they share, and send one contribution.

use std::thread::sleep;
use std::time::Duration;

use switchml_rack::{Mode, Signal, in_both_modes};
use switchml_worker::{Communicator, Error, ReduceOp, Reduction};

use crate::lost_ranks::{LONG, LOST, others_name_it, start};
use crate::{Cluster, report};

in_both_modes! {
    hosts_send_one_contribution_and_sums_are_those_of_all_ranks,
    the_same_bits_as_without,
    a_killed_rank_is_named_by_its_host_and_by_others,
    a_rank_that_is_frozen_for_a_moment_costs_time_alone,
    ranks_of_a_host_with_different_calls_are_told_apart,
}

const HOSTS: usize = 2;
const PER_HOST: usize = 4;
const RANKS: usize = HOSTS * PER_HOST;
const ELEMENTS: usize = 300_000;

/// Whole numbers, so that sums are exact in f32, and differ between ranks.
fn element(rank: u32, i: usize) -> i32 {
    (i as i32 * 37 + rank as i32 * 1_000_003) % 99_991
}

fn reduced(i: usize, op: impl Fn(i32, i32) -> i32) -> i32 {
    (0..RANKS as u32).map(|rank| element(rank, i)).reduce(op).unwrap()
}

fn hosts_send_one_contribution_and_sums_are_those_of_all_ranks(mode: Mode) {
    let cluster = Cluster::of_hosts(HOSTS, PER_HOST, mode);
    cluster.run_ranks(RANKS, "sums", |rank, builder| {
        let communicator = builder.connect().unwrap();
        let first = rank as u16 / PER_HOST as u16 * PER_HOST as u16;
        let host: Vec<u16> = (first..first + PER_HOST as u16).collect();
        assert_eq!(communicator.info().stripes[0].local_ranks, host);
        let mine = || (0..ELEMENTS).map(|i| element(rank, i));
        let mut sum: Vec<f32> = mine().map(|value| value as f32).collect();
        communicator.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        let mut largest: Vec<i32> = mine().collect();
        communicator.all_reduce(&mut largest, ReduceOp::Max).unwrap();
        let mut small: Vec<i32> = mine().take(100).collect();
        communicator.all_reduce(&mut small, ReduceOp::Sum).unwrap();
        let mut roots: Vec<i32> = mine().collect();
        communicator.broadcast(&mut roots, 5).unwrap();
        communicator.barrier().unwrap();
        for i in 0..ELEMENTS {
            assert_eq!(sum[i], reduced(i, |a, b| a + b) as f32, "sum, element {i}");
            assert_eq!(largest[i], reduced(i, i32::max), "maximum, element {i}");
            assert_eq!(roots[i], element(5, i), "broadcast, element {i}");
        }
        (0..100).for_each(|i| assert_eq!(small[i], reduced(i, |a, b| a + b)));
        communicator.close().unwrap();
    });
    // Without local sums, six contributions would be added between the first and the last of a
    // round.
    let (added, completed) = (cluster.counter("added"), cluster.counter("completed"));
    assert!(completed > 1000 && added < 3 * completed, "{added} added in {completed} rounds");
    cluster.stop();
}

/// The results of a few calls as bits, for numbers whose sums are rounded.
pub fn bits(communicator: &Communicator) -> Vec<Vec<u32>> {
    let number = |i: u32| {
        let wild = i.wrapping_add(communicator.rank() << 20).wrapping_mul(0x9E37_79B1);
        f32::from_bits(wild & 0xBFFF_FFFF)
    };
    let calls = [Reduction::SUM, Reduction::AVG, Reduction::SUM16, Reduction::SUM8, Reduction::MIN];
    let of_call = |op| {
        let mut values: Vec<f32> = (0..50_000).map(number).collect();
        communicator.all_reduce(&mut values, op).unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    calls.map(of_call).to_vec()
}

fn the_same_bits_as_without(mode: Mode) {
    let cluster = Cluster::of_hosts(HOSTS, PER_HOST, mode);
    let run = |job: &str, local_sums| {
        cluster.run_ranks(RANKS, job, move |_, builder| {
            let communicator = builder.local_sums(local_sums).connect().unwrap();
            assert_eq!(communicator.info().stripes[0].local_ranks.is_empty(), !local_sums);
            bits(&communicator)
        })
    };
    let (with, without) = (run("with", true), run("without", false));
    assert!(with.iter().all(|bits| *bits == without[0]));
}

fn a_killed_rank_is_named_by_its_host_and_by_others(mode: Mode) {
    let cluster = Cluster::of_hosts(2, 2, mode);
    let mut ranks = start(&cluster, &LONG);
    ranks[LOST].kill().unwrap();
    others_name_it(&mut ranks);
}

fn a_rank_that_is_frozen_for_a_moment_costs_time_alone(mode: Mode) {
    let cluster = Cluster::of_hosts(2, 2, mode);
    let ranks = start(&cluster, &["-b", "4M", "-e", "4M", "-n", "20", "-w", "1"]);
    for _ in 0..3 {
        ranks[LOST].signal(Signal::STOP).unwrap();
        sleep(Duration::from_millis(200));
        ranks[LOST].signal(Signal::CONT).unwrap();
        sleep(Duration::from_millis(20));
    }
    let report = report(ranks);
    assert_eq!(
        (&report["out_of_bounds"], &report["differing"]),
        (&0.into(), &serde_json::json!([]))
    );
}

fn ranks_of_a_host_with_different_calls_are_told_apart(mode: Mode) {
    let cluster = Cluster::of_hosts(2, 2, mode);
    let errors = cluster.run_ranks(4, "odd", |rank, builder| {
        let communicator = builder.connect().unwrap();
        let mut values = vec![1f32; if rank == 1 { 5000 } else { 6000 }];
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap_err()
    });
    for error in errors {
        let Error::Control(error) = &error else { panic!("{error}") };
        let line = error.to_string();
        assert!(line.contains("rank 1") && line.contains("all_reduce(sum, f32, 5000)"), "{line}");
    }
}
