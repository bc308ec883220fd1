//! The parts of a call, and the shard that runs each.
//!
//! A communicator has a shard of the job for each of its data threads at each of the job's
//! aggregators, with separate slots and a separate socket. A call is cut for the aggregators first,
//! by weight, and then for the shards at each. All ranks must cut in the same way, so the cut
//! depends only on the call, the lanes of a full chunk, and the shards. Parts begin with a chunk,
//! so every element is in the same chunk as without shards, and gets the same exponent and the same
//! bits.

use crate::bundles::HALVES;
use crate::call::Kind;
use crate::numerics::Codec;
use crate::packet::{LARGEST_DATAGRAM, packet_len};

/// Least full bundles of a shard's part, except the first one of an aggregator: with fewer, waking
/// a thread for it costs more than it saves.
const LEAST_BUNDLES: usize = 4;

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
    /// Those that take anything, at least one.
    aggregators: Vec<Aggregator>,
    least_part: u64,
    /// The places of all of them, in the order of the ranks that have brought them, if ranks have.
    by_ranks: Option<Vec<usize>>,
}

/// The shards at an aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Aggregator {
    /// Its number among all, also those that take nothing.
    number: usize,
    first: usize,
    shards: usize,
    /// What it takes of a call, in proportion to the others.
    weight: u64,
}

impl Shards {
    /// The shards at each aggregator, how many, and its weight. An aggregator takes at least
    /// `least_part` bytes of lanes of a call, or nothing, except the call's first
    /// ([`crate::stripes::least_part`]). At least one must have shards and a weight.
    pub fn new(aggregators: &[(usize, u32)], least_part: u64) -> Self {
        let mut first = 0;
        let numbered = aggregators.iter().enumerate().map(|(number, &(shards, weight))| {
            first += shards;
            Aggregator { number, first: first - shards, shards, weight: weight.into() }
        });
        let takes_part = |at: &Aggregator| at.shards > 0 && at.weight > 0;
        let aggregators: Vec<_> = numbered.filter(takes_part).collect();
        assert!(!aggregators.is_empty(), "no shard takes anything");
        Self { aggregators, least_part, by_ranks: None }
    }

    /// The same at aggregators that these ranks have brought, as far as they have: calls of which
    /// each rank has a part are cut such that most of a rank's part is added up on its own host.
    pub fn of_peers(mut self, peers: &[Option<u16>]) -> Self {
        let rank =
            |(place, at): (usize, &Aggregator)| Some((peers.get(at.number).copied()??, place));
        let ranks: Option<Vec<_>> = self.aggregators.iter().enumerate().map(rank).collect();
        self.by_ranks = ranks.map(|mut ranks| {
            ranks.sort_unstable();
            ranks.into_iter().map(|(_, place)| place).collect()
        });
        self
    }

    /// Rules 16.2, 16.3 and 36.3: the parts of a call of this kind, of `bytes` bytes, whose turn it
    /// is, in order.
    pub fn cut(&self, turn: u64, kind: Kind, bytes: usize, codec: Codec, lanes: u16) -> Vec<Part> {
        let lanes = usize::from(lanes);
        let chunk = codec.bytes_per_chunk(lanes);
        let chunks = bytes.div_ceil(chunk);
        let (mut parts, mut begin) = (Vec::new(), 0);
        let has_parts = matches!(kind, Kind::ReduceScatter(_) | Kind::AllGather);
        for (at, end) in self.of_aggregators(turn, has_parts, chunks, 4 * lanes) {
            let end = (end * chunk).min(bytes);
            at.cut(end - begin, chunk * chunks_per_bundle(lanes), &mut parts);
            begin = end;
        }
        parts
    }

    /// Rule 36.3: the aggregators that take part in a call of so many chunks, in the order of its
    /// parts, and the chunk behind the part of each.
    fn of_aggregators(
        &self,
        turn: u64,
        has_parts: bool,
        chunks: usize,
        payload: usize,
    ) -> impl Iterator<Item = (Aggregator, usize)> {
        // Two chunks: the first one may take one of the second's.
        let least = self.least_part.max(2 * payload as u64);
        let mut all = self.that_take_part(turn, chunks as u64 * payload as u64, least);
        let takes_all = all.len() == self.aggregators.len();
        if let Some(by_ranks) = self.by_ranks.as_ref().filter(|_| has_parts && takes_all) {
            // A rank that makes another call meets this one at any of them.
            all = by_ranks.iter().map(|place| self.aggregators[*place]).collect();
        }
        let whole: u64 = all.iter().map(|at| at.weight).sum();
        let mut sum = 0;
        all.into_iter().map(move |at| {
            sum += at.weight;
            // The first one takes at least one chunk.
            (at, (chunks as u64 * sum / whole).max(1) as usize)
        })
    }

    /// The aggregators that take `least` or more of so many bytes of lanes. The first does not
    /// depend on the size: ranks with different calls meet there.
    fn that_take_part(&self, turn: u64, bytes: u64, least: u64) -> Vec<Aggregator> {
        let mut all = self.aggregators.clone();
        let first = (turn % all.len() as u64) as usize;
        all.rotate_left(first);
        let mut whole: u64 = all.iter().map(|at| at.weight).sum();
        while let Some((place, weight)) = lightest(&all[1..])
            && bytes * weight < least * whole
        {
            all.remove(1 + place);
            whole -= weight;
        }
        all
    }
}

