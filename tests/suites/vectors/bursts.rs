//! Bursts: frames that come in one right behind the other, so that some are recirculated while
//! others change the same slot.
//!
//! A later pass may find its round gone. Then there is no RESULT, as if it had been lost, but never
//! a wrong one.

use crate::p4::{P4Switch, Ports};
use std::net::SocketAddrV4;
use switchml_rack::vectors::{Job, Member, Subject};
use switchml_test_support::frame::{
    AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT, CHECKED, EMPTY, EPOCH, EVERYONE, GROUP_IP,
    GROUP_PORT, JOB, PENDING, Packet, RESULT, ROOM, ip, mac, port, secret,
};

const ROUNDS: u32 = 64;
const SLOT: u16 = 3;
/// The port of all ranks: frames from several ports may overtake each other.
const PORT: u16 = 1;

/// The rounds that the ranks of a job send.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    ranks: u16,
    lanes: u32,
    /// Whether in each round one rank has only zeros.
    with_zeros: bool,
}

type Burst = fn(Rounds) -> Vec<Packet>;

/// Plays all bursts with packets of each of these sizes, and with jobs of several sizes: with fewer
/// ranks, the next round of the same set comes sooner.
pub fn play<P: Ports>(switch: &mut P4Switch<P>, lanes: &[u32]) {
    let takes_empty = switch.ports.features().contains(&"empty");
    for (ranks, &lanes) in (1..=3).flat_map(|ranks| lanes.iter().map(move |lanes| (ranks, lanes))) {
        let bursts: [(&str, Burst, bool); 3] = [
            ("rounds", Rounds::in_turns, false),
            ("duplicates", Rounds::with_duplicates, false),
            ("zeros", Rounds::with_empty, true),
        ];
        for (name, burst, with_zeros) in bursts {
            if with_zeros && (ranks == 1 || !takes_empty) {
                continue;
            }
            switch.reset().expect("without jobs");
            switch.open(&job(ranks)).expect("open");
            let rounds = Rounds { ranks, lanes, with_zeros };
            let wrong = rounds.play(switch, &burst(rounds));
            assert_eq!(wrong, Ok(()), "{name} of {ranks} ranks, {lanes} lanes");
        }
    }
}

impl Rounds {
    fn play<P: Ports>(self, switch: &mut P4Switch<P>, burst: &[Packet]) -> Result<(), String> {
        let frames: Vec<_> = burst.iter().map(Packet::frame).collect();
        for (port, answer) in switch.exchange(PORT, &frames)? {
            self.check(port, &answer)?;
        }
        // The last round of each set is still there.
        for round in ROUNDS - 2..ROUNDS {
            for rank in 0..self.ranks {
                let frame = self.contribution(rank, round).frame();
                let left = switch.exchange(PORT, &[frame])?;
                let expected = self.result(rank, round).reply(rank);
                if left != [(PORT, expected)] {
                    return Err(format!("rank {rank} asks for round {round} and gets {left:02x?}"));
                }
            }
        }
        Ok(())
    }

    /// One round after another: rule 24.5 requires only that a member has begun the round before
    /// the previous one.
    fn in_turns(self) -> Vec<Packet> {
        (0..ROUNDS)
            .flat_map(|round| (0..self.ranks).map(move |rank| self.contribution(rank, round)))
            .collect()
    }

    /// Rounds with a duplicate right behind each, and another duplicate just before its set gets
    /// the next round.
    fn with_duplicates(self) -> Vec<Packet> {
        let of_round = |round: u32| {
            let late = round
                .checked_sub(2)
                .map(|earlier| self.contribution(earlier as u16 % self.ranks, earlier));
            let all = (0..self.ranks).map(move |rank| self.contribution(rank, round));
            let again = self.contribution(round as u16 % self.ranks, round);
            late.into_iter().chain(all).chain([again])
        };
        (0..ROUNDS).flat_map(of_round).collect()
    }

