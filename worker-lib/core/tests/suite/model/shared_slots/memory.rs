//! The memory of slots that ranks share, and a way to stop the real code at each access to it: as
//! in the other world of ranks that share memory ([`super::super::host`]), a task runs once for
//! each of its steps.
//!
//! A rank takes a slot's lock in one step. In another one it serves its packet, and gives the lock
//! back. In between it may stand still, or die.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::slot::Slot;
use switchml_worker_core::local_results::{Board, Readable, Writable, ring_len};
use switchml_worker_core::local_slots::Table;
use switchml_worker_core::local_sum::Cell;
use switchml_worker_core::packet::packet_len;
use zerocopy::{FromBytes, IntoBytes};

thread_local! {
    /// The run of the task that runs now.
    static RUN: RefCell<Run> = RefCell::default();
}

/// All contents that slots have had. States know them by number.
#[derive(Debug, Default)]
pub struct Contents(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    all: Vec<Arc<[u8]>>,
    numbers: HashMap<Arc<[u8]>, u32>,
}

impl Contents {
    fn number(&self, slot: &Slot) -> u32 {
        let mut contents = self.0.write().expect("no panic");
        let Known { all, numbers } = &mut *contents;
        if let Some(number) = numbers.get(slot.as_bytes()) {
            return *number;
        }
        let (number, bytes): (_, Arc<[u8]>) = (all.len() as u32, slot.as_bytes().into());
        all.push(Arc::clone(&bytes));
        numbers.insert(bytes, number);
        number
    }

    fn slot(&self, number: u32) -> Slot {
        let bytes = self.0.read().expect("no panic").all[number as usize].clone();
        Slot::read_from_bytes(&bytes).expect("its size")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The place of the rank that has each slot's lock.
    locks: Vec<Option<usize>>,
    slots: Vec<u32>,
    /// Entries taken so far.
    taken: u64,
    ring: Vec<u64>,
    /// None if it was never written, or is half written.
    results: Vec<Option<Arc<[u8]>>>,
}

impl Segment {
    /// Memory never used.
    pub fn new(slots: usize, contents: &Contents) -> Self {
        Self {
            locks: vec![None; slots],
            slots: vec![contents.number(&Slot::default()); slots],
            taken: 0,
            ring: vec![0; ring_len(slots)],
            results: vec![None; slots],
        }
    }
}

/// What an access gave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    Word(u64),
    /// The rank that has the lock; none if this one takes it.
    Lock(Option<usize>),
    Slot(u32),
    Result(Arc<[u8]>),
}

/// A run of a task.
#[derive(Default)]
pub struct Run {
    pub segment: Segment,
    contents: Arc<Contents>,
    /// Slots whose results other ranks read now.
    others_read: Vec<u16>,
    /// The task's accesses so far.
    pub log: Vec<Seen>,
    /// How many of them this run has made again.
    again: usize,
    /// Accesses that may be made besides.
    allowance: usize,
    /// Whether this run has come to what no earlier one did.
    is_new: bool,
    /// Whether the task wanted to make another access.
    pub is_cut: bool,
    /// The slot whose result the rank reads now, and the result that it writes.
    pub reads: Option<u16>,
    writes: Option<(u16, Arc<[u8]>)>,
    /// Whether a result was read that is being written, or written while another one did.
    pub is_race: bool,
    /// Number of the entry that was looked at last.
    pub looked: u32,
}

impl Run {
    /// The next run of a task that has made the accesses in `log`.
    pub fn new(
        (segment, contents): (Segment, Arc<Contents>),
        others_read: Vec<u16>,
        log: Vec<Seen>,
        allowance: usize,
    ) -> Self {
        let is_new = log.is_empty();
        Self { segment, contents, others_read, log, allowance, is_new, ..Self::default() }
    }

    /// Runs the task.
    pub fn of<T>(self, task: impl FnOnce() -> T) -> (T, Self) {
        RUN.set(self);
        (task(), RUN.take())
    }

    /// Whether the task needs another run: a rank that reads or writes does so for a while.
    pub fn goes_on(&self) -> bool {
        self.is_cut || self.is_new && (self.reads.is_some() || self.writes.is_some())
    }

    /// Makes an access, or what an earlier run made; none behind the last one.
    fn access(&mut self, make: impl FnOnce(&mut Self) -> Seen) -> Option<(Seen, bool)> {
        if let Some(seen) = self.log.get(self.again).cloned() {
            self.again += 1;
            (self.reads, self.writes) = (None, None);
            return Some((seen, true));
        }
        if self.is_cut || self.allowance == 0 {
            self.is_cut = true;
            return None;
        }
        self.allowance -= 1;
        (self.is_new, self.reads) = (true, None);
        self.finish_write();
        let seen = make(self);
        self.log.push(seen.clone());
        self.again += 1;
        Some((seen, false))
    }

