//! Measures a worker's data path without its I/O, on one core: `cargo run --release -p
//! switchml-worker-core --example data_path_speed`.
//!
//! One rank reduces 16 MiB of f32 over and over; the packets of each turn are made into their own
//! results. ns per chunk of each step, best of several runs.

#![expect(clippy::disallowed_methods, reason = "measures time")]

use std::convert::Infallible;
use std::ops::Range;
use std::time::{Duration, Instant};

use switchml_protocol::EVERYONE;
use switchml_protocol::wire::header::{Header, Kind};
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::{Call, Kind as CallKind, Submission};
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{Config, Engine, Identity, Keys, Limits};
use switchml_worker_core::packet::len_of;
use switchml_worker_core::wire::Wire;
use switchml_worker_core::{CallStats, DType, Reduction};
use zerocopy::FromBytes;

/// The library's module.
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

/// The packets of a turn, in memory that is written over and over.
#[derive(Default)]
struct Packets {
    bytes: Vec<u8>,
    /// Where each packet ends.
    ends: Vec<usize>,
}

impl Wire for Packets {
    type Error = Infallible;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Infallible> {
        let start = self.ends.last().copied().unwrap_or_default();
        let end = start + len_of(header);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        fill(&mut self.bytes[start..end]);
        self.ends.push(end);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Time spent in each step.
#[derive(Default)]
struct Spent {
    send: Duration,
    receive: Duration,
    chunks: u32,
}

fn main() {
    let runs = (0..REPEATS).map(|_| run());
    let best = runs.min_by_key(Spent::total).unwrap_or_default();
    let each = |spent: Duration| spent.as_nanos() as f64 / f64::from(best.chunks);
    println!(
        "{} chunks of {LANES} lanes, ns each: send {:.0}, receive {:.0}, all {:.0}",
        best.chunks,
        each(best.send),
        each(best.receive),
        each(best.total())
    );
}

impl Spent {
    fn total(&self) -> Duration {
        self.send + self.receive
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
    let (mut packets, mut spent) = (Packets::default(), Spent::default());
    while !data_path.is_idle() {
        let start = Instant::now();
        data_path.turn(now(), Others::THERE, &mut packets).expect("all is answered");
        spent.send += start.elapsed();

        let Packets { bytes, ends } = &mut packets;
        let mut start = 0;
        for end in &*ends {
            let (header, _) =
                Header::mut_from_prefix(&mut bytes[start..*end]).expect("room for a header");
            header.kind = Kind::Result as u8;
            header.rank.set(EVERYONE);
            start = *end;
        }
        let (begin, time, mut start) = (Instant::now(), now(), 0);
        for end in &*ends {
            data_path.receive(time, &bytes[start..*end], false).expect("all is right");
            start = *end;
        }
        spent.receive += begin.elapsed();
        spent.chunks += ends.len() as u32;
        ends.clear();
        data_path.give_back();
    }
    spent
}
