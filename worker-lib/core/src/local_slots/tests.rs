//! Ranks of one host that contribute, send again and read in any order: each gets each sum once,
//! exactly, and no result is written while it is read. And what a rank is told otherwise.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::{EVERYONE, U16, U32, VERSION};
use zerocopy::IntoBytes;

use super::*;
use crate::local_results::{Readable, Writable, ring_len};
use crate::local_sum::Cell;

const SLOTS: u16 = 3;
const ROUNDS: u32 = 5;
const LANES: u16 = 32;
const EPOCH: u32 = 0x5EED;

#[derive(Default)]
struct Shared {
    slots: HashMap<u16, Slot>,
    /// The place of the rank that keeps all slots.
    holder: Option<usize>,
    entries: u32,
    ring: HashMap<u32, u64>,
    results: HashMap<u16, Vec<u8>>,
}

#[derive(Clone, Default)]
struct Memory(Rc<RefCell<Shared>>);

impl Board for Memory {
    fn cell(&self, _slot: u16) -> Cell {
        unreachable!("cells are of ranks that have an aggregator")
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
        let mut packet = vec![0; HEADER_LEN + 4 * usize::from(place.lanes())];
        fill(&mut packet);
        self.0.borrow_mut().results.insert(place.slot(), packet);
    }

    fn read(&self, place: &Readable) -> Cow<'_, [u8]> {
        let len = HEADER_LEN + 4 * usize::from(place.lanes());
        Cow::Owned(self.0.borrow().results[&place.slot()][..len].to_vec())
    }
}

impl Table for Memory {
    fn with_slot(&self, slot: u16, f: impl FnOnce(&mut Slot) -> Outcome) -> Result<Outcome, usize> {
        let mut shared = self.0.borrow_mut();
        if let Some(holder) = shared.holder {
            return Err(holder);
        }
        Ok(f(shared.slots.entry(slot).or_default()))
    }

    fn take_number(&mut self) -> u32 {
        let mut shared = self.0.borrow_mut();
        shared.entries += 1;
        shared.entries
    }
}

/// The value of a rank's lane. Sums wrap around.
fn value(rank: u16, slot: u16, round: u32, lane: u32) -> u32 {
    (0x9000_0000 + u32::from(rank)).wrapping_mul(lane + 1) ^ (round << 8 | u32::from(slot))
}

struct Rank {
    rank: u16,
    slots: LocalSlots<Memory>,
    /// By slot: the round that it waits for, and the next one.
    waits: [Option<u32>; SLOTS as usize],
    next: [u32; SLOTS as usize],
}

/// Ranks at places in another order than their numbers.
fn host(ranks: u16) -> (Memory, Vec<Rank>) {
    let memory = Memory::default();
    let numbers: Vec<u16> = (0..ranks).rev().collect();
    let rank = |rank: &u16| Rank {
        rank: *rank,
        slots: LocalSlots::new(memory.clone(), EPOCH, SLOTS, numbers.clone()),
        waits: [None; SLOTS as usize],
        next: [0; SLOTS as usize],
    };
    let all = numbers.iter().map(rank).collect();
    (memory, all)
}

impl Rank {
    fn header(&self, slot: u16, round: u32, flags: u8) -> Header {
        Header {
            version: VERSION,
            kind: Kind::Contribution as u8,
            job: U16::new(3),
            epoch: U32::new(EPOCH),
            rank: U16::new(self.rank),
            slot: U16::new(slot),
            round: U32::new(round),
            op: 0,
            flags: flags::CHECKED | flags,
            lanes: U16::new(LANES),
            fingerprint: U32::new(0xF00D),
            check: U32::ZERO,
            aux: U32::ZERO,
        }
    }

    fn send(&mut self, mut header: Header) {
        let (slot, round) = (header.slot.get(), header.round.get());
        let lanes = 0..u32::from(header.payload_lanes());
        let values: Vec<u32> = lanes.map(|lane| value(self.rank, slot, round, lane)).collect();
        let sum = values.iter().fold(0, |sum: u32, value| sum.wrapping_add(*value));
        header.check = U32::new(header.check_of(sum, 1));
        let Ok(()) = self.slots.put(&header, |packet| {
            let (head, payload) = packet.split_at_mut(HEADER_LEN);
            head.copy_from_slice(header.as_bytes());
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
            payload.copy_from_slice(&bytes);
        });
    }

    /// Contributes to the next round, or again to the one that it waits for.
    fn contribute(&mut self, slot: u16) {
        let index = usize::from(slot);
        match self.waits[index] {
            Some(round) => self.send(self.header(slot, round, flags::RETRANSMIT)),
            None if self.next[index] < ROUNDS => {
                let round = self.next[index];
                (self.waits[index], self.next[index]) = (Some(round), round + 1);
                self.send(self.header(slot, round, 0));
            }
            None => {}
        }
    }

