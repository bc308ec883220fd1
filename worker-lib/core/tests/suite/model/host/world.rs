//! A host's world: its states, and the events between them.

use std::sync::{Arc, RwLock};

use stateright::{Model, Property};
use switchml_protocol::header::{Kind, flags};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::share::Share;

use super::super::aggregator::Aggregator;
use super::super::packets;
use super::super::plan::Plan;
use super::super::promises::{DONE, NO_RACE, NO_REFUSAL, RIGHT_SUMS, SETTLES, Violation};
use super::bounds::Bounds;
use super::memory::Segment;
use super::settled::Settled;
use super::tasks::{Rank, Task, What};

/// A world.
pub struct Host {
    pub plan: Plan,
    /// The ranks that share memory are the first ones, and rank 0 is the taker.
    pub bounds: Bounds,
    /// Every packet that the network has had in any state. A state knows them by number.
    packets: RwLock<Vec<Arc<Packet>>>,
}

/// A packet in the network.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet {
    to: To,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Aggregator,
    /// All that get a copy of a RESULT to all: the taker, and ranks that do not share.
    All,
    Rank(u16),
}

/// One state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub aggregator: Aggregator,
    pub ranks: Vec<Rank>,
    pub segment: Segment,
    /// Bitmap of the packets that were ever sent.
    pub network: u128,
    /// Resends so far, if they are bounded.
    pub resent: u8,
    pub violation: Option<Violation>,
}

/// A possible event. Ranks and packets are known by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rank takes the first step of a task.
    Begin(usize, What),
    /// A rank takes the next step of its task.
    Proceed(usize),
    /// A packet arrives at the aggregator.
    Arrive(usize),
    /// A rank stops forever.
    Die(usize),
}

impl Host {
    pub fn new(plan: Plan, bounds: Bounds) -> Self {
        Self { plan, bounds, packets: RwLock::default() }
    }

    pub fn packet(&self, number: usize) -> Arc<Packet> {
        self.packets.read().expect("no panic")[number].clone()
    }

    /// Numbers of the packets in the network.
    fn network(state: &State) -> impl Iterator<Item = usize> {
        let network = state.network;
        (0..128).filter(move |number| network >> number & 1 == 1)
    }

    fn keep(&self, state: &mut State, to: To, bytes: Vec<u8>) {
        let packet = Packet { to, bytes };
        let mut packets = self.packets.write().expect("no panic");
        let known = packets.iter().position(|known| **known == packet);
        let number = known.unwrap_or_else(|| {
            packets.push(Arc::new(packet));
            packets.len() - 1
        });
        assert!(number < 128, "more packets than a state has bits for");
        state.network |= 1 << number;
    }

    /// A packet leaves for the aggregator, to which a resend is the same packet.
    pub fn leave(&self, state: &mut State, packet: &[u8]) {
        let bytes = packets::rewritten(packet, self.plan.setup.ranks, |header| {
            header.flags &= !flags::RETRANSMIT;
        });
        self.keep(state, To::Aggregator, bytes);
    }

    /// The aggregator gets a packet. Only RESULTs matter of what it answers.
    pub fn arrive(&self, state: &mut State, packet: &[u8]) {
        let (_, ranks) = Share::of(&packets::header(packet)).in_group();
        let rank = ranks.trailing_zeros() as u16;
        let (outcome, answer) = state.aggregator.serve(&self.plan, rank, packet);
        let header = packets::header(packet);
        if outcome == Outcome::WrongRound && !self.bounds.forges {
            let chunk = self.plan.chunk_in(header.round.get(), header.slot.get());
            state.violation = Some(Violation::Refused { session: 0, rank, chunk });
        }
        let is_result = |answer: &Vec<u8>| packets::header(answer).kind == Kind::Result as u8;
        if let Some(answer) = answer.filter(is_result) {
            let is_to_all = outcome.action() == Action::Broadcast;
            self.keep(state, if is_to_all { To::All } else { To::Rank(rank) }, answer);
        }
    }

