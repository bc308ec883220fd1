//! A rank: the real engine, and the state that tells two moments of it apart.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use switchml_protocol::ranks::Ranks;
use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};
use switchml_worker_core::engine::{Chunk, Completed, Engine, Failure, Part};

use super::packets;
use super::plan::{Contribution, MOST_SLOTS, Plan};
use super::promises::Violation;
use super::rules::Rule;

/// One rank in one session.
#[derive(Clone, Debug)]
pub struct Worker {
    pub view: View,
    pub engine: Arc<Engine>,
    /// The engine's clock.
    pub now: u64,
}

/// The state of a worker on which its answer to any packet depends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    pub session: usize,
    pub rank: u16,
    /// Chunks sent: 0..sent.
    pub sent: usize,
    /// Bitmap of the chunks that the worker has sent with all lanes.
    pub in_full: u32,
    /// Bitmap of the chunks whose result the worker has.
    pub got: u32,
    /// The ranks that PENDING named for the outstanding chunk of each slot: a bitmap, 0 if there
    /// was no PENDING.
    pub told: [u8; MOST_SLOTS],
    /// Expiries of the timer since the last progress.
    pub alarms: u8,
    pub failure: Option<Failure>,
    /// The worker is done and has left the job.
    pub left: bool,
    /// Bitmap of the ranks that the worker knows to have left.
    pub departed: u64,
}

impl PartialEq for Worker {
    fn eq(&self, other: &Self) -> bool {
        self.view == other.view
    }
}

impl Eq for Worker {}

impl Hash for Worker {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.view.hash(state);
    }
}

impl Worker {
    pub fn new(plan: &Plan, session: usize, rank: u16) -> Self {
        let view = View {
            session,
            rank,
            sent: 0,
            in_full: 0,
            got: 0,
            told: [0; MOST_SLOTS],
            alarms: 0,
            failure: None,
            left: false,
            departed: 0,
        };
        Self { view, engine: Arc::new(plan.engine(session, rank)), now: 0 }
    }

    /// Whether the worker has all results of its session.
    pub fn is_done(&self, plan: &Plan) -> bool {
        self.view.got.count_ones() as usize == plan.chunks(self.view.session)
    }

    /// Whether the worker has failed or is done.
    pub fn has_ended(&self, plan: &Plan) -> bool {
        self.view.failure.is_some() || self.is_done(plan)
    }

    pub fn may_send(&self, plan: &Plan) -> bool {
        let View { session, rank, sent, .. } = self.view;
        let has_room = || match plan.is_zero(rank, sent) {
            true => self.engine.room_for_empty() > 0,
            false => self.engine.may_send(),
        };
        !self.has_ended(plan) && sent < plan.chunks(session) && has_room()
    }

    /// The worker's contributions that are in the network.
    pub fn in_network(&self, plan: &Plan) -> impl Iterator<Item = Contribution> {
        let View { session, rank, sent, in_full, .. } = self.view;
        // A worker that does not wait has sent all chunks with the first one.
        let all = plan.lacks(Rule::Wait) && sent > 0;
        let (chunks, in_full) =
            if all { (plan.chunks(session), u32::MAX) } else { (sent, in_full) };
        (0..chunks)
            .flat_map(|chunk| [false, true].map(|empty| Contribution { chunk, empty }))
            .filter(move |Contribution { chunk, empty }| match empty {
                true => plan.is_zero(rank, *chunk),
                false => in_full >> chunk & 1 == 1,
            })
    }

    /// Whether a chunk has only been sent EMPTY.
    pub fn has_left_out(&self, chunk: usize) -> bool {
        chunk < self.view.sent && self.view.in_full >> chunk & 1 == 0
    }

    /// Whether the worker awaits a chunk that it has only sent EMPTY.
    pub fn awaits_left_out(&self) -> bool {
        self.outstanding().any(|chunk| self.has_left_out(chunk))
    }

    /// Whether a chunk has been sent and has no result yet.
    pub fn awaits(&self, chunk: usize) -> bool {
        chunk < self.view.sent && self.view.got >> chunk & 1 == 0
    }

