//! Payload arithmetic on numbers whose results are written down.

use switchml_protocol::header::Op;
use switchml_protocol::lanes::{
    Payload, ShortPayload, Values, add, load, maximum, store, subtract, sum,
};
use switchml_protocol::{MAX_LANES, U32};

const I16_MAX: u32 = 0x7FFF;
const I16_MIN: u32 = 0x8000;

/// A payload of `lanes` zeros that begins with `first`.
fn payload(lanes: usize, first: &[u32]) -> Vec<U32> {
    let rest = std::iter::repeat_n(0, lanes - first.len());
    first.iter().copied().chain(rest).map(U32::new).collect()
}

/// `a op b`, lane by lane. What is added can be taken out again.
fn combined<const N: usize>(op: Op, a: [u32; N], b: [u32; N]) -> [u32; N] {
    let mut values: Values = [0; MAX_LANES];
    values[..N].copy_from_slice(&a);
    let before = values;
    let b = payload(32, &b);
    if op.is_sum() {
        assert_eq!(add(op, &mut values, &b[..], 1), sum(op, &b[..], 1));
        let mut undone = values;
        subtract(op, &mut undone, &b[..], 1).unwrap();
        assert_eq!(undone, before);
    } else {
        maximum(op, &mut values, &b[..], 1).unwrap();
    }
    values[..N].try_into().unwrap()
}

#[test]
fn sum_of_i32_wraps() {
    let a = [1, u32::MAX, 0x7FFF_FFFF, 0x8000_0000];
    let b = [2, 1, 1, 0x8000_0000];
    assert_eq!(combined(Op::SumI32, a, b), [3, 0, 0x8000_0000, 0]);
}

#[test]
fn max_of_i32_is_signed() {
    let minus_one = -1i32 as u32;
    let a = [1, minus_one, minus_one, 0x8000_0000, 0x7FFF_FFFF];
    let b = [2, 1, -2i32 as u32, minus_one, 0x8000_0000];
    assert_eq!(combined(Op::MaxI32, a, b), [2, 1, minus_one, minus_one, 0x7FFF_FFFF]);
}

#[test]
fn sum_of_i16_wraps_in_each_half_alone() {
    let a = [I16_MAX << 16 | 0xFFFF, I16_MIN << 16 | I16_MIN, 0x0001_0002];
    let b = [0x0001_0001, I16_MIN << 16 | 0xFFFF, 0x0010_0020];
    assert_eq!(combined(Op::SumI16, a, b), [I16_MIN << 16, I16_MAX, 0x0011_0022]);
}

#[test]
fn max_of_i16_is_signed_in_each_half_alone() {
    let a = [0xFFFF_0001, I16_MIN << 16 | I16_MAX];
    let b = [0x0000_FFFF, 0xFFFF_8000];
    assert_eq!(combined(Op::MaxI16, a, b), [0x0000_0001, 0xFFFF_7FFF]);
}

#[test]
fn sum_for_the_check_word_follows_the_lane_type() {
    let payload = payload(32, &[0x0001_FFFF, 0xFFFF_0003]);
    for op in [Op::SumI32, Op::MaxI32] {
        assert_eq!(sum(op, &payload[..], 1), Ok(0x0001_0002));
    }
    for op in [Op::SumI16, Op::MaxI16] {
        assert_eq!(sum(op, &payload[..], 1), Ok(0x0000_0002));
    }
}

#[test]
fn sum_for_the_check_word_wraps() {
    // 768 lanes of -1, or 768 times two halves of -1: -768 is 0xFD00 in its low half
    let all_ones = vec![U32::new(u32::MAX); MAX_LANES];
    let sums = |op, lanes: &[U32]| {
        let blocks = lanes.len() / 32;
        let sum = sum(op, lanes, blocks).unwrap();
        assert_eq!(add(op, &mut [5; MAX_LANES], lanes, blocks), Ok(sum));
        sum
    };
    assert_eq!(sums(Op::SumI32, &all_ones), 0xFFFF_FD00);
    assert_eq!(sums(Op::SumI16, &all_ones), 0xFD00_FD00);
    // wherever in the packet they are
    for at in 0..64 {
        let mut lanes = payload(64, &[]);
        lanes[at] = U32::new(0x8001_FFFF);
        lanes[(at + 1) % 64] = U32::new(0x8000_0002);
        assert_eq!(sums(Op::SumI32, &lanes), 0x0002_0001);
        assert_eq!(sums(Op::SumI16, &lanes), 0x0001_0001);
    }
}

#[test]
fn only_the_blocks_asked_for_are_read_and_written() {
    let ones = vec![U32::new(1); MAX_LANES];
    let mut values: Values = [7; MAX_LANES];
    store(&mut values, &ones[..], 2).unwrap();
    assert_eq!(values.iter().position(|value| *value == 7), Some(64));
    assert_eq!(values.iter().filter(|value| **value == 1).count(), 64);
    assert_eq!(add(Op::SumI32, &mut values, &ones[..], 3), Ok(96));
    assert_eq!((values[63], values[64], values[95], values[96]), (2, 8, 8, 7));
    assert_eq!(sum(Op::SumI32, &ones[..], 3), Ok(96));

    let mut out = payload(MAX_LANES, &[]);
    load(&values, &mut out[..], 3).unwrap();
    assert_eq!(out[..96].iter().map(|lane| lane.get()).collect::<Vec<_>>(), &values[..96]);
    assert!(out[96..].iter().all(|lane| lane.get() == 0));
}

#[test]
fn all_24_blocks_take_part() {
    let ones = vec![U32::new(1); MAX_LANES];
    let mut values: Values = [0; MAX_LANES];
    assert_eq!(add(Op::SumI32, &mut values, &ones[..], 24), Ok(768));
    assert_eq!(values, [1; MAX_LANES]);
    assert_eq!(sum(Op::SumI32, &ones[..], 24), Ok(768));
    subtract(Op::SumI32, &mut values, &ones[..], 24).unwrap();
    assert_eq!(values, [0; MAX_LANES]);
}

#[test]
fn a_short_payload_is_an_error_not_a_panic() {
    let mut short = payload(63, &[]);
    let mut values: Values = [0; MAX_LANES];
    assert_eq!(sum(Op::SumI16, &short[..], 2), Err(ShortPayload));
    assert_eq!(store(&mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(add(Op::SumI32, &mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(subtract(Op::SumI16, &mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(maximum(Op::MaxI32, &mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(load(&values, &mut short[..], 2), Err(ShortPayload));
    assert!(short[..].block(0).is_some() && short[..].block(1).is_none());
    assert!(short[..].block_mut(0).is_some() && short[..].block_mut(1).is_none());
}