impl Aggregator {
    /// Rules 16.2 and 16.3: cuts the aggregator's part of a call, of `bytes` bytes.
    fn cut(&self, bytes: usize, bundle: usize, parts: &mut Vec<Part>) {
        let bundles = bytes.div_ceil(bundle);
        let shards = (bundles / LEAST_BUNDLES).clamp(1, self.shards);
        let end = |place: usize| (bundles * place / shards * bundle).min(bytes);
        parts.extend(
            (0..shards)
                .map(|place| Part { shard: self.first + place, len: end(place + 1) - end(place) }),
        );
    }
}

/// The last of those that have the least weight: its place and weight.
fn lightest(aggregators: &[Aggregator]) -> Option<(usize, u64)> {
    let weights = aggregators.iter().map(|at| at.weight).enumerate();
    weights.rev().min_by_key(|(_, weight)| *weight)
}

/// Chunks of a full bundle where the system sets no lower limit.
pub(crate) fn chunks_per_bundle(lanes: usize) -> usize {
    let most = LARGEST_DATAGRAM / packet_len(lanes);
    most - most % HALVES as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::{DType, ReduceOp, Reduction};
    use proptest::prelude::*;

    fn sum(dtype: DType) -> Codec {
        Codec::reduction(dtype, ReduceOp::Sum, 4, usize::MAX).unwrap()
    }

    /// 352 f32.
    const CHUNK: usize = 352 * 4;
    const BUNDLE: usize = 44 * CHUNK;

    fn cut(shards: &Shards, number: u64, bytes: usize) -> Vec<(usize, usize)> {
        cut_of(shards, number, Kind::AllReduce(Reduction::SUM), bytes)
    }

    fn cut_of(shards: &Shards, number: u64, kind: Kind, bytes: usize) -> Vec<(usize, usize)> {
        let parts = shards.cut(number, kind, bytes, sum(DType::F32), 352);
        parts.into_iter().map(|Part { shard, len }| (shard, len)).collect()
    }

    #[test]
    fn small_calls_stay_whole() {
        let four = Shards::new(&[(4, 1)], 0);
        for bytes in [0, 4, BUNDLE, 7 * BUNDLE] {
            assert_eq!(cut(&four, 3, bytes), [(0, bytes)]);
        }
        let begun = 7 * BUNDLE + 4;
        assert_eq!(cut(&four, 3, begun), [(0, 4 * BUNDLE), (1, 3 * BUNDLE + 4)]);
        assert_eq!(cut(&Shards::new(&[(1, 1)], 0), 0, 100 * BUNDLE), [(0, 100 * BUNDLE)]);
        assert_eq!(cut(&Shards::new(&[(8, 3)], 0), 0, 100 * BUNDLE).len(), 8);
    }

    /// Two shards at each of three aggregators; the second takes nothing.
    #[test]
    fn small_calls_go_to_one_aggregator_after_another() {
        let shards = Shards::new(&[(2, 1), (2, 0), (2, 1)], 20 * CHUNK as u64);
        let small = [0, 1, 2, 3].map(|number| cut(&shards, number, 39 * CHUNK));
        assert_eq!(small, [0, 4, 0, 4].map(|shard| [(shard, 39 * CHUNK)]));
        let halves = [0, 1].map(|number| cut(&shards, number, 41 * CHUNK));
        let expected = [[(0, 20 * CHUNK), (4, 21 * CHUNK)], [(4, 20 * CHUNK), (0, 21 * CHUNK)]];
        assert_eq!(halves, expected, "one shard of each");
        let large: Vec<_> = cut(&shards, 1, 16 * BUNDLE);
        assert_eq!(large, [4, 5, 0, 1].map(|shard| (shard, 4 * BUNDLE)));
    }

    #[test]
    fn parts_are_as_large_as_weights_say() {
        let shards = Shards::new(&[(1, 1), (1, 3), (1, 6)], 4 * CHUNK as u64);
        let expected = [(0, 10 * CHUNK), (1, 30 * CHUNK), (2, 60 * CHUNK)];
        assert_eq!(cut(&shards, 0, 100 * CHUNK), expected);
        // A tenth of 30 chunks is too little for an aggregator, unless it is the call's first.
        assert_eq!(cut(&shards, 1, 30 * CHUNK), [(1, 10 * CHUNK), (2, 20 * CHUNK)]);
        let expected = [(0, 3 * CHUNK), (1, 9 * CHUNK), (2, 18 * CHUNK)];
        assert_eq!(cut(&shards, 3, 30 * CHUNK), expected);
        let light = Shards::new(&[(1, 1), (1, 1000)], 4 * CHUNK as u64);
        assert_eq!(cut(&light, 0, 30 * CHUNK), [(0, CHUNK), (1, 29 * CHUNK)]);
    }

    /// Ranks 4, 0 and 2 have brought the aggregators; the one of rank 7 takes nothing.
    #[test]
    fn parts_of_ranks_are_added_up_on_their_hosts() {
        let weights = [(1, 1), (1, 0), (1, 1), (1, 1)];
        let peers = [Some(4), Some(7), Some(0), Some(2)];
        let shards = Shards::new(&weights, 20 * CHUNK as u64).of_peers(&peers);
        let parts = [Kind::AllGather, Kind::ReduceScatter(Reduction::SUM)];
        for (number, kind) in (0..4).flat_map(|number| parts.map(|kind| (number, kind))) {
            let expected = [2, 3, 0].map(|shard| (shard, 30 * CHUNK));
            assert_eq!(cut_of(&shards, number, kind, 90 * CHUNK), expected);
            // If some take nothing, all others take turns.
            let first = [0, 2, 3, 0][number as usize];
            assert_eq!(cut_of(&shards, number, kind, 19 * CHUNK), [(first, 19 * CHUNK)]);
        }
        assert_eq!(cut(&shards, 1, 90 * CHUNK), [2, 3, 0].map(|shard| (shard, 30 * CHUNK)));
        assert_eq!(cut(&shards, 2, 90 * CHUNK), [3, 0, 2].map(|shard| (shard, 30 * CHUNK)));
        // Where one is a daemon, hosts are not known.
        let shards = Shards::new(&weights, 0).of_peers(&[Some(4), None, None, Some(2)]);
        let turned = [2, 3, 0].map(|shard| (shard, 30 * CHUNK));
        assert_eq!(cut_of(&shards, 1, Kind::AllGather, 90 * CHUNK), turned);
        assert_eq!(cut_of(&shards, 0, Kind::AllGather, 90 * CHUNK)[0], (0, 30 * CHUNK));
    }

    proptest! {
        /// All elements are in exactly one part, and in the chunk that they are in without shards;
        /// no shard has two parts, and none an empty one; a call of any size has a part in its
        /// first shard.
        #[test]
        fn parts_cover_a_call_and_begin_with_a_chunk(
            count in 0usize..20_000_000,
            dtype in prop::sample::select(vec![DType::F32, DType::F64, DType::F16, DType::I32]),
            blocks in 1u16..=24,
            aggregators in prop::collection::vec((1usize..=4, 0u32..=100), 1..6),
            least_part in 0u64..200_000,
            number in 0u64..10,
        ) {
            prop_assume!(aggregators.iter().any(|(_, weight)| *weight > 0));
            let shards = Shards::new(&aggregators, least_part);
            let (lanes, bytes, codec) = (32 * blocks, count * dtype.size(), sum(dtype));
            let kind = Kind::AllReduce(Reduction::SUM);
            let parts = shards.cut(number, kind, bytes, codec, lanes);
            let chunk = codec.bytes_per_chunk(lanes.into());
            prop_assert_eq!(parts.iter().map(|part| part.len).sum::<usize>(), bytes);
            let whole = shards.cut(number, kind, 4, codec, lanes);
            prop_assert_eq!((whole.len(), whole[0].shard), (1, parts[0].shard));
            let full = &parts[..parts.len() - 1];
            prop_assert!(full.iter().all(|part| part.len % chunk == 0), "{parts:?}");
            prop_assert!(count == 0 || parts.iter().all(|part| part.len > 0), "{parts:?}");
            let mut used: Vec<_> = parts.iter().map(|part| part.shard).collect();
            used.sort_unstable();
            used.dedup();
            prop_assert_eq!(used.len(), parts.len());
        }

        /// What aggregators take is within a chunk of their weight's share, and all but the first
        /// take what they must at least.
        #[test]
        fn aggregators_take_their_share(
            chunks in 1usize..100_000,
            weights in prop::collection::vec(1u32..=100, 1..12),
            least_part in 0u64..200_000,
        ) {
            let aggregators: Vec<_> = weights.iter().map(|weight| (1, *weight)).collect();
            let shards = Shards::new(&aggregators, least_part);
            let parts = cut(&shards, 0, chunks * CHUNK);
            let whole: u32 = parts.iter().map(|(shard, _)| weights[*shard]).sum();
            for (place, &(shard, len)) in parts.iter().enumerate() {
                let share = f64::from(weights[shard]) / f64::from(whole) * chunks as f64;
                prop_assert!((len as f64 / CHUNK as f64 - share).abs() <= 1.0, "{parts:?}");
                prop_assert!(place == 0 || share * CHUNK as f64 >= least_part as f64 - 1e-3);
            }
        }

        /// With one aggregator parts differ by one bundle at most.
        #[test]
        fn shards_of_an_aggregator_get_equal_parts(bundles in 1usize..1000, shards in 1usize..=8) {
            let parts = cut(&Shards::new(&[(shards, 7)], 0), 0, bundles * BUNDLE);
            prop_assert_eq!(parts.len(), shards.min(bundles / 4).max(1));
            let lengths = parts.iter().map(|(_, len)| len / BUNDLE);
            let (least, most) = (lengths.clone().min().unwrap(), lengths.max().unwrap());
            prop_assert!(most - least <= 1, "{parts:?}");
        }
    }
}
