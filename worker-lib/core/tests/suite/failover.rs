//! Ranks whose aggregators die at any moment: another one goes on, and every call has the same bits
//! as if nothing had happened (rules 36.10 to 36.13).
//!
//! The aggregators are the protocol's own, in memory. Packets get lost and overtake each other, and
//! ranks notice a death at different times.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::Action;
use switchml_worker_core::buffer::Buffer;
use switchml_worker_core::call::{Call, Kind, Submission};
use switchml_worker_core::data_path::{DataPath, Others};
use switchml_worker_core::engine::{Config, Engine, Identity, Keys, Limits};
use switchml_worker_core::{CallStats, DType, ReduceOp, Reduction};

use switchml_test_support::answers::{done_of, needs_lanes};
use switchml_test_support::packet::{ALL_OPS, Packet};
use switchml_test_support::switch::{EPOCH, JOB, Switch, binding};

const LANES: u16 = 32;
/// Turns within which all calls must end once nothing is lost any more.
const PATIENCE: usize = 5000;
const TICK: u64 = 1_000_000;

/// What happens next, to some rank.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It makes its next call.
    Call,
    /// It sends, and loses the packets whose bits are set.
    Send(u8),
    /// It gets one of the packets that are on their way to it.
    Receive(u8),
    /// Time passes.
    Wait(u8),
    /// The newest aggregator that anybody is at dies.
    Die,
    /// It goes to the next aggregator if its own is dead.
    Move,
}

#[derive(Clone, Debug)]
struct Scenario {
    ranks: u16,
    /// The slots of each aggregator.
    slots: Vec<u16>,
    calls: Vec<Call>,
    checks_maxima: bool,
    steps: Vec<(u16, Step)>,
}

fn steps() -> impl Strategy<Value = Vec<(u16, Step)>> {
    let step = prop_oneof![
        2 => Just(Step::Call),
        12 => prop_oneof![2 => Just(0), 1 => any::<u8>()].prop_map(Step::Send),
        24 => any::<u8>().prop_map(Step::Receive),
        4 => any::<u8>().prop_map(Step::Wait),
        1 => Just(Step::Die),
        3 => Just(Step::Move),
    ];
    vec((0u16..40, step), 0..500)
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let kind = prop_oneof![
        4 => Just((Kind::AllReduce(Reduction::SUM), DType::I32)),
        2 => Just((Kind::AllReduce(Reduction::MAX), DType::I32)),
        2 => Just((Kind::AllReduce(Reduction::SUM), DType::F32)),
        2 => Just((Kind::AllReduce(Reduction::SUM8), DType::F32)),
        1 => Just((Kind::AllReduce(Reduction::AVG16), DType::F32)),
        1 => Just((Kind::ReduceScatter(Reduction::SUM), DType::I32)),
        1 => Just((Kind::AllGather, DType::I32)),
        1 => Just((Kind::Broadcast { root: 1 }, DType::I32)),
    ];
    let count = prop_oneof![4 => 0usize..200, 2 => 200usize..1500, 1 => 2017usize..2300];
    let call = (kind, count).prop_map(|((kind, dtype), count)| Call { kind, dtype, count });
    vec(call, 1..5)
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    // More ranks than lanes: their places take several chunks.
    let ranks = prop_oneof![6 => 2u16..4, 1 => Just(40)];
    (ranks, vec(1u16..8, 5), calls(), any::<bool>(), steps()).prop_map(
        |(ranks, slots, calls, checks_maxima, steps)| {
            let calls = calls.into_iter().take(if ranks > 4 { 1 } else { 4 }).collect();
            Scenario { ranks, slots, calls, checks_maxima, steps }
        },
    )
}

/// Element `index` of a rank: of many magnitudes, where they are floats.
fn element(dtype: DType, call: usize, rank: u16, index: usize) -> [u8; 4] {
    let seed = (call as u32) << 16 ^ u32::from(rank) << 24;
    let word = (index as u32 ^ seed).wrapping_mul(0x9E37_79B1).rotate_left(11);
    match dtype {
        DType::F32 => f32::from_bits(word & 0xBFFF_FFFF).to_ne_bytes(),
        _ => word.to_ne_bytes(),
    }
}

type Results = Arc<Mutex<BTreeMap<(u16, usize), Vec<u8>>>>;

struct Tensor {
    bytes: Vec<u8>,
    place: (u16, usize),
    results: Results,
}

impl Buffer for Tensor {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn finish(self: Box<Self>, _: CallStats) {
        let before = self.results.lock().unwrap().insert(self.place, self.bytes);
        assert_eq!(before, None, "a call ends once");
    }
}

