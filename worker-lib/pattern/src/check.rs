//! Checks whether a result is right.

use std::hash::{DefaultHasher, Hasher};

use switchml_worker_core::numerics::SMALL_COUNT;
use switchml_worker_core::{Precision, ReduceOp, Reduction};

use crate::{Pattern, Value};

/// See [`crate::wrong_elements`].
pub(crate) fn count_wrong<T: Value>(
    pattern: &Pattern,
    op: Reduction,
    world_size: usize,
    result: &[T],
) -> usize {
    let expected = pattern.expected::<T>(op.op);
    let tolerance = tolerance::<T>(op, world_size, result.len());
    let is_wrong = |(i, &element): (usize, &T)| {
        let got = element.to_f64();
        // A NaN is within no tolerance.
        got.is_nan() || (got - expected(i)).abs() > tolerance(got)
    };
    let wrong = result.iter().enumerate().filter(|&item| is_wrong(item)).count();
    if is_in_8_bits(op, world_size) && wrong == 0 {
        let pairs = result.iter().enumerate().map(|(i, x)| (x.to_f64(), expected(i)));
        return if is_right_in_all(pairs, op, world_size) { 0 } else { result.len() };
    }
    wrong
}

/// The root mean square of a rank's elements, by the construction of the pattern, is at most this.
const PATTERN_SIZE: f64 = 1.0 / 6.0;
/// From this many elements on, means tell more than single elements do.
const MANY: f64 = 1000.0;

fn is_in_8_bits(reduction: Reduction, world_size: usize) -> bool {
    reduction.precision == Precision::Bits8 && world_size <= 32
}

/// The standard deviation of an element of a sum in 8 bits, where no rotated element is beyond
/// `limit` * sqrt(128).
fn deviation(limit: f64, reduction: Reduction, world_size: usize) -> f64 {
    let ranks = world_size as f64;
    let divisor = if reduction.op == ReduceOp::Avg { ranks } else { 1.0 };
    (ranks / 3.0).sqrt() * limit / f64::from(255 / world_size.max(2) as u32) / divisor
}

/// Whether the found elements of a result in 8 bits are the expected ones, apart from independent
/// errors. With many ranks, the error of a single element hides a missing rank; over thousands of
/// elements the missing rank shows.
fn is_right_in_all(
    pairs: impl Iterator<Item = (f64, f64)>,
    reduction: Reduction,
    world_size: usize,
) -> bool {
    let (mut count, mut squares, mut product, mut errors) = (0f64, 0f64, 0f64, 0f64);
    for (found, expected) in pairs {
        count += 1.0;
        squares += expected * expected;
        product += (found - expected) * expected;
        errors += (found - expected).powi(2);
    }
    // Over a chunk's 1408 elements of each rank, the largest is at most 5 deviations off, and the
    // scale a sixteenth above.
    let deviation = deviation(17.0 / 16.0 * 5.0 * PATTERN_SIZE, reduction, world_size);
    let rounding = 2f64.powi(-8) * (squares / count.max(1.0)).sqrt();
    let is_straight = product.abs() <= 8.0 * (deviation + rounding) * squares.sqrt();
    let is_near = errors / count.max(1.0) <= (deviation + rounding).powi(2) * 1.1;
    count < MANY || is_straight && is_near
}

