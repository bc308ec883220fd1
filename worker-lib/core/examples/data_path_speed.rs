//! Measures a worker's data path without its I/O, on one core: `cargo run --release -p
//! switchml-worker-core --example data_path_speed`.
//!
//! One rank reduces 16 MiB of f32 over and over; each batch of packets is turned into its own
//! results. ns per chunk of each step, best of several runs.

#![expect(clippy::disallowed_types, reason = "measures time")]

use std::ops::Range;
use std::time::{Duration, Instant};

use switchml_protocol::EVERYONE;
use switchml_protocol::header::{HEADER_LEN, Header, Kind};
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::{Call, Kind as CallKind, Submission};
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{Config, Engine, Identity, Keys, Limits};
use switchml_worker_core::{CallStats, DType, Reduction};
use zerocopy::FromBytes;

/// As in the library.
#[path = "../../src/prefetch.rs"]
mod prefetch;

/// Lanes of a packet that fills a 1500-byte MTU, and packets of that size in a superpacket.
const LANES: u16 = 352;
const BATCH: u32 = 45;
const SLOTS: u16 = 512;
const TENSOR: usize = 16 << 20;
const REPEATS: usize = 20;

/// Elements that the benchmark gets back by dropping them.
struct Elements(Vec<u8>);

impl Buffer for Elements {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn prefetch(&self, bytes: Range<usize>) {
        prefetch::prefetch(&self.0[bytes]);
    }

    fn finish(self: Box<Self>, _: CallStats) {}
}

/// Time spent in each step.
#[derive(Default)]
struct Spent {
    next: Duration,
    fill: Duration,
    receive: Duration,
    chunks: u32,
}

fn main() {
    let runs = (0..REPEATS).map(|_| run());
    let best = runs.min_by_key(Spent::total).unwrap_or_default();
    let each = |spent: Duration| spent.as_nanos() as f64 / f64::from(best.chunks);
    println!(
        "{} chunks of {LANES} lanes, ns each: next {:.0}, fill {:.0}, receive {:.0}, all {:.0}",
        best.chunks,
        each(best.next),
        each(best.fill),
        each(best.receive),
        each(best.total())
    );
}

impl Spent {
    fn total(&self) -> Duration {
        self.next + self.fill + self.receive
    }
}

fn run() -> Spent {
    let identity = Identity { job: 0, epoch: 1, rank: 0, ranks: 1, keys: Keys::NONE };
    let mut data_path = DataPath::new(
        Engine::new(Config::new(identity, SLOTS, LANES, u32::MAX, Limits::default())),
        LANES,
        BATCH,
    );
    let call =
        Call { kind: CallKind::AllReduce(Reduction::SUM), dtype: DType::F32, count: TENSOR / 4 };
    let codec = call.codec(1).expect("a sum of f32 is offered");
    let elements: Vec<u8> =
        (0..call.count).flat_map(|i| ((i % 20_011) as f32 / 100.0).to_ne_bytes()).collect();
    data_path.submit(Submission {
        number: 0,
        call,
        codec,
        first: 0,
        buffer: Box::new(Elements(elements)),
    });

    let begin = Instant::now();
    let now = || begin.elapsed().as_nanos() as u64;
    let packet_len = HEADER_LEN + 4 * usize::from(LANES);
    let mut packets = vec![0; 2 * BATCH as usize * packet_len];
    let (mut transmissions, mut spent) = (Vec::new(), Spent::default());
    while !data_path.is_idle() {
        let start = Instant::now();
        // As in the driver, one look at the clock a turn.
        let time = now();
        data_path.begin_turn(time, Others::THERE).expect("all is answered");
        while transmissions.len() < 2 * BATCH as usize
            && let Some(transmission) = data_path.next(time)
        {
            transmissions.push(transmission);
        }
        spent.next += start.elapsed();

        let start = Instant::now();
        for (transmission, packet) in transmissions.iter().zip(packets.chunks_exact_mut(packet_len))
        {
            data_path.fill(transmission, &mut packet[..transmission.packet_len()]);
        }
        spent.fill += start.elapsed();

        for packet in packets.chunks_exact_mut(packet_len).take(transmissions.len()) {
            let (header, _) = Header::mut_from_prefix(packet).expect("there is room for a header");
            header.kind = Kind::Result as u8;
            header.rank.set(EVERYONE);
        }
        let (start, time) = (Instant::now(), now());
        for (transmission, packet) in transmissions.iter().zip(packets.chunks_exact(packet_len)) {
            data_path
                .receive(time, &packet[..transmission.packet_len()], false)
                .expect("all is right");
        }
        spent.receive += start.elapsed();
        spent.chunks += transmissions.len() as u32;
        transmissions.clear();
        data_path.give_back();
    }
    spent
}
