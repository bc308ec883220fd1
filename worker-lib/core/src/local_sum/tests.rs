//! Ranks of one host in any order of their steps, over a network that loses, doubles and reorders:
//! the root gets each rank's values once, and no rank writes a packet that another reads.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use switchml_protocol::{U16, U32, VERSION};
use zerocopy::IntoBytes;

use super::*;

const LANES: usize = 32;
const ROUNDS: u32 = 6;
/// So that rounds wrap around in the cell.
const START: u32 = (1 << 15) - 3;
const FIRST_RANK: u16 = 32;

/// Some of the group's ranks, by place.
fn rank(place: usize) -> u16 {
    FIRST_RANK + 1 + 7 * place as u16
}

fn value(place: usize, round: u32, lane: usize) -> i32 {
    let sign = if (place + lane).is_multiple_of(2) { 1 } else { -1 };
    sign * (1_000_000_007_i32.wrapping_mul(place as i32 + 1) ^ (round as i32 * 31 + lane as i32))
}

fn op(round: u32) -> Op {
    if round.is_multiple_of(2) { Op::Sum } else { Op::Max }
}

/// The sum of all ranks' values.
fn expected(ranks: usize, round: u32) -> Vec<i32> {
    let of_lane = |lane| {
        let values = (0..ranks).map(|place| value(place, round, lane));
        match op(round) {
            Op::Sum => values.fold(0, i32::wrapping_add),
            Op::Max => values.max().unwrap(),
        }
    };
    (0..LANES).map(of_lane).collect()
}

fn header(place: usize, round: u32) -> Header {
    Header {
        version: VERSION,
        kind: Kind::Contribution as u8,
        job: U16::new(3),
        epoch: U32::new(0x5EED),
        rank: U16::new(rank(place)),
        slot: U16::new(9),
        round: U32::new(round),
        op: op(round) as u8,
        flags: flags::CHECKED,
        lanes: U16::new(LANES as u16),
        fingerprint: U32::new(0xF00D ^ round),
        check: U32::ZERO,
        aux: U32::new(77),
    }
}

fn contribution(place: usize, round: u32) -> Vec<u8> {
    let lanes: Vec<u8> =
        (0..LANES).flat_map(|lane| value(place, round, lane).to_be_bytes()).collect();
    let mut header = header(place, round);
    header.check.set(header.check_of(lane_sum(&lanes), 1));
    [header.as_bytes(), &lanes].concat()
}

fn lanes_of(packet: &[u8]) -> Vec<i32> {
    let lanes = packet[HEADER_LEN..].as_chunks::<4>().0.iter();
    lanes.map(|lane| i32::from_be_bytes(*lane)).collect()
}

/// The root, as sections 7 and 8 have it: no rank counts twice.
#[derive(Default)]
struct Root {
    /// The ranks that are in, and the sum, by round.
    rounds: HashMap<u32, (u32, Vec<i32>)>,
}

impl Root {
    fn receive(&mut self, packet: &[u8]) {
        let header = Header::read_from_bytes(&packet[..HEADER_LEN]).unwrap();
        let share = Share::of(&header);
        assert!(share.is_within(64), "{header:?}");
        assert!(share.agrees(&header, lane_sum(&packet[HEADER_LEN..])), "{header:?}");
        let (group, ranks) = share.in_group();
        assert_eq!(group, FIRST_RANK);
        let Some((seen, values)) = self.rounds.get_mut(&header.round.get()) else {
            self.rounds.insert(header.round.get(), (ranks, lanes_of(packet)));
            return;
        };
        if *seen & ranks != 0 {
            return;
        }
        *seen |= ranks;
        for (value, lane) in values.iter_mut().zip(lanes_of(packet)) {
            *value = if header.op == Op::Sum as u8 {
                value.wrapping_add(lane)
            } else {
                lane.max(*value)
            };
        }
    }

    fn is_complete(&self, ranks: usize, round: u32) -> bool {
        let seen = self.rounds.get(&round).map_or(0, |(seen, _)| seen.count_ones());
        seen as usize == ranks
    }
}

/// A rank's progress in its round.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Begins,
    Claimed,
    Written,
    /// The rank reads the packets of these ranks, and then may send its own.
    Reads(u32, bool),
    Waits,
}

struct Host {
    word: u64,
    packets: Vec<Vec<u8>>,
    ranks: Vec<(u32, Stage)>,
    network: Vec<Vec<u8>>,
    root: Root,
    partial: usize,
}

impl Host {
    fn new(ranks: usize) -> Self {
        Self {
            word: Cell::at(START).word(),
            packets: vec![vec![0xAA; HEADER_LEN + 4 * LANES]; ranks],
            ranks: vec![(START, Stage::Begins); ranks],
            network: Vec::new(),
            root: Root::default(),
            partial: 0,
        }
    }

    fn all(&self) -> u32 {
        (1 << self.ranks.len()) - 1
    }

    fn is_done(&self) -> bool {
        self.ranks.iter().all(|(round, _)| *round == START + ROUNDS)
    }

    fn take(&mut self, place: usize, round: u32, step: Step) -> Stage {
        assert_eq!(Cell::from_word(step.cell.word()), step.cell);
        self.word = step.cell.word();
        if step.leaves != 0 {
            return Stage::Reads(step.leaves, step.goes);
        }
        if step.goes {
            self.network.push(contribution(place, round));
        }
        Stage::Waits
    }

