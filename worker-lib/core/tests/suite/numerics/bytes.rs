//! Broadcast, sizes, and alignment.

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::wire::header::Op;
use switchml_worker_core::numerics::{Codec, DType, ReduceOp, Reduction, lane_sum};

use super::cluster::{aggregate, encode, large, small, to_payload};

proptest! {
    #[test]
    fn broadcast_delivers_the_root_s_bytes(
        sent in vec(any::<u8>(), 1..3072),
        ranks in 1usize..=64,
        root in any::<prop::sample::Index>(),
    ) {
        let codec = Codec::bytes();
        let lanes = codec.lanes_for(sent.len());
        let root = root.index(ranks);
        let payloads: Vec<_> = (0..ranks)
            .map(|rank| if rank == root { encode(codec, &sent, 0) } else { vec![0; lanes] })
            .collect();
        let mut received = vec![0; sent.len()];
        codec.decode(&to_payload(&aggregate(Op::Sum, &payloads)), 0, &mut received);
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn a_rank_without_elements_sends_zeros(lanes in 0usize..=768) {
        let mut payload = vec![0xFF; lanes * 4];
        prop_assert_eq!(Codec::bytes().encode(&[], 0, &mut payload), 0);
        prop_assert!(payload.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn lane_sum_wraps(lanes in vec(any::<u32>(), 0..800)) {
        let expected = (lanes.iter().map(|lane| u64::from(*lane)).sum::<u64>() % (1 << 32)) as u32;
        prop_assert_eq!(lane_sum(&to_payload(&lanes)), expected);
    }

    /// Tensors may start at any address.
    #[test]
    fn alignment_does_not_matter(source in vec(any::<u8>(), 200 * 8 + 8), shift in 0usize..8) {
        for dtype in DType::ALL {
            let codec = large(dtype, ReduceOp::Sum, 3);
            let bytes = 200 * dtype.size();
            let shifted = &source[shift..shift + bytes];
            let word = |c: &[u8]| std::array::from_fn(|i| c.get(i).copied().unwrap_or(0));
            let copied: Vec<u64> =
                shifted.chunks(8).map(|c| u64::from_ne_bytes(word(c))).collect();
            let aligned = &bytemuck::cast_slice(&copied)[..bytes];
            prop_assert_eq!(codec.exponent(shifted), codec.exponent(aligned));
            prop_assert_eq!(encode(codec, shifted, 3), encode(codec, aligned, 3));
        }
    }
}

#[test]
fn sizes() {
    // 3 lanes an element.
    let codec = large(DType::I64, ReduceOp::Sum, 4);
    assert_eq!((codec.bytes_per_chunk(352), codec.lanes_for(8 * 11)), (8 * 117, 64));
    for (dtype, bytes_per_lane) in
        [(DType::F32, 4), (DType::F64, 4), (DType::F16, 2), (DType::Bf16, 2), (DType::I32, 4)]
    {
        let codec = large(dtype, ReduceOp::Sum, 4);
        assert_eq!(codec.bytes_per_chunk(352), 352 * bytes_per_lane, "{dtype}");
        assert_eq!(codec.bytes_per_chunk(352), 352 / dtype.lanes() * dtype.size(), "{dtype}");
        assert_eq!(codec.lanes_for(0), 0);
        assert_eq!(codec.lanes_for(dtype.size()), 32);
        assert_eq!(codec.lanes_for(32 * bytes_per_lane), 32);
        assert_eq!(codec.lanes_for(33 * bytes_per_lane), 64);
    }
    // Three lanes an element: 117 elements in 351 lanes, 10 in 30, 21 in 63.
    for (dtype, size) in [(DType::F32, 4), (DType::F16, 2), (DType::Bf16, 2)] {
        for op in [ReduceOp::Sum, ReduceOp::Avg] {
            let codec = small(dtype, op, 4);
            assert_eq!(
                [352, 32, 64].map(|lanes| codec.bytes_per_chunk(lanes)),
                [117 * size, 10 * size, 21 * size]
            );
            assert_eq!(
                [1, 10, 11, 21, 22].map(|count| codec.lanes_for(count * size)),
                [32, 32, 64, 64, 96],
                "{dtype}"
            );
        }
    }
    // A lane has two elements, in whole blocks: the packet's number of lanes decides where an
    // element lies.
    let packed = large(DType::F32, Reduction::SUM16, 4);
    assert_eq!([352, 32].map(|lanes| packed.bytes_per_chunk(lanes)), [704 * 4, 64 * 4]);
    assert_eq!([1, 64, 65, 704].map(|count| packed.lanes_for(count * 4)), [32, 32, 64, 352]);
    assert_eq!((Codec::bytes().lanes_for(128), Codec::bytes().lanes_for(129)), (32, 64));
}

/// A call of up to 1024 elements is small, whatever their size; only f32, f16 and bf16 travel
/// differently then.
#[test]
fn what_a_small_call_is() {
    for (dtype, op) in DType::ALL.into_iter().flat_map(|dtype| Reduction::ALL.map(|op| (dtype, op)))
    {
        let of = |count| Codec::reduction(dtype, op, 4, count);
        let is_wider = matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
            && matches!(op, Reduction::SUM | Reduction::AVG);
        assert!([0, 1, 1023].iter().all(|&count| of(count) == of(1024)), "{op} of {dtype}");
        assert_eq!(of(1025), of(usize::MAX), "{op} of {dtype}");
        assert_eq!(of(1024) != of(1025), is_wider, "{op} of {dtype}");
    }
}

#[test]
fn what_the_aggregator_does_and_what_needs_exponents() {
    for dtype in DType::ALL {
        for op in Reduction::ALL {
            if let Ok(codec) = Codec::reduction(dtype, op, 4, 1) {
                let sums = matches!(op.op, ReduceOp::Sum | ReduceOp::Avg);
                let wire_op = if sums { Op::Sum } else { Op::Max };
                assert_eq!(codec.wire_op(), wire_op);
                let scales = sums && !matches!(dtype, DType::I32 | DType::I64);
                assert_eq!(codec.uses_exponents(), scales);
            }
        }
    }
    assert_eq!((Codec::bytes().wire_op(), Codec::exponents().wire_op()), (Op::Sum, Op::Max));
    assert!(!Codec::bytes().uses_exponents() && !Codec::exponents().uses_exponents());
}
