//! Sums and averages of small calls: three lanes an element, and the wide form.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use switchml_worker_core::numerics::exponent::{self, Way};
use switchml_worker_core::numerics::{DType, ReduceOp};

use super::cluster::{
    Reduced, all_reduce_with, any_ranks, encode, numbers_of_ranks, sent_with, small,
};
use super::exact::{BF16, F16, F32, Float, integer, nearest_even, pow2};
use super::fixed::finite;

const FLOATS: [Float; 3] = [F32, F16, BF16];

fn reduce(float: Float, op: ReduceOp, ranks: &[Vec<u64>]) -> Reduced {
    all_reduce_with(small(float.dtype, op, ranks.len()), &pack(float, ranks))
}

/// All-reduces in three lanes, whether they are enough or not.
fn reduce_in_three(float: Float, op: ReduceOp, ranks: &[Vec<u64>]) -> Reduced {
    let (codec, chunks) = (small(float.dtype, op, ranks.len()), pack(float, ranks));
    let exponent = chunks.iter().map(|chunk| codec.exponent(chunk)).max().expect("a rank");
    sent_with(codec, exponent, Way::Scaled, &chunks)
}

fn pack(float: Float, ranks: &[Vec<u64>]) -> Vec<Vec<u8>> {
    ranks.iter().map(|elements| float.pack(elements)).collect()
}

/// Element `i` of all ranks, added up.
fn truth(float: Float, ranks: &[Vec<u64>], i: usize) -> BigRational {
    ranks.iter().map(|elements| float.value(elements[i])).sum()
}

/// L of the specification.
fn growth(ranks: usize) -> i32 {
    (0..).find(|l| 1usize << l >= ranks).expect("few ranks")
}

/// The integers that lanes hold, three each.
fn integers(growth: i32, lanes: &[u32]) -> Vec<BigInt> {
    let integer = |digits: &[u32]| {
        let [a, b, c] =
            [i64::from(digits[0] as i32), digits[1].into(), digits[2].into()].map(BigInt::from);
        (a << (64 - 2 * growth)) + (b << (32 - growth)) + c
    };
    lanes.chunks_exact(3).map(integer).collect()
}

fn assert_rounded(float: Float, result: u64, exact: &BigRational, what: &str) {
    assert!(float.is_rounded(result, exact), "{what} of {float:?}: {result:#x} for {exact}");
    assert!(!exact.is_zero() || result == 0, "{what}: a sum of nothing is +0.0");
}

/// A format, and elements of ranks whose magnitudes are at most `apart` binary orders from each
/// other: anywhere in the range, some zero, and some that nearly cancel when all ranks are added
/// up.
fn near(
    apart: u64,
    ranks: impl Strategy<Value = usize>,
) -> impl Strategy<Value = (Float, Vec<Vec<u64>>)> {
    (select(&FLOATS[..]), ranks, 1usize..12).prop_flat_map(move |(float, ranks, length)| {
        let highest = 2 * float.bias as u64;
        (0..=highest).prop_flat_map(move |low| {
            let element =
                (low..=(low + apart).min(highest), 0..1u64 << float.mantissa, any::<bool>());
            let bits = element.prop_map(move |(field, fraction, negative)| {
                field << float.mantissa | fraction | if negative { float.sign() } else { 0 }
            });
            let bits = prop_oneof![8 => bits, 1 => Just(0), 1 => Just(float.sign())];
            let cancels = vec(any::<bool>(), length);
            (Just(float), vec(vec(bits, length), ranks), cancels).prop_map(
                |(float, mut ranks, cancels)| {
                    for i in (0..cancels.len()).filter(|&i| cancels[i]) {
                        // Every second rank sends the negative of the element before it, except for
                        // the last bit.
                        for rank in (1..ranks.len()).step_by(2) {
                            let given = ranks[rank - 1][i];
                            let last_bit = if given & (float.sign() - 1) == 0 {
                                0
                            } else {
                                rank as u64 >> 1 & 1
                            };
                            ranks[rank][i] = given ^ float.sign() ^ last_bit;
                        }
                    }
                    (float, ranks)
                },
            )
        })
    })
}

