//! Any datagrams into a rank's receive path while it reduces tensors with other ranks: only the
//! true result is written to a tensor, every datagram has exactly the specified effect, and once
//! the network is fair, all calls end.
//!
//! A datagram that fits an outstanding chunk in every field and has the right check word cannot be
//! told from the aggregator's. Such datagrams, by accident or because the fuzzer solves for the
//! check word, are left out.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use switchml_protocol::outcome::{Action, Outcome};
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::{Call, Kind, Submission};
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{Config, Engine, Identity, Keys, Limits};
use switchml_worker_core::{CallStats, DType, Reduction};

use switchml_test_support::answers::{done_of, needs_lanes};
use switchml_test_support::packet::{
    ALL_OPS, CHECKED, DONE, EMPTY, PENDING, Packet, REJECT, RESULT, ROOM, check_word,
};
use switchml_test_support::switch::{EPOCH, JOB, Switch, binding};

const LANES: u16 = 32;
const MAX_STEPS: usize = 300;
/// Rounds of the loop within which all calls must end once nothing is lost any more.
const PATIENCE: usize = 1000;
const EVERYONE: u16 = 0xFFFF;

fuzz_target!(|input: &[u8]| {
    // An input that ends early continues in a fair network at once.
    let mut input = Unstructured::new(input);
    let Ok(mut network) = Network::new(&mut input) else { return };
    let _ = network.disturb(&mut input);
    network.finish();
});

/// The elements of one rank in a call, with the expected result.
struct Tensor {
    bytes: Vec<u8>,
    own: Vec<u8>,
    result: Vec<u8>,
    /// The bytes that must have the result in the end.
    part: Range<usize>,
    element: usize,
    finished: Arc<AtomicUsize>,
}

impl Buffer for Tensor {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn finish(self: Box<Self>, _: CallStats) {
        assert_eq!(self.bytes[self.part.clone()], self.result[self.part.clone()], "the result");
        self.check();
        self.finished.fetch_add(1, Ordering::Relaxed);
    }
}

impl Tensor {
    /// Checks that nothing except results has been written, whether all have come or not.
    fn check(&self) {
        let elements = self.bytes.chunks(self.element).zip(self.own.chunks(self.element));
        for ((found, own), result) in elements.zip(self.result.chunks(self.element)) {
            assert!(found == own || found == result, "{found:?} is neither {own:?} nor {result:?}");
        }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
        }
    }
}

/// Calls whose results are known by arithmetic.
#[derive(Clone, Copy)]
enum Sort {
    IntegerSum,
    IntegerMax,
    FloatSum,
    DoubleSum,
    Broadcast { root: u32 },
    ReduceScatter,
    AllGather,
}

impl Sort {
    fn choose(input: &mut Unstructured, ranks: u16) -> Result<Self> {
        Ok(match input.int_in_range(0..=6)? {
            0 => Self::IntegerSum,
            1 => Self::IntegerMax,
            2 => Self::FloatSum,
            3 => Self::DoubleSum,
            4 => Self::ReduceScatter,
            5 => Self::AllGather,
            _ => Self::Broadcast { root: input.int_in_range(0..=u32::from(ranks) - 1)? },
        })
    }

    fn call(self, count: usize) -> Call {
        let (kind, dtype) = match self {
            Self::IntegerSum => (Kind::AllReduce(Reduction::SUM), DType::I32),
            Self::IntegerMax => (Kind::AllReduce(Reduction::MAX), DType::I32),
            Self::FloatSum => (Kind::AllReduce(Reduction::SUM), DType::F32),
            Self::DoubleSum => (Kind::AllReduce(Reduction::SUM), DType::F64),
            Self::Broadcast { root } => (Kind::Broadcast { root }, DType::I32),
            Self::ReduceScatter => (Kind::ReduceScatter(Reduction::SUM), DType::I32),
            Self::AllGather => (Kind::AllGather, DType::I32),
        };
        Call { kind, dtype, count }
    }

