//! The memory that ranks of a host share, and a way to stop the real code at each access to it.
//!
//! A rank's task is real code, which cannot be stopped. So it runs once for each of its steps: what
//! it has accessed before gives the same as then, one access more is made, and whatever it does
//! behind that has no effect.
//!
//! A step is an access to a word, and all that the rank does until its next one. What it reads or
//! writes of packets meanwhile lasts until then, so another rank that writes or reads the same
//! meanwhile races with it. A packet may leave at once: whatever happens before it really leaves,
//! may also happen before it arrives.

use std::borrow::Cow;
use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;

use switchml_protocol::wire::header::Header;
use switchml_worker_core::local_results::{self, Board, ring_len};
use switchml_worker_core::local_sum::{self, Cell, Claimed, Readable};
use switchml_worker_core::packet::{len_of, packet_len};
use switchml_worker_core::wire::Wire;

thread_local! {
    /// The run of the task that runs now.
    static RUN: RefCell<Run> = RefCell::default();
}

/// A place of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spot {
    Packet { place: usize, slot: u16 },
    Result { slot: u16 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    cells: Vec<u64>,
    ring: Vec<u64>,
    /// Packets of all ranks, then results. None if it was never written, or is half written.
    packets: Vec<Option<Arc<[u8]>>>,
}

impl Segment {
    /// Memory never used, for so many ranks.
    pub fn new(ranks: usize, slots: usize) -> Self {
        Self {
            cells: vec![0; slots],
            ring: vec![0; ring_len(slots)],
            packets: vec![None; (ranks + 1) * slots],
        }
    }

    fn packet(&mut self, spot: Spot) -> &mut Option<Arc<[u8]>> {
        let (slots, results) = (self.cells.len(), self.packets.len() - self.cells.len());
        match spot {
            Spot::Packet { place, slot } => &mut self.packets[place * slots + usize::from(slot)],
            Spot::Result { slot } => &mut self.packets[results + usize::from(slot)],
        }
    }

    fn entry(&mut self, number: u32) -> &mut u64 {
        let index = number as usize % self.ring.len();
        &mut self.ring[index]
    }

    fn cell(&mut self, slot: u16) -> &mut u64 {
        &mut self.cells[usize::from(slot)]
    }
}

/// What an access gave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    Word(u64),
    Packet(Arc<[u8]>),
}

/// A run of a task.
#[derive(Default)]
pub struct Run {
    pub segment: Segment,
    /// Packets that other ranks read now.
    others_read: Vec<Spot>,
    /// The task's accesses so far.
    pub log: Vec<Seen>,
    /// How many of them this run has made again.
    again: usize,
    /// Accesses to words that may be made besides.
    allowance: usize,
    /// Whether this run has come to what no earlier one did.
    is_new: bool,
    /// Whether the task wanted to make another access.
    pub is_cut: bool,
    /// The packets that the rank reads now.
    pub reads: Vec<Spot>,
    /// The packet that it writes now.
    writes: Option<(Spot, Arc<[u8]>)>,
    /// The packets that left.
    pub left: Vec<Vec<u8>>,
    /// Whether a packet was read that is being written, or the other way round.
    pub is_race: bool,
}

impl Run {
    /// The next run of a task that has made the accesses in `log`.
    pub fn new(segment: Segment, others_read: Vec<Spot>, log: Vec<Seen>, allowance: usize) -> Self {
        let is_new = log.is_empty();
        Self { segment, others_read, log, allowance, is_new, ..Self::default() }
    }

    /// Runs the task.
    pub fn of<T>(self, task: impl FnOnce() -> T) -> (T, Self) {
        RUN.set(self);
        (task(), RUN.take())
    }

    /// Whether the task needs another run: a rank that reads or writes does so for a while.
    pub fn goes_on(&self) -> bool {
        self.is_cut || self.is_new && (!self.reads.is_empty() || self.writes.is_some())
    }

    /// What the next access gave in an earlier run.
    fn next_seen(&mut self) -> Option<Seen> {
        let seen = self.log.get(self.again).cloned();
        self.again += usize::from(seen.is_some());
        seen
    }

    fn note(&mut self, seen: Seen) {
        self.log.push(seen);
        self.again += 1;
    }

    /// Looks at a word, and makes of it what `change` says, if anything.
    fn word<T>(
        &mut self,
        find: impl FnOnce(&mut Segment) -> &mut u64,
        change: impl FnOnce(u64) -> (Option<u64>, T),
    ) -> T {
        if let Some(seen) = self.next_seen() {
            let Seen::Word(before) = seen else { unreachable!("a task does the same each time") };
            self.reads.clear();
            self.writes = None;
            return change(before).1;
        }
        if self.allowance == 0 {
            self.is_cut = true;
            return change(*find(&mut self.segment)).1;
        }
        self.allowance -= 1;
        self.is_new = true;
        self.reads.clear();
        self.finish_write();
        let word = find(&mut self.segment);
        let before = *word;
        let (next, outcome) = change(before);
        *word = next.unwrap_or(before);
        self.note(Seen::Word(before));
        outcome
    }