    /// Hears that a rank has left normally.
    pub fn note_departed(&mut self, rank: u16) {
        self.view.departed |= 1 << rank;
        Arc::make_mut(&mut self.engine).note_departed(&Ranks::from([rank]));
    }

    /// Stands for the aux of packets that the worker sends now: the number of departures that it
    /// knows of. An engine looks only at whether an aux is newer than its latest news of a
    /// departure.
    pub fn era(&self) -> u32 {
        self.view.departed.count_ones()
    }

    /// Sends its next chunk.
    pub fn send(&mut self, plan: &Plan) -> Contribution {
        let View { session, rank, sent: chunk, .. } = self.view;
        let transmission =
            Arc::make_mut(&mut self.engine).send(self.now, plan.chunk(session, rank, chunk));
        let datagram =
            packets::contribution(transmission.header, &plan.contribution(session, rank, chunk));
        let contribution = Contribution { chunk, empty: plan.is_zero(rank, chunk) };
        plan.assert_same(session, rank, contribution, &datagram);
        self.view.sent += 1;
        self.note_sent(contribution);
        contribution
    }

    fn note_sent(&mut self, contribution: Contribution) {
        self.view.in_full |= u32::from(!contribution.empty) << contribution.chunk;
    }

    /// Receives an answer. Returns what the worker sends again at once.
    pub fn hear(&mut self, plan: &Plan, datagram: &[u8]) -> Result<Vec<Contribution>, Violation> {
        let doctored = self.doctor(plan, datagram);
        let engine = Arc::make_mut(&mut self.engine);
        let before = engine.stats().pending;
        match engine.receive(self.now, &doctored, false) {
            Ok(Some((Completed { chunk, .. }, payload))) => {
                let sum = packets::tally(payload);
                self.view.got |= 1 << index_of(&chunk);
                self.view.told[plan.slot_of(index_of(&chunk))] = 0;
                self.view.alarms = 0;
                if Some(sum) != plan.sum(self.view.session, index_of(&chunk)) {
                    let View { session, rank, .. } = self.view;
                    return Err(Violation::WrongSum {
                        session,
                        rank,
                        chunk: index_of(&chunk),
                        sum,
                    });
                }
            }
            Ok(None) if engine.stats().pending > before => {
                let (header, payload) = datagram.split_at(HEADER_LEN);
                let bitmap = u64::from_be_bytes(payload.try_into().expect("two words"));
                let slot = packets::header(header).slot.get();
                self.view.told[usize::from(slot)] = u8::try_from(bitmap).expect("few ranks");
            }
            Ok(None) => {}
            Err(failure) => self.view.failure = Some(failure),
        }
        let outstanding = self.view.sent - self.view.got.count_ones() as usize;
        assert_eq!(self.engine.outstanding() as usize, outstanding, "{:?}", self.view);
        Ok(self.make_room(plan, datagram))
    }

    /// Sends the chunk in full that an answer asks for.
    fn make_room(&mut self, plan: &Plan, datagram: &[u8]) -> Vec<Contribution> {
        let header = packets::header(datagram);
        let chunk = plan.chunk_in(header.round.get(), header.slot.get());
        let is_due = header.kind == Kind::Room as u8
            && header.epoch.get() == plan.epoch(self.view.session)
            && self.awaits(chunk)
            && self.has_left_out(chunk);
        let mut sent = self.resend(plan);
        if plan.lacks(Rule::ResendInFull) && is_due {
            // The engine believes that it has sent the chunk in full.
            sent = vec![Contribution::in_full(chunk)];
        }
        let expected = is_due.then_some(Contribution::in_full(chunk));
        assert_eq!(sent, Vec::from_iter(expected), "{:?}", self.view);
        sent.iter().for_each(|contribution| self.note_sent(*contribution));
        sent
    }