    /// Element `index` of `rank`: small integers where sums must be exact in floats.
    fn element(self, seed: u32, rank: u32, index: usize) -> i32 {
        let word = (seed ^ (rank << 24))
            .wrapping_add(index as u32)
            .wrapping_mul(0x9E37_79B1)
            .rotate_left(11);
        match self {
            Self::FloatSum | Self::DoubleSum => (word % 2001) as i32 - 1000,
            _ => word as i32,
        }
    }

    /// Whether some chunks may be sent EMPTY, if there are many.
    fn leaves_out(self) -> bool {
        matches!(self, Self::Broadcast { .. } | Self::AllGather)
    }

    fn result(self, seed: u32, ranks: u32, index: usize, count: usize) -> i32 {
        let elements = (0..ranks).map(|rank| self.element(seed, rank, index));
        match self {
            Self::AllGather => {
                let owner = (0..ranks).find(|rank| part(*rank, ranks, count).contains(&index));
                self.element(seed, owner.expect("a rank"), index)
            }
            Self::IntegerSum | Self::ReduceScatter => elements.fold(0, i32::wrapping_add),
            Self::IntegerMax => elements.max().unwrap_or_default(),
            Self::FloatSum | Self::DoubleSum => elements.sum(),
            Self::Broadcast { root } => self.element(seed, root, index),
        }
    }

    fn bytes(self, elements: impl Iterator<Item = i32>) -> Vec<u8> {
        match self {
            Self::FloatSum => elements.flat_map(|element| (element as f32).to_ne_bytes()).collect(),
            Self::DoubleSum => {
                elements.flat_map(|element| f64::from(element).to_ne_bytes()).collect()
            }
            _ => elements.flat_map(i32::to_ne_bytes).collect(),
        }
    }

    fn command(
        self,
        number: u64,
        seed: u32,
        rank: u32,
        ranks: u32,
        count: usize,
        finished: &Arc<AtomicUsize>,
    ) -> Submission {
        let call = self.call(count);
        let own = self.bytes((0..count).map(|index| self.element(seed, rank, index)));
        let result = (0..count).map(|index| self.result(seed, ranks, index, count));
        let element = call.dtype.size();
        let part = match self {
            Self::ReduceScatter => part(rank, ranks, count),
            _ => 0..count,
        };
        let tensor = Tensor {
            bytes: own.clone(),
            own,
            result: self.bytes(result),
            part: element * part.start..element * part.end,
            element,
            finished: Arc::clone(finished),
        };
        Submission {
            number,
            call,
            codec: call.codec(ranks).expect("a call that is offered"),
            first: 0,
            buffer: Box::new(tensor),
        }
    }
}

/// Rule 17.8: the elements of a rank's part.
fn part(rank: u32, ranks: u32, count: usize) -> Range<usize> {
    let start = |rank| count * rank as usize / ranks as usize;
    start(rank)..start(rank + 1)
}

/// Whether rule 2.10 defines the op.
fn is_op(op: u8) -> bool {
    ALL_OPS.contains(&op) || matches!(op >> 6, 1 | 2)
}

/// A rank: its data path, and the packets in flight to it.
struct Rank {
    data_path: DataPath,
    /// Headers of the rank's chunks without a result, by slot and round.
    outstanding: BTreeMap<(u16, u32), Packet>,
    inbox: Vec<Vec<u8>>,
}

struct Network {
    ranks: Vec<Rank>,
    switch: Switch,
    now: u64,
    /// Calls that must end, of all ranks together.
    calls: usize,
    finished: Arc<AtomicUsize>,
    /// Everything that the aggregator has sent.
    answers: Vec<Vec<u8>>,
}

