//! Payload arithmetic on numbers whose results are written down.

use switchml_protocol::header::Op;
use switchml_protocol::lanes::{
    Payload, ShortPayload, Values, add, load, maximum, store, subtract, sum,
};
use switchml_protocol::{MAX_LANES, U32};

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
        assert_eq!(add(&mut values, &b[..], 1), sum(&b[..], 1));
        let mut undone = values;
        subtract(&mut undone, &b[..], 1).unwrap();
        assert_eq!(undone, before);
    } else {
        maximum(&mut values, &b[..], 1).unwrap();
    }
    values[..N].try_into().unwrap()
}

#[test]
fn sum_of_i32_wraps() {
    let a = [1, u32::MAX, 0x7FFF_FFFF, 0x8000_0000];
    let b = [2, 1, 1, 0x8000_0000];
    assert_eq!(combined(Op::Sum, a, b), [3, 0, 0x8000_0000, 0]);
}

#[test]
fn max_of_i32_is_signed() {
    let minus_one = -1i32 as u32;
    let a = [1, minus_one, minus_one, 0x8000_0000, 0x7FFF_FFFF];
    let b = [2, 1, -2i32 as u32, minus_one, 0x8000_0000];
    assert_eq!(combined(Op::Max, a, b), [2, 1, minus_one, minus_one, 0x7FFF_FFFF]);
}

#[test]
fn sum_for_the_check_word_wraps() {
    // 768 lanes of -1
    let all_ones = vec![U32::new(u32::MAX); MAX_LANES];
    let sums = |lanes: &[U32]| {
        let blocks = lanes.len() / 32;
        let sum = sum(lanes, blocks).unwrap();
        assert_eq!(add(&mut [5; MAX_LANES], lanes, blocks), Ok(sum));
        sum
    };
    assert_eq!(sums(&all_ones), 0xFFFF_FD00);
    // wherever in the packet they are
    for at in 0..64 {
        let mut lanes = payload(64, &[]);
        lanes[at] = U32::new(0x8001_FFFF);
        lanes[(at + 1) % 64] = U32::new(0x8000_0002);
        assert_eq!(sums(&lanes), 0x0002_0001);
    }
}

#[test]
fn only_the_blocks_asked_for_are_read_and_written() {
    let ones = vec![U32::new(1); MAX_LANES];
    let mut values: Values = [7; MAX_LANES];
    store(&mut values, &ones[..], 2).unwrap();
    assert_eq!(values.iter().position(|value| *value == 7), Some(64));
    assert_eq!(values.iter().filter(|value| **value == 1).count(), 64);
    assert_eq!(add(&mut values, &ones[..], 3), Ok(96));
    assert_eq!((values[63], values[64], values[95], values[96]), (2, 8, 8, 7));
    assert_eq!(sum(&ones[..], 3), Ok(96));

    let mut out = payload(MAX_LANES, &[]);
    load(&values, &mut out[..], 3).unwrap();
    assert_eq!(out[..96].iter().map(|lane| lane.get()).collect::<Vec<_>>(), &values[..96]);
    assert!(out[96..].iter().all(|lane| lane.get() == 0));
}

#[test]
fn all_24_blocks_take_part() {
    let ones = vec![U32::new(1); MAX_LANES];
    let mut values: Values = [0; MAX_LANES];
    assert_eq!(add(&mut values, &ones[..], 24), Ok(768));
    assert_eq!(values, [1; MAX_LANES]);
    assert_eq!(sum(&ones[..], 24), Ok(768));
    subtract(&mut values, &ones[..], 24).unwrap();
    assert_eq!(values, [0; MAX_LANES]);
}

#[test]
fn a_short_payload_is_an_error_not_a_panic() {
    let mut short = payload(63, &[]);
    let mut values: Values = [0; MAX_LANES];
    assert_eq!(sum(&short[..], 2), Err(ShortPayload));
    assert_eq!(store(&mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(add(&mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(subtract(&mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(maximum(&mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(load(&values, &mut short[..], 2), Err(ShortPayload));
    assert!(short[..].block(0).is_some() && short[..].block(1).is_none());
    assert!(short[..].block_mut(0).is_some() && short[..].block_mut(1).is_none());
}