    /// Zeros come EMPTY, and once more. So does the last rank, which has to come again in full.
    fn with_empty(self) -> Vec<Packet> {
        let of_rank = |rank: u16, round: u32| {
            let (full, empty) = (self.contribution(rank, round), self.empty(rank, round));
            if self.has_zeros(rank, round) {
                vec![empty.clone(), empty]
            } else if rank == self.ranks - 1 {
                vec![empty, full]
            } else {
                vec![full]
            }
        };
        (0..ROUNDS)
            .flat_map(|round| (0..self.ranks).flat_map(move |rank| of_rank(rank, round)))
            .collect()
    }

    /// Whether a frame that left is right: computed from the slot and round that it names.
    fn check(self, port: u16, answer: &[u8]) -> Result<(), String> {
        let number = |at: usize, bytes: usize| {
            answer[at..at + bytes].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
        };
        let (kind, rank, round) = (answer[43], number(50, 2) as u16, number(54, 4));
        let expected = match kind {
            RESULT if rank == EVERYONE => self.result_for_all(round).to_group(),
            RESULT => self.result(rank, round).reply(rank),
            PENDING => {
                let seen = number(78, 4);
                self.contribution(rank, round).pending(seen.into()).reply(rank)
            }
            ROOM if self.has_zeros(rank, round) || rank == self.ranks - 1 => {
                Packet { kind: ROOM, ..self.empty(rank, round) }.reply(rank)
            }
            _ => return Err(format!("an answer of kind {kind} to rank {rank}: {answer:02x?}")),
        };
        if (port, answer) == (PORT, &expected) {
            Ok(())
        } else {
            Err(format!(
                "round {round}, rank {rank}: at port {port} left\n{answer:02x?}, not\n\
                 {expected:02x?}"
            ))
        }
    }

    fn contribution(self, rank: u16, round: u32) -> Packet {
        let values: Vec<_> = (0..self.lanes).map(|lane| self.value(rank, round, lane)).collect();
        Packet::contribution(rank, SLOT, round, &values)
    }

    /// An EMPTY contribution, without payload.
    fn empty(self, rank: u16, round: u32) -> Packet {
        Packet {
            flags: CHECKED | EMPTY,
            lanes: Some(self.lanes as u16),
            ..Packet::contribution(rank, SLOT, round, &[])
        }
    }

    fn result(self, rank: u16, round: u32) -> Packet {
        let sums = self.sums(round);
        self.contribution(rank, round).result(CHECKED, self.ranks.into(), &sums)
    }

    fn result_for_all(self, round: u32) -> Packet {
        let sums = self.sums(round);
        self.contribution(0, round).result_for_all(CHECKED, self.ranks.into(), &sums)
    }

    /// Whether a rank has only zeros in a round; the last rank, which completes the round, never
    /// has.
    fn has_zeros(self, rank: u16, round: u32) -> bool {
        self.with_zeros && u32::from(rank) == round % u32::from(self.ranks - 1)
    }

    /// A value that is unique to a rank, round and lane; or 0.
    fn value(self, rank: u16, round: u32, lane: u32) -> u32 {
        let own = u32::from(rank + 1) << 24 | (round + 1) << 12 | lane;
        if self.has_zeros(rank, round) { 0 } else { own }
    }

    fn sums(self, round: u32) -> Vec<u32> {
        let sum = |lane| (0..self.ranks).map(|rank| self.value(rank, round, lane)).sum();
        (0..self.lanes).map(sum).collect()
    }
}

fn job(ranks: u16) -> Job {
    let member = |rank| Member {
        rank,
        secret: secret(rank),
        port: PORT,
        mac: mac(rank),
        address: (ip(rank), port(rank)).into(),
        queue_pair: None,
        key: None,
        newcomer: false,
    };
    Job {
        number: JOB,
        epoch: EPOCH,
        slots: 16,
        mac: AGGREGATOR_MAC,
        aggregator: (AGGREGATOR_IP, AGGREGATOR_PORT).into(),
        group: Some(SocketAddrV4::new(GROUP_IP.into(), GROUP_PORT)),
        key: None,
        parent: None,
        members: (0..ranks).map(member).collect(),
    }
}
