//! Slots that all ranks of a job share in memory (rule 38.6): if all of them are on one host, they
//! add up there, and no packet leaves.
//!
//! Each rank serves its own packets, by the slot logic of all aggregators
//! ([`switchml_protocol::root::slot`]). So sums have the bits that a network would give, and a rank
//! learns of late ranks, and of ranks that call something else, by the same answers. What answers
//! the rank alone waits in a queue of its own. Results for all are shown to all, as those of a
//! taker are ([`local_results`](crate::local_results)), but by the rank that completes the round.
//!
//! A rank that completes a round shows its result before it contributes to the slot's next round,
//! and that is complete only then. So no two ranks write a result of one slot at the same time.
//!
//! Each slot has a lock. A rank does not wait long for a lock: it sends the packet again later, as
//! after a loss. Meanwhile it is told that the rank that holds the lock is missing. Each rank also
//! has a session at each aggregator of the job, through which ranks learn of deaths.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;

use switchml_protocol::bpf_types::job::{JobEntry, OPEN};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::packet::Packet;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::root::slot::{self, Slot};
use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};
use zerocopy::FromBytes;

use crate::local_results::{Board, LocalResults};
use crate::packet::len_of;
use crate::wire::Wire;

/// A shard's part of the memory that all ranks of a job share, as one of these ranks uses it.
pub trait Table: Board {
    /// Runs `f` on a slot, under the slot's lock. If another rank keeps the lock for too long,
    /// returns the place of that rank: its process stands still, or is gone.
    fn with_slot(&self, slot: u16, f: impl FnOnce(&mut Slot) -> Outcome) -> Result<Outcome, usize>;

    /// The number of the ring's next entry, which no other rank gets.
    fn take_number(&mut self) -> u32;
}

/// The slots of a rank's shard. Model checkers copy them.
#[derive(Clone)]
pub struct LocalSlots<T> {
    results: LocalResults<T>,
    /// The shard, as an aggregator knows it.
    job: JobEntry,
    /// The ranks, by their places.
    ranks: Vec<u16>,
    /// Answers to this rank alone.
    answers: VecDeque<Vec<u8>>,
    /// The packet that is being served.
    packet: Vec<u8>,
    /// Whether other ranks are to be woken.
    has_shown: bool,
}

impl<T: Table> LocalSlots<T> {
    /// The slots of a shard of a session with this epoch, whose ranks have these places.
    pub fn new(table: T, epoch: u32, slots: u16, ranks: Vec<u16>) -> Self {
        let number = ranks.len() as u32;
        let job = JobEntry {
            state: OPEN,
            epoch,
            ranks: number,
            slots: slots.into(),
            ..JobEntry::default()
        };
        let results = LocalResults::new(table, ranks.len(), false);
        let (answers, packet) = (VecDeque::new(), Vec::new());
        Self { results, job, ranks, answers, packet, has_shown: false }
    }

    /// The memory.
    pub fn table(&self) -> &T {
        self.results.board()
    }

    /// Whether this rank has shown a result since the last call.
    pub fn take_shown(&mut self) -> bool {
        std::mem::take(&mut self.has_shown)
    }

    /// Whether there is something to read.
    pub fn has_news(&self) -> bool {
        !self.answers.is_empty() || self.results.has_news()
    }

    /// The next answer to this rank, or else the next result that was shown of a chunk that this
    /// rank `awaits`, given the slot and the low bits of the round.
    pub fn read(&mut self, awaits: impl Fn(u16, u16) -> bool) -> Option<Cow<'_, [u8]>> {
        match self.answers.pop_front() {
            Some(answer) => Some(Cow::Owned(answer)),
            None => self.results.read(awaits),
        }
    }

    /// Serves the packet.
    fn serve(&mut self) {
        let Self { results, job, ranks, packet, .. } = self;
        let table = results.board();
        match serve_at(table, job, ranks, packet).action() {
            Action::Reply => self.answer(),
            Action::Broadcast => self.show(),
            _ => {}
        }
    }

    fn answer(&mut self) {
        let Ok((header, _)) = Header::ref_from_prefix(&self.packet) else { return };
        let answer = self.packet.get(..len_of(header)).unwrap_or_default().to_vec();
        self.answers.push_back(answer);
    }

    fn show(&mut self) {
        let Some((head, payload)) = self.packet.split_at_checked(HEADER_LEN) else { return };
        let Ok(header) = Header::ref_from_bytes(head) else { return };
        let number = self.results.board_mut().take_number();
        self.results.show(number, header, payload);
        self.has_shown = true;
    }
}

/// Serves a packet of this host's ranks. Afterwards it is the answer, if there is one.
fn serve_at(table: &impl Table, job: &JobEntry, ranks: &[u16], bytes: &mut [u8]) -> Outcome {
    let Some(mut packet) = Packet::of(bytes) else { return Outcome::Truncated };
    let header = &*packet.header;
    let op = match header.validate(packet.len) {
        Ok((Kind::Contribution, op)) => op,
        Ok((Kind::Hello, _)) => return Outcome::Hello,
        Ok(_) => return Outcome::BadKind,
        Err(malformed) => return malformed.into(),
    };
    let (slot, is_resent) = (header.slot.get(), header.flags & flags::RETRANSMIT != 0);
    let contribute = |slot: &mut Slot| slot::contribute(job, slot, op, &mut packet);
    match table.with_slot(slot, contribute) {
        Ok(outcome) => outcome,
        // It is sent again.
        Err(_) if !is_resent => Outcome::SlotBusy,
        // The round waits for that rank, whether this contribution is in or not.
        Err(place) => slot::answer_pending(job, &all_but(ranks, place), &mut packet),
    }
}

/// All ranks but the one at this place.
fn all_but(ranks: &[u16], place: usize) -> Ranks {
    let others = ranks.iter().enumerate().filter(|(other, _)| *other != place);
    others.map(|(_, rank)| *rank).collect()
}

impl<T: Table> Wire for LocalSlots<T> {
    type Error = Infallible;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Infallible> {
        self.packet.resize(len_of(header), 0);
        fill(&mut self.packet);
        self.serve();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