    /// The answers that may come to a rank, and bring it something.
    pub fn answers(&self, state: &State, at: usize) -> Vec<usize> {
        let comes = |number: &usize| {
            let packet = self.packet(*number);
            let header = packets::header(&packet.bytes);
            let chunk = self.plan.chunk_in(header.round.get(), header.slot.get());
            let comes_here = match packet.to {
                To::Aggregator => false,
                To::All => at == 0 || at >= self.bounds.sharing,
                To::Rank(rank) => usize::from(rank) == at,
            };
            comes_here && state.ranks[at].worker.awaits(chunk)
        };
        Self::network(state).filter(comes).collect()
    }

    /// The tasks that a rank may begin.
    pub fn tasks(&self, state: &State, at: usize) -> Vec<What> {
        let Rank { worker, results, .. } = &state.ranks[at];
        let mut tasks = Vec::new();
        tasks.extend(worker.may_send(&self.plan).then_some(What::Send));
        let sent = (0..worker.view.sent).filter(|chunk| worker.awaits(*chunk));
        let may_resend = self.bounds.resends.is_none_or(|most| state.resent < most);
        tasks.extend(sent.clone().filter(|_| may_resend).map(What::Resend));
        let is_fooled = self.bounds.forges && results.is_some();
        tasks.extend(sent.filter(|_| is_fooled).map(What::HearForged));
        tasks.extend(self.answers(state, at).into_iter().map(What::Hear));
        tasks.extend((at > 0 && results.is_some()).then_some(What::Read));
        tasks
    }

    /// Numbers of the packets that may arrive at the aggregator.
    pub fn arrivals(&self, state: &State) -> Vec<usize> {
        Self::network(state).filter(|number| self.packet(*number).to == To::Aggregator).collect()
    }
}

impl Model for Host {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            aggregator: Aggregator::new(&self.plan, self.plan.epoch(0)),
            ranks: (0..self.plan.setup.ranks).map(|rank| Rank::new(self, rank)).collect(),
            segment: Segment::new(self.bounds.sharing, self.plan.setup.slots.into()),
            network: 0,
            resent: 0,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        let died = state.ranks.iter().filter(|rank| rank.is_dead).count();
        for (at, rank) in state.ranks.iter().enumerate().filter(|(_, rank)| !rank.is_dead) {
            if rank.task.is_some() {
                events.push(Event::Proceed(at));
            } else {
                events.extend(self.tasks(state, at).into_iter().map(|what| Event::Begin(at, what)));
            }
            if died < self.bounds.deaths && at < self.bounds.sharing {
                events.push(Event::Die(at));
            }
        }
        events.extend(self.arrivals(state).into_iter().map(Event::Arrive));
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Begin(at, what) => {
                let is_counted = self.bounds.resends.is_some() && matches!(what, What::Resend(_));
                next.resent += u8::from(is_counted);
                next.ranks[at].task = Some(Task::new(what));
                self.proceed(&mut next, at, 1);
            }
            Event::Proceed(at) => self.proceed(&mut next, at, 1),
            Event::Arrive(number) => self.arrive(&mut next, &self.packet(number).bytes),
            Event::Die(at) => {
                // Nothing depends on what it was about.
                next.ranks[at] = Rank { is_dead: true, ..Rank::new(self, at as u16) };
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all = [
            Property::always(RIGHT_SUMS, |_, state: &State| {
                !matches!(state.violation, Some(Violation::WrongSum { .. }))
            }),
            Property::always(NO_RACE, |_, state: &State| {
                !matches!(state.violation, Some(Violation::Race { .. }))
            }),
            Property::always(NO_REFUSAL, |_, state: &State| {
                !matches!(state.violation, Some(Violation::Refused { .. }))
            }),
            Property::always(SETTLES, |host: &Self, state: &State| {
                state.violation.is_some() || Settled::of(host, state).is_right()
            }),
            Property::sometimes(DONE, |host: &Self, state: &State| {
                state.ranks.iter().all(|rank| rank.worker.is_done(&host.plan))
            }),
        ];
        // A rank that is ahead by a forged RESULT breaks the rules.
        let holds = |name| !self.bounds.forges || [RIGHT_SUMS, NO_RACE, DONE].contains(&name);
        all.into_iter().filter(|property| holds(property.name)).collect()
    }
}