impl Network {
    /// Two or three ranks, and some calls.
    fn new(input: &mut Unstructured) -> Result<Self> {
        let (ranks, slots) = (input.int_in_range(1..=3)?, input.int_in_range(1..=6)?);
        // The epoch begins with round 0: the aggregator has no earlier rounds.
        let rank = |rank| {
            let identity = Identity { job: JOB, epoch: EPOCH, rank, ranks, keys: Keys::NONE };
            let limits = Limits { deadline: Duration::from_secs(1 << 30), ..Limits::default() };
            let engine = Engine::new(Config::new(identity, slots, LANES, 16, limits));
            Rank {
                data_path: DataPath::new(engine, LANES, 4),
                outstanding: BTreeMap::new(),
                inbox: vec![],
            }
        };
        let mut network = Self {
            ranks: (0..ranks).map(rank).collect(),
            switch: Switch::ready(ranks.into(), slots.into()),
            now: 0,
            calls: 0,
            finished: Arc::default(),
            answers: vec![],
        };
        for number in 0..input.int_in_range(1..=3)? {
            let (sort, seed) = (Sort::choose(input, ranks)?, input.arbitrary()?);
            // In calls of more than 63 chunks some ranks send EMPTY.
            let is_large = sort.leaves_out() && input.arbitrary()?;
            let counts = if is_large { 2017..=2200 } else { 0..=200 };
            let count = input.int_in_range(counts)?;
            for (index, rank) in (0..).zip(&mut network.ranks) {
                rank.data_path.submit(sort.command(
                    number,
                    seed,
                    index,
                    ranks.into(),
                    count,
                    &network.finished,
                ));
                network.calls += 1;
            }
        }
        Ok(network)
    }

