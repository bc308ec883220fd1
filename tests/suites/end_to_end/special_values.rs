//! NaN and infinities on single ranks: their effect on the result, and the elements that they do
//! not affect.

use switchml_rack::{Mode, in_both_modes};
use switchml_worker::{Element, ReduceOp};

use crate::Cluster;

in_both_modes! {
    what_is_not_finite_on_one_rank_makes_its_chunk_nan_on_all_and_nothing_else,
    in_small_calls_elements_of_any_magnitude_are_summed_one_by_one,
    maxima_are_exact_beside_special_values,
}

const RANKS: usize = 3;
const CHUNKS: usize = 40;

/// Element `i` of a rank: an integer that every type holds, and so do sums of three.
fn small(rank: u32, i: usize) -> i32 {
    ((i * 31 + rank as usize * 17) % 41) as i32 - 20
}

fn sum(i: usize) -> i32 {
    (0..RANKS as u32).map(|rank| small(rank, i)).sum()
}

/// Sums with special values at these (rank, chunk, element of the chunk), and returns each rank's
/// result as bytes, and the elements of a chunk.
fn sums<T: Element>(
    cluster: &Cluster,
    job: &str,
    special: &'static [(u32, usize, usize, f64)],
    from: fn(f64) -> T,
) -> (Vec<Vec<T>>, usize) {
    let outcomes = cluster.run_ranks(RANKS, job, move |rank, builder| {
        let communicator = builder.connect().unwrap();
        let chunk = usize::from(communicator.info().chunk_lanes) / T::DTYPE.lanes();
        let mut tensor: Vec<T> =
            (0..CHUNKS * chunk).map(|i| from(f64::from(small(rank, i)))).collect();
        for (_, number, place, value) in special.iter().filter(|(whose, ..)| *whose == rank) {
            tensor[number * chunk + place] = from(*value);
        }
        communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        communicator.close().unwrap();
        (tensor, chunk)
    });
    let chunk = outcomes[0].1;
    (outcomes.into_iter().map(|(tensor, _)| tensor).collect(), chunk)
}

/// Chunks 3, 5, 6 and the last have something that is not finite; the others must not notice.
const SPECIAL: [(u32, usize, usize, f64); 5] = [
    (0, 3, 7, f64::NAN),
    (1, 5, 0, f64::INFINITY),
    (2, 6, 1, f64::NEG_INFINITY),
    (0, 6, 1, f64::INFINITY),
    (2, CHUNKS - 1, 30, f64::NAN),
];

fn check<T: Element>(cluster: &Cluster, job: &str, from: fn(f64) -> T, to: fn(T) -> f64) {
    let (results, chunk) = sums(cluster, job, &SPECIAL, from);
    let bytes: Vec<&[u8]> = results.iter().map(|result| bytemuck::cast_slice(result)).collect();
    assert!(bytes.iter().all(|other| *other == bytes[0]), "{job}: ranks differ");
    for (i, found) in results[0].iter().enumerate() {
        let found = to(*found);
        if SPECIAL.iter().any(|(_, number, ..)| i / chunk == *number) {
            assert!(found.is_nan(), "{job}, element {i} of chunk {}: {found}", i / chunk);
        } else {
            assert_eq!(found, f64::from(sum(i)), "{job}, element {i} of chunk {}", i / chunk);
        }
    }
}

fn what_is_not_finite_on_one_rank_makes_its_chunk_nan_on_all_and_nothing_else(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    check(&cluster, "f32", |x| x as f32, f64::from);
    check(&cluster, "f64", |x| x, |x| x);
    check(&cluster, "f16", half::f16::from_f64, f64::from);
    check(&cluster, "bf16", half::bf16::from_f64, f64::from);
}

/// Magnitudes include the smallest beside the largest.
fn in_small_calls_elements_of_any_magnitude_are_summed_one_by_one(mode: Mode) {
    let cluster = Cluster::in_mode(2, mode);
    let results = cluster.run_ranks(2, "small", |rank, builder| {
        let communicator = builder.connect().unwrap();
        let mut tensor: Vec<f32> = (0..1000).map(|i| small(rank, i) as f32).collect();
        tensor[..3].copy_from_slice(&[3e38, -3e38, 1.0]);
        // These elements are in other chunks.
        tensor[500] = [f32::NEG_INFINITY, 1.0][rank as usize];
        tensor[999] = [1.0, f32::NAN][rank as usize];
        // Ranks predict exponents from the call before, so the same call is repeated.
        let again = |mut tensor: Vec<f32>| {
            communicator.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
            tensor.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let found = [(); 3].map(|()| again(tensor.clone()));
        communicator.close().unwrap();
        found
    });
    for found in results.iter().flatten() {
        let found: Vec<f32> = found.iter().map(|bits| f32::from_bits(*bits)).collect();
        assert_eq!(found[..3], [f32::INFINITY, f32::NEG_INFINITY, 2.0]);
        assert_eq!(found[500], f32::NEG_INFINITY);
        assert!(found[999].is_nan());
        for i in (3..999).filter(|i| *i != 500) {
            assert_eq!(found[i], (small(0, i) + small(1, i)) as f32, "element {i}");
        }
    }
}

/// The greatest and the least are exact, element by element: a NaN wins where it is, an infinity
/// where it is greater.
fn maxima_are_exact_beside_special_values(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let results = cluster.run_ranks(RANKS, "max", |rank, builder| {
        let communicator = builder.connect().unwrap();
        let mut tensor: Vec<f32> = (0..5000).map(|i| small(rank, i) as f32).collect();
        match rank {
            0 => tensor[400] = f32::NAN,
            1 => tensor[401] = f32::INFINITY,
            _ => tensor[402] = f32::NEG_INFINITY,
        }
        communicator.all_reduce(&mut tensor, ReduceOp::Max).unwrap();
        communicator.close().unwrap();
        tensor
    });
    let greatest = |ranks: std::ops::Range<u32>, i: usize| {
        ranks.map(|rank| small(rank, i)).max().unwrap() as f32
    };
    for result in results {
        for (i, found) in result.iter().enumerate() {
            match i {
                400 => assert!(found.is_nan()),
                401 => assert_eq!(*found, f32::INFINITY),
                402 => assert_eq!(*found, greatest(0..2, i)),
                _ => assert_eq!(*found, greatest(0..3, i), "element {i}"),
            }
        }
    }
}
