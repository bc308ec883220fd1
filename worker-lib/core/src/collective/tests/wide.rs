//! Small sums of elements that three lanes are too few for, call by call.

use super::*;
use crate::numerics::ReduceOp;

/// The result of each rank, which contributes its tensor, from an aggregator with these
/// capabilities.
fn reduced<const N: usize>(
    op: ReduceOp,
    tensors: [&[f32]; N],
    capabilities: Capabilities,
) -> [Vec<f32>; N] {
    let kind = Kind::AllReduce(op.into());
    let call = Call { kind, dtype: DType::F32, count: tensors[0].len() };
    let terms = Terms { rank: 0, ranks: N as u32, lanes: LANES, capabilities };
    let mut ranks = tensors.map(|tensor| {
        let buffer = Box::new(Plain(bytemuck::cast_slice(tensor).to_vec()));
        let codec = call.codec(N as u32).unwrap();
        let submission = Submission { number: 9, call, codec, first: 0, buffer };
        Rank::new(Collective::new(0, terms, submission))
    });
    while !ranks[0].collective.is_done() {
        let chunks = next_all(&mut ranks);
        assert!(!chunks.is_empty(), "the call does not end");
        for chunk in chunks.iter().rev() {
            aggregate(&mut ranks, chunk);
        }
    }
    assert!(ranks.iter().all(|rank| rank.collective.is_numbered() && rank.collective.is_done()));
    ranks.map(|rank| rank.elements())
}

/// Checks the result with checked maxima, where chunks go ahead, and without.
fn assert_reduced<const N: usize>(op: ReduceOp, tensors: [&[f32]; N], expected: &[f32]) {
    for capabilities in [Capabilities::all(), Capabilities::empty()] {
        for found in reduced(op, tensors, capabilities) {
            let bits = |elements: &[f32]| elements.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(expected), "{found:?}, not {expected:?}");
        }
    }
}

#[test]
fn the_smallest_beside_the_largest() {
    let (infinity, tensor) = (f32::INFINITY, [3e38, -3e38, 1.0]);
    assert_reduced(ReduceOp::Sum, [&tensor; 2], &[infinity, -infinity, 2.0]);
    assert_reduced(ReduceOp::Avg, [&tensor; 2], &tensor);
    // Both values in one tensor each.
    let least = f32::from_bits(1);
    assert_reduced(
        ReduceOp::Sum,
        [&[f32::MAX, 0.0, f32::MAX], &[0.0, least, -f32::MAX], &[0.0, 0.0, -least]],
        &[f32::MAX, least, -least],
    );
    // An average of a third of the smallest is nothing, with its sign; of two thirds it is that.
    assert_reduced(
        ReduceOp::Avg,
        [&[f32::MAX, -least, least], &[f32::MAX, 0.0, least], &[f32::MAX, 0.0, 0.0]],
        &[f32::MAX, -0.0, least],
    );
}

#[test]
fn what_is_not_finite_stays_where_it_is() {
    let (infinity, nan) = (f32::INFINITY, f32::NAN);
    // So many elements that they take several chunks, of which the second has only finite numbers.
    let mut tensors = [vec![1.5f32; 25], vec![-0.25; 25]];
    let mut expected = vec![1.25f32; 25];
    for (place, [first, second], sum) in [
        (0, [infinity, 1.0], infinity),
        (2, [1.0, -infinity], -infinity),
        (3, [infinity, infinity], infinity),
        (4, [infinity, -infinity], nan),
        (5, [-nan, 1.0], nan),
        (22, [nan, infinity], nan),
    ] {
        (tensors[0][place], tensors[1][place], expected[place]) = (first, second, sum);
    }
    assert_reduced(ReduceOp::Sum, [&tensors[0], &tensors[1]], &expected);
    for average in expected.iter_mut().filter(|x| x.is_finite()) {
        *average /= 2.0;
    }
    assert_reduced(ReduceOp::Avg, [&tensors[0], &tensors[1]], &expected);
}
