//! Ranks of one host that get results in any order, from the taker or for themselves, over a
//! network that also forges some: no result is written while it is read, and each rank reads the
//! right one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::wire::header::{Kind, flags};
use switchml_protocol::{EVERYONE, U16, U32, VERSION};

use super::*;

const SLOTS: u16 = 3;
/// So that rounds wrap around in cells and entries.
const START: u32 = (1 << 16) - 2;
/// The word of a cell in the round before, which holds nothing.
const BEFORE: u64 = ((START - 1) as u64 & 0x7FFF) << 49;
const ROUNDS: u32 = 6;
const LANES: u16 = 32;

#[derive(Default)]
struct Shared {
    cells: HashMap<u16, Cell>,
    ring: HashMap<u32, u64>,
    results: HashMap<u16, Vec<u8>>,
    /// Slots whose result a rank is reading, and the rank.
    reading: HashMap<usize, u16>,
}

#[derive(Clone)]
struct Memory(Rc<RefCell<Shared>>);

impl Board for Memory {
    fn cell(&self, slot: u16) -> Cell {
        self.0.borrow().cells.get(&slot).copied().unwrap_or_default()
    }

    fn word(&self, number: u32) -> u64 {
        let index = number % ring_len(SLOTS.into()) as u32;
        self.0.borrow().ring.get(&index).copied().unwrap_or_default()
    }

    fn set_word(&mut self, number: u32, word: u64) {
        let index = number % ring_len(SLOTS.into()) as u32;
        self.0.borrow_mut().ring.insert(index, word);
    }

    fn write(&mut self, place: &Writable, fill: impl FnOnce(&mut [u8])) {
        let mut shared = self.0.borrow_mut();
        assert!(!shared.reading.values().any(|slot| *slot == place.slot()), "it is being read");
        let mut packet = vec![0; HEADER_LEN + 4 * usize::from(place.lanes())];
        fill(&mut packet);
        shared.results.insert(place.slot(), packet);
    }

    fn read(&self, place: &Readable) -> Cow<'_, [u8]> {
        let len = HEADER_LEN + 4 * usize::from(place.lanes());
        Cow::Owned(self.0.borrow().results[&place.slot()][..len].to_vec())
    }
}

fn result(slot: u16, round: u32) -> (Header, Vec<u8>) {
    let header = Header {
        version: VERSION,
        kind: Kind::Result as u8,
        job: U16::new(3),
        epoch: U32::new(0x5EED),
        rank: U16::new(EVERYONE),
        slot: U16::new(slot),
        round: U32::new(round),
        op: 0,
        flags: flags::CHECKED,
        lanes: U16::new(LANES),
        fingerprint: U32::new(0xF00D),
        check: U32::ZERO,
        aux: U32::ZERO,
    };
    let lanes = (0..u32::from(LANES)).map(|lane| (round << 8 | lane) ^ u32::from(slot) << 28);
    (header, lanes.flat_map(u32::to_be_bytes).collect())
}

/// A rank: the round that it waits for in each slot, if it has contributed.
struct Rank {
    results: LocalResults<Memory>,
    waits: [Option<u32>; SLOTS as usize],
    next: [u32; SLOTS as usize],
}

struct Host {
    shared: Rc<RefCell<Shared>>,
    ranks: Vec<Rank>,
    /// Results that were read in shared memory.
    read: usize,
}

impl Host {
    fn new(ranks: usize) -> Self {
        let shared = Rc::new(RefCell::new(Shared::default()));
        let cells = (0..SLOTS).map(|slot| (slot, Cell::from_word(BEFORE)));
        shared.borrow_mut().cells = cells.collect();
        let rank = |place| Rank {
            results: LocalResults::new(Memory(Rc::clone(&shared)), ranks, place == 0),
            waits: [None; SLOTS as usize],
            next: [START; SLOTS as usize],
        };
        Self { ranks: (0..ranks).map(rank).collect(), read: 0, shared }
    }

    /// A rank that has the result of the round before contributes to the next one.
    fn contribute(&mut self, place: usize, slot: u16) {
        let (all, index) = ((1 << self.ranks.len()) - 1, usize::from(slot));
        let rank = &mut self.ranks[place];
        if rank.waits[index].is_some() || rank.next[index] == START + ROUNDS {
            return;
        }
        let round = rank.next[index];
        (rank.waits[index], rank.next[index]) = (Some(round), round + 1);
        let mut shared = self.shared.borrow_mut();
        let cell = shared.cells[&slot];
        shared.cells.insert(slot, cell.pass(1 << place, all, round).cell);
    }

