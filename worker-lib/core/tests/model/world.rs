//! A world to search: its bounds and faults, its states, the events between them, and what must
//! hold in each.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use stateright::{Model, Property};
use switchml_protocol::header::{Kind, Op};
use switchml_protocol::job::VACANT;
use switchml_protocol::outcome::{Action as Fate, Outcome};
use switchml_protocol::{EVERYONE, U32};
use switchml_worker_core::engine::{
    Chunk, Config, Engine, Identity, Part, RttLimits, WindowLimits,
};

use crate::aggregator::Aggregator;
use crate::rules::Rule;
use crate::tally::{self, Tally};
use crate::worker::{MOST_SLOTS, View, Worker};
use crate::{fair, packets};

/// Number of the job.
pub const JOB: u16 = 0;
const LANES: u16 = switchml_protocol::LANES_PER_BLOCK as u16;

/// The properties, by name.
pub const RIGHT_SUMS: &str =
    "what a worker accepts is the sum of all ranks' contributions, once each";
pub const NO_REFUSAL: &str =
    "no contribution of a worker that keeps the rules is answered REJECT(ROUND)";
pub const FINISHES: &str =
    "once faults stop, everybody finishes, or fails where the session is over";
pub const DONE: &str = "everybody has all results";

pub const ALL: &[&str] = &[RIGHT_SUMS, NO_REFUSAL, FINISHES, DONE];

/// Bounds and faults of a world.
#[derive(Clone, Debug)]
pub struct Setup {
    pub ranks: u16,
    pub slots: u16,
    /// Rounds of every slot in the first session.
    pub rounds: usize,
    /// Round that the first session begins with, even; if it is not 0, every slot holds the two
    /// rounds before.
    pub origin: u32,
    /// Rounds in the session after it, of the same job and with the same slots, which may begin at
    /// any moment; 0 if there is none.
    pub next_rounds: usize,
    /// The first session may be aborted at any moment.
    pub abort: bool,
    /// The aggregator may lose its memory at any moment, once.
    pub restart: bool,
    /// Packets may arrive with a bit flipped.
    pub corruption: bool,
    /// Chunk of the first session whose call is another one on the last rank.
    pub mismatch: Option<usize>,
    /// PENDING may arrive.
    pub pending: bool,
    /// Expiries of a worker's timer in a row.
    pub alarms: u8,
    /// Workers that are done leave, which the others hear of at any time.
    pub leave: bool,
    /// Rules that are taken out.
    pub without: Vec<Rule>,
    /// The published algorithm in place of section 8.
    pub published: bool,
}

/// A world, and what was sent in it.
pub struct World {
    pub setup: Setup,
    /// Contributions by session, rank and chunk.
    contributions: Vec<Vec<u8>>,
    /// Every answer that the network has had in any state. A state knows them by number.
    answers: RwLock<Vec<Arc<Answer>>>,
    /// The properties to check.
    properties: Vec<&'static str>,
    /// A violation was found: those after it are not reported, so that the path is a shortest one.
    found: AtomicBool,
}

/// An answer in the network.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    /// The session that the aggregator served.
    session: usize,
    to: Recipient,
    datagram: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    All,
    Rank(u16),
}

/// One moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub aggregator: Aggregator,
    /// The ranks of the first session, then those of the second one, if it has begun.
    pub workers: Vec<Worker>,
    /// Bitmap of the answers that were ever sent.
    network: u128,
    restarted: bool,
    pub violation: Option<Violation>,
}

/// What must never happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    WrongSum { session: usize, rank: u16, chunk: usize, sum: Tally },
    Refused { session: usize, rank: u16, chunk: usize },
}

/// What may happen next. Workers are known by their place in [`State::workers`], answers by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A worker sends its next chunk.
    Send(usize),
    /// A worker's timer expires.
    Alarm(usize),
    /// A contribution arrives at the aggregator; PENDING or REJECT for an answer gets lost.
    Arrive(usize, usize),
    /// A contribution arrives at the aggregator, and PENDING or REJECT for an answer at the worker.
    ArriveAndTell(usize, usize),
    /// A contribution arrives with a flipped bit.
    ArriveCorrupted(usize, usize),
    /// A contribution that its worker has just sent again arrives, after news of a departure.
    ArriveResent(usize, usize),
    /// An answer arrives at a worker.
    Hear(usize, usize),
    /// An answer arrives at a worker with a flipped bit.
    HearCorrupted(usize, usize),
    /// A worker that is done leaves.
    Leave(usize),
    /// A worker hears that another one has left.
    News(usize, usize),
    Abort,
    Restart,
    NextSession,
}

