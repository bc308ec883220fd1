//! Ranks send exactly what docs/spec shows: the two calls there, byte by byte. The bytes
//! come from a generator that shares no code with the worker.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use switchml_protocol::wire::header::{Header, Kind as Packet};
use switchml_rack::vectors::{Event, Vector};
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::{Call, Kind, Submission};
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{Config, Engine, Identity, Keys, Limits};
use switchml_worker_core::{CallStats, DType, Reduction};
use zerocopy::FromBytes;

const ENVELOPE: usize = 14 + 20 + 8;
const LIMITS: Limits = Limits { deadline: Duration::from_secs(1), timeout: Duration::from_secs(1) };
const LANES: u16 = 32;
const SLOTS: u16 = 4;
const INTEGERS: [[i32; 3]; 2] = [[1, 2, 3], [10, -20, 30]];
const FLOATS: [[f32; 12]; 2] = [
    [0.001, 5e6, 1.0, 3.7, 12345678.0, -1.0, 0.5, 100.0, -0.25, 7.0, 1.5, -2.0],
    [0.002, 1.0, -1.0, 2.3, 8388608.0, 1.0, 0.25, -100.0, 0.125, 3.0, 0.75, 0.5],
];

/// Elements that come back into a place where they can be looked at.
struct Tensor(Vec<u8>, Arc<Mutex<Vec<u8>>>);

impl Buffer for Tensor {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn finish(self: Box<Self>, _: CallStats) {
        *self.1.lock().unwrap() = self.0;
    }
}

struct Rank {
    data_path: DataPath,
    /// Packets of its last turn that were not taken yet.
    sent: VecDeque<Vec<u8>>,
    /// The results of the two calls.
    results: [Arc<Mutex<Vec<u8>>>; 2],
}

impl Rank {
    fn new(rank: u16) -> Self {
        let identity = Identity { job: 7, epoch: 0x0102_0304, rank, ranks: 2, keys: Keys::NONE };
        let config = Config::new(identity, SLOTS, LANES, 64, LIMITS);
        let (mut data_path, results) =
            (DataPath::new(Engine::new(config), LANES, 1), <[Arc<Mutex<_>>; 2]>::default());
        let integers: Vec<u8> =
            INTEGERS[usize::from(rank)].into_iter().flat_map(i32::to_ne_bytes).collect();
        let floats: Vec<u8> =
            FLOATS[usize::from(rank)].into_iter().flat_map(f32::to_ne_bytes).collect();
        let calls = [(DType::I32, 3, integers), (DType::F32, 12, floats)];
        for ((number, (dtype, count, elements)), result) in (0..).zip(calls).zip(&results) {
            let call = Call { kind: Kind::AllReduce(Reduction::SUM), dtype, count };
            let (codec, buffer) =
                (call.codec(2).unwrap(), Box::new(Tensor(elements, Arc::clone(result))));
            data_path.submit(Submission { number, call, codec, first: 0, buffer });
        }
        Self { data_path, sent: VecDeque::new(), results }
    }

    /// The next packet that the rank sends.
    fn next(&mut self) -> Option<Vec<u8>> {
        if self.sent.is_empty() {
            let mut packets = Vec::new();
            self.data_path.turn(0, Others::THERE, &mut packets).unwrap();
            self.sent.extend(packets);
        }
        self.sent.pop_front()
    }
}

#[test]
fn packets_are_those_of_the_specification() {
    let text = include_str!("../../../../tests/vectors/worked_example.vector");
    let vector = Vector::parse("worked_example", text).unwrap();
    let mut ranks = [0, 1].map(Rank::new);
    let mut results = 0;
    for event in &vector.events {
        let Event::Step(step) = event else { continue };
        let mut expected = step.frame[ENVELOPE..].to_vec();
        let (header, _) = Header::mut_from_prefix(&mut expected).unwrap();
        if header.kind == Packet::Hello as u8 {
            continue;
        }
        let rank = &mut ranks[usize::from(header.rank.get())];
        let packet = rank.next().expect("a packet");
        // The aux is the sender's own choice.
        header.aux = Header::ref_from_prefix(&packet).unwrap().0.aux;
        assert_eq!(packet, expected, "{}", step.title);
        if let Some(answer) = &step.expected[0].answer {
            let result = &answer.frame()[ENVELOPE..];
            ranks.iter_mut().for_each(|rank| rank.data_path.receive(0, result, false).unwrap());
            results += 1;
        }
    }
    assert_eq!(results, 5, "the integers, exponents, two data chunks ahead, one of them once more");
    for rank in &mut ranks {
        assert!(rank.next().is_none(), "there is more than the page has");
        rank.data_path.give_back();
        assert!(rank.data_path.is_idle());
        let [integers, floats] =
            rank.results.each_ref().map(|result| result.lock().unwrap().clone());
        assert_eq!(integers, [11, -18, 33].map(i32::to_ne_bytes).as_flattened());
        // The true sums, rounded once: f64 holds them.
        let sums: Vec<u8> = FLOATS[0]
            .iter()
            .zip(FLOATS[1])
            .flat_map(|(a, b)| ((f64::from(*a) + f64::from(b)) as f32).to_ne_bytes())
            .collect();
        assert_eq!(floats, sums);
    }
}
