//! An aggregator, engines and a bad network between them, all in memory; a seed reproduces
//! everything.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use switchml_protocol::bpf_types::job::{self, Binding, JobEntry, MemberEntry};
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::packet::Packet;
use switchml_protocol::root::admission::{Members, Tables, serve};
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::audience::Audience;
use switchml_protocol::wire::header::{HEADER_LEN, Header, Op};
use switchml_protocol::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::super::*;

pub const JOB: u16 = 3;
pub const EPOCH: u32 = 0xE90C;
/// Time a packet takes without delay, in ns.
pub const HOP: u64 = 20_000;
const LANES: u16 = 32;

pub fn config(ranks: u16, rank: u16, slots: u16) -> Config {
    Config {
        identity: Identity { job: JOB, epoch: EPOCH, rank, ranks, keys: Keys::NONE },
        slots,
        capabilities: Capabilities::all(),
        window: WindowLimits {
            initial: 16,
            maximum: 64.min(u32::from(slots) / 2),
            waiting: u32::MAX,
        },
        rtt: RttLimits { initial: 1_000_000, packet: 0, floor: 300_000, ceiling: 20_000_000 },
        reordering: 50_000,
        deadline: 1_000_000_000,
        timeout: 3_000_000_000,
    }
}

pub fn chunk(index: usize) -> Chunk {
    let op = if index % 5 == 4 { Op::Max } else { Op::Sum };
    Chunk {
        collective: 0,
        part: Part::Data(index),
        op,
        audience: Audience::All,
        lanes: LANES,
        fingerprint: 0xF19,
        empty: false,
        may_wait: false,
    }
}

fn index_of(chunk: &Chunk) -> usize {
    let Part::Data(index) = chunk.part else { unreachable!("there are data chunks alone") };
    index
}

/// A lane of `rank`: large enough to wrap when summed.
fn value(rank: u16, index: usize, lane: u32) -> i32 {
    (u32::from(rank) + 1).wrapping_mul(0x1F00_0001).wrapping_add(index as u32 * 7919 + lane * 31)
        as i32
}

/// The lane that all ranks must get.
fn expected(ranks: u16, index: usize, lane: u32) -> i32 {
    let values = (0..ranks).map(|rank| value(rank, index, lane));
    match chunk(index).op {
        Op::Max => values.max().unwrap(),
        _ => values.fold(0, i32::wrapping_add),
    }
}

/// The packet of a transmission by `rank`.
pub fn packet(rank: u16, transmission: &Transmission) -> Vec<u8> {
    let Transmission { mut header, chunk, .. } = *transmission;
    let lanes: Vec<U32> = (0..u32::from(chunk.lanes))
        .map(|lane| U32::new(value(rank, index_of(&chunk), lane) as u32))
        .collect();
    let sum = lanes.iter().fold(0u32, |sum, lane| sum.wrapping_add(lane.get()));
    header.check.set(header.check_of(sum, 1));
    [header.as_bytes(), lanes.as_bytes()].concat()
}

/// The real aggregator over plain memory.
pub struct Switch {
    job: Cell<JobEntry>,
    slots: RefCell<Vec<Slot>>,
}

impl Switch {
    pub fn new(ranks: u16, slots: u16) -> Self {
        let job = JobEntry {
            state: job::OPEN,
            epoch: EPOCH,
            ranks: ranks.into(),
            first_slot: 0,
            slots: slots.into(),
            ..JobEntry::default()
        };
        Self { job: Cell::new(job), slots: RefCell::new(vec![Slot::default(); slots.into()]) }
    }

    pub fn abort(&self) {
        self.job.set(JobEntry { state: job::ABORTED, ..self.job.get() });
    }

    /// Serves a packet of `rank`'s: the answer, and whether it goes to all.
    pub fn serve(&self, rank: u16, packet: &[u8]) -> Option<(bool, Vec<u8>)> {
        let (mut header, _) = Header::read_from_prefix(packet).unwrap();
        let mut payload = <[U32]>::ref_from_bytes(&packet[HEADER_LEN..]).unwrap().to_vec();
        let len = packet.len() - HEADER_LEN;
        let outcome =
            serve(self, &binding(rank), &mut Packet::new(&mut header, &mut payload[..], len));
        let answer =
            || [header.as_bytes(), payload[..header.payload_lanes().into()].as_bytes()].concat();
        match outcome.action() {
            Action::Broadcast => Some((true, answer())),
            Action::Reply => Some((false, answer())),
            Action::Drop => None,
            Action::Pass | Action::Up | Action::Down => panic!("{outcome:?}"),
        }
    }
}

