//! A world to search: its states, and the events between them.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};

use switchml_protocol::bpf_types::job::VACANT;
use switchml_protocol::outcome::{Action as Fate, Outcome};
use switchml_protocol::wire::header::Kind;
use switchml_protocol::{EVERYONE, U32};

use super::aggregator::Aggregator;
use super::cells::Memory;
use super::packets;
use super::plan::{Contribution, Plan, Setup};
use super::promises::{PAYLOAD_LAST, Violation};
use super::rules::Rule;
use super::worker::{View, Worker};

/// A world, and the packets that were sent in it.
pub struct World {
    pub plan: Plan,
    /// Every answer that the network has had in any state. A state knows them by number.
    answers: RwLock<Vec<Arc<Answer>>>,
    /// Every partial sum that the network has had in any state; a state knows them by number, too.
    pub partials: RwLock<Vec<Arc<Vec<u8>>>>,
    /// The properties to check.
    pub properties: Vec<&'static str>,
    /// Whether a violation was found. Later ones are not reported, so that the path is a shortest
    /// one.
    pub found: AtomicBool,
}

/// An answer in the network.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The session that the aggregator served.
    pub session: usize,
    pub to: Recipient,
    datagram: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    All,
    Rank(u16),
}

/// One state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub aggregator: Aggregator,
    /// The ranks of the first session, then the ranks of the second one, if it has begun.
    pub workers: Vec<Worker>,
    /// Bitmap of the answers that were ever sent.
    pub network: u128,
    pub combiners: Vec<Memory>,
    /// Bitmap of the partial sums that were ever sent.
    pub partials: u128,
    pub restarted: bool,
    pub violation: Option<Violation>,
}

/// A possible event. Workers are known by their index in [`State::workers`], answers by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A worker sends its next chunk.
    Send(usize),
    /// A worker's timer expires.
    Alarm(usize),
    /// A contribution arrives at the aggregator; an answer of PENDING, REJECT or ROOM gets lost.
    Arrive(usize, Contribution),
    /// A contribution arrives at the aggregator, and an answer of PENDING, REJECT or ROOM arrives
    /// at the worker.
    ArriveAndTell(usize, Contribution),
    /// A contribution arrives with a flipped bit.
    ArriveCorrupted(usize, Contribution),
    /// A contribution that its worker has just sent again arrives, after news of a departure.
    ArriveResent(usize, Contribution),
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
    /// A contribution arrives at a combiner.
    Combine(usize, usize, Contribution),
    /// A partial sum arrives at a combiner.
    CombinePartial(usize, usize),
    /// A combiner flushes what it holds.
    Flush(usize),
    /// A combiner loses its state.
    Forget(usize),
    /// A partial sum arrives at the aggregator.
    ArrivePartial(usize),
}

/// An answer of the aggregator in flight.
pub struct Reply {
    pub to: Recipient,
    pub datagram: Vec<u8>,
}

