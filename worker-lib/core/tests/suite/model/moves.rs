//! Two aggregators, of which the first dies at any step: every order of what ranks send, hear and
//! notice (rules 36.10 to 36.13), over the real [`Log`].
//!
//! Slots and packets are those of the other worlds: here an aggregator is a table of rounds that
//! adds each rank once, and an engine the rule that chunk c waits for the result of chunk c - S. As
//! there, the network is a set: what was sent may arrive at any time, or never, and so may the
//! result of a complete round, as long as its aggregator lives.

use stateright::{Checker, HasDiscoveries, Model, Property};
use switchml_protocol::wire::audience::Audience;
use switchml_protocol::wire::header::Op;
use switchml_worker_core::engine::{Chunk, Part};
use switchml_worker_core::failover::{Due, Log};

use std::hash::{Hash, Hasher};

const LANES: u16 = 32;
const RIGHT_SUMS: &str = "each result that counts is the sum of all ranks' lanes, and counts once";
const FINISHES: &str = "once faults stop, everybody gets all results";

/// The bounds of a world.
#[derive(Clone, Debug)]
struct Setup {
    ranks: u16,
    /// Slots at each aggregator.
    slots: Vec<u16>,
    chunks: u64,
}

/// A rank.
#[derive(Clone, Debug)]
struct Rank {
    view: View,
    log: Log,
}

/// The state of a rank on which all that it does depends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct View {
    /// The index of its aggregator.
    at: usize,
    /// Chunks that it sent there.
    sent: u64,
    /// Bitmap of those whose result it has from there.
    heard: u64,
    /// Bitmap of the chunks of its calls whose result it has used.
    used: u64,
    /// The chunks that its calls have numbered.
    new: u64,
}

/// A round at an aggregator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Round {
    /// Contributions in the network, by rank.
    sent: Vec<Option<Vec<u32>>>,
    /// Bitmap of the ranks that are in.
    seen: u16,
}

#[derive(Clone, Debug)]
struct State {
    ranks: Vec<Rank>,
    rounds: Vec<Vec<Round>>,
    /// Aggregators before this one are dead.
    alive: usize,
    is_wrong: bool,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        let views = |state: &Self| -> Vec<View> {
            state.ranks.iter().map(|rank| rank.view.clone()).collect()
        };
        (views(self), &self.rounds, self.alive, self.is_wrong)
            == (views(other), &other.rounds, other.alive, other.is_wrong)
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ranks.iter().for_each(|rank| rank.view.hash(state));
        (&self.rounds, self.alive, self.is_wrong).hash(state);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Send(usize),
    Arrive(usize, usize),
    Hear(usize, usize),
    Die,
    Move(usize),
}

/// What a rank contributes to a chunk: a one in a digit of its own.
fn contribution(rank: u16, place: u64) -> Vec<u32> {
    let mut lanes = vec![0; LANES.into()];
    lanes[place as usize] = 1 << (4 * rank);
    lanes
}

fn sum(contributions: impl Iterator<Item = Vec<u32>>) -> Vec<u32> {
    contributions.fold(vec![0; LANES.into()], |sum, lanes| {
        sum.iter().zip(lanes).map(|(a, b)| a.wrapping_add(b)).collect()
    })
}

fn bytes(lanes: &[u32]) -> Vec<u8> {
    lanes.iter().flat_map(|lane| lane.to_be_bytes()).collect()
}

fn lanes(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|lane| u32::from_be_bytes(*lane)).collect()
}

fn chunk(place: u64) -> Chunk {
    Chunk {
        collective: 0,
        part: Part::Data(place as usize),
        op: Op::Sum,
        audience: Audience::All,
        lanes: LANES,
        fingerprint: 0,
        empty: false,
        may_wait: false,
    }
}

impl Setup {
    /// Whether a rank may number another chunk (rule 12.2).
    fn has_room(&self, view: &View) -> bool {
        let oldest = u64::from(view.heard.trailing_ones());
        view.sent < oldest + u64::from(self.slots[view.at])
    }

    /// What a rank sends next, if anything.
    fn due(&self, rank: &Rank) -> Option<Chunk> {
        let due = match rank.log.due() {
            Due::Known(chunk) => Some(chunk),
            Due::Nothing => None,
            Due::New => (rank.view.new < self.chunks).then(|| chunk(rank.view.new)),
        };
        due.filter(|_| self.has_room(&rank.view))
    }