struct Rank {
    data_path: DataPath,
    /// The index of its aggregator.
    at: usize,
    /// The calls that it has made.
    calls: usize,
    inbox: Vec<Vec<u8>>,
}

struct World<'a> {
    scenario: &'a Scenario,
    ranks: Vec<Rank>,
    switches: Vec<Switch>,
    /// Aggregators before this one are dead.
    alive: usize,
    now: u64,
    results: Results,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let rank = |rank| {
            let mut data_path = DataPath::new(Engine::new(config(scenario, rank, 0)), LANES, 4);
            data_path.keep_for_another(LANES);
            Rank { data_path, at: 0, calls: 0, inbox: Vec::new() }
        };
        let switch = |slots: &u16| Switch::ready(scenario.ranks.into(), (*slots).into());
        Self {
            scenario,
            ranks: (0..scenario.ranks).map(rank).collect(),
            switches: scenario.slots.iter().map(switch).collect(),
            alive: 0,
            now: 0,
            results: Results::default(),
        }
    }

    fn step(&mut self, rank: u16, step: Step) {
        let index = usize::from(rank % self.scenario.ranks);
        match step {
            Step::Call => self.call(index),
            Step::Send(lost) => self.send(index, lost),
            Step::Receive(which) => {
                let rank = &mut self.ranks[index];
                if !rank.inbox.is_empty() {
                    let packet = rank.inbox.remove(usize::from(which) % rank.inbox.len());
                    rank.data_path.receive(self.now, &packet, false).unwrap();
                    rank.data_path.give_back();
                }
            }
            Step::Wait(ticks) => self.now += u64::from(ticks) * TICK / 4,
            Step::Die => {
                let newest = self.ranks.iter().map(|rank| rank.at).max().unwrap_or_default();
                if newest + 1 < self.switches.len() {
                    self.alive = newest + 1;
                }
            }
            Step::Move => self.go_on(index),
        }
    }

    fn call(&mut self, index: usize) {
        let (scenario, rank) = (self.scenario, &mut self.ranks[index]);
        let Some(&call) = scenario.calls.get(rank.calls) else { return };
        let place = (index as u16, rank.calls);
        let elements = (0..call.count).flat_map(|i| element(call.dtype, place.1, place.0, i));
        let buffer =
            Tensor { bytes: elements.collect(), place, results: Arc::clone(&self.results) };
        rank.data_path.submit(Submission {
            number: place.1 as u64,
            call,
            codec: call.codec(scenario.ranks.into()).unwrap(),
            first: 0,
            buffer: Box::new(buffer),
        });
        rank.calls += 1;
    }

    fn go_on(&mut self, index: usize) {
        let rank = &mut self.ranks[index];
        if rank.at < self.alive {
            // Others may have gone there while it lived, and left again.
            rank.at = self.alive;
            rank.inbox.clear();
            rank.data_path.lose();
            assert!(!rank.data_path.is_idle());
            assert!(rank.data_path.resume(config(self.scenario, index as u16, rank.at), TICK, 4));
        }
    }

    fn send(&mut self, index: usize, mut lost: u8) {
        let Self { ranks, switches, now, alive, .. } = self;
        let mut packets: Vec<Vec<u8>> = Vec::new();
        ranks[index].data_path.turn(*now, Others::THERE, &mut packets).unwrap();
        ranks[index].data_path.give_back();
        let at = ranks[index].at;
        let mut completed: Vec<Packet> = Vec::new();
        for mut bytes in packets {
            let is_lost = lost & 1 != 0 || at < *alive;
            lost >>= 1;
            if is_lost {
                continue;
            }
            let outcome = switches[at].receive_bytes(&binding(index as u16), &mut bytes);
            let lanes = u16::from_be_bytes([bytes[18], bytes[19]]);
            bytes.truncate(32 + 4 * usize::from(lanes));
            match outcome.action() {
                Action::Reply => ranks[index].inbox.push(bytes),
                Action::Broadcast => {
                    let mut result = Packet::from_bytes(&bytes);
                    if !self.scenario.checks_maxima && result.op == 1 {
                        (result.flags, result.check) = (0, 0);
                    }
                    let here = (0..).zip(&mut *ranks).filter(|(_, to)| to.at == at);
                    here.filter(|(rank, _)| needs_lanes(result.op, *rank))
                        .for_each(|(_, to)| to.inbox.push(result.to_bytes()));
                    if !ALL_OPS.contains(&result.op) {
                        completed.push(result);
                    }
                }
                _ => {}
            }
        }
        let is_same = |a: &Packet, b: &Packet| (a.op, a.fingerprint) == (b.op, b.fingerprint);
        for results in completed.chunk_by(is_same) {
            let done = done_of(results).to_bytes();
            let here = (0..).zip(&mut *ranks).filter(|(_, to)| to.at == at);
            here.filter(|(rank, _)| !needs_lanes(results[0].op, *rank))
                .for_each(|(_, to)| to.inbox.push(done.clone()));
        }
    }

    /// All calls end, in a network that loses nothing.
    fn finish(mut self) -> BTreeMap<(u16, usize), Vec<u8>> {
        for _ in 0..PATIENCE {
            for index in 0..self.ranks.len() {
                self.go_on(index);
                self.call(index);
                self.send(index, 0);
            }
            for rank in &mut self.ranks {
                for packet in std::mem::take(&mut rank.inbox) {
                    rank.data_path.receive(self.now, &packet, false).unwrap();
                    rank.data_path.give_back();
                }
            }
            self.now += TICK;
            let calls = self.scenario.calls.len();
            if self.ranks.iter().all(|rank| rank.calls == calls && rank.data_path.is_idle()) {
                return self.results.lock().unwrap().clone();
            }
        }
        panic!("the calls do not end");
    }
}

