//! Payload arithmetic on numbers whose results are written down.

use switchml_protocol::lanes::{
    Payload, ShortPayload, Values, add, combine, exchange, load, subtract, sum,
};
use switchml_protocol::wire::header::{CheckWord, Op};
use switchml_protocol::{MAX_LANES, U32};

/// A payload of `lanes` zeros that begins with `first`.
fn payload(lanes: usize, first: &[u32]) -> Vec<U32> {
    let rest = std::iter::repeat_n(0, lanes - first.len());
    first.iter().copied().chain(rest).map(U32::new).collect()
}

/// Values of these lanes, and zeros: two in a number, the first one in its upper half.
fn values(lanes: &[u32]) -> Values {
    let lane = |index: usize| u64::from(lanes.get(index).copied().unwrap_or(0));
    std::array::from_fn(|pair| lane(2 * pair) << 32 | lane(2 * pair + 1))
}

/// The lanes of values.
fn lanes(values: &Values) -> Vec<u32> {
    values.iter().flat_map(|pair| [(pair >> 32) as u32, *pair as u32]).collect()
}

/// `a op b`, lane by lane. What is added can be taken out again.
fn combined<const N: usize>(op: Op, a: [u32; N], b: [u32; N]) -> [u32; N] {
    let mut values = values(&a);
    let before = values;
    let b = payload(32, &b);
    combine(op, &mut values, &b[..], 1).unwrap();
    if op.check_word() == CheckWord::AddsUp {
        let mut added = before;
        assert_eq!(add(&mut added, &b[..], 1), sum(&b[..], 1));
        assert_eq!(added, values);
        subtract(&mut added, &b[..], 1).unwrap();
        assert_eq!(added, before);
    }
    lanes(&values)[..N].try_into().unwrap()
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

/// Ranks come in any order, and racks of them are combined first.
#[test]
fn operators_are_commutative_and_associative_and_have_an_identity() {
    let lanes = [0, 1, 2, 0x7FFF_FFFF, 0x8000_0000, 0x8000_0001, 0xFFFF_FFFF, 0x1234_5678];
    for op in Op::ALL.iter().copied() {
        for a in lanes {
            assert_eq!(op.combine(a, op.identity()), a, "{op:?}");
            for b in lanes {
                assert_eq!(op.combine(a, b), op.combine(b, a), "{op:?}");
                for c in lanes {
                    let (left, right) = (op.combine(op.combine(a, b), c), op.combine(b, c));
                    assert_eq!(left, op.combine(a, right), "{op:?}");
                }
            }
        }
    }
}

#[test]
fn sum_for_the_check_word_wraps() {
    // 768 lanes of -1
    let all_ones = vec![U32::new(u32::MAX); MAX_LANES];
    let sums = |lanes: &[U32]| {
        let blocks = lanes.len() / 32;
        let sum = sum(lanes, blocks).unwrap();
        assert_eq!(add(&mut values(&[5; MAX_LANES]), lanes, blocks), Ok(sum));
        assert_eq!(
            exchange(&mut values(&[5; MAX_LANES]), &mut lanes.to_vec()[..], blocks),
            Ok(sum)
        );
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
    let mut ones = vec![U32::new(1); MAX_LANES];
    let mut held = values(&[7; MAX_LANES]);
    assert_eq!(exchange(&mut held, &mut ones[..], 2), Ok(64));
    assert_eq!(lanes(&held), [vec![1; 64], vec![7; MAX_LANES - 64]].concat());
    assert_eq!(ones, [vec![U32::new(7); 64], vec![U32::new(1); MAX_LANES - 64]].concat());

    let ones = vec![U32::new(1); MAX_LANES];
    assert_eq!(add(&mut held, &ones[..], 3), Ok(96));
    assert_eq!(lanes(&held), [vec![2; 64], vec![8; 32], vec![7; MAX_LANES - 96]].concat());
    assert_eq!(sum(&ones[..], 3), Ok(96));

    let mut out = payload(MAX_LANES, &[]);
    load(&held, &mut out[..], 3).unwrap();
    assert_eq!(out[..96].iter().map(|lane| lane.get()).collect::<Vec<_>>(), lanes(&held)[..96]);
    assert!(out[96..].iter().all(|lane| lane.get() == 0));
}

#[test]
fn what_is_exchanged_twice_is_as_before() {
    let first: Vec<u32> =
        (0..MAX_LANES as u32).map(|lane| lane.wrapping_mul(0x9E37_79B9)).collect();
    let second: Vec<u32> = first.iter().map(|lane| !lane).collect();
    let mut packet = payload(MAX_LANES, &second);
    let mut held = values(&first);
    exchange(&mut held, &mut packet[..], 24).unwrap();
    assert_eq!((lanes(&held), packet.clone()), (second.clone(), payload(MAX_LANES, &first)));
    exchange(&mut held, &mut packet[..], 24).unwrap();
    assert_eq!((lanes(&held), packet), (first, payload(MAX_LANES, &second)));
}

#[test]
fn all_24_blocks_take_part() {
    let ones = vec![U32::new(1); MAX_LANES];
    let mut held = values(&[]);
    assert_eq!(add(&mut held, &ones[..], 24), Ok(768));
    assert_eq!(held, values(&[1; MAX_LANES]));
    assert_eq!(sum(&ones[..], 24), Ok(768));
    subtract(&mut held, &ones[..], 24).unwrap();
    assert_eq!(held, values(&[]));
}

#[test]
fn a_short_payload_is_an_error_not_a_panic() {
    let mut short = payload(63, &[]);
    let mut values = values(&[]);
    assert_eq!(sum(&short[..], 2), Err(ShortPayload));
    assert_eq!(exchange(&mut values, &mut short[..], 2), Err(ShortPayload));
    assert_eq!(add(&mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(subtract(&mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(combine(Op::Max, &mut values, &short[..], 2), Err(ShortPayload));
    assert_eq!(load(&values, &mut short[..], 2), Err(ShortPayload));
    assert!(short[..].block(0).is_some() && short[..].block(1).is_none());
    assert!(short[..].block_mut(0).is_some() && short[..].block_mut(1).is_none());
}
