//! Sums in 16 and averages in 8 bits: on bad links, beside values that are not finite, and with a
//! rank that is killed during one. [`crate::loops`] makes such sums in the tests that lose daemons
//! and links.

use std::time::Duration;

use switchml_rack::{FaultCounts, Faults, Impairment, Mode, RackOptions, in_both_modes};
use switchml_worker::{Communicator, Error, Reduction};

use crate::{Cluster, PATIENCE};

in_both_modes! {
    right_and_alike_on_bad_links,
    what_is_not_finite_on_one_rank_makes_its_chunk_nan_on_all_and_nothing_else,
    a_rank_that_is_killed_is_named,
}

/// All numbers are below.
const LIMIT: usize = 1000;

/// Element `i` of a rank: a whole number, which 16 bits hold exactly among up to 32 ranks.
fn value(rank: usize, i: usize, salt: u64) -> f32 {
    ((i * 37 + rank * 101 + salt as usize) % (2 * LIMIT - 1)) as f32 - (LIMIT - 1) as f32
}

fn total(ranks: usize, i: usize, salt: u64) -> f32 {
    (0..ranks).map(|rank| value(rank, i, salt)).sum()
}

/// Bound of the root mean square error of a result in 8 bits: N * B / K / sqrt(128), where B is
/// below 10 sqrt(128) times the largest magnitude in all chunks except one in 10^8. For an average
/// it is divided by N.
fn bound(ranks: usize) -> f64 {
    10.0 * LIMIT as f64 / (255 / ranks) as f64
}

/// Makes a sum in 16 and an average in 8 bits. The bits of the sum are checked, and the error of
/// the average. Returns a hash of both results' bits, which must be the same on all ranks.
pub fn add_up(communicator: &Communicator, elements: usize, salt: u64) -> Result<i32, Error> {
    let (rank, ranks) = (communicator.rank() as usize, communicator.world_size() as usize);
    let own: Vec<f32> = (0..elements).map(|i| value(rank, i, salt)).collect();
    let mut sums = own.clone();
    communicator.all_reduce(&mut sums, Reduction::SUM16)?;
    for (i, sum) in sums.iter().enumerate() {
        assert_eq!(sum.to_bits(), total(ranks, i, salt).to_bits(), "element {i} of rank {rank}");
    }
    let mut averages = own;
    communicator.all_reduce(&mut averages, Reduction::AVG8)?;
    let truth = (0..elements).map(|i| total(ranks, i, salt) / ranks as f32);
    let error = root_mean_square(averages.iter().copied().zip(truth));
    assert!(error <= bound(ranks), "rank {rank}: {error}");
    let bits = sums.iter().chain(&averages).map(|x| x.to_bits() as i32);
    Ok(bits.fold(0, |hash, bits| hash.wrapping_mul(0x0100_0193) ^ bits))
}

fn root_mean_square(pairs: impl ExactSizeIterator<Item = (f32, f32)>) -> f64 {
    let count = pairs.len() as f64;
    let squares: f64 = pairs.map(|(found, truth)| f64::from(found - truth).powi(2)).sum();
    (squares / count).sqrt()
}

fn right_and_alike_on_bad_links(mode: Mode) {
    const RANKS: usize = 4;
    let cluster =
        Cluster::new(RackOptions { workers: RANKS, mode, wires: true, ..RackOptions::default() });
    let faults = Faults {
        loss: 0.01,
        duplication: 0.02,
        flips: 0.01,
        reordering: 0.05,
        ..Faults::default()
    };
    let impairment =
        Impairment::in_rack(&cluster.binaries, &cluster.rack, 77, |_, _| faults).unwrap();
    let hashes = cluster.run_ranks(RANKS, "packed", |_, builder| {
        let communicator = builder.deadline(PATIENCE).connect().unwrap();
        // The last chunk is not full; the small calls send data ahead of their exponents.
        let hashes = [500_001, 129, 1].map(|elements| add_up(&communicator, elements, 5).unwrap());
        communicator.close().unwrap();
        hashes
    });
    let mut total = FaultCounts::default();
    impairment.stop().unwrap().into_iter().flatten().for_each(|counts| total += counts);
    assert!(total.lost > 0 && total.duplicated > 0 && total.flipped > 0, "{total:?}");
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "ranks have other bits: {hashes:?}");
}

/// A NaN on one rank and an infinity on another, each in its own chunk.
fn what_is_not_finite_on_one_rank_makes_its_chunk_nan_on_all_and_nothing_else(mode: Mode) {
    const RANKS: usize = 3;
    const CHUNKS: usize = 20;
    let cluster = Cluster::in_mode(RANKS, mode);
    for (reduction, elements) in [(Reduction::SUM16, 2), (Reduction::AVG8, 4)] {
        let results = cluster.run_ranks(RANKS, reduction.name(), move |rank, builder| {
            let communicator = builder.connect().unwrap();
            let chunk = elements * usize::from(communicator.info().chunk_lanes);
            let mut tensor: Vec<f32> =
                (0..CHUNKS * chunk).map(|i| value(rank as usize, i, 0)).collect();
            match rank {
                0 => tensor[3 * chunk + 7] = f32::NAN,
                1 => tensor[6 * chunk - 1] = f32::NEG_INFINITY,
                _ => tensor[8 * chunk] = f32::INFINITY,
            }
            communicator.all_reduce(&mut tensor, reduction).unwrap();
            communicator.close().unwrap();
            tensor
        });
        let bits = |tensor: &[f32]| tensor.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(results.iter().all(|other| bits(other) == bits(&results[0])), "{reduction}");
        let chunk = results[0].len() / CHUNKS;
        for (number, found) in results[0].chunks(chunk).enumerate() {
            if [3, 5, 8].contains(&number) {
                assert!(found.iter().all(|x| x.is_nan()), "{reduction}, chunk {number}");
                continue;
            }
            let total = |place| total(RANKS, number * chunk + place, 0);
            let (divisor, bound) =
                if reduction == Reduction::SUM16 { (1.0, 0.0) } else { (3.0, bound(RANKS)) };
            let truth = (0..chunk).map(|place| total(place) / divisor);
            let error = root_mean_square(found.iter().copied().zip(truth));
            assert!(error <= bound, "{reduction}, chunk {number}: {error}");
        }
    }
}

fn a_rank_that_is_killed_is_named(mode: Mode) {
    const RANKS: usize = 3;
    let cluster = Cluster::in_mode(RANKS, mode);
    for precision in ["16", "8"] {
        let job = format!("in-{precision}-bits");
        let size = ["-b", "4M", "-e", "4M", "-n", "100000"];
        let mut ranks =
            cluster.bench(RANKS, &job, &[&size[..], &["--precision", precision]].concat());
        cluster.wait_for_job(&[&job, "started", "3 of 3"]);
        std::thread::sleep(Duration::from_millis(500));
        ranks[1].kill().unwrap();
        for rank in [0, 2] {
            ranks[rank].wait(crate::SOON).unwrap();
            let said = ranks[rank].stderr();
            assert!(said.lines().any(|line| line.contains("rank 1")), "{job}, rank {rank}: {said}");
        }
    }
}
