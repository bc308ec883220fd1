//! Hashes of what the codecs make of the same random bits, one for each codec: `cargo run --release
//! -p switchml-worker-core --example codec_bits`.
//!
//! The output is the same on all processors. `cargo xtask package arm64 --check` compares an
//! emulated AArch64, whose vector unit is NEON, with this processor.

use std::hash::{DefaultHasher, Hasher};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use switchml_worker_core::numerics::{Codec, DType, NumericsError, Reduction, SMALL_COUNT};

/// Lanes of a packet that fills a 1500-byte MTU, and of a smaller one; whole blocks of 32.
const LANES: [usize; 2] = [352, 96];
const RANKS: usize = 4;
const ROUNDS: usize = 300;

fn main() -> Result<(), NumericsError> {
    println!("{:<12} {:016x}", "bytes", bits(Codec::bytes()));
    for dtype in DType::ALL {
        for op in Reduction::ALL {
            for count in [SMALL_COUNT, usize::MAX] {
                // Combinations that are not offered have no codec.
                if let Ok(codec) = Codec::reduction(dtype, op, RANKS, count) {
                    let name = format!("{dtype} {op} of {count}");
                    println!("{name:<36} {:016x}", bits(codec));
                }
            }
        }
    }
    Ok(())
}

/// A hash of exponents, payloads and elements.
fn bits(codec: Codec) -> u64 {
    let mut random = StdRng::seed_from_u64(2026);
    let mut hash = DefaultHasher::new();
    for round in 0..ROUNDS {
        let lanes = LANES[round % LANES.len()];
        let codec = codec.at(round as u64, 0, 1);
        let mut elements = vec![0; codec.bytes_per_chunk(lanes)];
        let mut reply = vec![0; 4 * lanes];
        random.fill(&mut elements[..]);
        random.fill(&mut reply[..]);
        if round % 2 == 0 {
            // A float without the highest bit of its exponent is neither an infinity nor a NaN.
            elements.iter_mut().skip(1).step_by(2).for_each(|byte| *byte &= 0xBF);
        }
        let exponent = match codec.uses_exponents() {
            true => codec.exponent(&elements),
            false => 0,
        };
        hash.write_i32(exponent);
        let mut payload = vec![0; 4 * lanes];
        hash.write_u32(codec.encode(&elements, exponent, &mut payload));
        hash.write(&payload);
        codec.decode(&reply, exponent, &mut elements);
        hash.write(&elements);
    }
    hash.finish()
}
