//! The properties of a world for the checker.

use std::sync::atomic::Ordering;

use stateright::{Model, Property};

use super::aggregator::Aggregator;
use super::cells::Memory;
use super::fair;
use super::plan::{Contribution, Setup};
use super::promises::{DONE, FINISHES, NO_REFUSAL, PAYLOAD_LAST, RIGHT_SUMS, Violation};
use super::worker::Worker;
use super::world::{Answer, Event, State, World};

impl World {
    /// Adds the events that may follow from a contribution of a worker that is in the network.
    fn arrivals(
        &self,
        at: usize,
        worker: &Worker,
        contribution: Contribution,
        active: bool,
        events: &mut Vec<Event>,
    ) {
        let Contribution { chunk, empty } = contribution;
        let Setup { pending, abort, mismatch, corruption, .. } = self.plan.setup;
        events.push(Event::Arrive(at, contribution));
        let is_answered = match empty {
            true => worker.has_left_out(chunk),
            false => pending || abort || mismatch.is_some(),
        };
        let listens = worker.view.failure.is_none() && worker.view.got >> chunk & 1 == 0;
        if active && is_answered && listens {
            events.push(Event::ArriveAndTell(at, contribution));
        }
        if corruption {
            events.push(Event::ArriveCorrupted(at, contribution));
        }
        if worker.era() > 0 && worker.awaits(chunk) && !empty {
            events.push(Event::ArriveResent(at, contribution));
        }
    }

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

    /// For properties: whether `holds`, or this is not the first violation found.
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
        let combiners = vec![Memory::default(); self.plan.setup.combiners.len()];
        vec![State {
            aggregator,
            workers,
            network: 0,
            combiners,
            partials: 0,
            restarted: false,
            violation: None,
        }]
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
            // A resend brings nothing new except lanes that were left out.
            let matters = self.plan.setup.pending || worker.awaits_left_out();
            if active && waits && matters && worker.view.alarms < self.plan.setup.alarms {
                events.push(Event::Alarm(at));
            }
            for contribution in worker.in_network(&self.plan) {
                self.arrivals(at, worker, contribution, active, events);
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
        self.combiner_events(state, events);
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

    /// Without rules, a contribution may be counted forever. The search stops after twice, which
    /// is wrong enough.
    fn within_boundary(&self, state: &State) -> bool {
        !state.aggregator.exceeds_two() && !state.combiners.iter().any(Memory::exceeds_two)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all = [
            Property::always(RIGHT_SUMS, |world: &Self, state: &State| {
                world.passes(!matches!(state.violation, Some(Violation::WrongSum { .. })))
            }),
            Property::always(NO_REFUSAL, |world: &Self, state: &State| {
                world.passes(!matches!(state.violation, Some(Violation::Refused { .. })))
            }),
            Property::always(PAYLOAD_LAST, |world: &Self, state: &State| {
                world.passes(!matches!(state.violation, Some(Violation::CompletedByEmpty { .. })))
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