    /// The next step of a rank; `choice` picks one of two.
    fn step(&mut self, place: usize, choice: bool) {
        let (me, all, cell) = (1 << place, self.all(), Cell::from_word(self.word));
        let (round, stage) = self.ranks[place];
        if round == START + ROUNDS {
            return;
        }
        let next = match stage {
            Stage::Begins if choice && let Some(cell) = cell.claim(me, round) => {
                self.word = cell.word();
                Stage::Claimed
            }
            Stage::Begins => self.take(place, round, cell.pass(me, all, round)),
            Stage::Claimed => {
                let read = self
                    .ranks
                    .iter()
                    .any(|(_, stage)| matches!(stage, Stage::Reads(ranks, _) if ranks & me != 0));
                assert!(!read, "rank {place} writes what another one reads");
                self.packets[place] = contribution(place, round);
                Stage::Written
            }
            Stage::Written => self.take(place, round, cell.arrive(me, all, round)),
            Stage::Reads(ranks, goes) => {
                let places = (0..self.ranks.len()).filter(|place| ranks >> place & 1 == 1);
                let mut packets = places.map(|place| self.packets[place].as_slice());
                let mut sum = packets.next().unwrap().to_vec();
                let ours = header(place, round);
                let like = |packet: &[u8]| {
                    is_like(&ours, &Header::read_from_bytes(&packet[..HEADER_LEN]).unwrap())
                };
                assert!(like(&sum) && packets.clone().all(like));
                add_up(&mut sum, packets);
                self.partial += 1;
                self.network.push(sum);
                if goes {
                    self.network.push(contribution(place, round));
                }
                self.word = cell.left(ranks).word();
                Stage::Waits
            }
            Stage::Waits if self.root.is_complete(self.ranks.len(), round) && choice => {
                self.ranks[place] = (round + 1, Stage::Begins);
                return;
            }
            Stage::Waits => self.take(place, round, cell.pass(me, all, round)),
        };
        self.ranks[place].1 = next;
    }

    /// Applies a fate to a packet in flight.
    fn deliver(&mut self, index: usize, fate: u8) {
        if self.network.is_empty() {
            return;
        }
        let index = index % self.network.len();
        let packet = match fate {
            0 => return drop(self.network.swap_remove(index)),
            1 => self.network[index].clone(),
            _ => self.network.swap_remove(index),
        };
        self.root.receive(&packet);
    }

    fn check(&self) {
        for (round, (_, values)) in &self.root.rounds {
            if self.root.is_complete(self.ranks.len(), *round) {
                assert_eq!(*values, expected(self.ranks.len(), *round), "round {round}");
            }
        }
    }
}

proptest! {
    #[test]
    fn a_host_in_any_order_gives_the_sums_of_its_ranks(
        ranks in 1_usize..=4,
        choices in vec((0_usize..8, any::<bool>(), 0_u8..12), 0..400),
    ) {
        let mut host = Host::new(ranks);
        for (who, choice, fate) in choices {
            match who.checked_sub(ranks) {
                None => host.step(who, choice),
                Some(index) => host.deliver(index, fate),
            }
        }
        // Once nothing is lost, all get on.
        for _ in 0..ROUNDS * 20 {
            (0..ranks).for_each(|place| host.step(place, true));
            while !host.network.is_empty() {
                host.deliver(0, 2);
            }
        }
        prop_assert!(host.is_done(), "{:?}", host.ranks);
        host.check();
    }
}

/// If nothing is late or lost, a host sends one packet for all of its ranks.
#[test]
fn one_packet_stands_for_all() {
    let mut host = Host::new(4);
    for round in 0..ROUNDS as usize {
        while !host.root.is_complete(4, START + round as u32) {
            let waits = |host: &Host, place: usize| host.ranks[place].1 == Stage::Waits;
            (0..4).for_each(|place| {
                while !waits(&host, place) {
                    host.step(place, true);
                }
            });
            assert_eq!((host.partial, host.network.len()), (round + 1, 1));
            host.deliver(0, 2);
        }
        (0..4).for_each(|place| host.step(place, true));
    }
    assert!(host.is_done());
    host.check();
}

/// A resend also sends the packets that wait for a late rank.
#[test]
fn a_late_rank_keeps_nobodys_values_here() {
    let cell = Cell::at(5);
    let arrive = |cell: Cell, me| cell.arrive(me, 0b111, 5);
    let cell = arrive(arrive(cell, 0b001).cell, 0b010).cell;
    let again = cell.pass(0b001, 0b111, 5);
    assert_eq!((again.leaves, again.goes), (0b010, true));
    let late = arrive(again.cell.left(0b010), 0b100);
    assert_eq!((late.leaves, late.goes), (0, true));
}

#[test]
fn a_cell_is_its_word() {
    let places = (1 << MOST_RANKS) - 1;
    for cell in [
        Cell { round: ROUND_MASK, is_leaving: true, held: places, passed: 0 },
        Cell { round: 1, is_leaving: false, held: 0, passed: places },
        Cell::default(),
    ] {
        assert_eq!(Cell::from_word(cell.word()), cell);
    }
    assert_eq!(Cell::default().word(), 0);
}
