//! The parts of a call, and the shard that runs each: contiguous parts, cut between bundles.
//!
//! A communicator has a shard of the job for each of its data threads, with separate slots and a
//! separate socket. All ranks must cut in the same way, so the cut depends only on the call, the
//! lanes of a full chunk, and the shards. Parts begin with a chunk, so every element is in the same
//! chunk as without shards, and gets the same exponent and the same bits.

use crate::bundles::HALVES;
use crate::numerics::Codec;
use crate::packet::{LARGEST_DATAGRAM, packet_len};

/// Least full bundles of a part, except the first one: with fewer, waking a thread for it costs
/// more than it saves.
const LEAST_BUNDLES: u64 = 4;

/// A part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The shard that runs it.
    pub shard: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// The shards of a job, which may be at several aggregators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// What each shard takes of a call, in proportion to the others.
    weights: Vec<u32>,
    /// The first shard at each aggregator that takes anything.
    firsts: Vec<usize>,
}

impl Shards {
    /// Rule 36.3: how many shards there are at each aggregator, and its weight. At least one must
    /// have a weight.
    pub fn new(aggregators: &[(usize, u32)]) -> Self {
        let (mut weights, mut firsts) = (Vec::new(), Vec::new());
        for &(shards, weight) in aggregators {
            // 8 shards at most, and a power of two: all at an aggregator have the same weight.
            let weight = weight * 8 / shards.max(1) as u32;
            if shards > 0 && weight > 0 {
                firsts.push(weights.len());
            }
            weights.extend(std::iter::repeat_n(weight, shards));
        }
        assert!(!firsts.is_empty(), "no shard takes anything");
        Self { weights, firsts }
    }

    /// Rules 16.2 and 16.3: the parts of call `number`, of `bytes` bytes, in order.
    pub fn cut(&self, number: u64, bytes: usize, codec: Codec, lanes: u16) -> Vec<Part> {
        let bundle = chunks_per_bundle(lanes.into()) * codec.bytes_per_chunk(lanes.into());
        let bundles = bytes.div_ceil(bundle);
        let shards = self.that_run(number, bundles as u64);
        let all: u64 = shards.iter().map(|shard| self.weight(*shard)).sum();
        let (mut sum, mut begin) = (0, 0);
        let mut parts = Vec::with_capacity(shards.len());
        for shard in shards {
            sum += self.weight(shard);
            // The first shard takes at least one bundle.
            let end = (bundles as u64 * sum / all).max(1) as usize * bundle;
            let end = end.min(bytes);
            parts.push(Part { shard, len: end - begin });
            begin = end;
        }
        parts
    }

    /// The shards that run a call of so many bundles, in the order of its parts. The first does not
    /// depend on the size: ranks with different calls meet there.
    fn that_run(&self, number: u64, bundles: u64) -> Vec<usize> {
        let first = self.firsts[(number % self.firsts.len() as u64) as usize];
        let others = (first + 1..self.weights.len()).chain(0..first);
        let mut shards: Vec<usize> =
            std::iter::once(first).chain(others.filter(|shard| self.weight(*shard) > 0)).collect();
        let mut all: u64 = shards.iter().map(|shard| self.weight(*shard)).sum();
        while let Some((place, weight)) = self.lightest(&shards[1..])
            && bundles * weight < LEAST_BUNDLES * all
        {
            shards.remove(1 + place);
            all -= weight;
        }
        shards
    }

    /// The last of those shards that have the least weight: its place and weight.
    fn lightest(&self, shards: &[usize]) -> Option<(usize, u64)> {
        let weights = shards.iter().map(|shard| self.weight(*shard)).enumerate();
        weights.rev().min_by_key(|(_, weight)| *weight)
    }

    fn weight(&self, shard: usize) -> u64 {
        self.weights[shard].into()
    }
}

