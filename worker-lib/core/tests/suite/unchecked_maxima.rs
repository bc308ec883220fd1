//! Ranks whose aggregator gives maxima without check words, as Tofino does: whatever happens to a
//! maximum's packets, no rank returns a wrong result, and each call ends.
//!
//! The aggregator here verifies nothing and runs in memory; time is virtual, and packets arrive at
//! once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::RejectReason;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::wire::header::{Header, Kind as Packet, Op, flags};
use switchml_protocol::{EVERYONE, U16, U32};
use switchml_rack::vectors::{Answer, Event, Vector};
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::{Call, Kind, Submission};
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{Config, Engine, Failure, Identity, Keys, Limits};
use switchml_worker_core::wire::TurnError;
use switchml_worker_core::{CallStats, DType, ReduceOp, Reduction};
use zerocopy::{FromBytes, IntoBytes};

const LANES: u16 = 32;
const SLOTS: u16 = 16;
const DEADLINE: Duration = Duration::from_secs(1);
const LIMITS: Limits = Limits { deadline: DEADLINE, timeout: DEADLINE };

/// Damage to the lanes of a packet or of a slot.
#[derive(Clone, Debug)]
enum Change {
    /// These lanes change to other values.
    Lanes(Vec<(usize, i32)>),
    /// These bits flip in all lanes.
    Bits(u32),
    /// The lanes from this one on are lost.
    Tail(usize),
    /// All lanes get this value.
    All(i32),
    /// The packet is taken for one of another slot.
    Slot(u16),
}

/// The place of a damage: the number of the packet there, among packets that carry a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Contribution(u16, usize),
    Slot(usize),
    Result(u16, usize),
}

#[derive(Clone, Debug)]
struct Scenario {
    ranks: u16,
    call: Call,
    /// The seed of the elements.
    seed: u64,
    damage: Vec<(Place, Change)>,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let calls = prop_oneof![
        Just((DType::I32, ReduceOp::Max)),
        Just((DType::I32, ReduceOp::Min)),
        Just((DType::F32, ReduceOp::Sum)),
        Just((DType::F32, ReduceOp::Max)),
        Just((DType::Bf16, ReduceOp::Avg)),
        Just((DType::F64, ReduceOp::Sum)),
    ];
    let ranks = prop_oneof![6 => 1u16..5, 1 => Just(32), 1 => Just(255)];
    (ranks, calls, 1usize..1300, any::<u64>()).prop_flat_map(|(ranks, (dtype, op), count, seed)| {
        let call = Call { kind: Kind::AllReduce(op.into()), dtype, count };
        let place = prop_oneof![
            (0..ranks, 0usize..4).prop_map(|(rank, number)| Place::Contribution(rank, number)),
            (0usize..4).prop_map(Place::Slot),
            (0..ranks, 0usize..4).prop_map(|(rank, number)| Place::Result(rank, number)),
        ];
        let lane = prop_oneof![any::<i32>(), -130..130, Just(i32::MIN), Just(i32::MAX)];
        let change = prop_oneof![
            vec((0..usize::from(LANES), lane.clone()), 1..5).prop_map(Change::Lanes),
            any::<u32>().prop_map(Change::Bits),
            (0..usize::from(LANES)).prop_map(Change::Tail),
            lane.prop_map(Change::All),
            (0..SLOTS).prop_map(Change::Slot),
        ];
        let damage = vec((place, change), 0..4);
        damage.prop_map(move |damage| Scenario { ranks, call, seed, damage })
    })
}

