//! What elements lose in fewer bits, and that later calls can make up for it.

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::wire::header::Op;
use switchml_worker_core::numerics::{Codec, DType, Reduction, exponent};

use super::cluster::{aggregate, encode, to_payload};

/// A call's result, and what each rank's elements lose.
fn all_reduce(reduction: Reduction, call: u64, ranks: &[Vec<f32>]) -> (Vec<f32>, Vec<Vec<f32>>) {
    let codec = Codec::reduction(DType::F32, reduction, ranks.len(), 5000).expect("available");
    let codecs = (0..).map(|rank| codec.at(call, 0, rank));
    let chunks = ranks.iter().map(|rank| bytemuck::cast_slice::<f32, u8>(rank));
    let all: Vec<(Codec, &[u8])> = codecs.zip(chunks).collect();
    let exponent = all.iter().map(|(codec, chunk)| codec.exponent(chunk)).max().expect("a rank");
    let mut result = vec![0f32; ranks[0].len()];
    if exponent::is_marker(exponent) {
        return (result.clone(), vec![result; ranks.len()]);
    }
    let payloads: Vec<_> =
        all.iter().map(|(codec, chunk)| encode(*codec, chunk, exponent)).collect();
    let sum = to_payload(&aggregate(Op::Sum, &payloads));
    codec.at(call, 0, 0).decode(&sum, exponent, bytemuck::cast_slice_mut(&mut result));
    let residuals = all.iter().map(|(codec, chunk)| {
        let mut residual = vec![7f32; result.len()];
        codec.residual(chunk, exponent, bytemuck::cast_slice_mut(&mut residual));
        residual
    });
    let residuals = residuals.collect();
    (result, residuals)
}

fn sum(ranks: &[Vec<f32>], i: usize) -> f64 {
    ranks.iter().map(|rank| f64::from(rank[i])).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The result lacks exactly the residuals: it is the sum of all elements, less the sum of their
    /// residuals. The tolerance is 2^-16 of the largest possible rotated element, which is far less
    /// than the step, 1/255 of that element.
    #[test]
    fn what_is_not_in_the_result_is_in_the_residuals(
        (ranks, call) in (1usize..=32, 1usize..600, -100..100).prop_flat_map(|(n, count, scale)| {
            let element = (-1f32..1f32).prop_map(move |x| x * 2f32.powi(scale));
            (vec(vec(element, count), n), any::<u64>())
        })
    ) {
        for (reduction, spread) in [(Reduction::SUM16, 1.0), (Reduction::SUM8, 128.0)] {
            let (result, residuals) = all_reduce(reduction, call, &ranks);
            let largest = ranks.iter().flatten().fold(0f64, |a, x| a.max(f64::from(x.abs())));
            for (i, found) in result.iter().enumerate() {
                let expected = sum(&ranks, i) - sum(&residuals, i);
                let error = (f64::from(*found) - expected).abs();
                let allowed = ranks.len() as f64 * spread * largest * 2f64.powi(-20);
                prop_assert!(error <= allowed, "{} {} of {}: {}", reduction, i, found, expected);
            }
        }
    }
}

/// Each rank adds to each step's elements what the last step lost: the mean of T results is off by
/// the last residuals / T, the only difference between the sums of both sides. Without feedback,
/// errors pile up as in a random walk, and exceed these bounds.
#[test]
fn with_feedback_the_mean_over_steps_comes_to_the_truth() {
    const STEPS: u64 = 400;
    for n in [1usize, 4, 32] {
        let element = |rank: usize, i: usize| {
            let x = ((i * 37 + rank * 11) % 101) as f32 / 50.0 - 1.0;
            if i == 7 { 30.0 } else { x * 1.1f32.powi(-(i as i32 % 64)) }
        };
        let tensors: Vec<Vec<f32>> =
            (0..n).map(|rank| (0..384).map(|i| element(rank, i)).collect()).collect();
        let worst = |feedback: bool| {
            let mut lost = vec![vec![0f32; 384]; n];
            let mut totals = vec![0f64; 384];
            for step in 0..STEPS {
                let with_lost: Vec<Vec<f32>> = tensors
                    .iter()
                    .zip(&lost)
                    .map(|(tensor, lost)| tensor.iter().zip(lost).map(|(x, e)| x + e).collect())
                    .collect();
                let (result, residuals) = all_reduce(Reduction::SUM8, step, &with_lost);
                totals.iter_mut().zip(result).for_each(|(total, x)| *total += f64::from(x));
                if feedback {
                    lost = residuals;
                }
            }
            // The difference between the totals and the input, less what is still owed.
            let off =
                |i: usize| (totals[i] - STEPS as f64 * sum(&tensors, i) + sum(&lost, i)).abs();
            let owed = (0..384).map(|i| sum(&lost, i).abs()).fold(0.0, f64::max);
            ((0..384).map(off).fold(0.0, f64::max), owed)
        };
        let (off, owed) = worst(true);
        // Roundings of f32: 400 steps, each of at most 32 ranks' 2^-20 of a magnitude near 100.
        let roundings = STEPS as f64 * n as f64 * 100.0 * 2f64.powi(-20);
        assert!(off <= roundings, "{n} ranks: {off} of {roundings}");
        assert!(owed > 0.0);
        let (without, _) = worst(false);
        assert!(without > 4.0 * roundings, "{n} ranks: {without}, and with feedback {off}");
    }
}

#[test]
fn nothing_is_lost_where_all_bits_travel() {
    let codec = Codec::reduction(DType::F32, Reduction::AVG, 4, 5000).expect("available");
    let mut residual = [7f32; 3];
    let elements = [1.0f32, 1e-30, -3.0];
    codec.residual(bytemuck::bytes_of(&elements), 1, bytemuck::bytes_of_mut(&mut residual));
    assert_eq!(residual, [0.0; 3]);
}

/// Computed by hand: 2 ranks and E = 0 make steps of 2^-13 in 16 bits.
#[test]
fn the_residual_of_16_bits_is_what_is_below_a_step() {
    let codec = Codec::reduction(DType::F32, Reduction::SUM16, 2, 5000).expect("available");
    let (step, mut residual) = (2f32.powi(-13), [7f32; 4]);
    let elements = [1.0, 5.25 * step, -5.25 * step, 0.5 * step];
    codec.residual(bytemuck::bytes_of(&elements), 0, bytemuck::bytes_of_mut(&mut residual));
    assert_eq!(residual, [0.0, 0.25 * step, -0.25 * step, 0.5 * step]);
}