fn is_finite(float: Float, ranks: &[Vec<u64>]) -> bool {
    ranks.iter().flatten().all(|bits| float.is_finite(*bits))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// For elements at most 2^30 apart, of any sign, the result is the true sum, or average,
    /// rounded once. It is therefore within half a unit in the last place.
    #[test]
    fn elements_near_each_other_are_summed_exactly((float, ranks) in near(30, any_ranks())) {
        prop_assume!(is_finite(float, &ranks));
        check_exact(float, &ranks);
    }

    /// The limit of three lanes for up to 64 ranks: 2^53 in f32, everything in f16, 2^69 in bf16.
    #[test]
    fn so_are_elements_2_to_the_53_apart((float, ranks) in near(53, 1usize..=64)) {
        prop_assume!(is_finite(float, &ranks));
        check_exact(float, &ranks);
        prop_assert!(reduce(float, ReduceOp::Sum, &ranks).way != Way::Wide);
    }

    /// The limit of three lanes for any number of ranks: 2^41 in f32.
    #[test]
    fn so_are_elements_2_to_the_41_apart((float, ranks) in near(41, any_ranks())) {
        prop_assume!(is_finite(float, &ranks));
        check_exact(float, &ranks);
        prop_assert!(reduce(float, ReduceOp::Sum, &ranks).way != Way::Wide);
    }

    /// Sums of any finite elements are exact too, in the wide form where three lanes do not
    /// suffice.
    #[test]
    fn so_are_any_elements((float, ranks) in near(254, any_ranks())) {
        prop_assume!(is_finite(float, &ranks));
        check_exact(float, &ranks);
    }

    /// Each rank's lanes are the specified digits in the wide form, too.
    #[test]
    fn wide_lanes_are_the_specified_digits((float, ranks) in near(254, any_ranks())) {
        prop_assume!(is_finite(float, &ranks));
        let (bits, smallest) = match float.dtype {
            DType::F16 => (41, -24),
            DType::Bf16 => (262, -133),
            _ => (278, -149),
        };
        let codec = small(float.dtype, ReduceOp::Sum, ranks.len()).wide().expect("a wide form");
        let base = 32 - growth(ranks.len());
        let digits = (bits + base - 1) / base;
        for elements in &ranks {
            let lanes = encode(codec, &float.pack(elements), 0);
            for (bits, lanes) in elements.iter().zip(lanes.chunks(1 + digits as usize)) {
                prop_assert_eq!(lanes[0], 0);
                prop_assert!(lanes[2..].iter().all(|digit| u64::from(*digit) < 1 << base));
                let highest = BigInt::from(lanes[1] as i32);
                let integer = lanes[2..].iter().fold(highest, |sum, digit| (sum << base) + digit);
                prop_assert_eq!(BigRational::from(integer) * pow2(smallest), float.value(*bits));
            }
        }
    }

    /// For any elements in three lanes: each rank's lanes are the specified digits, to the last
    /// bit, and the result is their sum, rounded once. It is as near to the true sum as rounding to
    /// the step allows.
    #[test]
    fn lanes_are_the_specified_digits((float, ranks) in finite(any_ranks(), 1..12)) {
        prop_assume!(float.dtype != DType::F64);
        prop_assume!(ranks.iter().flatten().any(|bits| bits & (float.sign() - 1) > 0));
        let n = ranks.len();
        let growth = growth(n);
        let reduced = reduce_in_three(float, ReduceOp::Sum, &ranks);
        let places = 94 - reduced.exponent - 3 * growth;
        let codec = small(float.dtype, ReduceOp::Sum, n);
        let mut sums = vec![BigInt::zero(); ranks[0].len()];
        for elements in &ranks {
            let lanes = encode(codec, &float.pack(elements), reduced.exponent);
            let is_small = |digit: &u32| u64::from(*digit) < 1 << (32 - growth);
            prop_assert!(lanes.chunks_exact(3).all(|digits| digits[1..].iter().all(is_small)));
            for ((sum, v), bits) in sums.iter_mut().zip(integers(growth, &lanes)).zip(elements) {
                prop_assert_eq!(&v, &nearest_even(&(float.value(*bits) * pow2(places))));
                *sum += v;
            }
        }
        let averages = reduce_in_three(float, ReduceOp::Avg, &ranks);
        let averages = float.unpack(&averages.elements);
        let results = float.unpack(&reduced.elements);
        let magnitudes = ranks.iter().flatten().map(|bits| float.value(*bits).abs());
        let largest = magnitudes.max().expect("an element");
        let bound = integer(n as i128) * pow2(3 * growth - 95) * largest;
        let integers = integers(growth, &reduced.lanes);
        prop_assert_eq!(&integers[..sums.len()], &sums[..], "no lane overflows");
        for (i, sum) in sums.into_iter().enumerate() {
            let sum = BigRational::from(sum) * pow2(-places);
            assert_rounded(float, results[i], &sum, "sum");
            assert_rounded(float, averages[i], &(&sum / integer(n as i128)), "average");
            prop_assert!((sum - truth(float, &ranks, i)).abs() <= bound);
        }
    }
}

fn check_exact(float: Float, ranks: &[Vec<u64>]) {
    let n = integer(ranks.len() as i128);
    for op in [ReduceOp::Sum, ReduceOp::Avg] {
        let results = float.unpack(&reduce(float, op, ranks).elements);
        for (i, result) in results.into_iter().enumerate() {
            let sum = truth(float, ranks, i);
            let exact = if op == ReduceOp::Sum { sum } else { sum / &n };
            assert_rounded(float, result, &exact, &op.to_string());
        }
    }
}