    /// A result comes to a rank, if all have contributed: from the wire.
    fn deliver(&mut self, place: usize, slot: u16) {
        let index = usize::from(slot);
        let Some(round) = self.ranks[place].waits[index] else { return };
        if self.ranks.iter().any(|rank| rank.next[index] <= round) {
            return;
        }
        let (header, payload) = result(slot, round);
        let rank = &mut self.ranks[place];
        rank.waits[index] = None;
        assert!(!rank.results.post(&header, &payload) || place == 0, "one rank alone posts");
    }

    /// A forged result comes to the taker, whoever has contributed.
    fn forge(&mut self, slot: u16) {
        let taker = &mut self.ranks[0];
        if let Some(round) = taker.waits[usize::from(slot)].take() {
            let (header, payload) = result(slot, round);
            taker.results.post(&header, &payload);
        }
    }

    /// A rank reads a result. While it does, forged results of all slots come to the taker.
    fn read(&mut self, place: usize) {
        let rank = &mut self.ranks[place];
        let waits = rank.waits;
        let awaits =
            |slot, round| waits[usize::from(slot)].is_some_and(|waits| waits as u16 == round);
        let Some(packet) = rank.results.read(awaits) else { return };
        let head = Header::read_from_bytes(&packet[..HEADER_LEN]).unwrap();
        let slot = head.slot.get();
        let round = waits[usize::from(slot)].unwrap();
        let (header, payload) = result(slot, round);
        assert_eq!(*packet, [header.as_bytes(), &payload].concat());
        self.read += 1;
        self.shared.borrow_mut().reading.insert(place, slot);
        (0..SLOTS).for_each(|slot| self.forge(slot));
        self.shared.borrow_mut().reading.remove(&place);
        self.ranks[place].waits[usize::from(slot)] = None;
    }

    fn is_done(&self) -> bool {
        let is_done = |rank: &Rank| rank.waits == [None; 3] && rank.next == [START + ROUNDS; 3];
        self.ranks.iter().all(is_done)
    }
}

proptest! {
    #[test]
    fn results_are_read_right_in_any_order(
        ranks in 2usize..5,
        steps in vec((0u8..8, 0usize..4, 0..SLOTS), 0..600),
    ) {
        let mut host = Host::new(ranks);
        for (step, place, slot) in steps {
            let place = place % ranks;
            match step {
                0..3 => host.contribute(place, slot),
                3..5 => host.deliver(0, slot),
                // It has asked for the result itself.
                5 => host.deliver(place, slot),
                _ => host.read(place),
            }
        }
        // Without further asking all get all results, but for those that the taker could not post.
        let mut turns = 0;
        while !host.is_done() {
            for place in 0..ranks {
                (0..SLOTS).for_each(|slot| host.contribute(place, slot));
            }
            (0..SLOTS).for_each(|slot| host.deliver(0, slot));
            for place in 1..ranks {
                (0..SLOTS).for_each(|_| host.read(place));
            }
            if turns > 0 {
                (1..ranks).for_each(|place| (0..SLOTS).for_each(|slot| host.deliver(place, slot)));
            }
            turns += 1;
            prop_assert!(turns < 1000);
        }
    }
}

/// Without asking: each result is posted once, and each rank but the taker reads it.
#[test]
fn ranks_need_no_results_of_their_own() {
    let mut host = Host::new(4);
    for _ in 0..ROUNDS {
        for place in 0..4 {
            (0..SLOTS).for_each(|slot| host.contribute(place, slot));
        }
        (0..SLOTS).for_each(|slot| host.deliver(0, slot));
        for place in 1..4 {
            (0..SLOTS).for_each(|_| host.read(place));
        }
    }
    assert!(host.is_done());
    assert_eq!(host.read, 3 * usize::from(SLOTS) * ROUNDS as usize);
}

/// A rank that did not look while the ring went round goes on with what is there now.
#[test]
fn a_rank_that_looks_late_goes_on() {
    let mut host = Host::new(2);
    for _ in 0..ROUNDS {
        for slot in 0..SLOTS {
            host.contribute(0, slot);
            host.contribute(1, slot);
            host.deliver(0, slot);
            host.ranks[1].waits[usize::from(slot)] = None;
        }
    }
    assert!(ring_len(SLOTS.into()) < usize::from(SLOTS) * ROUNDS as usize);
    while host.ranks[1].results.has_news() {
        host.read(1);
    }
    assert_eq!(host.ranks[1].results.next, host.ranks[0].results.next);
}

#[test]
fn entries_are_words() {
    let entry = Entry { number: u32::MAX, slot: 0xABCD, round: 0x1234 };
    assert_eq!(entry.word(), 0xFFFF_FFFF_ABCD_1234);
    assert_eq!(Entry::from_word(entry.word()), entry);
}
