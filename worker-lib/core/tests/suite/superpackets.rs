//! Packets that go out together: contributions for one audience, whatever combines their lanes
//! (rule 12.12).

use std::convert::Infallible;
use std::time::Duration;

use switchml_protocol::wire::header::Header;
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::{Call, Kind, Submission};
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{Config, Engine, Identity, Keys, Limits};
use switchml_worker_core::packet::len_of;
use switchml_worker_core::wire::Wire;
use switchml_worker_core::{CallStats, DType, Reduction};

const LANES: u16 = 32;

struct Tensor(Vec<u8>);

impl Buffer for Tensor {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn finish(self: Box<Self>, _: CallStats) {}
}

/// The ops of the packets of each superpacket, and of those in the next one.
#[derive(Default)]
struct Superpackets(Vec<Vec<u8>>, Vec<u8>);

impl Wire for Superpackets {
    type Error = Infallible;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Infallible> {
        fill(&mut vec![0; len_of(header)]);
        self.1.push(header.op);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        let packets = std::mem::take(&mut self.1);
        self.0.extend((!packets.is_empty()).then_some(packets));
        Ok(())
    }
}

/// The ops of the superpackets that rank 0 of 2 sends first, of a call.
fn first_turn(kind: Kind, dtype: DType, count: usize) -> Vec<Vec<u8>> {
    let second = Duration::from_secs(1);
    let limits = Limits { deadline: second, timeout: second };
    let identity = Identity { job: 7, epoch: 1, rank: 0, ranks: 2, keys: Keys::NONE };
    let engine = Engine::new(Config::new(identity, 64, LANES, 64, limits));
    let mut data_path = DataPath::new(engine, LANES, 64);
    let call = Call { kind, dtype, count };
    let (codec, buffer) =
        (call.codec(2).unwrap(), Box::new(Tensor(1f32.to_ne_bytes().repeat(count))));
    data_path.submit(Submission { number: 0, call, codec, first: 0, buffer });
    let mut sent = Superpackets::default();
    data_path.turn(0, Others::THERE, &mut sent).unwrap();
    sent.0
}

#[test]
fn exponents_go_out_with_the_data_of_a_small_sum() {
    // A maximum, and two sums of 10 floats at most.
    let sum = Kind::AllReduce(Reduction::SUM);
    assert_eq!(first_turn(sum, DType::F32, 12), [[1, 0, 0]]);
}

#[test]
fn each_part_of_a_reduce_scatter_goes_out_alone() {
    let ops = first_turn(Kind::ReduceScatter(Reduction::SUM), DType::I32, 128);
    assert_eq!(ops, [[64; 2], [65; 2]]);
}