    fn word(&mut self, make: impl FnOnce(&mut Segment) -> u64) -> u64 {
        match self.access(|run| Seen::Word(make(&mut run.segment))) {
            Some((Seen::Word(word), _)) => word,
            None => 0,
            Some(_) => unreachable!("a task does the same each time"),
        }
    }

    fn with_slot(
        &mut self,
        place: usize,
        slot: u16,
        f: impl FnOnce(&mut Slot) -> Outcome,
    ) -> Result<Outcome, usize> {
        let index = usize::from(slot);
        let lock = self.access(|run| {
            let lock = &mut run.segment.locks[index];
            Seen::Lock(std::mem::replace(lock, lock.or(Some(place))))
        });
        match lock {
            Some((Seen::Lock(Some(holder)), _)) => return Err(holder),
            Some((Seen::Lock(None), _)) => {}
            _ => return Ok(Outcome::SlotBusy),
        }
        let Some((Seen::Slot(before), is_over)) =
            self.access(|run| Seen::Slot(run.segment.slots[index]))
        else {
            return Ok(Outcome::SlotBusy);
        };
        let mut contents = self.contents.slot(before);
        let outcome = f(&mut contents);
        if !is_over {
            self.segment.slots[index] = self.contents.number(&contents);
            self.segment.locks[index] = None;
        }
        Ok(outcome)
    }

    fn write(&mut self, slot: u16, lanes: u16, fill: impl FnOnce(&mut [u8])) {
        if self.is_cut {
            return;
        }
        let mut packet = vec![0; packet_len(lanes.into())];
        fill(&mut packet);
        if self.is_new && self.again == self.log.len() {
            self.is_race |= self.others_read.contains(&slot);
            self.segment.results[usize::from(slot)] = None;
        }
        self.writes = Some((slot, packet.into()));
    }

    /// Ends the write that is under way.
    pub fn finish_write(&mut self) {
        if let Some((slot, packet)) = self.writes.take() {
            let result = &mut self.segment.results[usize::from(slot)];
            self.is_race |= result.is_some();
            *result = Some(packet);
        }
    }

    fn read(&mut self, slot: u16, lanes: u16) -> Vec<u8> {
        let whole = if self.is_cut { None } else { Some(self.begin_read(slot)) };
        let mut packet = whole.map_or(Vec::new(), |packet| packet.to_vec());
        packet.resize(packet_len(lanes.into()), 0);
        packet
    }

    fn begin_read(&mut self, slot: u16) -> Arc<[u8]> {
        self.reads = Some(slot);
        if let Some(Seen::Result(packet)) = self.log.get(self.again).cloned() {
            self.again += 1;
            return packet;
        }
        let packet = self.segment.results[usize::from(slot)].clone();
        self.is_race |= packet.is_none();
        let packet = packet.unwrap_or_default();
        self.log.push(Seen::Result(Arc::clone(&packet)));
        self.again += 1;
        packet
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
#[derive(Clone, Debug)]
pub struct Desk(pub usize);

impl Board for Desk {
    fn cell(&self, _: u16) -> Cell {
        unreachable!("cells are of ranks that have an aggregator")
    }

    fn word(&self, number: u32) -> u64 {
        with(|run| {
            run.looked = number;
            run.word(|segment| segment.ring[number as usize % segment.ring.len()])
        })
    }

    fn set_word(&mut self, number: u32, word: u64) {
        with(|run| {
            run.word(|segment| {
                let index = number as usize % segment.ring.len();
                std::mem::replace(&mut segment.ring[index], word)
            })
        });
    }

    fn write(&mut self, place: &Writable, fill: impl FnOnce(&mut [u8])) {
        with(|run| run.write(place.slot(), place.lanes(), fill));
    }

    fn read(&self, place: &Readable) -> Cow<'_, [u8]> {
        Cow::Owned(with(|run| run.read(place.slot(), place.lanes())))
    }
}

impl Table for Desk {
    fn with_slot(&self, slot: u16, f: impl FnOnce(&mut Slot) -> Outcome) -> Result<Outcome, usize> {
        with(|run| run.with_slot(self.0, slot, f))
    }

    fn take_number(&mut self) -> u32 {
        let before = with(|run| {
            run.word(|segment| {
                segment.taken += 1;
                segment.taken - 1
            })
        });
        before as u32 + 1
    }
}
