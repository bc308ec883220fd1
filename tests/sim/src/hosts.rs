//! Hosts with several ranks: which workers share one, and the memory in which their ranks add up
//! what they send.

use std::borrow::Cow;
use std::cell::{self, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::slot::Slot;
use switchml_protocol::wire::header::{Header, Kind};
use switchml_protocol::wire::share::Share;
use switchml_worker_core::local_results::{self, Board};
use switchml_worker_core::local_slots::Table;
use switchml_worker_core::local_sum::{self, Cell, Claimed, MOST_RANKS, Readable};
use switchml_worker_core::packet::packet_len;

use crate::net::{Violation, ensure};
use crate::rng::Rng;
use crate::scenario::{Incident, MS, SECOND, Scenario, US};

/// Most workers on a host.
const MOST: u64 = 4;

/// Puts the workers of some scenarios on hosts together, also those of different jobs, or all of a
/// job, which may then need no aggregator. Some of their processes die in the middle of a turn. It
/// draws from generators of its own, so that the rest of a seed's scenario does not depend on it.
pub fn draw(mut scenario: Scenario) -> Scenario {
    let rng = &mut Rng::new(scenario.seed.rotate_left(48) ^ 0x686f_7374);
    if !rng.one_in(3) {
        return scenario;
    }
    let capabilities = scenario.capabilities | Capabilities::GROUP_HELLOS;
    let can_serve = capabilities == Capabilities::all() && !scenario.tags;
    let serves = Rng::new(scenario.seed.rotate_left(24) ^ 0x6d65_6d6f_7279).one_in(2);
    scenario.in_memory = can_serve && serves;
    let (workers, alone) = (scenario.links.len(), rng.one_in(3));
    let mut first = 0;
    while first < workers {
        let mut jobs = scenario.jobs.iter().filter(|_| scenario.in_memory);
        let job = jobs.find(|job| job.workers[0] == first && u64::from(job.ranks) <= MOST);
        let number = match job {
            Some(job) => job.workers.len(),
            // Some hosts have one rank.
            None if alone && rng.one_in(2) => 1,
            None => rng.range(2, MOST) as usize,
        };
        for worker in first..workers.min(first + number) {
            scenario.hosts[worker] = first;
            scenario.ports[worker] = scenario.ports[first];
            if scenario.threads[worker].most > 0 {
                // They share the threads that each of them offers.
                scenario.threads[worker].most *= number as u32;
                scenario.threads[worker].host = format!("host {first}");
            }
        }
        first += number;
    }
    let span = scenario.incidents.last().map_or(SECOND, |(at, _)| *at);
    let deaths = if rng.one_in(3) { rng.range(1, 3) } else { 0 };
    for _ in 0..deaths {
        let worker = rng.below(workers as u64) as usize;
        let restart = (!rng.one_in(3)).then(|| rng.magnitude(100 * US, SECOND));
        let incident = Incident::DieInTurn { worker, steps: rng.range(0, 40) as u32, restart };
        scenario.incidents.push((rng.below(span.max(100 * MS)), incident));
    }
    scenario.incidents.sort_by_key(|(at, _)| *at);
    scenario
}

/// Where ranks of a host find each other: the host's first worker, their session, their group.
type Topic = (usize, u32, u16);

/// The meetings of all hosts.
#[derive(Default)]
pub struct Hosts {
    meetings: BTreeMap<Topic, Shared>,
}

/// The memory of a host's ranks in one session.
pub type Shared = Rc<RefCell<Segment>>;

impl Hosts {
    /// A worker's rank meets the others. Returns the memory that they share, and its place there,
    /// if there is one left.
    pub fn meet(&mut self, topic: Topic, worker: usize, rank: u16) -> Option<(Shared, usize)> {
        let shared = Rc::clone(self.meetings.entry(topic).or_default());
        let place = shared.borrow().ranks.len();
        if place == MOST_RANKS {
            return None;
        }
        let mut segment = shared.borrow_mut();
        segment.ranks.push(rank);
        segment.workers.push(worker);
        drop(segment);
        Some((shared, place))
    }
}

/// Memory that ranks share, of all shards.
#[derive(Default)]
pub struct Segment {
    /// The ranks in the order of their places.
    pub ranks: Vec<u16>,
    /// Their workers.
    pub workers: Vec<usize>,
    /// The words of cells by shard and slot.
    cells: HashMap<(usize, u16), u64>,
    /// What a cell is at first.
    fresh_cell: Cell,
    /// Packets by shard, place and slot.
    packets: HashMap<(usize, usize, u16), Vec<u8>>,
    /// The workers that read results of the first rank.
    pub readers: Vec<usize>,
    /// Entries of rings of results, by shard and index.
    entries: HashMap<(usize, u32), u64>,
    /// Results by shard and slot.
    results: HashMap<(usize, u16), Vec<u8>>,
    /// The ranks whose values have left the host, by job number and slot, in the newest round.
    gone: HashMap<(u16, u16), (u32, u32)>,
    /// Slots that all ranks of the job use, by shard and number.
    slots: HashMap<(usize, u16), Slot>,
    /// What a slot is at first.
    pub fresh: Slot,
    /// The places of ranks that have died while they kept a slot.
    kept: HashMap<(usize, u16), usize>,
    /// Entries of rings that were taken, by shard.
    taken: HashMap<usize, u32>,
}

impl Segment {
    /// Has cells be as after the round before the job's first one, `origin`. A new cell is of round
    /// 0, and takes rounds just before the numbers wrap for older ones.
    pub fn begin_at(&mut self, origin: u32) {
        // A cell knows 15 bits of a round, and takes less than half of them for newer.
        const QUARTERS: u32 = 4;
        let last = origin.wrapping_sub(1) % (1 << 15);
        let rounds = (1..=QUARTERS).map(|quarter| last * quarter / QUARTERS);
        let rounds = rounds.filter(|_| origin > 0);
        self.fresh_cell = rounds.fold(Cell::default(), |cell, round| cell.pass(1, 1, round).cell);
    }

    /// A packet leaves the host: no sum has a rank whose values have left before, in a sum or
    /// alone.
    pub fn leave(&mut self, header: &Header) -> Result<(), Violation> {
        let (round, (_, ranks)) = (header.round.get(), Share::of(header).in_group());
        let key = (header.job.get(), header.slot.get());
        let (newest, gone) = self.gone.entry(key).or_insert((round, 0));
        match round.wrapping_sub(*newest) as i32 {
            0 => {}
            1.. => (*newest, *gone) = (round, 0),
            _ => return Ok(()),
        }
        let twice = *gone & ranks;
        *gone |= ranks;
        ensure!(
            header.kind != Kind::Partial as u8 || twice == 0,
            "a host's sum in round {round} of slot {} has values of ranks {ranks:b}, of which \
             {twice:b} have left before",
            header.slot
        );
        Ok(())
    }
}

/// How many steps a process takes before it dies: changes of shared memory, and packets. After them
/// nothing that it does has an effect.
#[derive(Clone, Default)]
pub struct Doom(Rc<cell::Cell<Option<u32>>>);

impl Doom {
    /// The process dies after so many steps.
    pub fn set(&self, steps: u32) {
        self.0.set(Some(steps));
    }

    /// Whether the process is dead.
    pub fn is_over(&self) -> bool {
        self.0.get() == Some(0)
    }

    /// Takes a step. False if the process is dead.
    pub fn lives(&self) -> bool {
        let lives = !self.is_over();
        self.0.set(self.0.get().map(|steps| steps.saturating_sub(1)));
        lives
    }
}

/// Slots of a ring of results. Rings that are too short would lose results, which ranks then ask
/// for.
const RING: u32 = 1024;

/// A shard's part of the shared memory, as the rank at a place uses it.
#[derive(Clone)]
pub struct Memory {
    /// The memory.
    pub shared: Shared,
    /// The shard.
    pub shard: usize,
    /// The rank's place.
    pub place: usize,
    /// When the rank's process dies.
    pub doom: Doom,
}

impl local_sum::Memory for Memory {
    fn change<T>(&self, slot: u16, change: impl Fn(Cell) -> Option<(Cell, T)>) -> Option<T> {
        let mut shared = self.shared.borrow_mut();
        let fresh = shared.fresh_cell.word();
        let word = shared.cells.entry((self.shard, slot)).or_insert(fresh);
        let (next, besides) = change(Cell::from_word(*word))?;
        if self.doom.lives() {
            *word = next.word();
        }
        Some(besides)
    }

    fn write(&mut self, claimed: &Claimed, fill: impl FnOnce(&mut [u8])) {
        let mut packet = vec![0xEE; packet_len(claimed.lanes().into())];
        fill(&mut packet);
        if self.doom.lives() {
            let key = (self.shard, self.place, claimed.slot());
            self.shared.borrow_mut().packets.insert(key, packet);
        }
    }

    fn read(&self, readable: &Readable) -> Cow<'_, [u8]> {
        let key = (self.shard, readable.place(), readable.slot());
        let len = packet_len(readable.lanes().into());
        let mut packet = self.shared.borrow().packets.get(&key).cloned().unwrap_or_default();
        packet.resize(len, 0);
        Cow::Owned(packet)
    }
}

