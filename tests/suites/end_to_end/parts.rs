//! Reduce-scatter and all-gather: some ranks need the lanes of each result, and the others are told
//! that it is complete.

use std::ops::Range;
use std::time::Duration;

use switchml_rack::{Faults, Impairment, Ip, Mode, RackOptions, in_both_modes};
use switchml_worker::{Communicator, ReduceOp, Reduction};

use crate::Cluster;

in_both_modes! {
    results_go_to_those_who_need_them,
    lost_packets_cost_time_alone,
    hosts_of_several_ranks_get_their_parts,
    over_ipv6_too,
}

const RANKS: usize = 4;
/// Time that bad links may cost on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// Whole numbers, so that sums are exact in f32, and differ between ranks.
fn element(rank: u32, i: usize) -> i32 {
    (i as i32 % 99_991 * 7 + rank as i32 * 1_003) % 99_991
}

/// The elements of a rank's part, by rule 17.8.
fn part(rank: u32, ranks: u32, elements: usize) -> Range<usize> {
    let start = |rank: u32| elements * rank as usize / ranks as usize;
    start(rank)..start(rank + 1)
}

/// Makes both calls at once, with `elements` elements, and checks the results.
fn exchange(communicator: &Communicator, elements: usize) {
    let (rank, ranks) = (communicator.rank(), communicator.world_size());
    let mine = || (0..elements).map(|i| element(rank, i));
    let sums: Vec<f32> = mine().map(|value| value as f32).collect();
    let sums = communicator.reduce_scatter_start(sums, ReduceOp::Sum).unwrap();
    let gathered = communicator.all_gather_start(mine().collect::<Vec<i32>>()).unwrap();
    let largest = communicator.reduce_scatter_start(mine().collect::<Vec<i32>>(), ReduceOp::Max);
    let (sums, gathered) = (sums.wait().unwrap(), gathered.wait().unwrap());
    let largest = largest.unwrap().wait().unwrap();
    for i in part(rank, ranks, elements) {
        let all = (0..ranks).map(|rank| element(rank, i));
        assert_eq!(sums[i], all.clone().sum::<i32>() as f32, "rank {rank}: sum, element {i}");
        assert_eq!(largest[i], all.max().unwrap(), "rank {rank}: maximum, element {i}");
    }
    for owner in 0..ranks {
        for i in part(owner, ranks, elements) {
            assert_eq!(gathered[i], element(owner, i), "rank {rank}: gathered, element {i}");
        }
    }
}

fn results_go_to_those_who_need_them(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let told = cluster.run_ranks(RANKS, "parts", |_, builder| {
        let communicator = builder.connect().unwrap();
        // Few elements, also fewer than ranks, and parts of different lengths.
        for elements in [0, 1, 3, 1000, 5003] {
            exchange(&communicator, elements);
        }
        exchange(&communicator, 1 << 20);
        // A sum of each part in fewer bits, with the error bound of the whole.
        let mut values = vec![1f32; 100_000];
        communicator.reduce_scatter(&mut values, Reduction::SUM8).unwrap();
        let own = part(communicator.rank(), RANKS as u32, values.len());
        assert!(values[own].iter().all(|value| (value - RANKS as f32).abs() < 0.5));
        let before = communicator.stats().engine;
        let mut values = vec![1f32; 1 << 20];
        communicator.reduce_scatter(&mut values, ReduceOp::Sum).unwrap();
        let between = communicator.stats().engine;
        communicator.all_gather(&mut values).unwrap();
        let after = communicator.stats().engine;
        communicator.close().unwrap();
        [
            (before.told, before.results),
            (between.told, between.results),
            (after.told, after.results),
        ]
    });
    for (rank, [before, between, after]) in told.into_iter().enumerate() {
        // Three parts of four are others'; exponents are for all. Then one of four is its own.
        let scattered = (between.0 - before.0) as f64 / (between.1 - before.1) as f64;
        let gathered = (after.0 - between.0) as f64 / (after.1 - between.1) as f64;
        println!("{mode:?}, rank {rank}: {scattered:.3} and {gathered:.3} of the results told");
        assert!((0.5..0.76).contains(&scattered), "rank {rank}: {scattered}");
        assert!((0.1..0.26).contains(&gathered), "rank {rank}: {gathered}");
    }
    cluster.stop();
}

fn lost_packets_cost_time_alone(mode: Mode) {
    let cluster =
        Cluster::new(RackOptions { workers: RANKS, mode, wires: true, ..RackOptions::default() });
    let faults = Faults {
        loss: 0.01,
        duplication: 0.02,
        reordering: 0.05,
        distance: 32,
        corruption: 0.005,
        flips: 0.005,
    };
    let _impairment =
        Impairment::in_rack(&cluster.binaries, &cluster.rack, 11, |_, _| faults).unwrap();
    cluster.run_ranks(RANKS, "parts on bad links", |_, builder| {
        let communicator = builder.deadline(DEADLINE).connect().unwrap();
        exchange(&communicator, 100_000);
        exchange(&communicator, 5003);
        communicator.close().unwrap();
    });
}

fn hosts_of_several_ranks_get_their_parts(mode: Mode) {
    let cluster = Cluster::of_hosts(2, 2, mode);
    cluster.run_ranks(4, "parts of hosts", |_, builder| {
        let communicator = builder.connect().unwrap();
        assert_eq!(communicator.info().stripes[0].local_ranks.len(), 2);
        exchange(&communicator, 200_000);
        communicator.close().unwrap();
    });
}

/// Over IPv6 each rank gets its own copy, whose UDP checksum must be right.
fn over_ipv6_too(mode: Mode) {
    let cluster =
        Cluster::new(RackOptions { workers: RANKS, mode, ip: Ip::V6, ..RackOptions::default() });
    let told = cluster.run_ranks(RANKS, "parts over IPv6", |_, builder| {
        let communicator = builder.connect().unwrap();
        exchange(&communicator, 200_000);
        let told = communicator.stats().engine.told;
        communicator.close().unwrap();
        told
    });
    assert!(told.iter().all(|told| *told > 100), "{told:?}");
}