    fn disturb(&mut self, input: &mut Unstructured) -> Result<()> {
        for _ in 0..MAX_STEPS {
            if input.is_empty() {
                break;
            }
            let rank = input.choose_index(self.ranks.len())?;
            match input.int_in_range(0..=9)? {
                0..=1 => self.send(rank, input.arbitrary()?),
                2..=4 => {
                    let inbox = &mut self.ranks[rank].inbox;
                    if !inbox.is_empty() {
                        let datagram = inbox.remove(input.choose_index(inbox.len())?);
                        self.deliver(rank, &datagram);
                    }
                }
                5 => {
                    // Late, twice, or another's.
                    if !self.answers.is_empty() {
                        let datagram = input.choose(&self.answers)?.clone();
                        self.deliver(rank, &datagram);
                    }
                }
                6 => self.now += u64::from(input.arbitrary::<u32>()?) % 50_000_000,
                7 => {
                    let length = input.int_in_range(0..=200)?;
                    let datagram = input.bytes(length.min(input.len()))?.to_vec();
                    self.deliver_forged(rank, &datagram);
                }
                _ => {
                    if let Some(answer) = self.answers.last().filter(|_| !input.is_empty()) {
                        let answer = if input.arbitrary()? {
                            answer.clone()
                        } else {
                            input.choose(&self.answers)?.clone()
                        };
                        let forged = forge(answer, input)?;
                        self.deliver_forged(rank, &forged);
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends the rank's packets; a packet is lost if its bit is set in `lost`, the first packet
    /// having the lowest bit.
    fn send(&mut self, rank: usize, mut lost: u8) {
        let Self { ranks, switch, now, answers, .. } = self;
        let Rank { data_path, outstanding, .. } = &mut ranks[rank];
        let (mut packets, mut sent) = (vec![], vec![]);
        data_path.turn(*now, Others::THERE, &mut packets).expect("the deadline is far away");
        for bytes in packets {
            let packet = Packet::from_bytes(&bytes);
            outstanding.insert((packet.slot, packet.round), packet);
            if lost & 1 == 0 {
                sent.push(bytes);
            }
            lost >>= 1;
        }
        data_path.give_back();
        let mut completed: Vec<Packet> = vec![];
        for mut bytes in sent {
            use Outcome::{Added, Completed, Pending, Replayed, Room, Stale, Started};
            let outcome = switch.receive_bytes(&binding(rank as u16), &mut bytes);
            let legal =
                matches!(outcome, Started | Added | Completed | Replayed | Pending | Room | Stale);
            assert!(legal, "{outcome:?} to a rank that keeps the rules");
            let lanes = u16::from_be_bytes([bytes[18], bytes[19]]);
            bytes.truncate(32 + 4 * usize::from(lanes));
            match outcome.action() {
                Action::Reply => ranks[rank].inbox.push(bytes.clone()),
                Action::Broadcast => {
                    let result = Packet::from_bytes(&bytes);
                    for (rank, to) in (0..).zip(&mut *ranks) {
                        if needs_lanes(result.op, rank) {
                            to.inbox.push(bytes.clone());
                        }
                    }
                    if !ALL_OPS.contains(&result.op) {
                        completed.push(result);
                    }
                }
                _ => continue,
            }
            answers.push(bytes);
        }
        let is_same = |a: &Packet, b: &Packet| (a.op, a.fingerprint) == (b.op, b.fingerprint);
        for results in completed.chunk_by(is_same) {
            let done = done_of(results).to_bytes();
            for (rank, to) in (0..).zip(&mut *ranks) {
                if !needs_lanes(results[0].op, rank) {
                    to.inbox.push(done.clone());
                }
            }
            answers.push(done);
        }
    }

    /// Delivers a forged datagram, unless no rank could tell it from the aggregator's.
    fn deliver_forged(&mut self, rank: usize, datagram: &[u8]) {
        if self.counts(rank, datagram).is_none() {
            self.deliver(rank, datagram);
        }
    }

    /// A datagram that counts has its effect, any other is ignored and counted.
    fn deliver(&mut self, rank: usize, datagram: &[u8]) {
        let counts = self.counts(rank, datagram);
        let Rank { data_path, outstanding, .. } = &mut self.ranks[rank];
        let before = data_path.engine().stats().clone();
        data_path.receive(self.now, datagram, false).expect("nobody refuses");
        data_path.give_back();
        let after = data_path.engine().stats();
        let ignored = after.ignored.iter().sum::<u64>() - before.ignored.iter().sum::<u64>();
        let effect = (after.results - before.results, after.pending - before.pending, ignored);
        let expected = match counts.map(|packet| (packet.kind, packet)) {
            Some((RESULT, packet)) => {
                outstanding.remove(&(packet.slot, packet.round));
                (1, 0, 0)
            }
            Some((PENDING, _)) => (0, 1, 0),
            Some((DONE, packet)) => {
                let named = named(outstanding, &packet);
                named.iter().for_each(|place| drop(outstanding.remove(place)));
                (named.len() as u64, 0, 0)
            }
            // The ROOM asks for lanes that were not sent yet.
            Some((ROOM, packet)) if asks(outstanding, &packet) => (0, 0, 0),
            _ => (0, 0, 1),
        };
        assert_eq!(effect, expected, "results, PENDINGs, ignored after {datagram:?}");
        // Some chunks of an all-gather have yet to be sent.
        assert!(data_path.engine().outstanding() as usize >= outstanding.len());
    }

    /// The packet, if it counts by rule 13.1.
    fn counts(&self, rank: usize, datagram: &[u8]) -> Option<Packet> {
        let lanes = datagram.get(18..20).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))?;
        // Any bytes may follow the lanes of a PENDING or a REJECT.
        let end = if datagram[1] == PENDING || datagram[1] == REJECT {
            32 + 4 * usize::from(lanes)
        } else {
            usize::MAX
        };
        let datagram = &datagram[..end.min(datagram.len())];
        if datagram.len() < 32 || !datagram.len().is_multiple_of(4) {
            return None;
        }
        let packet = Packet::from_bytes(datagram);
        if packet.kind == DONE {
            return self.done_counts(rank, &packet).then_some(packet);
        }
        let chunk = self.ranks[rank].outstanding.get(&(packet.slot, packet.round))?;
        let is_result = packet.kind == RESULT;
        let names_lanes = is_result || packet.kind == ROOM;
        let lanes_fit = if names_lanes { packet.lanes == chunk.lanes } else { packet.lanes == 2 };
        let length = if packet.kind == ROOM { 0 } else { usize::from(packet.lanes) };
        let whole = packet.version == 1 && lanes_fit && packet.payload.len() == length;
        let ours =
            (packet.job, packet.epoch, packet.fingerprint) == (JOB, EPOCH, chunk.fingerprint);
        let op_fits = if names_lanes { packet.op == chunk.op } else { is_op(packet.op) };
        let to_us = packet.rank == rank as u16 || is_result && packet.rank == EVERYONE;
        let contributions = if is_result { self.ranks.len() as u64 } else { 1 };
        let checked =
            packet.flags & CHECKED != 0 && packet.check == check_word(&packet, contributions);
        let known = match packet.kind {
            RESULT | PENDING | ROOM => true,
            REJECT => (1..=3).contains(packet.payload.first()?),
            _ => false,
        };
        (whole && ours && op_fits && to_us && checked && known).then_some(packet)
    }

    /// Whether a DONE names a chunk that the rank waits for, by rule 13.3.
    fn done_counts(&self, rank: usize, done: &Packet) -> bool {
        (done.version, done.job, done.epoch, done.rank) == (1, JOB, EPOCH, EVERYONE)
            && usize::from(done.lanes) == done.payload.len()
            && done.tag.is_none()
            && done.flags & CHECKED != 0
            && done.check == check_word(done, 1)
            && !needs_lanes(done.op, rank as u16)
            && !named(&self.ranks[rank].outstanding, done).is_empty()
    }

    /// Runs on without losses, until all calls have ended.
    fn finish(&mut self) {
        for _ in 0..PATIENCE {
            if self.finished.load(Ordering::Relaxed) == self.calls {
                return;
            }
            for rank in 0..self.ranks.len() {
                self.send(rank, 0);
                for datagram in std::mem::take(&mut self.ranks[rank].inbox) {
                    self.deliver(rank, &datagram);
                }
            }
            self.now += 10_000_000;
        }
        panic!("{} of {} calls have ended", self.finished.load(Ordering::Relaxed), self.calls);
    }
}

/// Slots and rounds of the chunks that a DONE names.
fn named(outstanding: &BTreeMap<(u16, u32), Packet>, done: &Packet) -> Vec<(u16, u32)> {
    let is_named = |(slot, round): &(u16, u32)| {
        done.payload.contains(&(u32::from(*slot) << 16 | round & 0xFFFF))
    };
    let is_of_call = |chunk: &Packet| (chunk.op, chunk.fingerprint) == (done.op, done.fingerprint);
    let fitting = outstanding.iter().filter(|(place, chunk)| is_named(place) && is_of_call(chunk));
    fitting.map(|(place, _)| *place).collect()
}

/// Whether a ROOM is for a chunk that went out EMPTY.
fn asks(outstanding: &BTreeMap<(u16, u32), Packet>, room: &Packet) -> bool {
    outstanding.get(&(room.slot, room.round)).is_some_and(|chunk| chunk.flags & EMPTY != 0)
}

/// A changed answer, sometimes with a check word that fits again.
fn forge(mut answer: Vec<u8>, input: &mut Unstructured) -> Result<Vec<u8>> {
    for _ in 0..input.int_in_range(1..=3)? {
        let at = input.choose_index(answer.len())?;
        match input.int_in_range(0..=3)? {
            0 => answer[at] ^= 1 << input.int_in_range(0..=7)?,
            1 => answer[at] = input.arbitrary()?,
            2 => answer[at % 32] = input.arbitrary()?,
            _ => answer.resize(input.int_in_range(0..=300)?, 0),
        }
        if answer.is_empty() {
            return Ok(answer);
        }
    }
    if answer.len() >= 32 && answer.len().is_multiple_of(4) && input.arbitrary()? {
        let packet = Packet::from_bytes(&answer);
        let check = check_word(&packet, input.int_in_range(1..=3)?);
        answer[24..28].copy_from_slice(&check.to_be_bytes());
    }
    Ok(answer)
}
