//! N ranks and an aggregator that adds lanes as the protocol says.

use proptest::prelude::*;
use switchml_protocol::wire::header::Op;
use switchml_worker_core::numerics::exponent::{self, Way};
use switchml_worker_core::numerics::{Codec, DType, Reduction, SMALL_COUNT, lane_sum};

pub struct Reduced {
    /// The chunk's global exponent.
    pub exponent: i32,
    /// How the chunk travelled.
    pub way: Way,
    /// The lanes of the aggregator's result: empty when the chunk was skipped.
    pub lanes: Vec<u32>,
    /// Elements, in native byte order.
    pub elements: Vec<u8>,
}

/// Numbers of ranks for every test that can afford a loop: all small numbers, and large ones around
/// powers of two.
pub fn numbers_of_ranks() -> impl Iterator<Item = usize> {
    (1..=64).chain([65, 100, 128, 129, 255, 256, 257, 1000, 1023, 1024])
}

/// Numbers of ranks for random cases, one in twenty large.
pub fn any_ranks() -> impl Strategy<Value = usize> {
    prop_oneof![19 => 1usize..=64, 1 => 65usize..1024, 1 => Just(1024)]
}

/// The codec of a large call.
pub fn large(dtype: DType, op: impl Into<Reduction>, ranks: usize) -> Codec {
    Codec::reduction(dtype, op, ranks, SMALL_COUNT + 1).expect("a reduction that is available")
}

/// The codec of a small call.
pub fn small(dtype: DType, op: impl Into<Reduction>, ranks: usize) -> Codec {
    Codec::reduction(dtype, op, ranks, SMALL_COUNT).expect("a reduction that is available")
}

/// All-reduces one chunk of a large call, given as each rank's elements.
pub fn all_reduce(dtype: DType, op: impl Into<Reduction>, ranks: &[Vec<u8>]) -> Reduced {
    all_reduce_with(large(dtype, op, ranks.len()), ranks)
}

/// All-reduces one chunk, given as each rank's elements.
pub fn all_reduce_with(codec: Codec, ranks: &[Vec<u8>]) -> Reduced {
    if !codec.uses_exponents() {
        return sent_with(codec, 0, Way::Scaled, ranks);
    }
    let global = ranks.iter().map(|r| codec.exponent(r)).max().unwrap_or(exponent::ZERO);
    let least = ranks.iter().map(|r| codec.least_exponent(r)).filter(|e| *e != exponent::ZERO);
    match codec.way(global, least.min().unwrap_or(exponent::ZERO)) {
        Way::Scaled => sent_with(codec, global, Way::Scaled, ranks),
        Way::Wide => sent_with(codec.wide().expect("a wide form"), global, Way::Wide, ranks),
        Way::Skipped => {
            let mut elements = vec![0x55; ranks[0].len()];
            codec.fill_skipped(global, &mut elements);
            Reduced { exponent: global, way: Way::Skipped, lanes: Vec::new(), elements }
        }
    }
}

/// All-reduces one chunk with a given exponent, in a given [`Way`].
pub fn sent_with(codec: Codec, exponent: i32, way: Way, ranks: &[Vec<u8>]) -> Reduced {
    let payloads: Vec<_> = ranks.iter().map(|elements| encode(codec, elements, exponent)).collect();
    let lanes = aggregate(codec.wire_op(), &payloads);
    let mut elements = vec![0x55; ranks[0].len()];
    codec.decode(&to_payload(&lanes), exponent, &mut elements);
    Reduced { exponent, way, lanes, elements }
}

/// One rank's lanes; checks the lane sums and the padding on the way.
pub fn encode(codec: Codec, elements: &[u8], exponent: i32) -> Vec<u32> {
    let lanes = codec.lanes_for(elements.len());
    let mut payload = vec![0xAA; lanes * 4];
    let sum = codec.encode(elements, exponent, &mut payload);
    let lanes = from_payload(&payload);
    let expected = lanes.iter().fold(0u32, |a, b| a.wrapping_add(*b));
    assert_eq!((sum, lane_sum(&payload)), (expected, expected), "lane sum");
    assert!(lanes[codec.used_lanes(elements.len())..].iter().all(|lane| *lane == 0), "padding");
    lanes
}

pub fn aggregate(op: Op, payloads: &[Vec<u32>]) -> Vec<u32> {
    let combine = |a: u32, b: u32| match op {
        Op::Sum => a.wrapping_add(b),
        Op::Max => (a as i32).max(b as i32) as u32,
    };
    let mut lanes = payloads[0].clone();
    for payload in &payloads[1..] {
        lanes.iter_mut().zip(payload).for_each(|(a, b)| *a = combine(*a, *b));
    }
    lanes
}

pub fn to_payload(lanes: &[u32]) -> Vec<u8> {
    lanes.iter().flat_map(|lane| lane.to_be_bytes()).collect()
}

pub fn from_payload(payload: &[u8]) -> Vec<u32> {
    payload.chunks(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).collect()
}