/// Chunks of a full bundle where the system sets no lower limit.
pub(crate) fn chunks_per_bundle(lanes: usize) -> usize {
    let most = LARGEST_DATAGRAM / packet_len(lanes);
    most - most % HALVES as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::{DType, ReduceOp};
    use proptest::prelude::*;

    fn sum(dtype: DType) -> Codec {
        Codec::reduction(dtype, ReduceOp::Sum, 4, usize::MAX).unwrap()
    }

    /// 44 chunks of 352 f32.
    const BUNDLE: usize = 44 * 352 * 4;

    fn cut(shards: &Shards, number: u64, bytes: usize) -> Vec<(usize, usize)> {
        let parts = shards.cut(number, bytes, sum(DType::F32), 352);
        parts.into_iter().map(|Part { shard, len }| (shard, len)).collect()
    }

    #[test]
    fn small_calls_stay_whole() {
        let four = Shards::new(&[(4, 1)]);
        for bytes in [0, 4, BUNDLE, 7 * BUNDLE] {
            assert_eq!(cut(&four, 3, bytes), [(0, bytes)]);
        }
        let begun = 7 * BUNDLE + 4;
        assert_eq!(cut(&four, 3, begun), [(0, 4 * BUNDLE), (1, 3 * BUNDLE + 4)]);
        assert_eq!(cut(&Shards::new(&[(1, 1)]), 0, 100 * BUNDLE), [(0, 100 * BUNDLE)]);
        assert_eq!(cut(&Shards::new(&[(8, 3)]), 0, 100 * BUNDLE).len(), 8);
    }

    #[test]
    fn small_calls_go_to_one_aggregator_after_another() {
        // Two shards at each of three aggregators; the second takes nothing.
        let shards = Shards::new(&[(2, 1), (2, 0), (2, 1)]);
        let small = [0, 1, 2, 3].map(|number| cut(&shards, number, BUNDLE));
        assert_eq!(small, [[(0, BUNDLE)], [(4, BUNDLE)], [(0, BUNDLE)], [(4, BUNDLE)]]);
        let large: Vec<_> = cut(&shards, 1, 16 * BUNDLE);
        assert_eq!(large, [4, 5, 0, 1].map(|shard| (shard, 4 * BUNDLE)));
    }

    #[test]
    fn parts_are_as_large_as_weights_say() {
        let shards = Shards::new(&[(1, 1), (1, 3), (1, 6)]);
        let expected = [(0, 10 * BUNDLE), (1, 30 * BUNDLE), (2, 60 * BUNDLE)];
        assert_eq!(cut(&shards, 0, 100 * BUNDLE), expected);
        // A tenth of 30 bundles is too little for a shard, unless it is the call's first.
        assert_eq!(cut(&shards, 1, 30 * BUNDLE), [(1, 10 * BUNDLE), (2, 20 * BUNDLE)]);
        let expected = [(0, 3 * BUNDLE), (1, 9 * BUNDLE), (2, 18 * BUNDLE)];
        assert_eq!(cut(&shards, 3, 30 * BUNDLE), expected);
        let light = Shards::new(&[(1, 1), (1, 1000)]);
        assert_eq!(cut(&light, 0, 30 * BUNDLE), [(0, BUNDLE), (1, 29 * BUNDLE)]);
    }

    proptest! {
        /// All elements are in exactly one part, and in the chunk that they are in without shards;
        /// no shard has two parts; and a call of any size has a part in its first shard.
        #[test]
        fn parts_cover_a_call_and_begin_with_a_bundle(
            count in 0usize..20_000_000,
            dtype in prop::sample::select(vec![DType::F32, DType::F64, DType::F16, DType::I32]),
            blocks in 1u16..=24,
            aggregators in prop::collection::vec((1usize..=4, 0u32..=100), 1..6),
            number in 0u64..10,
        ) {
            prop_assume!(aggregators.iter().any(|(_, weight)| *weight > 0));
            let shards = Shards::new(&aggregators);
            let (lanes, bytes, codec) = (32 * blocks, count * dtype.size(), sum(dtype));
            let parts = shards.cut(number, bytes, codec, lanes);
            let chunk = codec.bytes_per_chunk(lanes.into());
            let bundle = chunk * chunks_per_bundle(lanes.into());
            prop_assert_eq!(parts.iter().map(|part| part.len).sum::<usize>(), bytes);
            let whole = shards.cut(number, 4, codec, lanes);
            prop_assert_eq!((whole.len(), whole[0].shard), (1, parts[0].shard));
            let (last, full) = parts.split_last().unwrap();
            prop_assert!(full.iter().all(|part| part.len % bundle == 0), "{parts:?}");
            // The first part may take one bundle of the second, and the last bundle may be short.
            let least = (LEAST_BUNDLES as usize - 1) * bundle;
            for part in full.iter().skip(1) {
                prop_assert!(part.len >= least, "{parts:?}");
            }
            if !full.is_empty() {
                prop_assert!(parts[0].len > 0 && last.len > least - bundle, "{parts:?}");
            }
            let mut used: Vec<_> = parts.iter().map(|part| part.shard).collect();
            used.sort_unstable();
            used.dedup();
            prop_assert_eq!(used.len(), parts.len());
        }

        /// With equal weights parts differ by one bundle at most.
        #[test]
        fn equal_shards_get_equal_parts(bundles in 1usize..1000, shards in 1usize..=8) {
            let parts = cut(&Shards::new(&[(shards, 7)]), 0, bundles * BUNDLE);
            prop_assert_eq!(parts.len(), shards.min(bundles / 4).max(1));
            let lengths = parts.iter().map(|(_, len)| len / BUNDLE);
            let (least, most) = (lengths.clone().min().unwrap(), lengths.max().unwrap());
            prop_assert!(most - least <= 1, "{parts:?}");
        }
    }
}