impl World {
    pub fn new(setup: Setup, properties: &[&'static str]) -> Self {
        Self {
            plan: Plan::new(setup),
            properties: properties.to_vec(),
            answers: RwLock::default(),
            partials: RwLock::default(),
            found: AtomicBool::new(false),
        }
    }

    /// The aggregator gets a contribution that a worker sent in this [era](Worker::era).
    pub fn arrive(
        &self,
        state: &mut State,
        from: usize,
        contribution: Contribution,
        era: u32,
    ) -> (Outcome, Option<Reply>) {
        let View { session, rank, .. } = state.workers[from].view;
        let datagram = self.plan.datagram(session, rank, contribution);
        if era == 0 {
            return self.serve(state, from, contribution.chunk, datagram);
        }
        let datagram =
            packets::rewritten(datagram, self.plan.setup.ranks, |header| header.aux.set(era));
        self.serve(state, from, contribution.chunk, &datagram)
    }

    fn arrive_corrupted(
        &self,
        state: &mut State,
        from: usize,
        contribution: Contribution,
    ) -> (Outcome, Option<Reply>) {
        let View { session, rank, .. } = state.workers[from].view;
        let datagram = packets::corrupted(self.plan.datagram(session, rank, contribution));
        self.serve(state, from, contribution.chunk, &datagram)
    }

    fn serve(
        &self,
        state: &mut State,
        from: usize,
        chunk: usize,
        datagram: &[u8],
    ) -> (Outcome, Option<Reply>) {
        let View { session, rank, .. } = state.workers[from].view;
        let completed = state.aggregator.completed();
        let (outcome, answer) = state.aggregator.serve(&self.plan, rank, datagram);
        if outcome == Outcome::WrongRound {
            state.violation = Some(Violation::Refused { session, rank, chunk });
        }
        let is_searched = self.properties.contains(&PAYLOAD_LAST);
        if is_searched && packets::is_empty(datagram) && state.aggregator.completed() > completed {
            state.violation = Some(Violation::CompletedByEmpty { session, rank, chunk });
        }
        if self.plan.lacks(Rule::Replay) && outcome == Outcome::Replayed {
            return (Outcome::Pending, None);
        }
        if self.plan.lacks(Rule::Room) && outcome == Outcome::Room {
            return (outcome, None);
        }
        let to = if outcome.action() == Fate::Broadcast {
            Recipient::All
        } else {
            Recipient::Rank(rank)
        };
        (outcome, answer.map(|datagram| Reply { to, datagram }))
    }

    /// A worker gets an answer. Returns what it sends again at once.
    pub fn hear(&self, state: &mut State, to: usize, datagram: &[u8]) -> Vec<Contribution> {
        state.workers[to].hear(&self.plan, datagram).unwrap_or_else(|violation| {
            state.violation = Some(violation);
            Vec::new()
        })
    }

    /// The workers at a recipient's address: of both sessions, a session may follow another one on
    /// the same hosts.
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

    /// Keeps an answer in the network forever.
    pub fn keep(&self, state: &mut State, reply: Reply) {
        let is_result = packets::header(&reply.datagram).kind == Kind::Result as u8;
        let datagram = packets::rewritten(&reply.datagram, self.plan.setup.ranks, |header| {
            header.aux = if is_result { U32::ZERO } else { header.aux };
        });
        let answer = Answer { session: self.session(state), to: reply.to, datagram };
        let mut answers = self.answers.write().expect("no panic");
        let kept = |bit: usize| state.network >> bit & 1 == 1;
        if let Recipient::Rank(rank) = answer.to {
            let for_all = packets::rewritten(&answer.datagram, self.plan.setup.ranks, |header| {
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
            assert_eq!(one.hear(&self.plan, to_one), other.hear(&self.plan, to_all));
            assert_eq!(one, other);
        }
    }

    pub fn departures(&self, state: &State, events: &mut Vec<Event>) {
        for (at, worker) in state.workers.iter().enumerate() {
            if worker.view.left {
                let hears = |other: &usize| {
                    let View { left, departed, .. } = state.workers[*other].view;
                    !left && departed >> worker.view.rank & 1 == 0
                };
                events.extend((0..state.workers.len()).filter(hears).map(|to| Event::News(to, at)));
            } else if worker.is_done(&self.plan) {
                events.push(Event::Leave(at));
            }
        }
    }

    /// The session that has begun last.
    pub fn session(&self, state: &State) -> usize {
        usize::from(state.workers.len() > usize::from(self.plan.setup.ranks))
    }

    pub fn answer(&self, number: usize) -> Arc<Answer> {
        self.answers.read().expect("no panic")[number].clone()
    }

    /// An event in words: cW/C is the contribution of worker W to chunk C; ' marks the second
    /// session.
    pub fn describe(&self, state: &State, event: Event) -> String {
        let name = |at: usize| {
            format!("{}{}", state.workers[at].view.rank, ["", "'"][state.workers[at].view.session])
        };
        match event {
            Event::Send(at) => {
                format!("worker {} sends chunk {}", name(at), state.workers[at].view.sent)
            }
            Event::Alarm(at) => format!("worker {}'s timer expires", name(at)),
            Event::ArriveCorrupted(at, what) => {
                let (outcome, _) = self.arrive_corrupted(&mut state.clone(), at, what);
                format!("c{}/{what} arrives corrupted: {}", name(at), outcome.name())
            }
            Event::Arrive(at, what)
            | Event::ArriveAndTell(at, what)
            | Event::ArriveResent(at, what) => {
                let (outcome, _) = self.arrive(&mut state.clone(), at, what, 0);
                let told = if matches!(event, Event::ArriveAndTell(..)) {
                    ", and it hears so"
                } else {
                    ""
                };
                format!("c{}/{what} arrives: {}{told}", name(at), outcome.name())
            }
            Event::Leave(at) => format!("worker {} leaves", name(at)),
            Event::News(to, who) => {
                format!("worker {} hears that worker {} has left", name(to), name(who))
            }
            Event::Hear(answer, at) | Event::HearCorrupted(answer, at) => {
                let how = if matches!(event, Event::HearCorrupted(..)) { " corrupted" } else { "" };
                let header = packets::header(&self.answer(answer).datagram);
                let kind = Kind::from_wire(header.kind).expect("a kind");
                let chunk = self.plan.chunk_in(header.round.get(), header.slot.get());
                format!(
                    "{kind:?} of chunk {chunk}, epoch {:x}, arrives{how} at worker {}",
                    header.epoch.get(),
                    name(at)
                )
            }
            Event::Abort => "the job is aborted".into(),
            Event::Restart => "the aggregator restarts, its memory lost".into(),
            Event::NextSession => "a new session begins".into(),
            _ => self.describe_combining(event, name),
        }
    }

    /// The states after an event, and whether they differ.
    pub fn apply(&self, state: &mut State, event: Event) {
        match event {
            Event::Send(worker) => _ = state.workers[worker].send(&self.plan),
            Event::Alarm(worker) => _ = state.workers[worker].alarm(&self.plan),
            Event::Arrive(from, what) => {
                let served = self.arrive(state, from, what, 0);
                self.keep_answer(state, served);
            }
            Event::ArriveResent(from, what) => {
                let served = self.arrive(state, from, what, state.workers[from].era());
                self.keep_answer(state, served);
            }
            Event::ArriveCorrupted(from, what) => {
                let served = self.arrive_corrupted(state, from, what);
                self.keep_answer(state, served);
            }
            Event::Leave(at) => state.workers[at].view.left = true,
            Event::News(to, who) => {
                let rank = state.workers[who].view.rank;
                state.workers[to].note_departed(rank);
            }
            Event::ArriveAndTell(from, what) => self.arrive_and_tell(state, from, what),
            Event::Hear(answer, to) => _ = self.hear(state, to, &self.answer(answer).datagram),
            Event::HearCorrupted(answer, to) => {
                _ = self.hear(state, to, &packets::corrupted(&self.answer(answer).datagram))
            }
            Event::Abort => state.aggregator.abort(),
            Event::Restart => {
                state.restarted = true;
                state.aggregator = Aggregator::new(&self.plan, self.plan.epoch(0));
                if !self.plan.lacks(Rule::RestartEndsEpoch) {
                    state.aggregator.state = VACANT;
                }
            }
            Event::NextSession => {
                state.aggregator.open(self.plan.epoch(1));
                state.workers.extend(
                    (0..self.plan.setup.ranks).map(|rank| Worker::new(&self.plan, 1, rank)),
                );
            }
            _ => self.apply_to_combiners(state, event),
        }
    }

    fn keep_answer(&self, state: &mut State, (outcome, reply): (Outcome, Option<Reply>)) {
        let kept = match outcome {
            Outcome::Completed | Outcome::Replayed => true,
            // A late PENDING may name ranks that have contributed and left since.
            Outcome::Pending => self.plan.setup.leave,
            _ => false,
        };
        if let Some(reply) = reply.filter(|_| kept) {
            self.keep(state, reply);
        }
    }

    fn arrive_and_tell(&self, state: &mut State, from: usize, what: Contribution) {
        let (outcome, reply) = self.arrive(state, from, what, 0);
        let told = match outcome {
            Outcome::Pending => self.plan.setup.pending,
            Outcome::Mismatch | Outcome::Aborted | Outcome::Room => true,
            _ => false,
        };
        if let Some(reply) = reply.filter(|_| told) {
            self.hear(state, from, &reply.datagram);
        }
    }
}
