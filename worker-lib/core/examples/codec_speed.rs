//! Measures the codecs on one core: `cargo run --release -p switchml-worker-core --example
//! codec_speed`.
//!
//! GB/s (1e9) of elements, best of several runs, once with one chunk that stays in the cache and
//! once streaming through a 16 MiB tensor.

#![expect(clippy::disallowed_methods, reason = "measures time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use switchml_worker_core::numerics::{
    Codec, DType, NumericsError, ReduceOp, Reduction, SMALL_COUNT,
};

/// Lanes of a packet that fills a 1500-byte MTU.
const LANES: usize = 352;
const RANKS: usize = 4;
const TENSOR: usize = 16 << 20;
const CACHED_TOTAL: usize = 1 << 20;
const REPEATS: usize = 40;

fn main() -> Result<(), NumericsError> {
    println!("{:<10} {:>26} {:>26} {:>26}", "", "exponent", "encode", "decode");
    println!("{:<10}{}", "", format!(" {:>12} {:>13}", "cached", "streaming").repeat(3));
    for dtype in DType::ALL {
        for op in [Reduction::SUM, Reduction::SUM16, Reduction::SUM8, Reduction::MAX] {
            // Combinations that are not offered have no codec.
            if let Ok(codec) = Codec::reduction(dtype, op, RANKS, usize::MAX) {
                row(&format!("{dtype} {op}"), codec, &tensor(dtype));
            }
        }
        if !matches!(dtype, DType::F64 | DType::I32 | DType::I64) {
            let codec = Codec::reduction(dtype, ReduceOp::Avg, RANKS, SMALL_COUNT)?;
            row(&format!("{dtype} small"), codec, &tensor(dtype));
        }
    }
    row("bytes", Codec::bytes(), &tensor(DType::F32));
    Ok(())
}

/// 16 MiB of elements between -1 and 1.
fn tensor(dtype: DType) -> Vec<u8> {
    let count = TENSOR / dtype.size();
    let value = |i: usize| (i * 7919 % 20_011) as f64 / 10_005.0 - 1.0;
    (0..count)
        .flat_map(|i| match dtype {
            DType::F32 => (value(i) as f32).to_ne_bytes().to_vec(),
            DType::F64 => value(i).to_ne_bytes().to_vec(),
            DType::F16 => half::f16::from_f64(value(i)).to_ne_bytes().to_vec(),
            DType::Bf16 => half::bf16::from_f64(value(i)).to_ne_bytes().to_vec(),
            DType::I32 => (i as i32).to_ne_bytes().to_vec(),
            DType::I64 => (i as i64).to_ne_bytes().to_vec(),
        })
        .collect()
}

fn row(name: &str, codec: Codec, tensor: &[u8]) {
    let bytes = codec.bytes_per_chunk(LANES);
    let exponent = 0;
    let mut lanes = vec![0u8; TENSOR.div_ceil(bytes) * LANES * 4];
    let mut out = vec![0u8; TENSOR];
    let cached = |size: usize, mut work: Box<dyn FnMut() + '_>| {
        let rounds = CACHED_TOTAL / size;
        size as f64 * rounds as f64 / best(|| (0..rounds).for_each(|_| work())).as_secs_f64() / 1e9
    };
    let streaming = |work: Box<dyn FnMut() + '_>| TENSOR as f64 / best(work).as_secs_f64() / 1e9;

    let chunk = &tensor[..bytes];
    let mut speeds = Vec::new();
    if codec.uses_exponents() {
        speeds.push(cached(bytes, Box::new(|| _ = black_box(codec.exponent(black_box(chunk))))));
        speeds.push(streaming(Box::new(|| {
            for chunk in tensor.chunks(bytes) {
                black_box(codec.exponent(black_box(chunk)));
            }
        })));
    }
    let payload = &mut lanes[..LANES * 4];
    speeds.push(cached(
        bytes,
        Box::new(|| _ = black_box(codec.encode(black_box(chunk), exponent, payload))),
    ));
    speeds.push(streaming(Box::new(|| {
        for (chunk, payload) in tensor.chunks(bytes).zip(lanes.chunks_mut(LANES * 4)) {
            black_box(codec.encode(chunk, exponent, payload));
        }
    })));
    let chunk = &mut out[..bytes];
    speeds.push(cached(
        bytes,
        Box::new(|| codec.decode(black_box(&lanes[..LANES * 4]), exponent, black_box(chunk))),
    ));
    speeds.push(streaming(Box::new(|| {
        for (chunk, payload) in out.chunks_mut(bytes).zip(lanes.chunks(LANES * 4)) {
            codec.decode(payload, exponent, black_box(chunk));
        }
    })));
    let cells: String = speeds.iter().map(|speed| format!(" {speed:>12.1}")).collect();
    println!("{name:<10}{cells:>81}");
}

fn best(mut work: impl FnMut()) -> Duration {
    (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .min()
        .unwrap_or_default()
}