fn binding(rank: u16) -> Binding {
    Binding { port: U16::new(rank), ..Binding::default() }
}

impl Members for Switch {
    fn job(&self, number: u16) -> Option<JobEntry> {
        (number == JOB).then(|| self.job.get())
    }

    fn member(&self, _: u16, rank: u16) -> Option<MemberEntry> {
        Some(MemberEntry { epoch: EPOCH, binding: binding(rank), ..MemberEntry::default() })
    }

    fn learn(&self, _: u16, _: u16, _: u32, _: &Binding) {}
}

impl Tables for Switch {
    fn with_slot(&self, index: u32, f: impl FnOnce(&mut Slot) -> Outcome) -> Outcome {
        self.slots.borrow_mut().get_mut(index as usize).map_or(Outcome::BadSlot, f)
    }
}

/// The faults of the network.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Per mille of packets lost.
    pub loss: u64,
    /// Per mille of packets that arrive twice.
    pub duplication: u64,
    /// Longest extra delay, in ns.
    pub jitter: u64,
    pub seed: u64,
}

pub const FAIR: Weather = Weather { loss: 0, duplication: 0, jitter: 0, seed: 1 };

/// A rank: its engine and its chunks.
pub struct Worker {
    pub engine: Engine,
    rank: u16,
    /// Number of chunks to send, and of those sent.
    chunks: usize,
    sent: usize,
    pub results: usize,
    /// The rank takes part from this time on.
    starts_at: u64,
    pub failure: Option<(u64, Failure)>,
}

/// Decides by a packet's time, sender and header whether it gets through.
type Filter = Box<dyn FnMut(u64, u16, &Header) -> bool>;

enum Hop {
    ToSwitch(u16, Vec<u8>),
    ToWorker(u16, Vec<u8>),
}

/// The whole world.
pub struct Network {
    pub switch: Switch,
    pub workers: Vec<Worker>,
    pub now: u64,
    weather: Weather,
    /// Packets in flight by arrival time; the counter keeps those of the same time in order.
    under_way: BTreeMap<(u64, u64), Hop>,
    counter: u64,
    /// This rank gets no RESULTs for all.
    pub without_group: Option<u16>,
    /// Decides on each packet to the switch before the weather does: false loses it.
    pub passes: Filter,
}

impl Network {
    pub fn new(ranks: u16, slots: u16, chunks: usize, weather: Weather) -> Self {
        let workers = (0..ranks).map(|rank| Worker {
            engine: Engine::new(config(ranks, rank, slots)),
            rank,
            chunks,
            sent: 0,
            results: 0,
            starts_at: 0,
            failure: None,
        });
        Self {
            switch: Switch::new(ranks, slots),
            workers: workers.collect(),
            now: 0,
            weather: Weather { seed: weather.seed | 1, ..weather },
            under_way: BTreeMap::new(),
            counter: 0,
            without_group: None,
            passes: Box::new(|_, _, _| true),
        }
    }

    /// Lets a rank join in later.
    pub fn start_at(&mut self, rank: u16, time: u64) {
        self.workers[usize::from(rank)].starts_at = time;
    }

    /// Runs until every rank has all its results or has failed.
    pub fn run(&mut self) {
        let idle = |worker: &Worker| worker.failure.is_some() || worker.results == worker.chunks;
        for rank in 0..self.workers.len() {
            self.act(rank);
        }
        while !self.workers.iter().all(idle) {
            self.step();
            assert!(self.now < 60_000_000_000, "a minute of the network's time has passed");
        }
    }

    /// Asserts that all ranks have all results. That they are right is asserted as they arrive.
    pub fn assert_done(&self) {
        for worker in &self.workers {
            assert_eq!(
                (worker.failure, worker.results),
                (None, worker.chunks),
                "rank {}",
                worker.rank
            );
        }
    }

