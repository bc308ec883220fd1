//! The states of ranks that share slots, and what changes them.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use stateright::{Model, Property};
use switchml_protocol::wire::header::{HEADER_LEN, Kind, flags};
use switchml_worker_core::local_slots::LocalSlots;
use switchml_worker_core::wire::Wire;

use super::super::packets;
use super::super::plan::{Contribution, Plan};
use super::super::promises::{DONE, NO_RACE, NO_REFUSAL, RIGHT_SUMS, SETTLES, Violation};
use super::super::worker::Worker;
use super::memory::{Contents, Desk, Run, Seen, Segment, is_cut};

/// The bounds of a world.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub ranks: u16,
    pub slots: u16,
    pub rounds: usize,
    /// How often ranks send something again, all together, if that is bounded.
    resends: Option<u8>,
    /// Whether ranks may die.
    may_die: bool,
}

impl Bounds {
    pub const fn new(ranks: u16, slots: u16, rounds: usize) -> Self {
        Self { ranks, slots, rounds, resends: None, may_die: false }
    }

    pub const fn resending(self, times: u8) -> Self {
        Self { resends: Some(times), ..self }
    }

    pub const fn dying(self) -> Self {
        Self { may_die: true, ..self }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { ranks, slots, rounds, .. } = self;
        write!(f, "{ranks} | {slots} | {rounds} | all share slots")?;
        if self.may_die {
            f.write_str(", all may die")?;
        }
        self.resends.map_or(Ok(()), |resends| write!(f, ", at most {resends} resends"))
    }
}

/// A world.
pub struct Host {
    plan: Plan,
    bounds: Bounds,
    contents: Arc<Contents>,
}

/// One state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    ranks: Vec<Rank>,
    segment: Segment,
    /// Resends so far, if they are bounded.
    resent: u8,
    violation: Option<Violation>,
}

/// A rank.
#[derive(Clone)]
struct Rank {
    worker: Worker,
    slots: Arc<LocalSlots<Desk>>,
    /// The number of the entry that it looks at next, which is all that its slots keep between two
    /// tasks.
    looks: u32,
    task: Option<Task>,
    is_dead: bool,
}

impl Rank {
    fn told_apart(&self) -> (&Worker, u32, &Option<Task>, bool) {
        (&self.worker, self.looks, &self.task, self.is_dead)
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.told_apart() == other.told_apart()
    }
}

impl Eq for Rank {}

impl Hash for Rank {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.told_apart().hash(state);
    }
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.told_apart().fmt(f)
    }
}

/// What a rank is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// It sends its next chunk.
    Send,
    /// It sends a chunk again, and hears an answer.
    Resend(usize),
    /// It reads the next result.
    Read,
}

/// A task under way: what its accesses have given so far, and what it reads now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Task {
    what: What,
    log: Vec<Seen>,
    reads: Option<u16>,
}

/// A possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A rank takes the first step of a task.
    Begin(usize, What),
    /// A rank takes the next step of its task.
    Proceed(usize),
    /// A rank stops forever.
    Die(usize),
}

impl Rank {
    fn put(&mut self, plan: &Plan, contribution: Contribution, more: u8) {
        let rank = self.worker.view.rank;
        let datagram = plan.datagram(0, rank, contribution);
        let datagram = packets::rewritten(datagram, plan.setup.ranks, |header| {
            header.flags |= more;
        });
        let header = packets::header(&datagram);
        let slots = Arc::make_mut(&mut self.slots);
        let Ok(()) = slots.put(&header, |packet| packet.copy_from_slice(&datagram));
    }

    fn read(&mut self, plan: &Plan) -> Result<(), Violation> {
        let Self { worker, slots, .. } = self;
        let awaits = |slot, round| worker.engine.awaits(slot, round);
        let packet = Arc::make_mut(slots).read(awaits).map(Cow::into_owned);
        let Some(packet) = packet.filter(|_| !is_cut()) else { return Ok(()) };
        worker.hear(plan, &packet)?;
        let header = packets::header(&packet);
        let chunk = plan.chunk_in(header.round.get(), header.slot.get());
        match worker.view.failure {
            None => Ok(()),
            Some(_) => Err(Violation::Refused { session: 0, rank: worker.view.rank, chunk }),
        }
    }

    /// Does the task, or a part of it.
    fn work(&mut self, plan: &Plan, what: What) -> Result<(), Violation> {
        match what {
            What::Send => {
                let contribution = self.worker.send(plan);
                self.put(plan, contribution, 0);
                Ok(())
            }
            What::Resend(chunk) => {
                self.put(plan, Contribution::in_full(chunk), flags::RETRANSMIT);
                self.read(plan)
            }
            What::Read => self.read(plan),
        }
    }

    fn oldest(&self) -> Option<usize> {
        (0..self.worker.view.sent).find(|chunk| self.worker.awaits(*chunk))
    }
}

impl Host {
    pub fn new(plan: Plan, bounds: Bounds) -> Self {
        Self { plan, bounds, contents: Arc::default() }
    }

    /// The tasks that a rank may begin.
    fn tasks(&self, state: &State, at: usize) -> Vec<What> {
        let worker = &state.ranks[at].worker;
        let mut tasks = vec![What::Read];
        tasks.extend(worker.may_send(&self.plan).then_some(What::Send));
        let may_resend = self.bounds.resends.is_none_or(|most| state.resent < most);
        let awaited = (0..worker.view.sent).filter(|chunk| worker.awaits(*chunk));
        tasks.extend(awaited.filter(|_| may_resend).map(What::Resend));
        tasks
    }