/// The tensor that an independent user tried, on any number of ranks.
#[test]
fn metrics_of_different_magnitudes() {
    #[expect(clippy::approx_constant, reason = "it is what a user summed, not pi")]
    let metrics = [0.001f32, 5e6, 1.0, 3.141_59, 12_345_678.0].map(|x| u64::from(x.to_bits()));
    for n in numbers_of_ranks() {
        check_exact(F32, &vec![metrics.to_vec(); n]);
    }
}

/// The largest magnitudes that an exponent allows, on every rank, for every N: no lane's sum leaves
/// its 32 bits.
#[test]
fn no_sum_overflows() {
    for float in FLOATS {
        for n in numbers_of_ranks() {
            let codec = small(float.dtype, ReduceOp::Sum, n);
            let n = n as u64;
            for field in [0, 1, float.bias as u64, 2 * float.bias as u64] {
                let top = field << float.mantissa | ((1 << float.mantissa) - 1);
                for element in [top, top | float.sign(), top - 1, (top - 1) | float.sign()] {
                    let chunk = float.pack(&[element]);
                    let lanes = encode(codec, &chunk, codec.exponent(&chunk));
                    let signed = i64::from(lanes[0] as i32) * n as i64;
                    assert!(
                        i32::try_from(signed).is_ok(),
                        "{float:?} N={n} {element:#x}: {signed}"
                    );
                    assert!(
                        lanes[1..3].iter().all(|lane| u32::try_from(u64::from(*lane) * n).is_ok())
                    );
                }
            }
        }
    }
}

/// The example of docs/spec: 2 ranks, E = 23.
#[test]
fn the_example_of_the_specification() {
    let codec = small(DType::F32, ReduceOp::Sum, 2);
    let lanes = encode(codec, &F32.pack(&[0xB586_37BD]), 23);
    assert_eq!(lanes[..4], [0xFFFF_FFFF, 0x7FFD_E721, 0x0600_0000, 0]);
    let wide = encode(codec.wide().expect("a wide form"), &F32.pack(&[0xBF80_0000]), 0);
    assert_eq!(wide[..2], [0, 0xFFFF_FFFF]);
    assert_eq!(wide[2..6], [0x7FFF_FFFF, 0x7FFF_FFFF, 0x7FFF_FFFF, 0x7E00_0000]);
    assert!(wide[6..].iter().all(|lane| *lane == 0));
}

#[test]
fn special_values() {
    for float in FLOATS {
        let one = (float.bias as u64) << float.mantissa;
        let [infinity, negative] = [float.infinity(), float.infinity() | float.sign()];
        let quiet = float.infinity() | 1 << (float.mantissa - 1);
        for (bad, expected) in [
            (infinity, infinity),
            (negative, negative),
            (infinity + 1, quiet),
            (negative + 1, quiet),
        ] {
            for op in [ReduceOp::Sum, ReduceOp::Avg] {
                let reduced = reduce(float, op, &[vec![one, one], vec![one, bad]]);
                assert_eq!((reduced.exponent, reduced.way), (exponent::NON_FINITE, Way::Wide));
                let sum = one + (u64::from(op == ReduceOp::Sum) << float.mantissa);
                assert_eq!(float.unpack(&reduced.elements), [sum, expected], "{float:?}");
            }
        }
        let both = reduce(float, ReduceOp::Sum, &[vec![infinity; 2], vec![infinity, negative]]);
        assert_eq!(float.unpack(&both.elements), [infinity, quiet]);
        let zeros = reduce(float, ReduceOp::Avg, &[vec![0, float.sign()], vec![float.sign(); 2]]);
        assert_eq!((zeros.lanes.len(), float.unpack(&zeros.elements)), (0, vec![0, 0]));
        // Beyond the largest, and back.
        let largest = float.infinity() - 1;
        let ends = reduce(
            float,
            ReduceOp::Sum,
            &[vec![largest; 2], vec![largest, largest | float.sign()]],
        );
        assert_eq!(float.unpack(&ends.elements), [float.infinity(), 0]);
        // The smallest: 3 of 2 ranks' average is halfway between 1 and 2, and -1 is between -1 and
        // -0.
        let smallest = [vec![2, float.sign() | 1, 1], vec![1, 0, 1]];
        let average = reduce(float, ReduceOp::Avg, &smallest);
        assert_eq!(float.unpack(&average.elements), [2, float.sign(), 1]);
        assert_eq!(
            float.unpack(&reduce(float, ReduceOp::Sum, &smallest).elements),
            [3, float.sign() | 1, 2]
        );
    }
}
