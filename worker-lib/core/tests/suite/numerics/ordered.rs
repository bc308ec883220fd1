//! MAX and MIN, and integers.

use std::cmp::Ordering;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use switchml_worker_core::numerics::{DType, ReduceOp};

use super::cluster::{all_reduce, any_ranks, encode, large};
use super::exact::{BF16, F16, F32, Float};

const ORDERED: [Float; 3] = [F32, F16, BF16];

/// The bits at which a format's classes begin and end.
fn boundaries(float: Float) -> Vec<u64> {
    let normal = 1 << float.mantissa;
    let magnitudes = [
        0,
        1,
        normal - 1,
        normal,
        normal + 1,
        float.infinity() - 1,
        float.infinity(),
        float.infinity() + 1,
        float.sign() - 1,
    ];
    magnitudes.into_iter().flat_map(|m| [m, m | float.sign()]).collect()
}

/// Bits of any class.
fn any_bits(float: Float) -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..float.sign() * 2, 1 => select(boundaries(float))]
}

/// Compares by value, -0 before +0.
fn compare(float: Float, a: u64, b: u64) -> Ordering {
    let negative = |x: u64| x & float.sign() != 0;
    float.value(a).cmp(&float.value(b)).then(negative(b).cmp(&negative(a)))
}

fn lane(float: Float, op: ReduceOp, bits: u64) -> i32 {
    let codec = large(float.dtype, op, 2);
    encode(codec, &float.to_bytes(bits), 0)[0] as i32
}

fn check_order(float: Float, a: u64, b: u64) {
    for op in [ReduceOp::Max, ReduceOp::Min] {
        let lanes = lane(float, op, a).cmp(&lane(float, op, b));
        let expected = match (float.is_nan(a), float.is_nan(b), op) {
            (true, true, _) => Ordering::Equal,
            (true, false, _) => Ordering::Greater,
            (false, true, _) => Ordering::Less,
            (false, false, ReduceOp::Max) => compare(float, a, b),
            _ => compare(float, b, a),
        };
        assert_eq!(lanes, expected, "{op} {float:?} {a:#x} {b:#x}");
    }
}

#[test]
fn lanes_order_as_numbers_across_classes() {
    for float in ORDERED {
        for a in boundaries(float) {
            for b in boundaries(float) {
                check_order(float, a, b);
            }
        }
    }
}

#[test]
fn every_16_bit_value_survives_and_precedes_the_next() {
    for float in [F16, BF16] {
        let codecs = [ReduceOp::Max, ReduceOp::Min].map(|op| large(float.dtype, op, 1));
        for bits in 0..=0xFFFF {
            let canonical = if float.is_nan(bits) {
                float.infinity() | 1 << (float.mantissa - 1)
            } else {
                bits
            };
            for codec in codecs {
                let payload = super::cluster::to_payload(&encode(codec, &float.to_bytes(bits), 0));
                let mut result = [0; 2];
                codec.decode(&payload, 0, &mut result);
                assert_eq!(float.unpack(&result), [canonical]);
            }
            check_order(float, bits, (bits + 1) & 0xFFFF);
        }
    }
}

proptest! {
    #[test]
    fn lanes_order_as_numbers(
        (float, a, b) in
            select(&ORDERED[..]).prop_flat_map(|f| (Just(f), any_bits(f), any_bits(f)))
    ) {
        check_order(float, a, b);
    }

    #[test]
    fn extrema_are_exact(
        (float, ranks) in select(&ORDERED[..])
            .prop_flat_map(|f| (Just(f), vec(vec(any_bits(f), 40), 1..=64)))
    ) {
        let chunks: Vec<_> = ranks.iter().map(|r| float.pack(r)).collect();
        for op in [ReduceOp::Max, ReduceOp::Min] {
            let results = float.unpack(&all_reduce(float.dtype, op, &chunks).elements);
            for (i, result) in results.into_iter().enumerate() {
                let column = || ranks.iter().map(|r| r[i]);
                let expected = match op {
                    _ if column().any(|x| float.is_nan(x)) => {
                        float.infinity() | 1 << (float.mantissa - 1)
                    }
                    ReduceOp::Max => column().max_by(|a, b| compare(float, *a, *b)).unwrap(),
                    _ => column().min_by(|a, b| compare(float, *a, *b)).unwrap(),
                };
                prop_assert_eq!(result, expected);
            }
        }
    }

    #[test]
    fn integers_are_exact(
        ranks in vec(
            vec(prop_oneof![any::<i32>(), Just(i32::MIN), Just(i32::MAX)], 40),
            1..=64,
        )
    ) {
        let chunks: Vec<Vec<u8>> = ranks.iter().map(|r| bytemuck::cast_slice(r).to_vec()).collect();
        let reduce = |op| all_reduce(DType::I32, op, &chunks).elements;
        let expect = |with: fn(i32, i32) -> i32| -> Vec<u8> {
            let column = |i| ranks.iter().map(|r: &Vec<i32>| r[i]).reduce(with).unwrap();
            (0..40).flat_map(|i| column(i).to_ne_bytes()).collect()
        };
        prop_assert_eq!(reduce(ReduceOp::Sum), expect(i32::wrapping_add));
        prop_assert_eq!(reduce(ReduceOp::Max), expect(i32::max));
        prop_assert_eq!(reduce(ReduceOp::Min), expect(i32::min));
    }

    /// Sums are exact for the largest number of ranks too, whose digits add up to most of a lane.
    #[test]
    fn sums_of_long_integers_are_exact(
        ranks in any_ranks().prop_flat_map(|ranks| vec(
            vec(prop_oneof![any::<i64>(), Just(i64::MIN), Just(i64::MAX), Just(-1)], 5),
            ranks,
        ))
    ) {
        let chunks: Vec<Vec<u8>> = ranks.iter().map(|r| bytemuck::cast_slice(r).to_vec()).collect();
        let column = |i| ranks.iter().map(|r: &Vec<i64>| r[i]).fold(0, i64::wrapping_add);
        let expected: Vec<u8> = (0..5).flat_map(|i| column(i).to_ne_bytes()).collect();
        prop_assert_eq!(all_reduce(DType::I64, ReduceOp::Sum, &chunks).elements, expected);
    }
}