    /// A rank takes the next steps of its task, as many as it is allowed.
    fn proceed(&self, state: &mut State, at: usize, allowance: usize) {
        let Some(Task { what, log, .. }) = state.ranks[at].task.take() else { return };
        let others = state.ranks.iter().filter(|rank| !rank.is_dead);
        let others_read = others.filter_map(|rank| rank.task.as_ref()?.reads).collect();
        let memory = (std::mem::take(&mut state.segment), Arc::clone(&self.contents));
        let mut rank = state.ranks[at].clone();
        let run = Run::new(memory, others_read, log, allowance);
        let (outcome, mut run) = run.of(|| rank.work(&self.plan, what));
        let goes_on = run.goes_on() && allowance < usize::MAX;
        if !goes_on {
            run.finish_write();
        }
        let Run { segment, log, reads, is_race, .. } = run;
        state.segment = segment;
        if is_race {
            state.violation = Some(Violation::Race { rank: at as u16 });
        }
        if goes_on {
            state.ranks[at].task = Some(Task { what, log, reads });
            return;
        }
        // What it looks at next, without a look.
        let (_, run) = Run::default().of(|| rank.slots.has_news());
        rank.looks = run.looked;
        state.ranks[at] = rank;
        if let Err(violation) = outcome {
            state.violation = Some(violation);
        }
    }

    fn finish(&self, state: &mut State, at: usize, what: What) {
        state.ranks[at].task = Some(Task { what, log: Vec::new(), reads: None });
        self.proceed(state, at, usize::MAX);
    }

    /// Lets everything happen that needs no timer.
    fn calm(&self, state: &mut State) {
        loop {
            let before = state.clone();
            for at in living(state) {
                while state.ranks[at].worker.may_send(&self.plan) {
                    self.finish(state, at, What::Send);
                }
            }
            for at in living(state) {
                self.finish(state, at, What::Read);
            }
            if before == *state {
                return;
            }
        }
    }

    /// Whether all living ranks finish once faults stop, or wait for dead ones alone; and whether
    /// no chunk that was begun after the faults had to be sent again, if no rank is dead.
    fn settles(&self, state: &State) -> bool {
        let mut state = state.clone();
        let all_live = living(&state).len() == state.ranks.len();
        for at in living(&state) {
            self.proceed(&mut state, at, usize::MAX);
        }
        let begun = state.ranks.iter().map(|rank| rank.worker.view.sent).max().unwrap_or(0);
        loop {
            self.calm(&mut state);
            let before = state.clone();
            for at in living(&state) {
                let Some(chunk) = state.ranks[at].oldest() else { continue };
                if all_live && chunk >= begun {
                    return false;
                }
                self.finish(&mut state, at, What::Resend(chunk));
            }
            let got = |state: &State| {
                state.ranks.iter().map(|rank| rank.worker.view.got).collect::<Vec<_>>()
            };
            if got(&before) == got(&state) && before.segment == state.segment {
                break;
            }
        }
        state.violation.is_some()
            || living(&state).into_iter().all(|at| self.waits_for_the_dead_alone(&state, at))
    }

    fn waits_for_the_dead_alone(&self, state: &State, at: usize) -> bool {
        let mut rank = state.ranks[at].clone();
        let Some(chunk) = rank.oldest() else { return rank.worker.is_done(&self.plan) };
        let memory = (state.segment.clone(), Arc::clone(&self.contents));
        let run = Run::new(memory, Vec::new(), Vec::new(), usize::MAX);
        let (answer, _) = run.of(|| {
            rank.put(&self.plan, Contribution::in_full(chunk), flags::RETRANSMIT);
            Arc::make_mut(&mut rank.slots).read(|_, _| false).map(Cow::into_owned)
        });
        let is_pending = |packet: &Vec<u8>| packets::header(packet).kind == Kind::Pending as u8;
        let Some(answer) = answer.filter(is_pending) else { return false };
        let words = answer[HEADER_LEN..HEADER_LEN + 8].try_into().expect("two words");
        let seen = u64::from_be_bytes(words);
        living(state).into_iter().all(|rank| seen >> rank & 1 == 1)
    }
}

fn living(state: &State) -> Vec<usize> {
    (0..state.ranks.len()).filter(|at| !state.ranks[*at].is_dead).collect()
}

impl Model for Host {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let Bounds { ranks, slots, .. } = self.bounds;
        let rank = |rank: u16| {
            let all = (0..ranks).collect();
            let slots = LocalSlots::new(Desk(rank.into()), self.plan.epoch(0), slots, all);
            let worker = Worker::new(&self.plan, 0, rank);
            Rank { worker, slots: Arc::new(slots), looks: 1, task: None, is_dead: false }
        };
        vec![State {
            ranks: (0..ranks).map(rank).collect(),
            segment: Segment::new(slots.into(), &self.contents),
            resent: 0,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        for at in living(state) {
            if state.ranks[at].task.is_some() {
                events.push(Event::Proceed(at));
            } else {
                events.extend(self.tasks(state, at).into_iter().map(|what| Event::Begin(at, what)));
            }
            if self.bounds.may_die {
                events.push(Event::Die(at));
            }
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Begin(at, what) => {
                let is_counted = self.bounds.resends.is_some() && matches!(what, What::Resend(_));
                next.resent += u8::from(is_counted);
                next.ranks[at].task = Some(Task { what, log: Vec::new(), reads: None });
                self.proceed(&mut next, at, 1);
            }
            Event::Proceed(at) => self.proceed(&mut next, at, 1),
            // What it has locked stays so.
            Event::Die(at) => (next.ranks[at].is_dead, next.ranks[at].task) = (true, None),
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
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
                state.violation.is_some() || host.settles(state)
            }),
            Property::sometimes(DONE, |host: &Self, state: &State| {
                state.ranks.iter().all(|rank| rank.worker.is_done(&host.plan))
            }),
        ]
    }
}
