//! All ranks on one host, without an aggregator: they add up in their memory.

use std::fs;
use std::sync::{Arc, Barrier};

use switchml_rack::{Ip, Rack, needs_racks};
use switchml_worker::{Builder, ReduceOp};

use crate::local_results::{name_each, pause_each, peers, rack, run};
use crate::local_sums::bits;

const RANKS: usize = 4;
/// Elements of f32 of a measured call: 8 MiB.
const ELEMENTS: usize = 2 << 20;

/// Bytes that the host has sent to itself so far: packets to its own addresses go by `lo`.
fn carried() -> u64 {
    let counter = fs::read_to_string("/sys/class/net/lo/statistics/tx_bytes");
    counter.unwrap().trim().parse().unwrap()
}

/// What is left is the control planes' talk: a hundredth of the tensor at most.
#[test]
fn no_value_goes_by_the_network() {
    needs_racks!();
    for ip in [Ip::V4, Ip::V6] {
        let all = Arc::new(Barrier::new(RANKS));
        let loads = run(&rack(1, ip), &[RANKS], peers(ip), move |rank, builder| {
            let communicator = builder.connect().unwrap();
            all.wait();
            let before = carried();
            all.wait();
            // Lane i of rank r is i mod 99 + r, a whole number, so that the sum is exact.
            let mut values: Vec<f32> =
                (0..ELEMENTS).map(|lane| (lane % 99) as f32 + rank as f32).collect();
            communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            all.wait();
            let load = carried() - before;
            all.wait();
            let is_right = |(lane, sum): (usize, &f32)| *sum == (4 * (lane % 99) + 6) as f32;
            assert!(values.iter().enumerate().all(is_right));
            communicator.close().unwrap();
            load
        });
        let load = *loads.iter().max().unwrap() as f64 / (4 * ELEMENTS) as f64;
        assert!(load <= 0.01, "{load} of the tensor");
    }
}

#[test]
fn bits_are_those_of_aggregators() {
    needs_racks!();
    let rack = rack(1, Ip::V4);
    let all_bits = |local_sums| {
        let with = |builder: Builder| peers(Ip::V4)(builder).local_sums(local_sums);
        let life = |_, builder: Builder| -> Vec<_> { bits(&builder.connect().unwrap()) };
        run(&rack, &[RANKS], with, life)
    };
    let (with, without) = (all_bits(true), all_bits(false));
    assert!(with.iter().chain(&without).all(|bits| *bits == without[0]));
}

/// If one rank has no part in the memory, all use the aggregators. Over loopback the others do not
/// add up either: there is no link to save.
#[test]
fn ranks_that_share_no_memory_are_served_as_before() {
    needs_racks!();
    let own = Rack::worker_address(0).to_string();
    for (host, local) in [(own.as_str(), vec![0, 1, 3]), ("127.0.0.1", vec![])] {
        let place = format!("{host}:29500");
        let with = |builder: Builder| builder.meeting(place.clone());
        let told = run(&rack(1, Ip::V4), &[RANKS], with, |rank, builder| {
            let communicator = builder.local_sums(rank != 2).connect().unwrap();
            let mut values = vec![rank as f32; 5000];
            communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            assert!(values.iter().all(|sum| *sum == 6.0));
            communicator.info().stripes[0].local_ranks.clone()
        });
        assert_eq!(told, [local.clone(), local.clone(), vec![], local], "at {host}");
    }
}

#[test]
fn each_rank_that_is_killed_or_stopped_is_named() {
    needs_racks!();
    name_each(&rack(1, Ip::V4), RANKS);
}

#[test]
fn each_rank_that_stands_still_for_a_moment_costs_time_alone() {
    needs_racks!();
    pause_each(&rack(1, Ip::V4), RANKS);
}