    /// Advances the clock until the timer expires. Returns the resends.
    pub fn alarm(&mut self, plan: &Plan) -> Vec<Contribution> {
        let engine = Arc::make_mut(&mut self.engine);
        self.now = engine.deadline().expect("something outstanding").max(self.now);
        self.view.alarms += 1;
        if let Err(failure) = engine.on_timer(self.now) {
            self.view.failure = Some(failure);
            return Vec::new();
        }
        let mut resent = self.resend(plan);
        if plan.lacks(Rule::Resend) {
            return Vec::new();
        }
        if plan.lacks(Rule::ResendInFull) {
            for contribution in &mut resent {
                contribution.empty = self.has_left_out(contribution.chunk);
            }
        }
        resent.iter().for_each(|contribution| self.note_sent(*contribution));
        resent
    }

    /// The resends of the engine now.
    fn resend(&mut self, plan: &Plan) -> Vec<Contribution> {
        let View { session, rank, .. } = self.view;
        let engine = Arc::make_mut(&mut self.engine);
        let mut resent = Vec::new();
        while let Some(transmission) = engine.next_resend(self.now) {
            let chunk = index_of(&transmission.chunk);
            let mut header = transmission.header;
            assert_eq!(header.flags, flags::CHECKED | flags::RETRANSMIT);
            header.flags = flags::CHECKED;
            let datagram = packets::contribution(header, &plan.contribution(session, rank, chunk));
            plan.assert_same(session, rank, Contribution::in_full(chunk), &datagram);
            resent.push(Contribution::in_full(chunk));
        }
        resent
    }

    /// Numbers of the chunks that are outstanding.
    fn outstanding(&self) -> impl Iterator<Item = usize> {
        (0..self.view.sent).filter(|chunk| self.awaits(*chunk))
    }

    /// Gives an answer its aux, and makes it look as if the answer kept the rules that are taken
    /// out.
    fn doctor<'a>(&self, plan: &Plan, datagram: &'a [u8]) -> Cow<'a, [u8]> {
        if plan.setup.without.is_empty() && self.era() == 0 {
            return Cow::Borrowed(datagram);
        }
        let is_result = packets::header(datagram).kind == Kind::Result as u8;
        let era = packets::header(datagram).aux.get();
        let fresh = self.era() > 0 && (era == self.era() || plan.lacks(Rule::FreshPending));
        let mut doctored = packets::rewritten(datagram, plan.setup.ranks, |header| {
            // Half of all numbers are newer than the few packets that were sent.
            header.aux.set(if fresh { 1 << 30 } else { 0 });
        });
        let mut rewrite = |change: &dyn Fn(&mut Header)| {
            doctored = packets::rewritten(&doctored, plan.setup.ranks, change);
        };
        if plan.lacks(Rule::AnswerEpoch) {
            rewrite(&|header| header.epoch.set(plan.epoch(self.view.session)));
        }
        if plan.lacks(Rule::AnswerRank) {
            rewrite(&|header| header.rank.set(self.view.rank));
        }
        if plan.lacks(Rule::AnswerSlot) {
            // The chunk is found by its round alone.
            rewrite(&|header| {
                let of_round = |chunk: &usize| plan.round_of(*chunk) == header.round.get();
                if let Some(chunk) = self.outstanding().find(of_round) {
                    header.slot.set(plan.slot_of(chunk) as u16);
                }
            });
        }
        if plan.lacks(Rule::AnswerRound) {
            // The chunk is found by its slot alone.
            rewrite(&|header| {
                let of_slot =
                    |chunk: &usize| plan.slot_of(*chunk) == usize::from(header.slot.get());
                if let Some(chunk) = self.outstanding().find(of_slot) {
                    header.round.set(plan.round_of(chunk));
                }
            });
        }
        if plan.lacks(Rule::AnswerCall) {
            rewrite(&|header| {
                let chunk = plan.chunk_in(header.round.get(), header.slot.get());
                let own = plan.chunk(self.view.session, self.view.rank, chunk);
                header.fingerprint.set(own.fingerprint);
            });
        }
        if plan.lacks(Rule::AnswerCheck) && is_result {
            let (header, payload) = packets::split(&doctored);
            doctored = packets::sealed(header, &payload, plan.setup.ranks.into());
        }
        Cow::Owned(doctored)
    }
}

/// The index of a chunk in its session.
fn index_of(chunk: &Chunk) -> usize {
    let Part::Data(index) = chunk.part else { unreachable!("the model has data alone") };
    index
}
