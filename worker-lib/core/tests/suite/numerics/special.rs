//! Zeros, subnormals, infinities, NaN, and refused combinations.

use switchml_worker_core::numerics::{
    Codec, DType, NumericsError, Precision, ReduceOp, Reduction, exponent,
};

use super::cluster::all_reduce;
use super::exact::{F16, F32, FLOATS};

fn sum_f32(ranks: &[&[f32]]) -> Vec<f32> {
    let chunks: Vec<_> = ranks.iter().map(|r| bytemuck::cast_slice(r).to_vec()).collect();
    let reduced = all_reduce(DType::F32, ReduceOp::Sum, &chunks);
    F32.unpack(&reduced.elements).into_iter().map(|bits| f32::from_bits(bits as u32)).collect()
}

#[test]
fn non_finite_on_any_rank_makes_the_chunk_nan() {
    for float in FLOATS {
        for bad in [float.infinity(), float.infinity() | float.sign(), float.infinity() + 1] {
            for op in [ReduceOp::Sum, ReduceOp::Avg] {
                let reduced = all_reduce(
                    float.dtype,
                    op,
                    &[float.pack(&[1, 0, 1]), float.pack(&[1, bad, 1])],
                );
                assert_eq!(reduced.exponent, exponent::NON_FINITE);
                assert!(reduced.lanes.is_empty());
                let quiet = float.infinity() | 1 << (float.mantissa - 1);
                assert_eq!(float.unpack(&reduced.elements), [quiet; 3], "{float:?}");
            }
        }
    }
}

#[test]
fn zeros_everywhere_are_not_sent_and_give_plus_zero() {
    for float in FLOATS {
        let reduced = all_reduce(
            float.dtype,
            ReduceOp::Sum,
            &[float.pack(&[0, float.sign()]), float.pack(&[float.sign(); 2])],
        );
        assert_eq!((reduced.exponent, reduced.lanes.len()), (exponent::ZERO, 0));
        assert_eq!(float.unpack(&reduced.elements), [0, 0]);
    }
}

#[test]
fn minus_zero_in_a_sent_chunk_gives_plus_zero() {
    let sums = sum_f32(&[&[-0.0, 1.0], &[-0.0, 1.0]]);
    assert_eq!(sums.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0, 2f32.to_bits()]);
}

#[test]
fn sums_at_the_ends_of_the_range() {
    assert_eq!(sum_f32(&[&[f32::MAX, 1.0], &[-f32::MAX, 1.0]])[0], 0.0);
    assert_eq!(sum_f32(&[&[f32::MAX], &[f32::MAX]]), [f32::INFINITY]);
    assert_eq!(sum_f32(&[&[-f32::MAX], &[-f32::MAX]]), [f32::NEG_INFINITY]);
    assert_eq!(sum_f32(&[&[3.4e38], &[-1.7e38]]), [3.4e38 - 1.7e38]);
    let smallest = f32::from_bits(1);
    assert_eq!(sum_f32(&[&[smallest, -smallest], &[smallest, 0.0]]), [2.0 * smallest, -smallest]);
    // An element far below the largest of its chunk counts for nothing.
    assert_eq!(sum_f32(&[&[smallest, 1.0], &[smallest, 1.0]]), [0.0, 2.0]);
    let tiny = f64::from_bits(1);
    let reduced =
        all_reduce(DType::F64, ReduceOp::Sum, &[tiny, tiny].map(|x| x.to_ne_bytes().to_vec()));
    assert_eq!(reduced.elements, f64::from_bits(2).to_ne_bytes());
    let reduced = all_reduce(
        DType::F64,
        ReduceOp::Sum,
        &[f64::MAX, f64::MAX].map(|x| x.to_ne_bytes().to_vec()),
    );
    assert_eq!(reduced.elements, f64::INFINITY.to_ne_bytes());
    let largest = half::f16::MAX.to_bits().into();
    let reduced =
        all_reduce(DType::F16, ReduceOp::Sum, &[F16.pack(&[largest]), F16.pack(&[largest])]);
    assert_eq!(F16.unpack(&reduced.elements), [F16.infinity()]);
}

#[test]
fn refusals_say_what_to_do() {
    for op in [ReduceOp::Max, ReduceOp::Min] {
        for dtype in [DType::F64, DType::I64] {
            let refused = Err(NumericsError::NoWideExtremum { op, dtype });
            assert_eq!(Codec::reduction(dtype, op, 4, 1), refused);
        }
    }
    for dtype in [DType::I32, DType::I64] {
        let refused = Err(NumericsError::NoIntegerAverage(dtype));
        assert_eq!(Codec::reduction(dtype, ReduceOp::Avg, 4, 1), refused);
    }
    for n in [0, 1025, usize::MAX] {
        assert_eq!(Codec::reduction(DType::F32, ReduceOp::Sum, n, 1), Err(NumericsError::Ranks(n)));
    }
    assert_eq!(NumericsError::Ranks(1025).to_string(), "1025 ranks given, 1 to 1024 are allowed");
    assert_eq!(
        Codec::reduction(DType::F32, Reduction::SUM16, 129, 1).unwrap_err().to_string(),
        "sum16 among 129 ranks is not available, only among up to 128; use the sum or average \
         without fewer bits"
    );
    let message = |dtype| NumericsError::NoWideExtremum { op: ReduceOp::Max, dtype }.to_string();
    assert_eq!(
        [DType::F64, DType::I64].map(message),
        [
            "max of f64 is not available; convert to f32 to reduce with max",
            "max of i64 is not available; convert to i32 to reduce with max"
        ]
    );
}

#[test]
fn names() {
    for dtype in DType::ALL {
        assert_eq!(dtype.name().parse(), Ok(dtype));
    }
    for reduction in Reduction::ALL {
        let digits = reduction.name().trim_start_matches(char::is_alphabetic);
        let op: ReduceOp = reduction.name().trim_end_matches(digits).parse().unwrap();
        let precision = if digits.is_empty() { "exact" } else { digits };
        assert_eq!(Reduction::new(op, precision.parse().unwrap()), reduction);
    }
    assert_eq!("bfloat16".parse(), Ok(DType::Bf16));
    assert_eq!("f8".parse::<DType>(), Err(NumericsError::UnknownDType("f8".into())));
    assert_eq!("prod".parse::<ReduceOp>(), Err(NumericsError::UnknownOp("prod".into())));
    let unknown = NumericsError::UnknownPrecision("4".into());
    assert_eq!("4".parse::<Precision>(), Err(unknown));
    assert_eq!(format!("{:>5}|{:<4}|", DType::F32, ReduceOp::Sum), "  f32|sum |");
}
