//! Sums have the same bits on all ranks and in all runs, whatever the order in which contributions
//! arrive.

use std::thread::sleep;
use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use switchml_rack::{Mode, in_both_modes};
use switchml_worker::ReduceOp;

use crate::Cluster;

in_both_modes! {
    all_ranks_hold_the_same_bits_in_any_order_of_arrival,
}

const RANKS: usize = 4;
const ELEMENTS: usize = 100_000;

/// Floats over 40 binary orders of magnitude: a sum of floats in another order would have other
/// bits.
fn tensor(rank: u32) -> Vec<f32> {
    let mut random = StdRng::seed_from_u64(u64::from(rank));
    let mut element =
        || random.random_range(-1.0f32..1.0) * 2f32.powi(random.random_range(-20..20));
    (0..ELEMENTS).map(|_| element()).collect()
}

/// Runs the job with some ranks late, and returns each rank's bits.
fn sums(cluster: &Cluster, job: &str, delays_ms: [u64; RANKS]) -> Vec<Vec<u32>> {
    cluster.run_ranks(RANKS, job, move |rank, builder| {
        let communicator = builder.connect().unwrap();
        let mut values = tensor(rank);
        sleep(Duration::from_millis(delays_ms[rank as usize]));
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        communicator.close().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    })
}

fn all_ranks_hold_the_same_bits_in_any_order_of_arrival(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let first = sums(&cluster, "together", [0; RANKS]);
    // The inputs do depend on the order, or the test would show nothing.
    let in_order =
        |ranks: [u32; RANKS]| -> f32 { ranks.iter().fold(0.0, |sum, &rank| sum + tensor(rank)[7]) };
    assert_ne!(in_order([0, 1, 2, 3]).to_bits(), in_order([3, 2, 1, 0]).to_bits());
    for (job, delays) in
        [("again", [0; RANKS]), ("upwards", [0, 30, 60, 90]), ("downwards", [90, 60, 30, 0])]
    {
        let other = sums(&cluster, job, delays);
        assert!(other.iter().all(|bits| *bits == first[0]), "{job}");
    }
    assert!(first.iter().all(|bits| *bits == first[0]));
}
