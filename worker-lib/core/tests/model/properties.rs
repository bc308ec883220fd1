//! What must hold in a world, as the search sees it.

use std::sync::atomic::Ordering;

use stateright::{Model, Property};

use crate::aggregator::Aggregator;
use crate::fair;
use crate::plan::Violation;
use crate::worker::Worker;
use crate::world::{Answer, Event, State, World};

/// The properties, by name.
pub const RIGHT_SUMS: &str =
    "what a worker accepts is the sum of all ranks' contributions, once each";
pub const NO_REFUSAL: &str =
    "no contribution of a worker that keeps the rules is answered REJECT(ROUND)";
pub const FINISHES: &str =
    "once faults stop, everybody finishes, or fails where the session is over";
pub const DONE: &str = "everybody has all results";

pub const ALL: &[&str] = &[RIGHT_SUMS, NO_REFUSAL, FINISHES, DONE];

impl World {
    /// The state after these events.
    pub fn play(&self, events: &[Event]) -> State {
        let start = self.init_states().remove(0);
        events.iter().fold(start, |state, event| {
            let mut possible = Vec::new();
            self.actions(&state, &mut possible);
            assert!(possible.contains(event), "{event:?} cannot happen");
            self.next_state(&state, *event).expect("a change")
        })
    }

    /// For properties: whether that is fine, or not the first that is not.
    fn passes(&self, holds: bool) -> bool {
        holds || self.found.swap(true, Ordering::Relaxed)
    }
}

impl Model for World {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let workers =
            (0..self.plan.setup.ranks).map(|rank| Worker::new(&self.plan, 0, rank)).collect();
        let mut aggregator = Aggregator::new(&self.plan, self.plan.epoch(0));
        if self.plan.setup.origin > 0 {
            aggregator.age(self.plan.setup.ranks, self.plan.setup.origin);
        }
        vec![State { aggregator, workers, network: 0, restarted: false, violation: None }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        let session = self.session(state);
        for (at, worker) in state.workers.iter().enumerate() {
            let active = worker.view.session == session;
            if active && worker.may_send(&self.plan) {
                events.push(Event::Send(at));
            }
            let waits = worker.view.failure.is_none() && worker.engine.outstanding() > 0;
            if active && waits && worker.view.alarms < self.plan.setup.alarms {
                events.push(Event::Alarm(at));
            }
            for chunk in 0..worker.in_network(&self.plan) {
                events.push(Event::Arrive(at, chunk));
                let is_answered = self.plan.setup.pending
                    || self.plan.setup.abort
                    || self.plan.setup.mismatch.is_some();
                if active
                    && is_answered
                    && worker.view.failure.is_none()
                    && worker.view.got >> chunk & 1 == 0
                {
                    events.push(Event::ArriveAndTell(at, chunk));
                }
                if self.plan.setup.corruption {
                    events.push(Event::ArriveCorrupted(at, chunk));
                }
                if worker.era() > 0 && worker.awaits(chunk) {
                    events.push(Event::ArriveResent(at, chunk));
                }
            }
        }
        for answer in (0..128).filter(|answer| state.network >> answer & 1 == 1) {
            let Answer { session: of, to, .. } = *self.answer(answer);
            for to in self
                .at(state, to)
                .into_iter()
                .filter(|to| state.workers[*to].view.session == session || of == session)
            {
                events.push(Event::Hear(answer, to));
                if self.plan.setup.corruption {
                    events.push(Event::HearCorrupted(answer, to));
                }
            }
        }
        if self.plan.setup.leave {
            self.departures(state, events);
        }
        let in_first = session == 0;
        if self.plan.setup.abort && in_first && state.aggregator.is_open() {
            events.push(Event::Abort);
        }
        if self.plan.setup.restart && in_first && !state.restarted {
            events.push(Event::Restart);
        }
        if self.plan.setup.next_rounds > 0 && in_first {
            events.push(Event::NextSession);
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, event);
        (next != *state).then_some(next)
    }

    /// Without rules, a contribution may be counted for ever. Twice is wrong enough.
    fn within_boundary(&self, state: &State) -> bool {
        !state.aggregator.exceeds_two()
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all = [
            Property::always(RIGHT_SUMS, |world: &Self, state: &State| {
                world.passes(!matches!(state.violation, Some(Violation::WrongSum { .. })))
            }),
            Property::always(NO_REFUSAL, |world: &Self, state: &State| {
                world.passes(!matches!(state.violation, Some(Violation::Refused { .. })))
            }),
            Property::always(FINISHES, |world: &Self, state: &State| {
                world.passes(state.violation.is_some() || fair::finishes(world, state))
            }),
            Property::sometimes(DONE, |world: &Self, state: &State| {
                state.workers.iter().all(|worker| worker.is_done(&world.plan))
            }),
        ];
        all.into_iter().filter(|property| self.properties.contains(&property.name)).collect()
    }
}