    fn write(&mut self, spot: Spot, lanes: u16, fill: impl FnOnce(&mut [u8])) {
        if self.is_cut {
            return;
        }
        let mut packet = vec![0; packet_len(lanes.into())];
        fill(&mut packet);
        if self.is_new {
            self.is_race |= self.others_read.contains(&spot);
            *self.segment.packet(spot) = None;
        }
        self.writes = Some((spot, packet.into()));
    }

    /// Ends the write that is under way.
    pub fn finish_write(&mut self) {
        if let Some((spot, packet)) = self.writes.take() {
            *self.segment.packet(spot) = Some(packet);
        }
    }

    fn read(&mut self, spot: Spot, lanes: u16) -> Vec<u8> {
        let whole = if self.is_cut { None } else { Some(self.begin_read(spot)) };
        let mut packet = whole.map_or(Vec::new(), |packet| packet.to_vec());
        packet.resize(packet_len(lanes.into()), 0);
        packet
    }

    fn read_own(&mut self, spot: Spot, lanes: u16) -> Vec<u8> {
        let packet = self.segment.packet(spot).clone();
        self.is_race |= packet.is_none() && !self.is_cut;
        packet.map_or_else(|| vec![0; packet_len(lanes.into())], |packet| packet.to_vec())
    }

    fn begin_read(&mut self, spot: Spot) -> Arc<[u8]> {
        if !self.reads.contains(&spot) {
            self.reads.push(spot);
        }
        if let Some(seen) = self.next_seen() {
            let Seen::Packet(packet) = seen else { unreachable!("a task does the same each time") };
            return packet;
        }
        let packet = self.segment.packet(spot).clone();
        self.is_race |= packet.is_none();
        let packet = packet.unwrap_or_default();
        self.note(Seen::Packet(Arc::clone(&packet)));
        packet
    }

    fn leave(&mut self, packet: Vec<u8>) {
        if self.is_new && !self.is_cut {
            self.left.push(packet);
        }
    }
}

fn with<T>(access: impl FnOnce(&mut Run) -> T) -> T {
    RUN.with_borrow_mut(access)
}

/// Whether the task that runs now has come to its last step.
pub fn is_cut() -> bool {
    with(|run| run.is_cut)
}

/// The memory, as the rank at this place uses it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Desk(pub usize);

impl local_sum::Memory for Desk {
    fn change<T>(&self, slot: u16, change: impl Fn(Cell) -> Option<(Cell, T)>) -> Option<T> {
        let change = |word| match change(Cell::from_word(word)) {
            Some((cell, outcome)) => (Some(cell.word()), Some(outcome)),
            None => (None, None),
        };
        with(|run| run.word(|segment| segment.cell(slot), change))
    }

    fn write(&mut self, place: &Claimed, fill: impl FnOnce(&mut [u8])) {
        let spot = Spot::Packet { place: self.0, slot: place.slot() };
        with(|run| run.write(spot, place.lanes(), fill));
    }

    fn read(&self, place: &Readable) -> Cow<'_, [u8]> {
        let spot = Spot::Packet { place: place.place(), slot: place.slot() };
        // Nobody else writes the rank's own packet.
        let read = if place.place() == self.0 { Run::read_own } else { Run::read };
        Cow::Owned(with(|run| read(run, spot, place.lanes())))
    }
}

impl Board for Desk {
    fn cell(&self, slot: u16) -> Cell {
        let look = |word| (None, Cell::from_word(word));
        with(|run| run.word(|segment| segment.cell(slot), look))
    }

    fn word(&self, number: u32) -> u64 {
        with(|run| run.word(|segment| segment.entry(number), |word| (None, word)))
    }

    fn set_word(&mut self, number: u32, word: u64) {
        with(|run| run.word(|segment| segment.entry(number), |_| (Some(word), ())));
    }

    fn write(&mut self, place: &local_results::Writable, fill: impl FnOnce(&mut [u8])) {
        with(|run| run.write(Spot::Result { slot: place.slot() }, place.lanes(), fill));
    }

    fn read(&self, place: &local_results::Readable) -> Cow<'_, [u8]> {
        let spot = Spot::Result { slot: place.slot() };
        Cow::Owned(with(|run| run.read(spot, place.lanes())))
    }
}

/// The way to the aggregator. A packet may leave as soon as it is in a superpacket.
pub struct Cable;

impl Wire for Cable {
    type Error = Infallible;

    fn put(&mut self, header: &Header, fill: impl FnOnce(&mut [u8])) -> Result<(), Infallible> {
        let mut packet = vec![0; len_of(header)];
        fill(&mut packet);
        with(|run| run.leave(packet));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}