fn config(scenario: &Scenario, rank: u16, at: usize) -> Config {
    let identity =
        Identity { job: JOB, epoch: EPOCH, rank, ranks: scenario.ranks, keys: Keys::NONE };
    let limits = Limits { deadline: Duration::from_secs(1 << 30), ..Limits::default() };
    let mut capabilities = Capabilities::all();
    capabilities.set(Capabilities::CHECKED_MAXIMA, scenario.checks_maxima);
    Config { capabilities, ..Config::new(identity, scenario.slots[at], LANES, 16, limits) }
}

fn run(scenario: &Scenario) -> BTreeMap<(u16, usize), Vec<u8>> {
    let mut world = World::new(scenario);
    for (rank, step) in &scenario.steps {
        world.step(*rank, *step);
    }
    world.finish()
}

/// The part of a call's elements that a rank must have the result of (rule 17.8).
fn own_part(call: &Call, rank: u16, ranks: u16, bytes: &[u8]) -> Vec<u8> {
    let start = |rank: u16| 4 * call.part_start(rank.into(), ranks.into());
    match call.kind {
        Kind::ReduceScatter(_) => bytes[start(rank)..start(rank + 1)].to_vec(),
        _ => bytes.to_vec(),
    }
}

fn check(scenario: &Scenario) {
    let (found, quiet) = (run(scenario), run(&Scenario { steps: Vec::new(), ..scenario.clone() }));
    for (&(rank, number), bytes) in &found {
        let call = &scenario.calls[number];
        let part = |bytes: &[u8]| own_part(call, rank, scenario.ranks, bytes);
        assert_eq!(part(bytes), part(&quiet[&(rank, number)]), "rank {rank}, call {number}");
        if call.kind == Kind::AllReduce(Reduction::from(ReduceOp::Sum)) && call.dtype == DType::I32
        {
            let sum = |i| {
                let own = |rank| i32::from_ne_bytes(element(call.dtype, number, rank, i));
                (0..scenario.ranks).map(own).fold(0, i32::wrapping_add).to_ne_bytes()
            };
            assert_eq!(*bytes, (0..call.count).flat_map(sum).collect::<Vec<_>>());
        }
    }
    assert_eq!(found.len(), usize::from(scenario.ranks) * scenario.calls.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_death_at_any_moment_changes_no_bit(scenario in scenarios()) {
        check(&scenario);
    }
}

/// Rank 0 has given its call back, of which rank 1 has no result at all.
#[test]
fn a_rank_that_has_all_its_results_sends_again_for_others() {
    let call = Call { kind: Kind::AllReduce(Reduction::SUM), dtype: DType::I32, count: 100 };
    let both = |step| [(0, step), (1, step)];
    let mut steps = [both(Step::Call), both(Step::Send(0))].concat();
    steps.extend([(0, Step::Receive(0)); 4]);
    steps.push((0, Step::Die));
    let scenario =
        Scenario { ranks: 2, slots: vec![8, 3], calls: vec![call], checks_maxima: true, steps };
    let mut world = World::new(&scenario);
    scenario.steps.iter().for_each(|(rank, step)| world.step(*rank, *step));
    assert!(world.ranks[0].data_path.is_idle());
    assert_eq!(world.results.lock().unwrap().keys().copied().collect::<Vec<_>>(), [(0, 0)]);
    check(&scenario);
}