    /// Reads a packet, if there is one. A sum must be what the `ranks` add up to.
    fn read(&mut self, ranks: u16) -> Option<Kind> {
        let waits = self.waits;
        let awaits = |slot: u16, round: u16| waits[usize::from(slot)] == Some(round.into());
        let packet = self.slots.read(awaits)?.to_vec();
        let (header, payload) = Header::read_from_prefix(&packet).unwrap();
        let (slot, round) = (header.slot.get(), header.round.get());
        if header.kind == Kind::Result as u8 && waits[usize::from(slot)] == Some(round) {
            let sum = |lane| {
                let values = (0..ranks).map(|rank| value(rank, slot, round, lane));
                values.fold(0, u32::wrapping_add)
            };
            let expected: Vec<u8> =
                (0..u32::from(LANES)).flat_map(|lane| sum(lane).to_be_bytes()).collect();
            assert_eq!(payload, expected, "slot {slot}, round {round}");
            assert!([EVERYONE, self.rank].contains(&header.rank.get()));
            self.waits[usize::from(slot)] = None;
        }
        Kind::from_wire(header.kind)
    }

    fn is_done(&self) -> bool {
        self.waits == [None; SLOTS as usize] && self.next == [ROUNDS; SLOTS as usize]
    }
}

proptest! {
    #[test]
    fn each_rank_gets_each_sum_in_any_order(
        ranks in 2..5_u16,
        steps in vec((0..5_usize, 0..SLOTS, any::<bool>()), 0..200),
    ) {
        let (_, mut all) = host(ranks);
        for (place, slot, reads) in steps {
            let rank = &mut all[place % usize::from(ranks)];
            if reads { rank.read(ranks); } else { rank.contribute(slot); }
        }
        let mut turns = 0;
        while !all.iter().all(Rank::is_done) {
            for rank in &mut all {
                (0..SLOTS).for_each(|slot| rank.contribute(slot));
            }
            for rank in &mut all {
                while rank.read(ranks).is_some() {}
            }
            turns += 1;
            prop_assert!(turns <= 2 * ROUNDS, "a round takes a turn, or two");
        }
    }
}

/// The kinds that a rank reads, and the ranks that a PENDING names.
fn answers(rank: &mut Rank) -> Vec<(Kind, Ranks)> {
    let mut all = Vec::new();
    while let Some(packet) = rank.slots.read(|_, _| true) {
        let (header, payload) = Header::read_from_prefix(&packet).unwrap();
        let lanes = payload.as_chunks::<4>().0.iter().map(|lane| u32::from_be_bytes(*lane));
        all.push((Kind::from_wire(header.kind).unwrap(), Ranks::of_pending(lanes)));
    }
    all
}

#[test]
fn a_rank_that_asks_is_told_which_ranks_are_in() {
    let (_, mut all) = host(3);
    all[0].contribute(1);
    all[1].contribute(1);
    assert_eq!(answers(&mut all[1]), []);
    all[1].contribute(1);
    // The rank at place 2 is rank 0.
    assert_eq!(answers(&mut all[1]), [(Kind::Pending, Ranks::from([1, 2]))]);
}

#[test]
fn a_rank_that_calls_something_else_is_refused() {
    let (_, mut all) = host(2);
    all[0].contribute(0);
    let header = Header { fingerprint: U32::new(0xBAD), ..all[1].header(0, 0, 0) };
    all[1].send(header);
    let kinds: Vec<_> = answers(&mut all[1]).iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [Kind::Reject]);
}

#[test]
fn a_slot_that_a_rank_keeps_is_what_others_wait_for() {
    let (memory, mut all) = host(3);
    memory.0.borrow_mut().holder = Some(0);
    all[1].contribute(0);
    assert_eq!(answers(&mut all[1]), [], "it sends again anyway");
    all[1].contribute(0);
    // The rank at place 0 is rank 2.
    assert_eq!(answers(&mut all[1]), [(Kind::Pending, Ranks::from([0, 1]))]);
    let empty = all[1].header(1, 0, flags::RETRANSMIT | flags::EMPTY);
    all[1].send(empty);
    assert_eq!(answers(&mut all[1]), [(Kind::Room, Ranks::NONE)], "PENDING needs room");
    memory.0.borrow_mut().holder = None;
    all.iter_mut().for_each(|rank| rank.contribute(0));
    assert_eq!(all[1].read(3), Some(Kind::Result));
}

#[test]
fn a_hello_comes_back() {
    let (_, mut all) = host(2);
    let header = Header { kind: Kind::Hello as u8, ..all[0].header(0, 0, 0) };
    all[0].send(header);
    assert_eq!(answers(&mut all[0]).first().map(|(kind, _)| *kind), Some(Kind::Hello));
}
