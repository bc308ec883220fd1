//! Sums and averages in 8 bits: rotated, dithered, packed.

use half::{bf16, f16};
use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::wire::header::Op;
use switchml_worker_core::numerics::{
    Codec, DType, NumericsError, Precision, ReduceOp, Reduction, exponent,
};

use super::cluster::{aggregate, encode, to_payload};
use super::exact::FLOATS;

/// The codecs of ranks 0 to N - 1, for the first chunk of a call.
fn codecs(dtype: DType, reduction: Reduction, ranks: usize, call: u64) -> Vec<Codec> {
    let codec = Codec::reduction(dtype, reduction, ranks, 5000).expect("available");
    (0..ranks as u32).map(|rank| codec.at(call, 0, rank)).collect()
}

/// The exponent over all ranks, the lanes of the sum, and the result.
fn all_reduce(codecs: &[Codec], chunks: &[Vec<u8>]) -> (i32, Vec<u32>, Vec<u8>) {
    let pairs = || codecs.iter().zip(chunks);
    let exponent = pairs().map(|(codec, chunk)| codec.exponent(chunk)).max().expect("a rank");
    let mut result = vec![0x55; chunks[0].len()];
    if exponent::is_marker(exponent) {
        codecs[0].fill_skipped(exponent, &mut result);
        return (exponent, Vec::new(), result);
    }
    let payloads: Vec<_> = pairs().map(|(codec, chunk)| encode(*codec, chunk, exponent)).collect();
    let lanes = aggregate(Op::Sum, &payloads);
    let results = codecs.iter().map(|codec| {
        let mut result = vec![0x55; chunks[0].len()];
        codec.decode(&to_payload(&lanes), exponent, &mut result);
        result
    });
    let results: Vec<_> = results.collect();
    assert!(results.iter().all(|result| *result == results[0]), "ranks differ");
    (exponent, lanes, results[0].clone())
}

fn bytes(elements: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(elements).to_vec()
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<4>().0.iter().map(|x| f32::from_ne_bytes(*x).into()).collect()
}

/// The bound of rotated elements, by rule 26.7.
fn limit(exponent: i32) -> f64 {
    2f64.powi(exponent.div_euclid(16)) * (1.0 + f64::from(exponent.rem_euclid(16) + 1) / 16.0)
}

/// The hash of rule 4.1.
fn hash(words: &[u64]) -> u64 {
    words.iter().fold(0u64, |hash, word| {
        let mut x = hash.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ word;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    })
}

/// The word of rule 26.4.
fn word(seed: u32, index: usize) -> u32 {
    let mut x = seed.wrapping_add(index as u32);
    x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D);
    x = (x ^ (x >> 15)).wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

/// Steps of a rank's share of a field.
fn steps(ranks: usize) -> f64 {
    (255 / ranks.max(2)) as f64
}

/// A chunk of `lanes` lanes, rotated by rule 26.5: each element becomes a sum of 128 with signs. In
/// step 3 that is row r of 8, of all rows `from` of a column; in step 5 row `half` of 16, of rows
/// `part`, which step 4 has turned.
fn rotated(elements: &[f64], lanes: usize, seed: u32) -> Vec<f64> {
    let (row, half, turn) = (lanes / 2, lanes / 4, lanes / 32);
    let signed = |i: usize| {
        let negative = (word(seed, i % lanes) << (i / lanes)) >> 31 == 1;
        let x = elements.get(i).copied().unwrap_or(0.0);
        if negative { -x } else { x }
    };
    let entry = |row: usize, from: usize| {
        if (row & from).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
    };
    let first_pass = |i: usize| -> f64 {
        (0..8).map(|from| entry(i / row, from) * signed(from * row + i % row)).sum()
    };
    let turned = |i: usize| first_pass(i / row * row + (i % row + i / row * turn) % row);
    let sum =
        |i: usize| (0..16).map(|part| entry(i / half, part) * turned(part * half + i % half)).sum();
    (0..4 * lanes).map(sum).collect()
}