    fn step(&mut self) {
        let packet = self.under_way.first_key_value().map(|((time, _), _)| *time);
        let timer = self
            .workers
            .iter()
            .enumerate()
            .filter_map(|(rank, worker)| Some((worker.wakes_at()?, rank)))
            .min();
        match (packet, timer) {
            (Some(arrival), timer) if timer.is_none_or(|(wakes, _)| arrival <= wakes) => {
                self.deliver()
            }
            (_, Some((wakes, rank))) => {
                self.now = self.now.max(wakes);
                self.act(rank);
            }
            (_, None) => panic!("nothing will ever happen again"),
        }
    }

    fn deliver(&mut self) {
        let ((time, _), hop) = self.under_way.pop_first().unwrap();
        self.now = time;
        match hop {
            Hop::ToSwitch(rank, packet) => {
                let ranks = self.workers.len() as u16;
                let Some((to_all, answer)) = self.switch.serve(rank, &packet) else { return };
                let left_out = self.without_group.filter(|_| to_all);
                let receivers = if to_all { 0..ranks } else { rank..rank + 1 };
                receivers
                    .filter(|to| Some(*to) != left_out)
                    .for_each(|to| self.post(Hop::ToWorker(to, answer.clone())));
            }
            Hop::ToWorker(rank, packet) => {
                let rank = usize::from(rank);
                let (now, ranks) = (self.now, self.workers.len() as u16);
                self.workers[rank].receive(now, ranks, &packet);
                self.act(rank);
            }
        }
    }

    /// The rank's turn: timers, resends, new chunks.
    fn act(&mut self, rank: usize) {
        let now = self.now;
        let packets = self.workers[rank].act(now);
        for packet in packets {
            let (header, _) = Header::ref_from_prefix(&packet).unwrap();
            if (self.passes)(now, rank as u16, header) {
                self.post(Hop::ToSwitch(rank as u16, packet));
            }
        }
    }

    fn post(&mut self, hop: Hop) {
        if self.random(1000) < self.weather.loss {
            return;
        }
        if self.random(1000) < self.weather.duplication {
            let copy = match &hop {
                Hop::ToSwitch(rank, packet) => Hop::ToSwitch(*rank, packet.clone()),
                Hop::ToWorker(rank, packet) => Hop::ToWorker(*rank, packet.clone()),
            };
            self.send(copy);
        }
        self.send(hop);
    }

    fn send(&mut self, hop: Hop) {
        let jitter = self.weather.jitter + 1;
        let arrival = self.now + HOP + self.random(jitter);
        self.counter += 1;
        self.under_way.insert((arrival, self.counter), hop);
    }

    /// xorshift64: any number below `bound`.
    fn random(&mut self, bound: u64) -> u64 {
        let seed = &mut self.weather.seed;
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 11) % bound
    }
}

impl Worker {
    fn wakes_at(&self) -> Option<u64> {
        if self.failure.is_some() {
            return None;
        }
        let to_start = (self.sent == 0 && self.chunks > 0).then_some(self.starts_at);
        [to_start, self.engine.deadline()].into_iter().flatten().min()
    }

    fn receive(&mut self, now: u64, ranks: u16, packet: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        match self.engine.receive(now, packet, false) {
            Ok(Some((Completed { chunk, .. }, payload))) => {
                let lanes = <[U32]>::ref_from_bytes(payload).unwrap();
                for (lane, found) in (0..).zip(lanes) {
                    assert_eq!(
                        found.get() as i32,
                        expected(ranks, index_of(&chunk), lane),
                        "{chunk:?}, lane {lane}"
                    );
                }
                self.results += 1;
            }
            Ok(None) => {}
            Err(failure) => self.failure = Some((now, failure)),
        }
    }

    fn act(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        if self.failure.is_some() || now < self.starts_at {
            return packets;
        }
        if let Err(failure) = self.engine.on_timer(now) {
            self.failure = Some((now, failure));
            return packets;
        }
        while let Some(transmission) = self.engine.next_resend(now) {
            packets.push(packet(self.rank, &transmission));
        }
        while self.sent < self.chunks && self.engine.may_send() {
            let transmission = self.engine.send(now, chunk(self.sent));
            self.sent += 1;
            packets.push(packet(self.rank, &transmission));
            assert!(self.engine.outstanding() <= self.engine.window());
        }
        packets
    }
}