/// An answer of the aggregator's, on its way.
pub struct Reply {
    pub to: Recipient,
    pub datagram: Vec<u8>,
}

impl World {
    pub fn new(setup: Setup, properties: &[&'static str]) -> Self {
        assert!(usize::from(setup.slots) <= MOST_SLOTS && setup.ranks <= 8);
        assert!(
            setup.origin == 0 || setup.next_rounds == 0 && !setup.restart,
            "sessions begin with round 0"
        );
        let mut world = Self {
            setup,
            properties: properties.to_vec(),
            contributions: Vec::new(),
            answers: RwLock::default(),
            found: AtomicBool::new(false),
        };
        for session in 0..2 {
            for rank in 0..world.setup.ranks {
                let contributions = world.contributions_of(session, rank);
                world.contributions.extend(contributions);
            }
        }
        world
    }

    /// What a rank sends in a session, by an engine that gets each result at once.
    fn contributions_of(&self, session: usize, rank: u16) -> Vec<Vec<u8>> {
        let mut engine = self.engine(session, rank);
        let send = |chunk| {
            let mut header = engine.send(0, self.chunk(session, rank, chunk)).header;
            header.aux.set(0);
            let contribution =
                packets::contribution(header, &self.contribution(session, rank, chunk));
            (header.kind, header.rank) = (Kind::Result as u8, EVERYONE.into());
            let (_, payload) = packets::split(&contribution);
            let result = packets::sealed(header, &payload, self.setup.ranks.into());
            engine.receive(0, &result, false).expect("no refusal").expect("its result");
            contribution
        };
        (0..self.chunks(session)).map(send).collect()
    }

    /// Whether a rule is taken out.
    pub fn lacks(&self, rule: Rule) -> bool {
        self.setup.without.contains(&rule)
    }

    /// Chunks of a session.
    pub fn chunks(&self, session: usize) -> usize {
        usize::from(self.setup.slots) * [self.setup.rounds, self.setup.next_rounds][session]
    }

    pub fn slot_of(&self, chunk: usize) -> usize {
        chunk % usize::from(self.setup.slots)
    }

    pub fn round_of(&self, chunk: usize) -> u32 {
        self.setup.origin.wrapping_add((chunk / usize::from(self.setup.slots)) as u32)
    }

    /// The chunk that is in that round of that slot.
    pub fn chunk_in(&self, round: u32, slot: u16) -> usize {
        round.wrapping_sub(self.setup.origin) as usize * usize::from(self.setup.slots)
            + usize::from(slot)
    }

    pub fn epoch(&self, session: usize) -> u32 {
        0xE0C0_0001 + if self.lacks(Rule::NewEpoch) { 0 } else { session as u32 }
    }

    /// A rank's engine before its first chunk, with timers of this world's own and a window as
    /// large as the pool.
    pub fn engine(&self, session: usize, rank: u16) -> Engine {
        let config = Config {
            identity: Identity {
                job: JOB,
                epoch: self.epoch(session),
                rank,
                ranks: self.setup.ranks,
            },
            slots: self.setup.slots,
            unchecked_maxima: false,
            window: WindowLimits {
                initial: self.setup.slots.into(),
                maximum: self.setup.slots.into(),
                waiting: u32::MAX,
            },
            rtt: RttLimits { initial: 1000, packet: 0, floor: 500, ceiling: 4000 },
            reordering: 200,
            deadline: 20_000,
            timeout: 20_000,
        };
        Engine::starting_at(config, u64::from(self.setup.origin) * u64::from(self.setup.slots))
    }

    pub fn chunk(&self, session: usize, rank: u16, index: usize) -> Chunk {
        let differs =
            session == 0 && rank + 1 == self.setup.ranks && self.setup.mismatch == Some(index);
        let fingerprint = 0xF00D_0000 + u32::from(differs);
        Chunk {
            collective: session as u64,
            part: Part::Data(index),
            op: Op::SumI32,
            lanes: LANES,
            fingerprint,
        }
    }

    /// What a rank contributes to a chunk.
    pub fn contribution(&self, session: usize, rank: u16, chunk: usize) -> Tally {
        tally::of(self.number(session, rank, chunk))
    }

    /// The right sum of a chunk; none where the ranks' calls differ.
    pub fn sum(&self, session: usize, chunk: usize) -> Option<Tally> {
        let differ = session == 0 && self.setup.mismatch == Some(chunk);
        (!differ).then(|| {
            tally::sum((0..self.setup.ranks).map(|rank| self.number(session, rank, chunk)))
        })
    }

    fn number(&self, session: usize, rank: u16, chunk: usize) -> usize {
        let before = session * usize::from(self.setup.ranks) * self.chunks(0);
        before + usize::from(rank) * self.chunks(session) + chunk
    }

    /// Asserts that a contribution is what the chunk's contribution always is, its aux aside.
    pub fn assert_same(&self, session: usize, rank: u16, chunk: usize, datagram: &[u8]) {
        let same = packets::rewritten(datagram, self.setup.ranks, |header| header.aux.set(0));
        assert!(
            same == self.contributions[self.number(session, rank, chunk)],
            "another packet for the same chunk"
        );
    }

    /// The aggregator gets a contribution of a worker's, sent in that [era](Worker::era).
    pub fn arrive(
        &self,
        state: &mut State,
        from: usize,
        chunk: usize,
        era: u32,
    ) -> (Outcome, Option<Reply>) {
        let View { session, rank, .. } = state.workers[from].view;
        let contribution = &self.contributions[self.number(session, rank, chunk)];
        if era == 0 {
            return self.serve(state, from, chunk, contribution);
        }
        let datagram =
            packets::rewritten(contribution, self.setup.ranks, |header| header.aux.set(era));
        self.serve(state, from, chunk, &datagram)
    }

    fn arrive_corrupted(
        &self,
        state: &mut State,
        from: usize,
        chunk: usize,
    ) -> (Outcome, Option<Reply>) {
        let View { session, rank, .. } = state.workers[from].view;
        let datagram = packets::corrupted(&self.contributions[self.number(session, rank, chunk)]);
        self.serve(state, from, chunk, &datagram)
    }

    fn serve(
        &self,
        state: &mut State,
        from: usize,
        chunk: usize,
        datagram: &[u8],
    ) -> (Outcome, Option<Reply>) {
        let View { session, rank, .. } = state.workers[from].view;
        let (outcome, answer) = state.aggregator.serve(self, rank, datagram);
        if outcome == Outcome::WrongRound {
            state.violation = Some(Violation::Refused { session, rank, chunk });
        }
        if self.lacks(Rule::Replay) && outcome == Outcome::Replayed {
            return (Outcome::Pending, None);
        }
        let to = if outcome.action() == Fate::Broadcast {
            Recipient::All
        } else {
            Recipient::Rank(rank)
        };
        (outcome, answer.map(|datagram| Reply { to, datagram }))
    }

    /// A worker gets an answer.
    pub fn hear(&self, state: &mut State, to: usize, datagram: &[u8]) {
        if let Err(violation) = state.workers[to].hear(self, datagram) {
            state.violation = Some(violation);
        }
    }

    /// The workers at a recipient's address: of both sessions, for a session may follow another one
    /// on the same hosts.
    pub fn at(&self, state: &State, recipient: Recipient) -> Vec<usize> {
        let is_there = |worker: &Worker| match recipient {
            Recipient::All => true,
            Recipient::Rank(rank) => worker.view.rank == rank,
        };
        let alive = |worker: &Worker| worker.view.failure.is_none() && !worker.view.left;
        (0..state.workers.len())
            .filter(|at| is_there(&state.workers[*at]) && alive(&state.workers[*at]))
            .collect()
    }

    /// Keeps an answer in the network for ever.
    fn keep(&self, state: &mut State, reply: Reply) {
        let is_result = packets::header(&reply.datagram).kind == Kind::Result as u8;
        let datagram = packets::rewritten(&reply.datagram, self.setup.ranks, |header| {
            header.aux = if is_result { U32::ZERO } else { header.aux };
        });
        let answer = Answer { session: self.session(state), to: reply.to, datagram };
        let mut answers = self.answers.write().expect("no panic");
        let kept = |bit: usize| state.network >> bit & 1 == 1;
        if let Recipient::Rank(rank) = answer.to {
            let for_all = packets::rewritten(&answer.datagram, self.setup.ranks, |header| {
                header.rank.set(EVERYONE)
            });
            let said = |bit: &usize| {
                kept(*bit)
                    && answers[*bit].to == Recipient::All
                    && answers[*bit].datagram == for_all
            };
            if (0..answers.len()).any(|bit| said(&bit)) {
                return self.assert_alike(state, rank, &answer.datagram, &for_all);
            }
        }
        let number = answers.iter().position(|known| **known == answer).unwrap_or_else(|| {
            answers.push(Arc::new(answer));
            answers.len() - 1
        });
        assert!(number < 128, "more answers than a state has bits for");
        state.network |= 1 << number;
    }

    /// Asserts that a rank's engines take a RESULT to one as they take the same RESULT to all.
    fn assert_alike(&self, state: &State, rank: u16, to_one: &[u8], to_all: &[u8]) {
        for worker in state.workers.iter().filter(|worker| worker.view.rank == rank) {
            let [mut one, mut other] = [worker.clone(), worker.clone()];
            assert_eq!(one.hear(self, to_one), other.hear(self, to_all));
            assert_eq!(one, other);
        }
    }

    fn departures(&self, state: &State, events: &mut Vec<Event>) {
        for (at, worker) in state.workers.iter().enumerate() {
            if worker.view.left {
                let hears = |other: &usize| {
                    let View { left, departed, .. } = state.workers[*other].view;
                    !left && departed >> worker.view.rank & 1 == 0
                };
                events.extend((0..state.workers.len()).filter(hears).map(|to| Event::News(to, at)));
            } else if worker.is_done(self) {
                events.push(Event::Leave(at));
            }
        }
    }

    /// The session that has begun last.
    fn session(&self, state: &State) -> usize {
        usize::from(state.workers.len() > usize::from(self.setup.ranks))
    }

    fn answer(&self, number: usize) -> Arc<Answer> {
        self.answers.read().expect("no panic")[number].clone()
    }

    /// An event in words: cW/C is the contribution of worker W to chunk C, rC/W the result of chunk
    /// C at worker W; ' marks the second session.
    pub fn describe(&self, state: &State, event: Event) -> String {
        let name = |at: usize| {
            format!("{}{}", state.workers[at].view.rank, ["", "'"][state.workers[at].view.session])
        };
        match event {
            Event::Send(at) => {
                format!("worker {} sends chunk {}", name(at), state.workers[at].view.sent)
            }
            Event::Alarm(at) => format!("worker {}'s timer expires", name(at)),
            Event::ArriveCorrupted(at, chunk) => {
                let (outcome, _) = self.arrive_corrupted(&mut state.clone(), at, chunk);
                format!("c{}/{chunk} arrives corrupted: {}", name(at), outcome.name())
            }
            Event::Arrive(at, chunk)
            | Event::ArriveAndTell(at, chunk)
            | Event::ArriveResent(at, chunk) => {
                let (outcome, _) = self.arrive(&mut state.clone(), at, chunk, 0);
                let told = if matches!(event, Event::ArriveAndTell(..)) {
                    ", and it hears so"
                } else {
                    ""
                };
                format!("c{}/{chunk} arrives: {}{told}", name(at), outcome.name())
            }
            Event::Leave(at) => format!("worker {} leaves", name(at)),
            Event::News(to, who) => {
                format!("worker {} hears that worker {} has left", name(to), name(who))
            }
            Event::Hear(answer, at) | Event::HearCorrupted(answer, at) => {
                let how = if matches!(event, Event::HearCorrupted(..)) { " corrupted" } else { "" };
                let header = packets::header(&self.answer(answer).datagram);
                let kind = Kind::from_wire(header.kind).expect("a kind");
                let chunk = self.chunk_in(header.round.get(), header.slot.get());
                format!(
                    "{kind:?} of chunk {chunk}, epoch {:x}, arrives{how} at worker {}",
                    header.epoch.get(),
                    name(at)
                )
            }
            Event::Abort => "the job is aborted".into(),
            Event::Restart => "the aggregator restarts, its memory lost".into(),
            Event::NextSession => "a new session begins".into(),
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

    /// For properties: whether that is fine, or not the first that is not.
    fn passes(&self, holds: bool) -> bool {
        holds || self.found.swap(true, Ordering::Relaxed)
    }

    /// The states after an event, and whether they differ.
    fn apply(&self, state: &mut State, event: Event) {
        match event {
            Event::Send(worker) => _ = state.workers[worker].send(self),
            Event::Alarm(worker) => _ = state.workers[worker].alarm(self),
            Event::Arrive(from, chunk) => {
                let served = self.arrive(state, from, chunk, 0);
                self.keep_answer(state, served);
            }
            Event::ArriveResent(from, chunk) => {
                let served = self.arrive(state, from, chunk, state.workers[from].era());
                self.keep_answer(state, served);
            }
            Event::ArriveCorrupted(from, chunk) => {
                let served = self.arrive_corrupted(state, from, chunk);
                self.keep_answer(state, served);
            }
            Event::Leave(at) => state.workers[at].view.left = true,
            Event::News(to, who) => {
                let rank = state.workers[who].view.rank;
                state.workers[to].note_departed(rank);
            }
            Event::ArriveAndTell(from, chunk) => self.arrive_and_tell(state, from, chunk),
            Event::Hear(answer, to) => self.hear(state, to, &self.answer(answer).datagram),
            Event::HearCorrupted(answer, to) => {
                self.hear(state, to, &packets::corrupted(&self.answer(answer).datagram))
            }
            Event::Abort => state.aggregator.abort(),
            Event::Restart => {
                state.restarted = true;
                state.aggregator = Aggregator::new(self, self.epoch(0));
                if !self.lacks(Rule::RestartEndsEpoch) {
                    state.aggregator.state = VACANT;
                }
            }
            Event::NextSession => {
                state.aggregator.open(self.epoch(1));
                state.workers.extend((0..self.setup.ranks).map(|rank| Worker::new(self, 1, rank)));
            }
        }
    }

    fn keep_answer(&self, state: &mut State, (outcome, reply): (Outcome, Option<Reply>)) {
        let kept = match outcome {
            Outcome::Completed | Outcome::Replayed => true,
            // One that is late may tell of ranks that have contributed and left since.
            Outcome::Pending => self.setup.leave,
            _ => false,
        };
        if let Some(reply) = reply.filter(|_| kept) {
            self.keep(state, reply);
        }
    }

    fn arrive_and_tell(&self, state: &mut State, from: usize, chunk: usize) {
        let (outcome, reply) = self.arrive(state, from, chunk, 0);
        let told = match outcome {
            Outcome::Pending => self.setup.pending,
            Outcome::Mismatch | Outcome::Aborted => true,
            _ => false,
        };
        if let Some(reply) = reply.filter(|_| told) {
            self.hear(state, from, &reply.datagram);
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let workers = (0..self.setup.ranks).map(|rank| Worker::new(self, 0, rank)).collect();
        let mut aggregator = Aggregator::new(self, self.epoch(0));
        if self.setup.origin > 0 {
            aggregator.age(self.setup.ranks, self.setup.origin);
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
            if active && worker.may_send(self) {
                events.push(Event::Send(at));
            }
            let waits = worker.view.failure.is_none() && worker.engine.outstanding() > 0;
            if active && waits && worker.view.alarms < self.setup.alarms {
                events.push(Event::Alarm(at));
            }
            for chunk in 0..worker.in_network(self) {
                events.push(Event::Arrive(at, chunk));
                let is_answered =
                    self.setup.pending || self.setup.abort || self.setup.mismatch.is_some();
                if active
                    && is_answered
                    && worker.view.failure.is_none()
                    && worker.view.got >> chunk & 1 == 0
                {
                    events.push(Event::ArriveAndTell(at, chunk));
                }
                if self.setup.corruption {
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
                if self.setup.corruption {
                    events.push(Event::HearCorrupted(answer, to));
                }
            }
        }
        if self.setup.leave {
            self.departures(state, events);
        }
        let in_first = session == 0;
        if self.setup.abort && in_first && state.aggregator.is_open() {
            events.push(Event::Abort);
        }
        if self.setup.restart && in_first && !state.restarted {
            events.push(Event::Restart);
        }
        if self.setup.next_rounds > 0 && in_first {
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
                state.workers.iter().all(|worker| worker.is_done(world))
            }),
        ];
        all.into_iter().filter(|property| self.properties.contains(&property.name)).collect()
    }
}

impl Setup {
    /// A world without rounds and without faults but those of its network.
    pub fn new(ranks: u16, slots: u16) -> Self {
        Self {
            ranks,
            slots,
            rounds: 0,
            origin: 0,
            next_rounds: 0,
            abort: false,
            restart: false,
            corruption: false,
            mismatch: None,
            pending: false,
            alarms: 0,
            leave: false,
            without: Vec::new(),
            published: false,
        }
    }
}

impl fmt::Display for Setup {
    /// As cells of a table: workers, slots, rounds, and what else there is.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { ranks, slots, rounds, .. } = self;
        write!(f, "{ranks} | {slots} | {rounds}")?;
        if self.next_rounds > 0 {
            write!(f, " + {}", self.next_rounds)?;
        }
        let mut more = Vec::new();
        more.extend((self.origin > 0).then(|| format!("from round {} on", self.origin)));
        more.extend(self.pending.then(|| "PENDING".to_owned()));
        more.extend((self.alarms > 0).then(|| format!("timers ({} in a row)", self.alarms)));
        more.extend(self.leave.then(|| "workers leave".to_owned()));
        more.extend(self.corruption.then(|| "corruption".to_owned()));
        more.extend(self.mismatch.map(|chunk| format!("another call for chunk {chunk}")));
        more.extend(self.restart.then(|| "restart".to_owned()));
        more.extend(self.abort.then(|| "abort".to_owned()));
        more.extend((self.next_rounds > 0).then(|| "epoch change".to_owned()));
        write!(f, " | {}", more.join(", "))
    }
}
