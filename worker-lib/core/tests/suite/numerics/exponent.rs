//! The exponent of a chunk.

use proptest::prelude::*;
use switchml_worker_core::numerics::exponent::{self, Way};
use switchml_worker_core::numerics::{Codec, DType, ReduceOp};

use super::cluster::{large, small};
use super::exact::{F16, F32, F64, FLOATS, Float, exponent_of};
use super::fixed::finite;

fn exponent_in(float: Float, elements: &[u64]) -> i32 {
    large(float.dtype, ReduceOp::Sum, 2).exponent(&float.pack(elements))
}

proptest! {
    #[test]
    fn is_that_of_the_largest_magnitude((float, ranks) in finite(Just(1), 1..100)) {
        let elements = &ranks[0];
        let magnitudes = elements.iter().map(|x| float.value(x & !float.sign()));
        let largest = magnitudes.max().expect("not empty");
        let expected = exponent_of(&largest).unwrap_or(exponent::ZERO);
        prop_assert_eq!(exponent_in(float, elements), expected);
    }
}

#[test]
fn known_exponents() {
    for (x, expected) in [
        (1.0, 0),
        (-1.5, 0),
        (1.999_999_9, 0),
        (2.0, 1),
        (0.75, -1),
        (f32::MAX, 127),
        (f32::MIN_POSITIVE, -126),
        (f32::from_bits(0x007F_FFFF), -127),
        (f32::from_bits(1), -149),
    ] {
        assert_eq!(exponent_in(F32, &[0, x.to_bits().into(), 0x8000_0000]), expected, "{x:e}");
    }
    assert_eq!(exponent_in(F64, &[1]), -1074);
    assert_eq!(exponent_in(F64, &[f64::MAX.to_bits()]), 1023);
    assert_eq!(exponent_in(F16, &[1]), -24);
}

#[test]
fn the_least_is_that_of_the_smallest_above_zero() {
    for (x, expected) in [(1.5f32, 0), (f32::from_bits(1), -149), (f32::MIN_POSITIVE, -126)] {
        let elements = [f32::MAX, 0.0, -x, -0.0].map(|x| x.to_bits().into());
        let codec = small(DType::F32, ReduceOp::Sum, 2);
        assert_eq!(codec.least_exponent(&F32.pack(&elements)), expected, "{x:e}");
    }
    let zeros = F16.pack(&[0, F16.sign()]);
    assert_eq!(small(DType::F16, ReduceOp::Sum, 2).least_exponent(&zeros), exponent::ZERO);
}

/// Two ranks and E = 127: three lanes reach down to 2^36, so to numbers from 2^59 on.
#[test]
fn three_lanes_do_up_to_where_the_specification_says() {
    let codec = small(DType::F32, ReduceOp::Sum, 2);
    assert_eq!([59, 58].map(|least| codec.way(127, least)), [Way::Scaled, Way::Wide]);
    let codec = small(DType::F16, ReduceOp::Sum, 1024);
    assert_eq!(codec.way(15, -24), Way::Scaled, "all of f16");
}

#[test]
fn every_zero_gives_the_lower_marker_and_any_non_finite_the_upper() {
    assert_eq!((exponent::ZERO, exponent::NON_FINITE), (i32::MIN, i32::MAX));
    for float in FLOATS {
        assert_eq!(exponent_in(float, &[]), exponent::ZERO);
        assert_eq!(exponent_in(float, &[0, float.sign(), 0]), exponent::ZERO);
        for bad in [float.infinity(), float.infinity() + 1, float.sign() - 1] {
            for at in 0..70 {
                let mut elements = vec![1; 70];
                elements[at] = bad;
                assert_eq!(exponent_in(float, &elements), exponent::NON_FINITE);
                elements[at] |= float.sign();
                assert_eq!(exponent_in(float, &elements), exponent::NON_FINITE);
            }
        }
    }
}

#[test]
fn skipped_are_the_markers_alone() {
    assert!(exponent::is_marker(i32::MIN) && exponent::is_marker(i32::MAX));
    assert!((-1074..=1023).all(|e| !exponent::is_marker(e)));
}

#[test]
fn exponents_travel_as_a_maximum() {
    use super::cluster::{aggregate, encode, to_payload};
    let codec = Codec::exponents();
    let ranks =
        [[exponent::ZERO, -5, 7, exponent::ZERO], [exponent::ZERO, -149, exponent::NON_FINITE, -1]];
    let payloads = ranks.map(|r| encode(codec, bytemuck::cast_slice(&r), 0));
    let mut global = [0i32; 4];
    codec.decode(
        &to_payload(&aggregate(codec.wire_op(), &payloads)),
        0,
        bytemuck::cast_slice_mut(&mut global),
    );
    assert_eq!(global, [exponent::ZERO, -5, exponent::NON_FINITE, -1]);
    assert_eq!(codec.bytes_per_chunk(352), 352 * DType::I32.size());
}
