//! Collectives of several ranks, with the aggregation done by hand.

mod speculation;
mod wide;
mod zeros;

use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::header::Op;

use super::*;
use crate::call::Kind;
use crate::numerics::{DType, Reduction};

const LANES: u16 = 32;

/// A buffer whose elements can be looked at afterwards.
struct Plain(Vec<u8>);

impl Buffer for Plain {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn finish(self: Box<Self>, _: CallStats) {}
}

const SUM: Call = Call { kind: Kind::AllReduce(Reduction::SUM), dtype: DType::F32, count: 0 };

/// A rank in the middle of a call.
struct Rank {
    collective: Collective,
    predictor: Predictor,
}

impl Rank {
    fn new(collective: Collective) -> Self {
        Self { collective, predictor: Predictor::default() }
    }

    fn next(&mut self) -> Option<Chunk> {
        self.collective.next(&self.predictor)
    }

    fn decode(&mut self, part: Part, payload: &[u8]) {
        self.collective.decode(part, payload, &mut self.predictor).unwrap();
    }

    fn elements(&self) -> Vec<f32> {
        self.collective.elements.bytes().chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
    }
}

fn collective(tensor: &[f32], ranks: u32) -> Collective {
    let call = Call { count: tensor.len(), ..SUM };
    let buffer = Box::new(Plain(bytemuck::cast_slice(tensor).to_vec()));
    let terms = Terms { rank: 0, ranks, lanes: LANES, capabilities: Capabilities::all() };
    Collective::new(
        0,
        terms,
        Submission { number: 9, call, codec: call.codec(ranks).unwrap(), first: 0, buffer },
    )
}

/// Ranks in a call with these tensors.
fn ranks<const N: usize>(tensors: [&[f32]; N]) -> [Rank; N] {
    tensors.map(|tensor| Rank::new(collective(tensor, N as u32)))
}

/// All chunks that can be told now; they must be the same on all ranks.
fn next_all(ranks: &mut [Rank]) -> Vec<Chunk> {
    let mut chunks: Vec<Vec<Chunk>> =
        ranks.iter_mut().map(|rank| std::iter::from_fn(|| rank.next()).collect()).collect();
    let first = chunks.pop().unwrap();
    assert!(chunks.iter().all(|other| *other == first), "ranks disagree on the chunks");
    first
}

/// Does the aggregator's part for one chunk.
fn aggregate(ranks: &mut [Rank], chunk: &Chunk) {
    let mut result = vec![0i32; chunk.lanes.into()];
    for (number, rank) in ranks.iter().enumerate() {
        let mut payload = vec![0xFF; 4 * usize::from(chunk.lanes)];
        let sum = rank.collective.encode(chunk.part, &mut payload);
        let lanes = payload.as_chunks::<4>().0.iter().map(|lane| i32::from_be_bytes(*lane));
        assert_eq!(sum, lanes.clone().fold(0u32, |sum, lane| sum.wrapping_add(lane as u32)));
        for (total, lane) in result.iter_mut().zip(lanes) {
            *total = match chunk.op {
                _ if number == 0 => lane,
                Op::Max => lane.max(*total),
                _ => total.wrapping_add(lane),
            };
        }
    }
    let payload: Vec<u8> = result.into_iter().flat_map(i32::to_be_bytes).collect();
    for rank in ranks {
        // If maxima are not checked, they have to be proven.
        if chunk.op == Op::Max && !rank.collective.witnesses.are_done() {
            assert!(rank.collective.accept(chunk.part, &payload));
        }
        rank.decode(chunk.part, &payload);
    }
}

#[test]
fn exponents_first_then_data() {
    // 40 chunks of 32 elements: two exponent chunks, of 32 and 8 exponents; the last data chunk has
    // 5 elements.
    let tensor: Vec<f32> = (0..39 * 32 + 5).map(|i| i as f32 + 1.0).collect();
    let mut ranks = ranks([&tensor, &tensor]);
    let exponents = next_all(&mut ranks);
    let shape: Vec<_> = exponents.iter().map(|chunk| (chunk.part, chunk.op, chunk.lanes)).collect();
    assert_eq!(shape, [0, 1].map(|chunk| (Part::Exponents(chunk), Op::Max, 32)));

    // The result of the second exponent chunk alone lets no data chunk be numbered.
    aggregate(&mut ranks, &exponents[1]);
    assert_eq!(next_all(&mut ranks), []);
    assert!(!ranks[0].collective.is_numbered());
    aggregate(&mut ranks, &exponents[0]);
    let data = next_all(&mut ranks);
    assert_eq!(
        data.iter().map(|chunk| chunk.part).collect::<Vec<_>>(),
        (0..40).map(Part::Data).collect::<Vec<_>>()
    );
    assert!(data.iter().all(|chunk| (chunk.op, chunk.lanes) == (Op::Sum, 32)));
    assert!(ranks[0].collective.is_numbered() && !ranks[0].collective.is_done());

    // Results in any order.
    for chunk in data.iter().rev() {
        aggregate(&mut ranks, chunk);
    }
    let expected: Vec<f32> = tensor.iter().map(|x| 2.0 * x).collect();
    for rank in &ranks {
        assert!(rank.collective.is_done());
        assert_eq!(rank.elements(), expected);
    }
}

