//! Sums and averages of floats, in calls that are not small.

use num_traits::{Signed, ToPrimitive};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use switchml_worker_core::numerics::{DType, ReduceOp, Reduction};

use super::cluster::{all_reduce, any_ranks, encode, large, numbers_of_ranks};
use super::exact::{BF16, F16, F32, F64, FLOATS, Float, integer, nearest_even, pow2};

/// A format and, for each rank, finite elements: of any magnitude, or of magnitudes near each other
/// anywhere in the range.
pub fn finite(
    ranks: impl Strategy<Value = usize>,
    length: std::ops::Range<usize>,
) -> impl Strategy<Value = (Float, Vec<Vec<u64>>)> {
    (select(&FLOATS[..]), ranks, length, any::<bool>()).prop_flat_map(
        |(float, ranks, length, near)| {
            let highest = 2 * float.bias as u64;
            (0..=highest).prop_flat_map(move |low| {
                let fields = if near { low..=(low + 12).min(highest) } else { 0..=highest };
                let element = (fields, 0..1u64 << float.mantissa, any::<bool>());
                let bits = element.prop_map(move |(field, fraction, negative)| {
                    field << float.mantissa | fraction | if negative { float.sign() } else { 0 }
                });
                let bits = prop_oneof![10 => bits, 1 => Just(0), 1 => Just(float.sign())];
                (Just(float), vec(vec(bits, length), ranks))
            })
        },
    )
}

/// L and the step of the fixed-point grid, from the specification.
fn grid(float: Float, ranks: usize, exponent: i32) -> (i32, i32) {
    let growth = (0..).find(|l| 1usize << l >= ranks).expect("few ranks");
    let step = match float.dtype {
        DType::F64 => exponent + 2 * growth - 62,
        _ => exponent + growth - 30,
    };
    (growth, step)
}

/// The integer that an element's lane or lanes hold.
fn integers(float: Float, growth: i32, lanes: &[u32]) -> Vec<i64> {
    match float.dtype {
        DType::F64 => {
            let pair = |p: &[u32]| (i64::from(p[0] as i32) << (32 - growth)) + i64::from(p[1]);
            lanes.chunks(2).map(pair).collect()
        }
        _ => lanes.iter().map(|lane| i64::from(*lane as i32)).collect(),
    }
}

