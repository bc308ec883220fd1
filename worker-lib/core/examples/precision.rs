//! Errors of a large call's fixed point and of ring sums: `cargo run --release -p
//! switchml-worker-core --example precision`.
//!
//! Sums of f32 over 8 ranks, in packets of 352 lanes, against sums in f64. A folder as an argument
//! replaces the tensors by gradients that `cargo xtask train` has saved there: it has a folder for
//! each model, with a file of f32 for each bucket and rank. A relative error is |sum - truth| /
//! |truth| of an element; NMSE is the sum of all squared errors over the sum of all squared sums. A
//! ring adds the elements of one rank after another and rounds to its type each time.

#![expect(clippy::disallowed_methods, reason = "no part of the library, which reads no files")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

use half::bf16;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use switchml_worker_core::numerics::{Codec, DType, NumericsError, Reduction, exponent};

const RANKS: usize = 8;
const COUNT: usize = 1 << 20;
/// Lanes of a packet that fills a 1500-byte MTU.
const LANES: usize = 352;
/// Elements of an embedding's row.
const ROW: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<34} {:<12} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "", "median", "99 %", "largest", "sums of 0", "NMSE"
    );
    match std::env::args().nth(1) {
        Some(folder) => of_models(Path::new(&folder)),
        None => Ok(of_distributions()?),
    }
}

/// Gradients of models, by bucket.
fn of_models(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut buckets = BTreeMap::<_, BTreeMap<_, Vec<f32>>>::new();
    for model in fs::read_dir(folder)? {
        let model = model?;
        for file in fs::read_dir(model.path())? {
            let path = file?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            let (bucket, rank) = name
                .split_once('-')
                .ok_or_else(|| format!("{}: not BUCKET-RANK.f32", path.display()))?;
            let name = format!("{}, bucket {bucket}", model.file_name().display());
            let bytes = fs::read(&path)?;
            let elements = bytes.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect();
            buckets.entry(name).or_default().insert(rank.to_owned(), elements);
        }
    }
    for (name, ranks) in buckets {
        report(&name, &ranks.into_values().collect::<Vec<_>>())?;
    }
    Ok(())
}

fn of_distributions() -> Result<(), NumericsError> {
    let normal = |_: usize, random: &mut StdRng| normal(random);
    report("normal", &tensors(normal))?;
    // Each rank has gradients in its own rows: the tokens that it saw.
    for (name, share, tiny) in [
        ("rows, 1 in 100 large, others 1e-3", 0.01, 1e-3),
        ("rows, 1 in 100 large, others 1e-6", 0.01, 1e-6),
    ] {
        let mut scale = 0.0;
        report(
            name,
            &tensors(|i, random| {
                if i % ROW == 0 {
                    scale = if random.random_bool(share) { 1.0 } else { tiny };
                }
                scale * self::normal(random)
            }),
        )?;
    }
    // Each rank has its ones in other places.
    let one_hot = |_: usize, random: &mut StdRng| f64::from(u8::from(random.random_bool(0.001)));
    report("1 in 1000 is 1, others 0", &tensors(one_hot))?;
    for sigma in [1.0, 2.0, 4.0, 6.0] {
        let log_normal = |_: usize, random: &mut StdRng| {
            let magnitude = (sigma * self::normal(random)).exp();
            if random.random_bool(0.5) { -magnitude } else { magnitude }
        };
        report(&format!("log-normal, sigma {sigma}"), &tensors(log_normal))?;
    }
    Ok(())
}

/// A tensor for each rank.
fn tensors(mut element: impl FnMut(usize, &mut StdRng) -> f64) -> Vec<Vec<f32>> {
    let mut random = StdRng::seed_from_u64(1);
    (0..RANKS).map(|_| (0..COUNT).map(|i| element(i, &mut random) as f32).collect()).collect()
}