/// A rank's element: few magnitudes, so that ranks share maxima; zeros, and now and then an
/// infinity.
fn element(scenario: &Scenario, rank: u16, index: usize) -> Vec<u8> {
    let chunk = (index / usize::from(LANES)) as u64;
    let mut random = scenario.seed ^ u64::from(rank) << 40 ^ (index as u64) << 8;
    for _ in 0..3 {
        random = (random ^ random >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    }
    let is_zero = (scenario.seed ^ chunk ^ u64::from(rank)).is_multiple_of(3)
        || scenario.seed.is_multiple_of(5);
    let small = (random >> 32) as i32 % 100;
    let real = match random % 1000 {
        _ if is_zero => 0.0,
        0 => f64::INFINITY,
        _ => f64::from(small) * 2f64.powi((random >> 20) as i32 % 8),
    };
    match scenario.call.dtype {
        DType::I32 => small.to_ne_bytes().to_vec(),
        DType::F64 => real.to_ne_bytes().to_vec(),
        DType::F32 => (real as f32).to_ne_bytes().to_vec(),
        _ => ((((real as f32).to_bits()) >> 16) as u16).to_ne_bytes().to_vec(),
    }
}

fn apply(change: &Change, packet: &mut [u8]) {
    let (header, payload) = Header::mut_from_prefix(packet).unwrap();
    let lanes = <[U32]>::mut_from_bytes(payload).unwrap();
    match change {
        Change::Lanes(changes) => {
            changes.iter().for_each(|(lane, value)| lanes[*lane].set(*value as u32))
        }
        Change::Bits(bits) => lanes.iter_mut().for_each(|lane| lane.set(lane.get() ^ bits)),
        Change::Tail(from) => lanes[*from..].fill(U32::ZERO),
        Change::All(value) => lanes.fill(U32::new(*value as u32)),
        Change::Slot(slot) => header.slot.set(*slot),
    }
}

/// Damages packets by number.
struct Damage {
    planned: Vec<(Place, Change)>,
    numbers: HashMap<(u8, u16), usize>,
}

impl Damage {
    /// Damages the next packet at a place, of `kind` of places and a rank.
    fn strike(&mut self, kind: u8, rank: u16, place: fn(u16, usize) -> Place, packet: &mut [u8]) {
        if Header::ref_from_prefix(packet).unwrap().0.op != Op::Max as u8 {
            return;
        }
        let number = self.numbers.entry((kind, rank)).or_default();
        let here = place(rank, *number);
        *number += 1;
        self.planned
            .iter()
            .filter(|(at, _)| *at == here)
            .for_each(|(_, change)| apply(change, packet));
    }
}

/// A round of a slot: the RESULT as it grows, and who is in.
struct Round {
    packet: Vec<u8>,
    seen: Ranks,
}

/// An aggregator that adds whatever comes, without check words.
struct Aggregator {
    ranks: u16,
    checks_maxima: bool,
    rounds: HashMap<(u16, u32), Round>,
}

impl Aggregator {
    /// The answer to a contribution, and whether it goes to all.
    fn serve(&mut self, packet: &[u8], damage: &mut Damage) -> Option<(bool, Vec<u8>)> {
        let (header, _) = Header::read_from_prefix(packet).unwrap();
        let (rank, key) = (header.rank.get(), (header.slot.get(), header.round.get()));
        let all = Ranks::below(self.ranks);
        let round = self
            .rounds
            .entry(key)
            .or_insert_with(|| Round { packet: packet.to_vec(), seen: Ranks::NONE });
        let (first, _) = Header::ref_from_prefix(&round.packet).unwrap();
        if (header.op, header.lanes, header.fingerprint)
            != (first.op, first.lanes, first.fingerprint)
        {
            let ranks = u32::from(rank) << 16 | u32::from(rank);
            return Some((
                false,
                note(Packet::Reject, &header, &[RejectReason::Mismatch as u32, ranks]),
            ));
        }
        if round.seen.contains(rank) {
            let seen: Vec<u32> = round.seen.to_pending(self.ranks.into()).collect();
            let answer = if round.seen == all {
                answer_to(rank, &round.packet)
            } else {
                note(Packet::Pending, &header, &seen)
            };
            return Some((false, answer));
        }
        if !round.seen.is_empty() {
            combine(&mut round.packet, packet);
        }
        round.seen.insert(rank);
        if round.seen != all {
            return None;
        }
        damage.strike(1, 0, |_, number| Place::Slot(number), &mut round.packet);
        let (result, payload) = Header::mut_from_prefix(&mut round.packet).unwrap();
        result.kind = Packet::Result as u8;
        // Damage in a slot stays in that slot.
        result.slot.set(key.0);
        if result.op == Op::Max as u8 {
            let sum = <[U32]>::ref_from_bytes(payload)
                .unwrap()
                .iter()
                .fold(0u32, |sum, x| sum.wrapping_add(x.get()));
            result.flags = if self.checks_maxima { flags::CHECKED } else { 0 };
            result.check.set(if self.checks_maxima {
                result.check_of(sum, self.ranks.into())
            } else {
                0
            });
        }
        Some((true, answer_to(EVERYONE, &round.packet)))
    }
}

fn answer_to(rank: u16, packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    Header::mut_from_prefix(&mut packet).unwrap().0.rank.set(rank);
    packet
}

fn combine(into: &mut [u8], packet: &[u8]) {
    let (header, payload) = Header::mut_from_prefix(into).unwrap();
    let (other, others) = Header::ref_from_prefix(packet).unwrap();
    let (lanes, others) =
        (<[U32]>::mut_from_bytes(payload).unwrap(), <[U32]>::ref_from_bytes(others).unwrap());
    for (lane, other) in lanes.iter_mut().zip(others) {
        let (a, b) = (lane.get() as i32, other.get() as i32);
        lane.set(if header.op == Op::Max as u8 { a.max(b) } else { a.wrapping_add(b) } as u32);
    }
    header.check.set(header.check.get().wrapping_add(other.check.get()));
}

fn note(kind: Packet, header: &Header, words: &[u32]) -> Vec<u8> {
    let lanes = U16::new(words.len() as u16);
    let mut header = Header { kind: kind as u8, op: 0, flags: flags::CHECKED, lanes, ..*header };
    header.check.set(header.check_of(words.iter().fold(0, |a, b| a.wrapping_add(*b)), 1));
    let words: Vec<U32> = words.iter().copied().map(U32::new).collect();
    [header.as_bytes(), words.as_bytes()].concat()
}

/// A call's elements, put where they are found when it is done.
struct Tensor(Vec<u8>, Arc<Mutex<Option<Vec<u8>>>>);

impl Buffer for Tensor {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn finish(self: Box<Self>, _: CallStats) {
        *self.1.lock().unwrap() = Some(self.0);
    }
}

struct Rank {
    data_path: DataPath,
    result: Arc<Mutex<Option<Vec<u8>>>>,
    failure: Option<Failure>,
}

impl Rank {
    fn new(scenario: &Scenario, rank: u16, capabilities: Capabilities) -> Self {
        let identity = Identity { job: 1, epoch: 2, rank, ranks: scenario.ranks, keys: Keys::NONE };
        let config = Config { capabilities, ..Config::new(identity, SLOTS, LANES, 64, LIMITS) };
        let elements =
            (0..scenario.call.count).flat_map(|index| element(scenario, rank, index)).collect();
        Self::with(config, scenario.call, scenario.ranks.into(), elements)
    }

    /// A rank that makes one call.
    fn with(config: Config, call: Call, ranks: u32, elements: Vec<u8>) -> Self {
        let (mut data_path, result) =
            (DataPath::new(Engine::new(config), LANES, 1), Arc::default());
        let (codec, buffer) =
            (call.codec(ranks).unwrap(), Box::new(Tensor(elements, Arc::clone(&result))));
        data_path.submit(Submission { number: 0, call, codec, first: 0, buffer });
        Self { data_path, result, failure: None }
    }

    fn is_over(&self) -> bool {
        self.failure.is_some() || self.data_path.is_idle()
    }

    /// The packets of the rank's turn.
    fn turn(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        if let Err(TurnError::DataPath(failure)) =
            self.data_path.turn(now, Others::THERE, &mut packets)
        {
            self.note(Err(failure));
        }
        packets
    }

    /// Notes the first failure.
    fn note(&mut self, outcome: Result<(), Failure>) {
        self.failure = self.failure.or(outcome.err());
    }
}

/// Runs the call. Returns each rank's result, or why it has none.
fn run(
    scenario: &Scenario,
    checks_maxima: bool,
    damage: Vec<(Place, Change)>,
) -> Vec<Result<Vec<u8>, Failure>> {
    let mut capabilities = Capabilities::empty();
    capabilities.set(Capabilities::CHECKED_MAXIMA, checks_maxima);
    let mut ranks: Vec<_> =
        (0..scenario.ranks).map(|rank| Rank::new(scenario, rank, capabilities)).collect();
    let mut aggregator =
        Aggregator { ranks: scenario.ranks, checks_maxima, rounds: HashMap::new() };
    let mut damage = Damage { planned: damage, numbers: HashMap::new() };
    let mut now = 0;
    while !ranks.iter().all(Rank::is_over) {
        assert!(now < 20 * DEADLINE.as_nanos() as u64, "the call does not end");
        let mut answers = Vec::new();
        for (number, rank) in (0..).zip(&mut ranks).filter(|(_, rank)| !rank.is_over()) {
            for mut packet in rank.turn(now) {
                damage.strike(0, number, Place::Contribution, &mut packet);
                let answer = aggregator.serve(&packet, &mut damage);
                answers
                    .extend(answer.map(|(to_all, answer)| {
                        (if to_all { None } else { Some(number) }, answer)
                    }));
            }
        }
        now += 10_000;
        if answers.is_empty() {
            now = ranks
                .iter()
                .filter_map(|rank| rank.data_path.deadline())
                .min()
                .map_or(now, |at| at.max(now));
        }
        for (to, answer) in answers {
            let receivers = (0..)
                .zip(&mut ranks)
                .filter(|(number, rank)| to.is_none_or(|to| to == *number) && !rank.is_over());
            for (number, rank) in receivers {
                let mut answer = answer.clone();
                damage.strike(2, number, Place::Result, &mut answer);
                let outcome = rank.data_path.receive(now, &answer, false);
                rank.note(outcome);
                rank.data_path.give_back();
            }
        }
        // Calls without chunks end without packets.
        ranks.iter_mut().for_each(|rank| rank.data_path.give_back());
    }
    ranks
        .into_iter()
        .map(|rank| {
            rank.failure.map_or_else(|| Ok(rank.result.lock().unwrap().take().unwrap()), Err)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Without damage, results are the same bits as from an aggregator that checks maxima.
    #[test]
    fn no_damage_makes_a_wrong_result(scenario in scenarios()) {
        let expected = run(&scenario, true, vec![]);
        for (undamaged, expected) in run(&scenario, false, vec![]).iter().zip(&expected) {
            prop_assert!(expected.is_ok());
            prop_assert_eq!(undamaged, expected);
        }
        // A rank whose contribution is taken for one of another slot may look as if it made a
        // different call there.
        let elsewhere = scenario.damage.iter().any(|(_, change)| matches!(change, Change::Slot(_)));
        for outcome in run(&scenario, false, scenario.damage.clone()) {
            match outcome {
                Ok(result) => prop_assert_eq!(Ok(&result), expected[0].as_ref()),
                Err(Failure::Mismatch { .. }) => prop_assert!(elsewhere),
                Err(failure) => prop_assert!(
                    matches!(failure, Failure::Damaged | Failure::Maximum | Failure::Missing(_)),
                    "{:?}", failure
                ),
            }
        }
    }
}

/// The element `index` of a rank in the vector `float_sum`.
fn in_vector(rank: u16, index: usize) -> f32 {
    let place = (index % 32) as f32;
    match (rank, index / 32) {
        (0, 0) => place / 2.0,
        (0, 32) => 1.0 + place / 32.0,
        (1, 0) => -2.0 * place,
        (1, 32) => -1.5,
        _ => 0.0,
    }
}

/// The element `index` of a rank in the vector `small_float_sum`.
fn in_small_vector(rank: u16, index: usize) -> f32 {
    #[expect(clippy::approx_constant, reason = "it is what a user summed, not pi")]
    const FIRST: [[f32; 10]; 2] = [
        [0.001, 5e6, 1.0, 3.141_59, 12_345_678.0, 0.0, -0.001, 1e-6, -7.0, 16_777_216.0],
        [0.001, -5e6, 2.0, -3.141_59, 1.0, -0.0, -0.002, -1e-6, 0.5, 1e-6],
    ];
    match (rank, index / 10) {
        (_, 0) => FIRST[usize::from(rank)][index],
        (0, 2) => 1.0 + (index % 10) as f32 / 32.0,
        (1, 2) => -1.5,
        _ => 0.0,
    }
}

/// A packet of the vector, with this session's fingerprint.
fn of_session(frame: &[u8], fingerprint: U32, contributions: u32) -> Vec<u8> {
    const ENVELOPE: usize = 14 + 20 + 8;
    let mut packet = frame[ENVELOPE..].to_vec();
    let (header, payload) = Header::mut_from_prefix(&mut packet).unwrap();
    let lanes = <[U32]>::ref_from_bytes(payload).unwrap();
    header.fingerprint = fingerprint;
    header.check.set(header.check_of(
        lanes.iter().fold(0u32, |sum, lane| sum.wrapping_add(lane.get())),
        contributions,
    ));
    packet
}

/// The vectors that data planes are tested with are what ranks send, and ranks get the right
/// results from them.
#[test]
fn packets_are_those_of_the_vectors() {
    let (large, small) = (
        include_str!("../../../../tests/vectors/float_sum.vector"),
        include_str!("../../../../tests/vectors/small_float_sum.vector"),
    );
    // Exponents, their witnesses, two data chunks.
    check_packets(&Vector::parse("float_sum", large).unwrap(), 1056, in_vector, 2 + 2 + 2);
    check_packets(
        &Vector::parse("small_float_sum", small).unwrap(),
        30,
        in_small_vector,
        1 + 1 + 2,
    );
}

fn check_packets(vector: &Vector, count: usize, element: fn(u16, usize) -> f32, chunks: usize) {
    let call = Call { kind: Kind::AllReduce(Reduction::SUM), dtype: DType::F32, count };
    let mut ranks = [0, 1].map(|rank| {
        let identity = Identity { job: 7, epoch: 0x0102_0304, rank, ranks: 2, keys: Keys::NONE };
        let config = Config {
            capabilities: Capabilities::empty(),
            ..Config::new(identity, 8, LANES, 64, LIMITS)
        };
        let elements =
            (0..call.count).flat_map(|index| element(rank, index).to_ne_bytes()).collect();
        Rank::with(config, call, 2, elements)
    });
    let mut sent = [VecDeque::new(), VecDeque::new()];
    let mut results = 0;
    for event in &vector.events {
        let Event::Step(step) = event else { continue };
        // The last answer is that of a data plane that does not check maxima.
        let answer = step.expected.last().and_then(|expected| expected.answer.as_ref());
        // A step that sends a stored result again is skipped: no rank has lost anything here.
        if matches!(answer, Some(Answer::Port(..))) {
            continue;
        }
        let rank = usize::from(step.port - 1);
        if sent[rank].is_empty() {
            sent[rank].extend(ranks[rank].turn(0));
        }
        let packet = sent[rank].pop_front().expect("a packet");
        let Header { fingerprint, aux, .. } = *Header::ref_from_prefix(&packet).unwrap().0;
        let mut expected = of_session(&step.frame, fingerprint, 1);
        Header::mut_from_prefix(&mut expected).unwrap().0.aux = aux;
        assert_eq!(packet, expected, "{}", step.title);
        if let Some(answer) = answer {
            let result = of_session(answer.frame(), fingerprint, 2);
            ranks.iter_mut().for_each(|rank| rank.data_path.receive(0, &result, false).unwrap());
            results += 1;
        }
    }
    assert_eq!(results, chunks);
    for rank in &mut ranks {
        rank.data_path.give_back();
        let sums: Vec<_> = (0..call.count)
            .flat_map(|index| (element(0, index) + element(1, index)).to_ne_bytes())
            .collect();
        assert_eq!(rank.result.lock().unwrap().as_ref(), Some(&sums));
    }
}
