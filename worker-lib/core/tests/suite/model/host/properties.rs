//! The properties of a host's world for the checker.

use stateright::{Model, Property};

use super::super::aggregator::Aggregator;
use super::super::promises::{DONE, NO_RACE, NO_REFUSAL, RIGHT_SUMS, SETTLES, Violation};
use super::memory::Segment;
use super::network::Host;
use super::settled::Settled;
use super::tasks::{Rank, Task, What};
use super::world::State;

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