impl Board for Memory {
    fn cell(&self, slot: u16) -> Cell {
        let shared = self.shared.borrow();
        match shared.cells.get(&(self.shard, slot)) {
            Some(word) => Cell::from_word(*word),
            None => shared.fresh_cell,
        }
    }

    fn word(&self, number: u32) -> u64 {
        let key = (self.shard, number % RING);
        self.shared.borrow().entries.get(&key).copied().unwrap_or_default()
    }

    fn set_word(&mut self, number: u32, word: u64) {
        if self.doom.lives() {
            self.shared.borrow_mut().entries.insert((self.shard, number % RING), word);
        }
    }

    fn write(&mut self, place: &local_results::Writable, fill: impl FnOnce(&mut [u8])) {
        let mut packet = vec![0xEE; packet_len(place.lanes().into())];
        fill(&mut packet);
        if self.doom.lives() {
            self.shared.borrow_mut().results.insert((self.shard, place.slot()), packet);
        }
    }

    fn read(&self, place: &local_results::Readable) -> Cow<'_, [u8]> {
        let shared = self.shared.borrow();
        let packet = shared.results.get(&(self.shard, place.slot()));
        let packet = packet.and_then(|packet| packet.get(..packet_len(place.lanes().into())));
        Cow::Owned(packet.unwrap_or_default().to_vec())
    }
}

impl Table for Memory {
    fn with_slot(&self, slot: u16, f: impl FnOnce(&mut Slot) -> Outcome) -> Result<Outcome, usize> {
        let mut shared = self.shared.borrow_mut();
        let Segment { slots, fresh, kept, .. } = &mut *shared;
        let key = (self.shard, slot);
        if let Some(keeper) = kept.get(&key) {
            return Err(*keeper);
        }
        if !self.doom.lives() {
            return Ok(Outcome::SlotBusy);
        }
        let outcome = f(slots.entry(key).or_insert_with(|| fresh.clone()));
        if !self.doom.lives() {
            kept.insert(key, self.place);
        }
        Ok(outcome)
    }

    fn take_number(&mut self) -> u32 {
        let mut shared = self.shared.borrow_mut();
        let taken = shared.taken.entry(self.shard).or_default();
        *taken += u32::from(self.doom.lives());
        *taken
    }
}
