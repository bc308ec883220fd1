//! Nothing that arrives makes a codec panic.

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_worker_core::numerics::{Codec, DType, ReduceOp, Reduction, SMALL_COUNT};

proptest! {
    #[test]
    fn any_payload_any_exponent_any_elements(
        lanes in vec(any::<u32>(), 64),
        elements in vec(
            prop_oneof![
                any::<u64>(),
                any::<f64>().prop_map(f64::to_bits),
                Just(f64::NAN.to_bits()),
            ],
            128,
        ),
        exponent in prop_oneof![any::<i32>(), -1200..1200, Just(i32::MIN), Just(i32::MAX)],
        ranks in 1usize..=64,
    ) {
        let codecs = DType::ALL.into_iter().flat_map(|dtype| {
            let both = |op| [(op, SMALL_COUNT), (op, SMALL_COUNT + 1)];
            let ops = Reduction::ALL.into_iter().flat_map(both);
            ops.filter_map(move |(op, count)| Codec::reduction(dtype, op, ranks, count).ok())
        });
        let codecs = codecs.flat_map(|codec| [Some(codec), codec.wide()]).flatten();
        for codec in codecs.chain([Codec::bytes(), Codec::exponents()]) {
            let mut payload = super::cluster::to_payload(&lanes);
            let mut bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let chunk = &mut bytes[..codec.bytes_per_chunk(64)];
            codec.exponent(chunk);
            codec.encode(chunk, exponent, &mut payload);
            let payload = super::cluster::to_payload(&lanes);
            codec.decode(&payload, exponent, chunk);
            codec.fill_skipped(exponent, chunk);
        }
    }
}

#[test]
#[should_panic(expected = "136 bytes of elements for 128 bytes of payload")]
fn too_many_elements_are_the_caller_s_mistake() {
    Codec::exponents().encode(&[0; 136], 0, &mut [0; 128]);
}

#[test]
#[should_panic(expected = "4 bytes of elements for 128 bytes of payload")]
fn so_is_half_an_element() {
    super::cluster::large(DType::F64, ReduceOp::Sum, 2).encode(&[0; 4], 0, &mut [0; 128]);
}
