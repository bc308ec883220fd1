//! A worker as the specification has it, less its timers: the schedule decides when it sends again.

use std::collections::{BTreeMap, BTreeSet};

use switchml_test_support::packet::{
    ALL_OPS, CE, CHECKED, EVERYONE, Packet, REJECT, RESULT, RETRANSMIT, ROOM, SUM, check_word,
    combine,
};
use switchml_test_support::reference::signed;
use switchml_test_support::switch::{contribution, key};

/// What a job's workers know in common.
#[derive(Clone, Copy)]
pub struct Job {
    pub epoch: u32,
    pub ranks: u16,
    pub slots: u64,
    /// Round of the first chunk of every slot.
    pub origin: u64,
    /// Whether packets have tags.
    pub has_tags: bool,
}

pub struct Worker {
    job: Job,
    rank: u16,
    /// Number of the next chunk.
    next: u64,
    outstanding: BTreeMap<u64, Packet>,
    pub done: BTreeSet<u64>,
}

/// A number that looks random, for equal arguments the same.
fn scramble(words: [u64; 4]) -> u64 {
    words.into_iter().fold(0, |hash, word| {
        let mixed = (hash ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 27)
    })
}

/// What a rank contributes to a chunk. Op, lanes and fingerprint depend on the chunk alone. Half of
/// all chunks are zero on half of the ranks.
fn chunk(job: Job, rank: u16, number: u64) -> Packet {
    let call = scramble([u64::from(job.epoch), number, 0, 0]);
    let lanes = 32 * (1 + call / 4 % 2);
    let word = |lane| scramble([u64::from(job.epoch), number, 1 + u64::from(rank), lane]);
    let is_zero = ((call / 8) | word(lanes)).is_multiple_of(2);
    let lane = |lane| if is_zero { 0 } else { word(lane) as u32 };
    let slot = (number % job.slots) as u16;
    let round = (job.origin + number / job.slots) as u32;
    let packet = Packet {
        epoch: job.epoch,
        op: ALL_OPS[(call % 2) as usize],
        fingerprint: call as u32,
        ..contribution(rank, slot, round, (0..lanes).map(lane).collect())
    };
    packet.sealed()
}

/// The true aggregate of a chunk.
fn truth(job: Job, number: u64) -> Vec<u32> {
    let packets: Vec<Packet> = (0..job.ranks).map(|rank| chunk(job, rank, number)).collect();
    let payloads: Vec<&[u32]> = packets.iter().map(|packet| &packet.payload[..]).collect();
    combine(packets[0].op, &payloads)
}

impl Worker {
    pub fn new(job: Job, rank: u16) -> Self {
        Self { job, rank, next: 0, outstanding: BTreeMap::new(), done: BTreeSet::new() }
    }

    /// The next chunk, if it may be sent: once the result of the chunk before it in the same slot
    /// is held. Zeros of a sum are left out.
    pub fn send(&mut self, congested: bool) -> Option<Packet> {
        let previous = self.next.checked_sub(self.job.slots);
        if previous.is_some_and(|previous| !self.done.contains(&previous)) {
            return None;
        }
        let mut packet = chunk(self.job, self.rank, self.next);
        if congested {
            packet.flags |= CE;
        }
        self.outstanding.insert(self.next, packet.clone());
        self.next += 1;
        let is_empty = packet.op == SUM && packet.payload.iter().all(|lane| *lane == 0);
        Some(if is_empty { packet.emptied() } else { packet })
    }

    /// The outstanding chunks, as they are sent again.
    pub fn resend(&self) -> Vec<Packet> {
        let again = |packet: &Packet| Packet { flags: packet.flags | RETRANSMIT, ..packet.clone() };
        self.outstanding.values().map(again).collect()
    }

    /// Rule 28.4.
    fn right_tag(&self, packet: &Packet) -> Option<u64> {
        if self.job.has_tags { signed(packet, key(packet.rank)).tag } else { None }
    }

    /// Takes in a packet from the aggregator. A result that counts must be the true one. Returns
    /// the chunk in full if that was asked for.
    pub fn receive(&mut self, packet: &Packet) -> Option<Packet> {
        let mine = |(_, sent): &(&u64, &Packet)| {
            (sent.job, sent.epoch, sent.slot, sent.round)
                == (packet.job, packet.epoch, packet.slot, packet.round)
        };
        let (&number, sent) = self.outstanding.iter().find(mine)?;
        let (lanes, words, contributions) = match packet.kind {
            RESULT => (sent.lanes, sent.lanes, u64::from(self.job.ranks)),
            ROOM => (sent.lanes, 0, 1),
            _ => (2, 2, 1),
        };
        let is_for_all = packet.rank == EVERYONE && packet.kind == RESULT;
        let counts = packet.version == 1
            && (packet.rank == self.rank || is_for_all)
            && packet.fingerprint == sent.fingerprint
            && packet.lanes == lanes
            && packet.payload.len() == usize::from(words)
            && packet.flags & CHECKED != 0
            && packet.tag == self.right_tag(packet)
            && packet.check == check_word(packet, contributions);
        if !counts {
            return None;
        }
        match packet.kind {
            RESULT if packet.op == sent.op => {
                assert_eq!(packet.payload, truth(self.job, number), "result of chunk {number}");
                self.outstanding.remove(&number);
                self.done.insert(number);
                None
            }
            REJECT => panic!("a legal worker was refused: {packet:?}"),
            ROOM => {
                assert!(sent.payload.iter().all(|lane| *lane == 0), "{packet:?} to {sent:?}");
                Some(sent.clone())
            }
            _ => None,
        }
    }
}
