//! The part of a call that each data thread runs: a contiguous part, cut between bundles.
//!
//! A communicator of several data threads has a shard of the job for each, with separate slots and
//! a separate socket. All ranks must cut in the same way, so the cut depends only on the call, the
//! lanes of a full chunk, and the number of shards. Parts begin with a chunk, so every element is
//! in the same chunk as without shards, and gets the same exponent and the same bits.

use crate::bundles::HALVES;
use crate::numerics::Codec;
use crate::packet::{LARGEST_DATAGRAM, packet_len};

/// Least full bundles of a part: with fewer, waking a thread for it costs more than it saves. So no
/// part is a small float sum, whose chunks go ahead of their exponents.
const LEAST_BUNDLES: usize = 4;

/// Rules 16.2 and 16.3: lengths in bytes of the parts of a call of `bytes` bytes, in order, one for
/// each of the first shards, up to all `shards`.
pub fn cut(bytes: usize, codec: Codec, lanes: u16, shards: usize) -> Vec<usize> {
    let bundle = chunks_per_bundle(lanes.into()) * codec.bytes_per_chunk(lanes.into());
    let bundles = bytes.div_ceil(bundle);
    let parts = shards.min(bundles / LEAST_BUNDLES).max(1);
    let end = |part: usize| (bundles * part / parts * bundle).min(bytes);
    (0..parts).map(|part| end(part + 1) - end(part)).collect()
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
    use crate::phases::speculation;
    use proptest::prelude::*;

    fn sum(dtype: DType) -> Codec {
        Codec::reduction(dtype, ReduceOp::Sum, 4, usize::MAX).unwrap()
    }

    #[test]
    fn small_calls_stay_whole() {
        // 44 chunks of 352 f32.
        let bundle = 44 * 352 * 4;
        for bytes in [0, 4, bundle, 7 * bundle] {
            assert_eq!(cut(bytes, sum(DType::F32), 352, 4), [bytes]);
        }
        assert_eq!(cut(7 * bundle + 4, sum(DType::F32), 352, 4), [4 * bundle, 3 * bundle + 4]);
        assert_eq!(cut(100 * bundle, sum(DType::F32), 352, 1), [100 * bundle]);
        assert_eq!(cut(100 * bundle, sum(DType::F32), 352, 8).len(), 8);
    }

    proptest! {
        /// All elements are in exactly one part, and in the chunk that they are in without shards.
        #[test]
        fn parts_cover_a_call_and_begin_with_a_bundle(
            count in 0usize..20_000_000,
            dtype in prop::sample::select(vec![DType::F32, DType::F64, DType::F16, DType::I32]),
            blocks in 1u16..=24,
            shards in 1usize..=8,
        ) {
            let (lanes, bytes, codec) = (32 * blocks, count * dtype.size(), sum(dtype));
            let parts = cut(bytes, codec, lanes, shards);
            let chunk = codec.bytes_per_chunk(lanes.into());
            let bundle = chunk * chunks_per_bundle(lanes.into());
            prop_assert_eq!(parts.iter().sum::<usize>(), bytes);
            prop_assert!((1..=shards).contains(&parts.len()));
            let (last, full) = parts.split_last().unwrap();
            prop_assert!(full.iter().all(|part| part % bundle == 0), "{parts:?}");
            if !full.is_empty() {
                prop_assert!(full.iter().all(|part| *part >= LEAST_BUNDLES * bundle), "{parts:?}");
                prop_assert!(last.div_ceil(chunk) > speculation::MOST_CHUNKS, "{parts:?}");
                let shortest = full.iter().min().unwrap();
                let longest = full.iter().chain([last]).max().unwrap();
                prop_assert!(longest - shortest <= bundle, "{parts:?}");
            }
        }
    }
}