    fn send(&self, state: &mut State, at: usize) {
        let rank = &mut state.ranks[at];
        let Some(chunk) = self.due(rank) else { return };
        if let Due::New = rank.log.due() {
            rank.view.new += 1;
        }
        rank.log.note_numbered(chunk);
        let mut payload = vec![0; 4 * usize::from(LANES)];
        let used = rank.view.used;
        rank.log.write(rank.view.sent, &mut payload, |payload| {
            let Part::Data(place) = chunk.part else { unreachable!("no other part") };
            let own = contribution(at as u16, place as u64);
            // The result has overwritten the elements.
            let is_gone = used >> place & 1 == 1;
            payload.copy_from_slice(&bytes(&if is_gone { vec![7; own.len()] } else { own }));
            0
        });
        let (aggregator, number) = (rank.view.at, rank.view.sent as usize);
        rank.view.sent += 1;
        let rounds = &mut state.rounds[aggregator];
        rounds.resize(rounds.len().max(number + 1), Round::default());
        rounds[number].sent.resize(self.ranks.into(), None);
        rounds[number].sent[at] = Some(lanes(&payload));
    }

    fn hear(&self, state: &mut State, at: usize, number: usize) {
        let rank = &mut state.ranks[at];
        let round = &state.rounds[rank.view.at][number];
        let result = sum(round.sent.iter().flatten().cloned());
        rank.view.heard |= 1 << number;
        let before = rank.view.used;
        let is_used = rank.log.complete(number as u64, &bytes(&result));
        rank.log.forget(rank.view.heard.trailing_ones().into(), self.slots[rank.view.at]);
        match is_used {
            Ok(false) => return,
            Err(_) => state.is_wrong = true,
            Ok(true) => {}
        }
        // A right sum tells which chunk it is of.
        let place = result.iter().position(|lane| *lane != 0).unwrap_or_default() as u64;
        let right = sum((0..self.ranks).map(|rank| contribution(rank, place)));
        rank.view.used |= 1 << place;
        state.is_wrong |= result != right || rank.view.used == before;
    }

    /// Everybody notices what has happened, and everything arrives.
    fn finishes(&self, state: &State) -> bool {
        let mut state = state.clone();
        loop {
            let mut events = Vec::new();
            self.actions(&state, &mut events);
            let next = events.into_iter().find_map(|event| {
                (event != Event::Die).then(|| self.next_state(&state, event)).flatten()
            });
            match next {
                Some(next) => state = next,
                None => break,
            }
        }
        state.is_wrong || state.ranks.iter().all(|rank| rank.view.used == (1 << self.chunks) - 1)
    }
}

impl Model for Setup {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let log = |rank| Log::new(rank, self.ranks, LANES, self.slots[0]);
        let rank = |rank| Rank { view: View::default(), log: log(rank) };
        let rounds = vec![Vec::new(); self.slots.len()];
        let ranks = (0..self.ranks).map(rank).collect();
        vec![State { ranks, rounds, alive: 0, is_wrong: false }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.is_wrong {
            return;
        }
        for (at, rank) in state.ranks.iter().enumerate() {
            if rank.view.at < state.alive {
                events.push(Event::Move(at));
            }
            if self.due(rank).is_some() {
                events.push(Event::Send(at));
            }
            for (number, round) in state.rounds[rank.view.at].iter().enumerate() {
                let is_in = round.seen >> at & 1 == 1;
                if rank.view.at >= state.alive && round.sent[at].is_some() && !is_in {
                    events.push(Event::Arrive(at, number));
                }
                let is_complete = round.seen.count_ones() == u32::from(self.ranks);
                if is_complete && rank.view.heard >> number & 1 == 0 {
                    events.push(Event::Hear(at, number));
                }
            }
        }
        if state.alive + 1 < self.slots.len() {
            events.push(Event::Die);
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Send(at) => self.send(&mut next, at),
            Event::Arrive(at, number) => {
                let aggregator = next.ranks[at].view.at;
                next.rounds[aggregator][number].seen |= 1 << at;
            }
            Event::Hear(at, number) => self.hear(&mut next, at, number),
            Event::Die => next.alive += 1,
            Event::Move(at) => {
                let Rank { view, log } = &mut next.ranks[at];
                (view.at, view.sent, view.heard) = (view.at + 1, 0, 0);
                log.lose();
                log.resume(self.slots[view.at]);
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(RIGHT_SUMS, |_, state: &State| !state.is_wrong),
            Property::always(FINISHES, |setup: &Self, state| setup.finishes(state)),
        ]
    }
}

fn hold(ranks: u16, slots: &[u16], chunks: u64) {
    let setup = Setup { ranks, slots: slots.to_vec(), chunks };
    let checker =
        setup.clone().checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries().into_iter().next();
    println!("| {setup:?} | {} | {} |", checker.unique_state_count(), checker.max_depth() - 1);
    assert!(found.is_none(), "{setup:?}: violated: {found:?}");
}

#[test]
fn an_aggregator_dies_at_any_step() {
    hold(2, &[1, 1], 4);
    hold(2, &[2, 1], 4);
    hold(2, &[1, 2], 3);
    hold(3, &[1, 1], 2);
}

#[test]
fn two_die_one_after_the_other() {
    hold(2, &[1, 1, 1], 2);
    hold(2, &[2, 1, 1], 2);
}