/// The largest error that a result of a given value may have. The chunk's largest magnitude M is at
/// most 1 by the construction of the pattern.
fn tolerance<T: Value>(
    reduction: Reduction,
    world_size: usize,
    count: usize,
) -> impl Fn(f64) -> f64 {
    let ranks = world_size as f64;
    let log = world_size.next_power_of_two().ilog2() as i32;
    let double = T::BITS > 32;
    let Reduction { op, precision } = reduction;
    let in_8_bits = is_in_8_bits(reduction, world_size);
    // The largest error of the sum of integers.
    let quantized = match (precision, double) {
        // Eight standard deviations. A rotated element is at most six of its own standard
        // deviations, and the squares of a column are 1/12 on average, three times the squares of
        // the pattern.
        _ if in_8_bits => {
            let limit = 17.0 / 16.0 * 6.0 * (1f64 / 12.0).sqrt();
            8.0 * deviation(limit, Reduction::SUM8, world_size)
        }
        (Precision::Bits8 | Precision::Bits16, _) => ranks * 2f64.powi(log - 15),
        // In three lanes all of the pattern's elements are exact.
        (Precision::Exact, false) if count <= SMALL_COUNT => 0.0,
        (Precision::Exact, false) => ranks * 2f64.powi(log - 31),
        (Precision::Exact, true) if world_size <= 32 => ranks * 2f64.powi(2 * log - 63),
        (Precision::Exact, true) => 1.5 * ranks * 2f64.powi(2 * log - 63),
    };
    move |value| match op {
        _ if !T::FLOAT => 0.0,
        ReduceOp::Max | ReduceOp::Min => 0.0,
        ReduceOp::Sum => quantized + T::half_unit(value),
        // f64: the sum is rounded, then the quotient, and so is the expected one.
        ReduceOp::Avg if double => quantized / ranks + 4.0 * T::half_unit(value),
        // Other types: the factor step/N and the product are rounded in f64, before the rounding to
        // the type; so is the expected result.
        ReduceOp::Avg => quantized / ranks + T::half_unit(value) + value.abs() * 2f64.powi(-51),
    }
}

/// A digest of a result's bits: two results with the same digest are identical, except a chance of
/// 2^-64.
pub fn digest<T: Value>(result: &[T]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytemuck::cast_slice(result));
    hasher.finish()
}

/// A digest as words whose maxima over the ranks tell whether all digests are equal.
pub fn digest_words(digest: u64) -> [i32; 4] {
    let (low, high) = (digest as i32, (digest >> 32) as i32);
    [low, high, !low, !high]
}