/// Elements of all kinds: like each other, of very different magnitudes, or a single one.
fn tensors() -> impl Strategy<Value = Vec<Vec<f32>>> {
    // Counts of a full packet are included: it has code of its own.
    let counts = prop_oneof![4 => 1usize..600, 1 => 1281usize..=1408];
    let kinds = (1usize..=32, counts, 0..3, -120..110);
    kinds.prop_flat_map(|(ranks, count, kind, scale)| {
        let scale = 2f32.powi(scale);
        let element = (-1f32..1f32, -20f32..0f32).prop_map(move |(x, power)| match kind {
            0 => x * scale,
            1 => x * power.exp2() * scale,
            _ => 0.0,
        });
        let one = (0..count, Just(scale));
        (vec(vec(element, count), ranks), one).prop_map(move |(mut ranks, (at, x))| {
            ranks.iter_mut().for_each(|rank| rank[at] = x);
            ranks
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each field is the specified integer, except for roundings on the way, to 2^-8 of a step: the
    /// nearest one to the arithmetic result. No sum carries, and the result is as near as promised.
    #[test]
    fn fields_and_results((ranks, call) in (tensors(), any::<u64>())) {
        let n = ranks.len();
        let chunks: Vec<_> = ranks.iter().map(|rank| bytes(rank)).collect();
        let codecs = codecs(DType::F32, Reduction::SUM8, n, call);
        let (exponent, lanes, result) = all_reduce(&codecs, &chunks);
        let (signs, dither) = (hash(&[call]) as u32, hash(&[call, 0]) as u32);
        let count = ranks[0].len();
        let (steps, limit) = (steps(n), limit(exponent));
        let mut sums = vec![0u64; 4 * lanes.len()];
        let mut largest = 0f64;
        for (rank, (codec, chunk)) in codecs.iter().zip(&chunks).enumerate() {
            let own = encode(*codec, chunk, exponent);
            let rotated = rotated(&floats(chunk), own.len(), signs);
            for (i, x) in rotated.into_iter().enumerate() {
                largest = largest.max(x.abs());
                let (field, lane) = (i / own.len(), i % own.len());
                let random = word(dither, lane) >> (8 * field) & 0xFF;
                let part = ((random as usize + (rank << 8) / n) & 0xFF) as f64 / 256.0;
                let place = steps / 2.0 + x / limit * steps / 2.0 + part - 0.5;
                let found = (own[lane] >> (8 * field)) & 0xFF;
                prop_assert!((f64::from(found) - place).abs() < 0.503, "{} for {}", found, place);
                prop_assert!(f64::from(found) <= steps);
                sums[i] += u64::from(found);
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            let found = (lanes[i % lanes.len()] >> (8 * (i / lanes.len()))) & 0xFF;
            prop_assert_eq!(u64::from(found), *sum, "a carry");
        }
        // The exponent fits the largest element, in steps of a sixteenth.
        prop_assert!(largest < limit * 1.000_001 && largest > limit * 0.94117, "{largest} {limit}");
        for i in 0..count {
            let truth: f64 = ranks.iter().map(|rank| f64::from(rank[i])).sum();
            let error = (floats(&result)[i] - truth).abs();
            prop_assert!(error <= 1.01 * n as f64 * limit / steps, "element {}: {}", i, error);
        }
    }

    /// An average is the sum divided by N, except for its own rounding.
    #[test]
    fn averages(ranks in tensors()) {
        let n = ranks.len();
        let chunks: Vec<_> = ranks.iter().map(|rank| bytes(rank)).collect();
        let sum = all_reduce(&codecs(DType::F32, Reduction::SUM8, n, 3), &chunks).2;
        let average = all_reduce(&codecs(DType::F32, Reduction::AVG8, n, 3), &chunks).2;
        for (sum, average) in floats(&sum).into_iter().zip(floats(&average)) {
            let expected = sum / n as f64;
            // Rule 26.8, for sum and average: factor and product are rounded to 24 bits, the result
            // where it is subnormal to a multiple of 2^-149.
            let rounding = 4.0 * 2f64.powi(-24) * expected.abs() + 2.0 * 2f64.powi(-150);
            prop_assert!((average - expected).abs() <= rounding, "{} for {}", average, expected);
        }
    }
}

/// The mean error over many calls is zero within five standard errors, and the mean square error is
/// that of N dithered roundings, spread over 128 elements.
#[test]
fn errors_are_zero_on_average_and_of_the_documented_variance() {
    const CALLS: u64 = 4000;
    for n in [1usize, 3, 8, 32] {
        // One large element beside small ones, zeros, and neighbours of similar magnitude.
        let element = |rank: usize, i: usize| match i {
            5 => 1.0 + rank as f32,
            0..20 => 0.01 * (i as f32 - 7.3) * (1.0 + 0.1 * rank as f32),
            _ => 0.0,
        };
        let tensors: Vec<Vec<f32>> =
            (0..n).map(|rank| (0..128).map(|i| element(rank, i)).collect()).collect();
        let chunks: Vec<_> = tensors.iter().map(|tensor| bytes(tensor)).collect();
        let truth: Vec<f64> =
            (0..128).map(|i| tensors.iter().map(|tensor| f64::from(tensor[i])).sum()).collect();
        let (mut sums, mut squares, mut variance) = (vec![0f64; 128], 0f64, 0f64);
        for call in 0..CALLS {
            let codecs = codecs(DType::F32, Reduction::SUM8, n, call);
            let (exponent, _, result) = all_reduce(&codecs, &chunks);
            let step = 2.0 * limit(exponent) / steps(n);
            variance += n as f64 * step * step / 12.0 / 128.0 / CALLS as f64;
            for ((sum, found), truth) in sums.iter_mut().zip(floats(&result)).zip(&truth) {
                *sum += found - truth;
                squares += (found - truth).powi(2) / (128 * CALLS) as f64;
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            let standard_errors = sum / (CALLS as f64 * variance).sqrt();
            assert!(standard_errors.abs() < 5.0, "N={n} element {i}: {standard_errors}");
        }
        // The variance is less where errors of equal elements cancel.
        assert!(squares < 1.05 * variance, "N={n}: {squares} {variance}");
        assert!(n > 1 || squares > 0.95 * variance, "N={n}: {squares} {variance}");
    }
}

/// Ranks that hold the same are off by one rank's rounding, not by N.
#[test]
fn errors_of_like_elements_cancel() {
    let tensor: Vec<f32> = (0..1408).map(|i| ((i * 7919) % 2003) as f32 / 1000.0 - 1.0).collect();
    for n in [2usize, 7, 16] {
        let codecs = codecs(DType::F32, Reduction::SUM8, n, 1);
        let (exponent, _, result) = all_reduce(&codecs, &vec![bytes(&tensor); n]);
        let step = 2.0 * limit(exponent) / steps(n);
        let errors = floats(&result).into_iter().zip(&tensor);
        let squares: f64 =
            errors.map(|(found, x)| (found - n as f64 * f64::from(*x)).powi(2)).sum();
        let mean = squares / 1408.0;
        assert!(mean < 1.2 * step * step / 12.0 / 128.0, "N={n}: {mean}, step {step}");
    }
}

/// With an exponent far too small (a wrong prediction) fields are 0 and K, and no sum of them
/// carries.
#[test]
fn no_field_carries_in_8_bits() {
    for n in 1..=32usize {
        let steps = steps(n) as u32;
        let codecs = codecs(DType::F32, Reduction::SUM8, n, 0);
        let chunk = bytes(&[1e30; 128]);
        let payloads: Vec<_> = codecs.iter().map(|codec| encode(*codec, &chunk, 0)).collect();
        let lanes = aggregate(Op::Sum, &payloads);
        for field in 0..128 {
            let of = |lanes: &[u32]| (lanes[field % 32] >> (8 * (field / 32))) & 0xFF;
            let own = of(&payloads[0]);
            assert!(own == 0 || own == steps || steps.div_ceil(2).abs_diff(own) <= 1, "{own}");
            assert_eq!(of(&lanes), payloads.iter().map(|payload| of(payload)).sum::<u32>());
        }
    }
}

#[test]
fn special_values() {
    for float in &FLOATS[..] {
        if float.dtype == DType::F64 {
            continue;
        }
        for bad in [float.infinity(), float.infinity() | float.sign(), float.infinity() + 1] {
            let chunks = [float.pack(&[1, 0, 1]), float.pack(&[1, bad, 1])];
            let codecs = codecs(float.dtype, Reduction::AVG8, 2, 0);
            let quiet = float.infinity() | 1 << (float.mantissa - 1);
            let (exponent, lanes, result) = all_reduce(&codecs, &chunks);
            assert_eq!((exponent, lanes.len()), (exponent::NON_FINITE, 0));
            assert_eq!(float.unpack(&result), [quiet; 3], "{float:?}");
        }
        let zeros = [float.pack(&[0, float.sign()]), float.pack(&[float.sign(); 2])];
        let codecs = codecs(float.dtype, Reduction::SUM8, 2, 0);
        let (exponent, lanes, result) = all_reduce(&codecs, &zeros);
        assert_eq!((exponent, lanes.len()), (exponent::ZERO, 0));
        assert_eq!(float.unpack(&result), [0, 0]);
    }
}

/// The largest and the smallest numbers: a whole chunk of them, rotated, is beyond f32.
#[test]
fn the_ends_of_the_range() {
    for x in
        [f32::MAX / 2.0, f32::MIN / 2.0, f32::MIN_POSITIVE, f32::from_bits(1), f32::from_bits(77)]
    {
        let codecs = codecs(DType::F32, Reduction::AVG8, 4, 5);
        let (exponent, _, result) = all_reduce(&codecs, &vec![bytes(&[x; 500]); 4]);
        let bound = limit(exponent) / 63.0 * 1.01 + f64::from(f32::from_bits(1));
        for found in floats(&result) {
            assert!((found - f64::from(x)).abs() <= bound, "{found} for {x}");
        }
        let one = all_reduce(&codecs, &vec![bytes(&[0.0, x, 0.0]); 4]).2;
        let error = (floats(&one)[1] - f64::from(x)).abs();
        assert!(error <= f64::from(x.abs()) / 32.0 + 2e-45, "{error} for {x}");
    }
    let halves = |x: f16| x.to_bits().to_ne_bytes().repeat(200);
    let codecs = codecs(DType::F16, Reduction::AVG8, 2, 5);
    let result = all_reduce(&codecs, &[halves(f16::ONE), halves(f16::ONE)]).2;
    for pair in result.as_chunks::<2>().0 {
        assert!((f16::from_ne_bytes(*pair).to_f32() - 1.0).abs() < 0.3);
    }
    let result = all_reduce(
        &self::codecs(DType::Bf16, Reduction::AVG8, 2, 5),
        &vec![bf16::from_f32(1.5e38).to_bits().to_ne_bytes().repeat(3); 2],
    );
    assert!(result.2.as_chunks::<2>().0.iter().all(|x| bf16::from_ne_bytes(*x).to_f32() > 1.4e38));
}

/// Random numbers differ by call, rank and place; for the same ones they are the same.
#[test]
fn random_numbers_depend_on_call_place_and_rank() {
    let codec = Codec::reduction(DType::F32, Reduction::SUM8, 4, 5000).expect("available");
    let chunk: Vec<f32> = (0..1408).map(|i| (i as f32).sin()).collect();
    let lanes = |call, first, rank| encode(codec.at(call, first, rank), &bytes(&chunk), 160);
    let first = lanes(0, 0, 0);
    assert_eq!(lanes(0, 0, 0), first);
    for other in [lanes(1, 0, 0), lanes(0, 1408, 0), lanes(0, 0, 1)] {
        let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 100, "{same} of 352 lanes are the same");
    }
}

#[test]
fn more_than_32_ranks_use_16_bits() {
    let precision = |ranks| {
        Codec::reduction(DType::F32, Reduction::SUM8, ranks, 1).expect("available").precision()
    };
    assert_eq!([1, 32].map(precision), [Precision::Bits8; 2]);
    assert_eq!([33, 64, 128].map(precision), [Precision::Bits16; 3]);
    for reduction in [Reduction::SUM8, Reduction::AVG16] {
        let refused = NumericsError::TooManyRanks { reduction, ranks: 129 };
        assert_eq!(Codec::reduction(DType::F32, reduction, 129, 1), Err(refused));
    }
    for (op, dtype) in [(ReduceOp::Max, DType::F32), (ReduceOp::Sum, DType::F64)] {
        let reduction = Reduction::new(op, Precision::Bits8);
        let refused = NumericsError::NotPacked { reduction, dtype };
        assert_eq!(Codec::reduction(dtype, reduction, 2, 1), Err(refused));
    }
    let sizes = Codec::reduction(DType::F32, Reduction::SUM8, 4, 1).expect("available");
    assert_eq!([352, 32].map(|lanes| sizes.bytes_per_chunk(lanes)), [1408 * 4, 128 * 4]);
    assert_eq!([1, 128, 129].map(|count| sizes.lanes_for(count * 4)), [32, 32, 64]);
}
