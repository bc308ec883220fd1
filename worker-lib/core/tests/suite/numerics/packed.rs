//! f16 and bf16 in 16 and 8 bits: the lanes of the same numbers as f32, and results rounded once.
//! And chunks in 8 bits as long as packets can be.

use half::{bf16, f16};
use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::wire::header::Op;
use switchml_worker_core::numerics::{Codec, DType, Reduction, exponent};

use super::cluster::{aggregate, encode, to_payload};

/// A type of 16 bits: its largest finite magnitude, as bits, and 2 to the power of half a unit in
/// the last place: of 1, and of the smallest numbers.
#[derive(Clone, Copy, Debug)]
struct Half {
    dtype: DType,
    largest: u16,
    relative: i32,
    absolute: i32,
}

const HALVES: [Half; 2] = [
    Half { dtype: DType::F16, largest: 0x7BFF, relative: -11, absolute: -25 },
    Half { dtype: DType::Bf16, largest: 0x7F7F, relative: -8, absolute: -134 },
];
const PACKED: [Reduction; 4] =
    [Reduction::SUM16, Reduction::AVG16, Reduction::SUM8, Reduction::AVG8];

impl Half {
    fn value(self, bits: u16) -> f32 {
        match self.dtype {
            DType::F16 => f16::from_bits(bits).to_f32(),
            _ => bf16::from_bits(bits).to_f32(),
        }
    }

    /// Whether `bits` is as near to `x`, which was itself rounded to f32, as the nearest number may
    /// be.
    fn is_near(self, bits: u16, x: f32) -> bool {
        let (found, x) = (f64::from(self.value(bits)), f64::from(x));
        let half_unit = (x.abs() * 2f64.powi(self.relative)).max(2f64.powi(self.absolute));
        // The number after the largest one would be a power of two.
        let next = 2f64.powi(f64::from(self.value(self.largest)).log2().floor() as i32 + 1);
        let found = if found.is_infinite() { next.copysign(found) } else { found };
        (found - x.clamp(-next, next)).abs() <= half_unit * 1.001
    }
}

/// The elements of ranks, as bits of finite numbers.
fn tensors() -> impl Strategy<Value = (Half, Reduction, Vec<Vec<u16>>)> {
    let kinds = (0..2usize, 0..4usize, 1..=64usize, 1..400usize, 0..3);
    kinds.prop_flat_map(|(half, reduction, ranks, count, kind)| {
        let half = HALVES[half];
        let bits = any::<u16>().prop_map(move |bits| match kind {
            // Any; of like magnitudes; below the normal numbers.
            0 => bits & 0x8000 | (bits & 0x7FFF).min(half.largest),
            1 => bits & 0x807F | 0x3C00,
            _ => bits & 0x807F,
        });
        (Just(half), Just(PACKED[reduction]), vec(vec(bits, count), ranks))
    })
}

proptest! {
    #[test]
    fn lanes_are_those_of_f32_and_results_are_rounded_once(
        (half, reduction, ranks) in tensors(),
        call in any::<u64>(),
    ) {
        let codec = |dtype, rank| {
            let codec = Codec::reduction(dtype, reduction, ranks.len(), 5000).expect("offered");
            codec.at(call, 1 << 33, rank as u32)
        };
        let bytes = |rank: &[u16]| rank.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>();
        let wide = |rank: &[u16]| {
            rank.iter().flat_map(|x| half.value(*x).to_ne_bytes()).collect::<Vec<_>>()
        };
        let mut largest = i32::MIN;
        for (rank, elements) in ranks.iter().enumerate() {
            let own = codec(half.dtype, rank).exponent(&bytes(elements));
            prop_assert_eq!(own, codec(DType::F32, rank).exponent(&wide(elements)));
            largest = largest.max(own);
        }
        if exponent::is_marker(largest) {
            return Ok(());
        }
        let mut payloads = Vec::new();
        for (rank, elements) in ranks.iter().enumerate() {
            let lanes = encode(codec(half.dtype, rank), &bytes(elements), largest);
            prop_assert_eq!(&lanes, &encode(codec(DType::F32, rank), &wide(elements), largest));
            payloads.push(lanes);
        }
        let payload = to_payload(&aggregate(Op::Sum, &payloads));
        let mut found = vec![0; 2 * ranks[0].len()];
        codec(half.dtype, 0).decode(&payload, largest, &mut found);
        let mut expected = vec![0; 4 * ranks[0].len()];
        codec(DType::F32, 0).decode(&payload, largest, &mut expected);
        for (found, expected) in found.as_chunks().0.iter().zip(expected.as_chunks().0) {
            let (found, expected) = (u16::from_ne_bytes(*found), f32::from_ne_bytes(*expected));
            prop_assert!(half.is_near(found, expected), "{:04x} for {}", found, expected);
        }
    }
}

/// Elements that rise along the chunk, so that none is where another belongs.
#[test]
fn the_longest_chunks_in_8_bits() {
    for lanes in [320, 512, 544, 704, 768] {
        let chunk: Vec<f32> = (0..4 * lanes).map(|i| 1.0 + i as f32 / 1000.0).collect();
        let bytes: &[u8] = bytemuck::cast_slice(&chunk);
        let codec = |rank| {
            let codec = Codec::reduction(DType::F32, Reduction::SUM8, 2, 5000).expect("offered");
            codec.at(3, 0, rank)
        };
        let exponent = codec(0).exponent(bytes);
        let payloads = [0, 1].map(|rank| encode(codec(rank), bytes, exponent));
        let mut result = vec![0f32; chunk.len()];
        let sums = to_payload(&aggregate(Op::Sum, &payloads));
        codec(0).decode(&sums, exponent, bytemuck::cast_slice_mut(&mut result));
        // N * B / K for each element, and by sqrt(128) less for their root mean square.
        let limit = 2f64.powi(exponent.div_euclid(16))
            * (1.0 + f64::from(exponent.rem_euclid(16) + 1) / 16.0);
        let bound = 1.01 * 2.0 * limit / 127.0;
        let errors: Vec<f64> =
            result.iter().zip(&chunk).map(|(sum, x)| f64::from(sum - 2.0 * x).abs()).collect();
        assert!(errors.iter().all(|error| *error <= bound), "{lanes} lanes");
        let squares: f64 = errors.iter().map(|error| error * error).sum();
        let mean = (squares / errors.len() as f64).sqrt();
        assert!(mean <= bound / 128f64.sqrt(), "{lanes} lanes: {mean}");
    }
}