/// Whether these are maxima of equal digests: the largest complement is the complement of the
/// smallest.
pub fn all_equal(maxima: [i32; 4]) -> bool {
    maxima[0] == !maxima[2] && maxima[1] == !maxima[3]
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use switchml_worker_core::DType;
    use switchml_worker_core::numerics::Codec;

    use super::*;
    use crate::{Tested, Zeros, wrong_elements};

    const COUNT: usize = 1000;

    /// The result of a flawless aggregator: the exact sum, average or extremum of the
    /// contributions, computed one rank at a time and rounded once.
    fn reduce<T: Tested>(
        pattern: &Pattern,
        reduction: Reduction,
        world_size: usize,
        round: impl Fn(f64) -> T,
    ) -> Vec<T> {
        let mut all = vec![vec![T::default(); COUNT]; world_size];
        for (rank, elements) in all.iter_mut().enumerate() {
            pattern.fill(rank, elements);
        }
        let column = |i: usize| all.iter().map(move |elements| elements[i].to_f64());
        let result = |i| match reduction.op {
            ReduceOp::Sum => column(i).sum::<f64>(),
            ReduceOp::Avg => column(i).sum::<f64>() / world_size as f64,
            ReduceOp::Max => column(i).fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Min => column(i).fold(f64::INFINITY, f64::min),
        };
        (0..COUNT).map(|i| round(result(i))).collect()
    }

    fn check_type<T: Tested>(ops: &[Reduction], round: impl Fn(f64) -> T + Copy) {
        for &op in ops {
            for world_size in [1, 2, 3, 4, 7, 33, 64] {
                let pattern = Pattern::new::<T>(
                    world_size as u64 * 7 + 1,
                    world_size,
                    Zeros { share: 0.3, chunk: 32 },
                );
                let mut result = reduce(&pattern, op, world_size, round);
                let name = format!("{} {op} of {world_size}", T::NCCL_NAME);
                assert_eq!(wrong_elements(&pattern, op, world_size, &result), 0, "{name}");
                let identical = digest(&result);

                // One element gets the contribution of rank 0 alone, or is off by a little.
                let at = (0..COUNT).find(|&i| result[i].to_f64().abs() > 0.25).unwrap();
                let was = result[at];
                result[at] = round(was.to_f64() * 1.03 + 1.0);
                assert_eq!(wrong_elements(&pattern, op, world_size, &result), 1, "{name}");
                assert_ne!(digest(&result), identical, "{name}");
                result[at] = was;

                // The values of another round.
                let other =
                    reduce(&Pattern::new::<T>(99, world_size, Zeros::NONE), op, world_size, round);
                assert!(
                    wrong_elements(&pattern, op, world_size, &other) > COUNT * 9 / 10,
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn right_and_wrong_elements() {
        check_type::<f32>(&Reduction::ALL[..6], |x| x as f32);
        check_type::<f64>(&[Reduction::SUM, Reduction::AVG], |x| x);
        check_type::<f16>(&Reduction::ALL[..6], f16::from_f64);
        check_type::<bf16>(&Reduction::ALL[..6], bf16::from_f64);
        // Sums beyond 2^31 wrap.
        check_type::<i32>(&[Reduction::SUM, Reduction::MAX, Reduction::MIN], |x| x as i64 as i32);
        check_type::<i64>(&[Reduction::SUM], |x| x as i64);
    }

    #[test]
    fn a_missing_and_a_doubled_contribution() {
        for world_size in [2usize, 4, 16] {
            let pattern = Pattern::new::<f32>(5, world_size, Zeros::NONE);
            let mut sum = reduce(&pattern, Reduction::SUM, world_size, |x| x as f32);
            let mut mine = vec![0f32; COUNT];
            pattern.fill(world_size - 1, &mut mine);
            for (sum, mine) in sum.iter_mut().zip(&mine) {
                *sum += mine;
            }
            let wrong = wrong_elements(&pattern, Reduction::SUM, world_size, &sum);
            assert!(wrong > COUNT * 9 / 10, "{wrong} of {COUNT} found for {world_size} ranks");
        }
    }

    /// Faults of a sum in 8 bits.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fault {
        None,
        /// The last rank's elements are zeros.
        Lost,
        /// The last rank's elements count twice.
        Doubled,
        /// The highest field of every lane holds zeros.
        Field,
        /// The random numbers of another call are taken off.
        Random,
        /// Each lane has the fields of the next lane.
        Shifted,
    }

    /// Sums with the codec, chunk by chunk.
    fn sum_in_8_bits(pattern: &Pattern, world_size: usize, count: usize, fault: Fault) -> Vec<f32> {
        let codec = Codec::reduction(DType::F32, Reduction::SUM8, world_size, count).unwrap();
        let mut ranks = vec![vec![0f32; count]; world_size];
        ranks.iter_mut().enumerate().for_each(|(rank, elements)| pattern.fill(rank, elements));
        match fault {
            Fault::Lost => ranks[world_size - 1].fill(0.0),
            Fault::Doubled => ranks[world_size - 1].iter_mut().for_each(|x| *x *= 2.0),
            _ => {}
        }
        let mut result = vec![0f32; count];
        for (number, result) in result.chunks_mut(1408).enumerate() {
            let first = 1408 * number;
            let at = |call, rank: usize| codec.at(call, first as u64, rank as u32);
            let chunk = |rank: usize| -> &[u8] {
                bytemuck::cast_slice(&ranks[rank][first..first + result.len()])
            };
            let exponent =
                (0..world_size).map(|rank| at(0, rank).exponent(chunk(rank))).max().unwrap();
            let mut sums = vec![0u32; codec.lanes_for(size_of_val(result))];
            for rank in 0..world_size {
                let mut payload = vec![0; 4 * sums.len()];
                at(0, rank).encode(chunk(rank), exponent, &mut payload);
                for (sum, bytes) in sums.iter_mut().zip(payload.as_chunks().0) {
                    *sum = sum.wrapping_add(u32::from_be_bytes(*bytes));
                }
            }
            match fault {
                Fault::Field => sums.iter_mut().for_each(|sum| *sum &= 0x00FF_FFFF),
                Fault::Shifted => sums.rotate_left(1),
                _ => {}
            }
            let payload: Vec<u8> = sums.iter().flat_map(|sum| sum.to_be_bytes()).collect();
            at(u64::from(fault == Fault::Random), 0).decode(
                &payload,
                exponent,
                bytemuck::cast_slice_mut(result),
            );
        }
        result
    }

    #[test]
    fn what_is_wrong_with_a_sum_in_8_bits() {
        for world_size in [1, 2, 4, 8, 16, 32] {
            for seed in 0..5 {
                let pattern = Pattern::new::<f32>(seed, world_size, Zeros::NONE);
                let wrong = |count, fault| {
                    let result = sum_in_8_bits(&pattern, world_size, count, fault);
                    wrong_elements(&pattern, Reduction::SUM8, world_size, &result)
                };
                for count in [1, 100, 1000, 5000, 50_000] {
                    assert_eq!(wrong(count, Fault::None), 0, "{count} elements of {world_size}");
                }
                use Fault::{Doubled, Field, Lost, Random, Shifted};
                for fault in [Lost, Doubled, Field, Random, Shifted] {
                    assert!(wrong(50_000, fault) > 0, "{fault:?} of {world_size} ranks");
                }
            }
        }
    }

    #[test]
    fn one_flipped_bit_of_an_exact_result() {
        let pattern = Pattern::new::<f32>(1, 4, Zeros::NONE);
        let mut result = reduce(&pattern, Reduction::MAX, 4, |x| x as f32);
        result[500] = f32::from_bits(result[500].to_bits() ^ 1);
        assert_eq!(wrong_elements(&pattern, Reduction::MAX, 4, &result), 1);
        result[500] = f32::NAN;
        assert_eq!(wrong_elements(&pattern, Reduction::MAX, 4, &result), 1);
    }

    #[test]
    fn tolerances_are_those_of_the_documentation() {
        // 4 ranks, f32: N 2^(L-31) M = 2^-27, and half a unit of 1.0 is 2^-24. Small calls have
        // only the half unit.
        assert_eq!(tolerance::<f32>(Reduction::SUM, 4, 1025)(1.0), 2f64.powi(-27) + 2f64.powi(-24));
        assert_eq!(tolerance::<f32>(Reduction::SUM, 4, 1024)(1.0), 2f64.powi(-24));
        // 64 ranks, f64: 1.5 N 2^(2L-63) = 1.5 * 2^-45, and half a unit of 3.0 is 2^-52.
        assert_eq!(
            tolerance::<f64>(Reduction::SUM, 64, 1)(-3.0),
            1.5 * 2f64.powi(-45) + 2f64.powi(-52)
        );
        // bf16: 8 significant bits.
        assert_eq!(bf16::half_unit(1.5), 2f64.powi(-8));
        // f16 below its normal numbers: always 2^-24, half of it.
        assert_eq!(f16::half_unit(2f64.powi(-20)), 2f64.powi(-25));
        // In 16 bits: N 2^(L-15) M.
        assert_eq!(tolerance::<f32>(Reduction::SUM16, 4, 1)(1.0), 2f64.powi(-11) + 2f64.powi(-24));
        // In 8 bits: B = 17/16 * 6 * sqrt(128 / 12), K = 63, and 8 standard deviations.
        let in_8_bits = tolerance::<f32>(Reduction::SUM8, 4, 1)(0.0);
        let limit = 6.375 * (128f64 / 12.0).sqrt();
        let variance: f64 = 4.0 * (2.0 * limit / 63.0).powi(2) / 12.0 / 128.0;
        assert!((in_8_bits / (8.0 * variance.sqrt()) - 1.0).abs() < 1e-9, "{in_8_bits}");
        // More than 32 ranks travel in 16 bits.
        let of_33 = |reduction| tolerance::<f32>(reduction, 33, 1)(1.0);
        assert_eq!(of_33(Reduction::SUM8), of_33(Reduction::SUM16));
        assert_eq!(tolerance::<i32>(Reduction::SUM, 4, 1)(1e9), 0.0);
        assert_eq!(tolerance::<f32>(Reduction::MAX, 4, 1)(1e9), 0.0);
    }

    #[test]
    fn digests_are_compared_by_their_maxima() {
        let compare = |digests: &[u64]| {
            let words = digests.iter().map(|&digest| digest_words(digest));
            all_equal(words.reduce(|a, b| std::array::from_fn(|i| a[i].max(b[i]))).unwrap())
        };
        for same in [0, 1, u64::MAX, 1 << 63, 0x8000_0000, 0x1234_5678_9abc_def0] {
            assert!(compare(&[same; 3]), "{same:x}");
            for bit in 0..64 {
                assert!(!compare(&[same, same, same ^ 1 << bit]), "{same:x} {bit}");
            }
        }
    }
}