/// A random number of mean 0 and variance 1 (Box, Muller: "A note on the generation of random
/// normal deviates", 1958).
fn normal(random: &mut StdRng) -> f64 {
    let (radius, angle) = (1.0 - random.random::<f64>(), random.random::<f64>());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

fn report(data: &str, ranks: &[Vec<f32>]) -> Result<(), NumericsError> {
    let truth: Vec<f64> =
        (0..ranks[0].len()).map(|i| ranks.iter().map(|rank| f64::from(rank[i])).sum()).collect();
    row(data, "32 bits", &truth, &fixed_point(ranks, Reduction::SUM)?);
    row("", "16 bits", &truth, &fixed_point(ranks, Reduction::SUM16)?);
    row("", "8 bits", &truth, &fixed_point(ranks, Reduction::SUM8)?);
    row("", "f32, ring", &truth, &ring(ranks, |x| x));
    row("", "bf16, ring", &truth, &ring(ranks, |x| bf16::from_f32(x).to_f32()));
    Ok(())
}

/// The sums of workers and an aggregator in fixed point.
fn fixed_point(ranks: &[Vec<f32>], op: Reduction) -> Result<Vec<f32>, NumericsError> {
    let count = ranks[0].len();
    let codec = Codec::reduction(DType::F32, op, ranks.len(), count)?;
    let elements = codec.bytes_per_chunk(LANES) / 4;
    let mut result = vec![0f32; count];
    for (number, sums) in result.chunks_mut(elements).enumerate() {
        let first = number * elements;
        let chunks: Vec<(Codec, &[u8])> = (0..)
            .zip(ranks)
            .map(|(rank, tensor)| {
                let chunk = bytemuck::cast_slice(&tensor[first..][..sums.len()]);
                (codec.at(0, first as u64, rank), chunk)
            })
            .collect();
        let exponents = chunks.iter().map(|(codec, chunk)| codec.exponent(chunk));
        let largest = exponents.max().unwrap_or(exponent::ZERO);
        if exponent::is_marker(largest) {
            continue;
        }
        let codec = chunks[0].0;
        let mut payload = vec![0; 4 * codec.lanes_for(4 * sums.len())];
        let mut total = payload.clone();
        for (codec, chunk) in chunks {
            codec.encode(chunk, largest, &mut payload);
            add(&mut total, &payload);
        }
        codec.decode(&total, largest, bytemuck::cast_slice_mut(sums));
    }
    Ok(result)
}

fn add(total: &mut [u8], payload: &[u8]) {
    for (sum, lane) in total.as_chunks_mut::<4>().0.iter_mut().zip(payload.as_chunks::<4>().0) {
        *sum = u32::from_be_bytes(*sum).wrapping_add(u32::from_be_bytes(*lane)).to_be_bytes();
    }
}

/// One rank's elements after the other, beginning with a rank that depends on the element's place.
fn ring(ranks: &[Vec<f32>], round: impl Fn(f32) -> f32) -> Vec<f32> {
    let sum = |i: usize| {
        let first = i * ranks.len() / ranks[0].len();
        (0..ranks.len())
            .map(|step| round(ranks[(first + step) % ranks.len()][i]))
            .reduce(|sum, x| round(sum + x))
            .unwrap_or(0.0)
    };
    (0..ranks[0].len()).map(sum).collect()
}

fn row(data: &str, name: &str, truth: &[f64], sums: &[f32]) {
    let pairs = || truth.iter().zip(sums).map(|(truth, sum)| (*truth, f64::from(*sum)));
    let relative = |(truth, sum): (f64, f64)| (sum - truth).abs() / truth.abs();
    let mut errors: Vec<f64> = pairs().filter(|(truth, _)| *truth != 0.0).map(relative).collect();
    errors.sort_by(f64::total_cmp);
    let at = |share: f64| errors[((errors.len() - 1) as f64 * share) as usize];
    let lost = pairs().filter(|(truth, sum)| *truth != 0.0 && *sum == 0.0).count();
    let squares = |square: fn((f64, f64)) -> f64| pairs().map(square).sum::<f64>();
    let nmse = squares(|(truth, sum)| (sum - truth).powi(2)) / squares(|(truth, _)| truth.powi(2));
    let lost = 100.0 * lost as f64 / truth.len() as f64;
    let [median, most, largest] = [0.5, 0.99, 1.0].map(at);
    println!(
        "{data:<34} {name:<12} {median:>9.1e} {most:>9.1e} {largest:>9.1e} {lost:>7.2} % \
         {nmse:>9.1e}"
    );
}