/// Field `i` of packed lanes: all lower halves, then all upper ones.
fn field(lanes: &[u32], i: usize) -> i128 {
    i128::from((lanes[i % lanes.len()] >> (16 * (i / lanes.len()))) & 0xFFFF)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each rank's lanes are the specified integers, to the last bit.
    #[test]
    fn lanes_are_the_rounded_elements((float, ranks) in finite(any_ranks(), 1..30)) {
        let codec = large(float.dtype, ReduceOp::Sum, ranks.len());
        let chunks: Vec<_> = ranks.iter().map(|r| float.pack(r)).collect();
        let exponent = chunks.iter().map(|c| codec.exponent(c)).max().expect("a rank");
        prop_assume!(exponent != i32::MIN);
        let (growth, step) = grid(float, ranks.len(), exponent);
        let bits = if float.dtype == DType::F64 { 63 - 2 * growth } else { 31 - growth };
        let limit = pow2(bits) - integer(1);
        for (elements, chunk) in ranks.iter().zip(&chunks) {
            let lanes = encode(codec, chunk, exponent);
            for (element, lane) in elements.iter().zip(integers(float, growth, &lanes)) {
                let scaled = float.value(*element) / pow2(step);
                let rounded = nearest_even(&scaled).to_i128().expect("fits");
                let limit = limit.to_integer().to_i128().expect("fits");
                let clamped = rounded.clamp(-limit, limit);
                prop_assert_eq!(i128::from(lane), clamped);
            }
        }
    }

    /// The documented bound, and one correct rounding, for every element.
    #[test]
    fn sum_is_as_near_as_promised((float, ranks) in finite(any_ranks(), 1..30)) {
        let chunks: Vec<_> = ranks.iter().map(|r| float.pack(r)).collect();
        let reduced = all_reduce(float.dtype, ReduceOp::Sum, &chunks);
        prop_assume!(!reduced.lanes.is_empty());
        let n = ranks.len();
        let (growth, step) = grid(float, n, reduced.exponent);
        let magnitudes = ranks.iter().flatten().map(|x| float.value(*x).abs());
        let largest = magnitudes.max().expect("not empty");
        let bound = match float.dtype {
            DType::F64 if step <= -1074 => integer(0),
            DType::F64 if n > 32 => {
                integer(3) / integer(2) * integer(n as i128) * pow2(2 * growth - 63) * &largest
            }
            DType::F64 => integer(n as i128) * pow2(2 * growth - 63) * &largest,
            _ => integer(n as i128) * pow2(growth - 31) * &largest,
        };
        let sums = integers(float, growth, &reduced.lanes);
        for (i, result) in float.unpack(&reduced.elements).into_iter().enumerate() {
            let truth = ranks.iter().map(|r| float.value(r[i])).fold(integer(0), |a, b| a + b);
            let fixed = integer(sums[i].into()) * pow2(step);
            prop_assert!((&fixed - truth).abs() <= bound, "element {}", i);
            let is_rounded = float.is_rounded(result, &fixed);
            prop_assert!(is_rounded, "element {i}: {result:#x} for {fixed}");
        }
    }

    /// In 16 bits: each rank's fields are the specified integers, no sum of them carries into the
    /// next field, and the result is as near as documented.
    #[test]
    fn sums_in_16_bits((float, ranks) in finite(1usize..=128, 1..100)) {
        prop_assume!(float.dtype != DType::F64);
        let n = ranks.len();
        let chunks: Vec<_> = ranks.iter().map(|r| float.pack(r)).collect();
        let reduced = all_reduce(float.dtype, Reduction::SUM16, &chunks);
        prop_assume!(!reduced.lanes.is_empty());
        let (growth, step) = grid(float, n, reduced.exponent);
        let step = pow2(step + 16);
        let limit = (1i128 << (15 - growth)) - 1;
        let codec = large(float.dtype, Reduction::SUM16, n);
        let fields = 2 * ranks[0].len().div_ceil(2).next_multiple_of(32);
        let mut sums = vec![0i128; fields];
        for (elements, chunk) in ranks.iter().zip(&chunks) {
            let lanes = encode(codec, chunk, reduced.exponent);
            prop_assert_eq!(lanes.len() * 2, fields);
            for (i, sum) in sums.iter_mut().enumerate() {
                // Behind the elements are zeros.
                let element = elements.get(i).copied().unwrap_or(0);
                let rounded = nearest_even(&(float.value(element) / &step));
                let rounded = rounded.to_i128().expect("fits").clamp(-limit, limit);
                prop_assert_eq!(field(&lanes, i), rounded + limit);
                *sum += rounded;
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            prop_assert_eq!(field(&reduced.lanes, i), sum + n as i128 * limit, "a carry");
        }
        let magnitudes = ranks.iter().flatten().map(|x| float.value(*x).abs());
        let largest = magnitudes.max().expect("not empty");
        let bound = integer(n as i128) * pow2(growth - 15) * &largest;
        for (i, result) in float.unpack(&reduced.elements).into_iter().enumerate() {
            let truth = ranks.iter().map(|r| float.value(r[i])).fold(integer(0), |a, b| a + b);
            let fixed = integer(sums[i]) * &step;
            prop_assert!((&fixed - truth).abs() <= bound, "element {}", i);
            let is_rounded = float.is_rounded(result, &fixed);
            prop_assert!(is_rounded, "element {i}: {result:#x} for {fixed}");
        }
    }

    /// The average is the f64 product (or, for f64, quotient) that the documentation names, rounded
    /// once to the type.
    #[test]
    fn average_is_as_defined((float, ranks) in finite(any_ranks(), 1..30)) {
        let chunks: Vec<_> = ranks.iter().map(|r| float.pack(r)).collect();
        let reduced = all_reduce(float.dtype, ReduceOp::Avg, &chunks);
        prop_assume!(!reduced.lanes.is_empty());
        let n = ranks.len() as f64;
        let (growth, step) = grid(float, ranks.len(), reduced.exponent);
        let sums = integers(float, growth, &reduced.lanes);
        for (sum, result) in sums.into_iter().zip(float.unpack(&reduced.elements)) {
            if float.dtype == DType::F64 {
                let quotient = sum as f64 / n;
                let magnitude = F64.value(quotient.abs().to_bits());
                let exact = magnitude * integer(quotient.signum() as i128) * pow2(step);
                prop_assert!(float.is_rounded(result, &exact));
            } else {
                // A power of two over N: the nearest f64 to 1/N has the same mantissa.
                let product = sum as f64 * (1.0 / n);
                let exact = F64.value(product.to_bits()) * pow2(step);
                prop_assert!(float.is_rounded(result, &exact), "{:#x} for {}", result, exact);
            }
        }
    }

    /// Ranks may come in any order.
    #[test]
    fn order_does_not_matter(
        (float, ranks) in finite(any_ranks(), 1..30),
        by in any::<prop::sample::Index>(),
    ) {
        let mut chunks: Vec<_> = ranks.iter().map(|r| float.pack(r)).collect();
        let first = all_reduce(float.dtype, ReduceOp::Sum, &chunks).elements;
        let count = chunks.len();
        chunks.rotate_left(by.index(count));
        prop_assert_eq!(&first, &all_reduce(float.dtype, ReduceOp::Sum, &chunks).elements);
        chunks.reverse();
        prop_assert_eq!(&first, &all_reduce(float.dtype, ReduceOp::Sum, &chunks).elements);
    }

    /// Whole numbers below 2^(31-L) add up exactly, wherever the binary point is.
    #[test]
    fn multiples_of_the_step_are_exact(
        ranks in any_ranks().prop_flat_map(|n| {
            let bits = 24.min(30 - n.next_power_of_two().ilog2());
            vec(vec(-(1 << bits)..=1 << bits, 20), n)
        }),
        point in -120..60,
    ) {
        let scale = 2f64.powi(point);
        let bytes = |x: &i32| ((f64::from(*x) * scale) as f32).to_ne_bytes();
        let chunks: Vec<Vec<u8>> =
            ranks.iter().map(|r: &Vec<i32>| r.iter().flat_map(bytes).collect()).collect();
        let reduced = all_reduce(DType::F32, ReduceOp::Sum, &chunks);
        for (i, result) in F32.unpack(&reduced.elements).into_iter().enumerate() {
            let sum: i64 = ranks.iter().map(|r| i64::from(r[i])).sum();
            prop_assert_eq!(f32::from_bits(result as u32), (sum as f64 * scale) as f32);
        }
    }

    /// The average of equal elements is the same element, where a lane has 24 bits for it besides
    /// the bits that the sum needs.
    #[test]
    fn average_of_equals_is_the_same(element in any::<u32>(), n in 1usize..=128) {
        prop_assume!(f32::from_bits(element).is_finite() && f32::from_bits(element) != 0.0);
        let chunks = vec![element.to_ne_bytes().to_vec(); n];
        let reduced = all_reduce(DType::F32, ReduceOp::Avg, &chunks);
        prop_assert_eq!(reduced.elements, element.to_ne_bytes());
    }
}

/// In 16 bits: every rank sends the largest or the smallest element, for every N, in both fields of
/// a lane. The sum is N times that in each field.
#[test]
fn no_field_carries() {
    for n in 1..=128u32 {
        let limit = (1 << (15 - n.next_power_of_two().ilog2())) - 1;
        assert!(n * 2 * limit <= 0xFFFF, "N={n}");
        for (element, field) in [(f32::MAX, 2 * limit), (f32::MIN, 0)] {
            // The second field of lane 0 is the 33rd of 64 elements.
            let chunk = bytemuck::cast_slice(&[element; 64]).to_vec();
            let reduced = all_reduce(DType::F32, Reduction::SUM16, &vec![chunk; n as usize]);
            assert_eq!(reduced.lanes, [(n * field) << 16 | (n * field); 32], "N={n}");
        }
    }
}

/// The example of docs/spec, section 26.
#[test]
fn the_example_of_packed_lanes() {
    let mut elements = [0f32; 64];
    (elements[0], elements[32]) = (1.0, -0.5);
    let chunk = bytemuck::cast_slice(&elements).to_vec();
    let codec = large(DType::F32, Reduction::SUM16, 2);
    let mut expected = [0x3FFF_3FFF; 32];
    expected[0] = 0x2FFF_5FFF;
    assert_eq!(encode(codec, &chunk, 0), expected);
    let reduced = all_reduce(DType::F32, Reduction::SUM16, &[chunk.clone(), chunk]);
    assert_eq!(reduced.lanes[0], 0x5FFE_BFFE);
    assert_eq!(reduced.elements, bytemuck::cast_slice::<f32, u8>(&elements.map(|x| 2.0 * x)));
}

/// The largest magnitudes that a chunk can hold, on every rank, for every N: no lane's sum leaves
/// its 32 bits.
#[test]
fn no_sum_overflows() {
    for float in FLOATS {
        for n in numbers_of_ranks() {
            for field in [0, 1, float.bias as u64, 2 * float.bias as u64] {
                let top = (field << float.mantissa) | ((1 << float.mantissa) - 1);
                let codec = large(float.dtype, ReduceOp::Sum, n);
                for element in [top, top | float.sign(), top - 1, (top - 1) | float.sign()] {
                    let chunk = float.pack(&[element]);
                    let lanes = encode(codec, &chunk, codec.exponent(&chunk));
                    let n = n as i64;
                    let signed = i64::from(lanes[0] as i32) * n;
                    assert!(
                        i32::try_from(signed).is_ok(),
                        "{float:?} N={n} {element:#x}: {signed}"
                    );
                    if float.dtype == DType::F64 {
                        assert!(
                            u32::try_from(i64::from(lanes[1]) * n).is_ok(),
                            "low lane, N={n} {element:#x}"
                        );
                    }
                }
            }
        }
    }
}

/// A global exponent below this rank's own (a faulty peer) clamps; the sum still cannot overflow.
#[test]
fn too_small_an_exponent_clamps() {
    for n in numbers_of_ranks() {
        let growth = n.next_power_of_two().ilog2();
        let codec = large(DType::F32, ReduceOp::Sum, n);
        let lanes = encode(codec, bytemuck::cast_slice(&[1e30f32, -1e30]), 0);
        let limit = (1i64 << (31 - growth)) - 1;
        assert_eq!([lanes[0] as i32, lanes[1] as i32].map(i64::from), [limit, -limit]);
        let codec = large(DType::F64, ReduceOp::Sum, n);
        let lanes = encode(codec, bytemuck::cast_slice(&[1e300f64, -1e300]), 0);
        // The largest f64 below 2^(63-2L): it has 53 bits, but no binary places.
        let limit = (1i128 << (63 - 2 * growth)) - (1i128 << (10u32.saturating_sub(2 * growth)));
        let limit = i64::try_from(limit).expect("fits");
        assert_eq!(integers(F64, growth as i32, &lanes[..4]), [limit, -limit]);
    }
}

/// f64 sums of few ranks lose nothing near the chunk's largest.
#[test]
fn f64_keeps_53_bits_up_to_32_ranks() {
    for n in 1..=32usize {
        let x = 2.0 - f64::EPSILON;
        let reduced = all_reduce(DType::F64, ReduceOp::Sum, &vec![x.to_ne_bytes().to_vec(); n]);
        let truth = integer(n as i128) * F64.value(x.to_bits());
        assert!(F64.is_rounded(F64.unpack(&reduced.elements)[0], &truth), "N={n}");
    }
}

/// Sums that f32 would round to the exact middle between two neighbours: only the bits that f32
/// drops tell which one is right.
#[test]
fn half_precision_sums_round_once() {
    let f16_bits = |x: f64| u64::from(half::f16::from_f64(x).to_bits());
    let bf16_bits = |x: f64| u64::from(half::bf16::from_f64(x).to_bits());
    // Added to 1: half a unit of the type, and what tips the scale.
    check(F16, f16_bits, -11, -24);
    check(BF16, bf16_bits, -8, -26);

    fn check(float: Float, bits: fn(f64) -> u64, half_unit: i32, tip: i32) {
        for (sign, expected) in [(1.0, 1.0 + 2f64.powi(half_unit + 1)), (-1.0, 1.0)] {
            for side in [1.0, -1.0] {
                let ranks = [1.0, 2f64.powi(half_unit), sign * 2f64.powi(tip)]
                    .map(|x| float.pack(&[bits(side * x)]));
                let result = float.unpack(&all_reduce(float.dtype, ReduceOp::Sum, &ranks).elements);
                assert_eq!(result, [bits(side * expected)], "{float:?} {side} {sign}");
            }
        }
    }
}

/// Every finite f16 and bf16 survives a job of one rank, alone and beside the largest of its
/// neighbours.
#[test]
fn every_16_bit_value_survives() {
    for float in [F16, BF16] {
        for bits in (0..=0xFFFFu64).filter(|b| float.is_finite(*b)) {
            let expected = if bits == float.sign() { 0 } else { bits };
            let chunk = float.pack(&[bits, bits ^ float.sign()]);
            for op in [ReduceOp::Sum, ReduceOp::Avg] {
                let result = float
                    .unpack(&all_reduce(float.dtype, op, std::slice::from_ref(&chunk)).elements);
                assert_eq!(result[0], expected, "{float:?} {op}");
            }
        }
    }
}