#[test]
fn the_first_group_goes_while_the_second_is_unknown() {
    let tensor = vec![1f32; 40 * 32];
    let mut ranks = ranks([&tensor]);
    let exponents = next_all(&mut ranks);
    aggregate(&mut ranks, &exponents[0]);
    assert_eq!(next_all(&mut ranks).len(), 32);
    assert!(!ranks[0].collective.is_numbered());
}

#[test]
fn chunks_of_zeros_and_of_infinities_are_filled_in() {
    // 40 chunks, too many to speculate. Chunk 0: zeros everywhere. 1: zeros on rank 0 alone. 2: an
    // infinity on rank 1. Others: zeros.
    let mut tensors = [vec![0f32; 40 * 32], vec![-0f32; 40 * 32]];
    tensors[1][32..64].fill(0.25);
    tensors[0][64..96].fill(3.0);
    tensors[1][70] = f32::INFINITY;
    let mut ranks = ranks([&tensors[0], &tensors[1]]);
    let exponents = next_all(&mut ranks);
    assert_eq!(exponents.len(), 2);
    exponents.iter().for_each(|chunk| aggregate(&mut ranks, chunk));
    let data = next_all(&mut ranks);
    let parts: Vec<_> = data.iter().map(|chunk| chunk.part).collect();
    assert_eq!(parts, [Part::Data(1)]);
    aggregate(&mut ranks, &data[0]);
    for rank in ranks {
        assert!(rank.collective.is_done());
        let found = rank.elements();
        let (_, stats) = rank.collective.finish();
        assert_eq!(
            (stats.skipped, stats.skipped_bytes),
            (39, 39 * 128),
            "all but one, of 32 elements each"
        );
        assert!(found[..32].iter().chain(&found[96..]).all(|x| x.to_bits() == 0));
        assert_eq!(found[32..64], [0.25; 32]);
        assert!(found[64..96].iter().all(|x| x.is_nan()));
    }
}

#[test]
fn no_elements_no_chunks() {
    let [mut empty] = ranks([&[]]);
    assert!(empty.collective.is_done() && empty.collective.is_numbered());
    assert_eq!(empty.next(), None);
}

#[test]
fn receivers_of_a_broadcast_contribute_zeros() {
    let call = Call { kind: Kind::Broadcast { root: 1 }, dtype: DType::F16, count: 70 };
    let buffer = |byte| Box::new(Plain(vec![byte; 140]));
    let codec = call.codec(2).unwrap();
    let mut ranks = [(0, 7), (1, 201)].map(|(rank, byte)| {
        let terms = Terms { rank, ranks: 2, lanes: LANES, capabilities: Capabilities::all() };
        let submission = Submission { number: 0, call, codec, first: 0, buffer: buffer(byte) };
        Rank::new(Collective::new(0, terms, submission))
    });
    // 140 bytes: 128, then 12 in a packet of one block.
    let chunks = next_all(&mut ranks);
    assert_eq!(chunks.iter().map(|chunk| chunk.lanes).collect::<Vec<_>>(), [32, 32]);
    chunks.iter().for_each(|chunk| aggregate(&mut ranks, chunk));
    assert!(
        ranks.iter().all(|Rank { collective, .. }| collective.is_done()
            && collective.elements.bytes() == [201; 140])
    );
}

/// The parts of similar calls that a shard runs may have different lengths (rule 36.3), and then
/// different numbers of chunks.
#[test]
fn a_longer_part_of_the_same_call_is_predicted_for_itself() {
    let call = Call { count: 1000, ..SUM };
    let terms = Terms { rank: 0, ranks: 1, lanes: LANES, capabilities: Capabilities::all() };
    let mut predictor = Predictor::default();
    for (number, count) in [(0, 20), (1, 30), (2, 20)] {
        let values = vec![1.5f32; count];
        let buffer = Box::new(Plain(bytemuck::cast_slice(&values).to_vec()));
        let codec = call.codec(1).unwrap();
        let submission = Submission { number, call, codec, first: 0, buffer };
        let mut rank = [Rank { collective: Collective::new(number, terms, submission), predictor }];
        let chunks = next_all(&mut rank);
        // 10 elements of three lanes each to a chunk of 32 lanes.
        assert_eq!(chunks.len(), 1 + count / 10, "exponents, and all data chunks behind");
        chunks.iter().for_each(|chunk| aggregate(&mut rank, chunk));
        assert_eq!(rank[0].elements(), values);
        [Rank { predictor, .. }] = rank;
    }
}
