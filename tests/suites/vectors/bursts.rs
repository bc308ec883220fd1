//! Bursts: frames that come in one right behind the other, so that some pass through the switch
//! again while others change what they are about.
//!
//! A later pass may find its round gone. Then there is no RESULT, as if it had been lost, but never
//! a wrong one.

use crate::p4::{P4Switch, Ports};
use crate::packet::{
    AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT, CHECKED, EPOCH, EVERYONE, GROUP_IP, GROUP_PORT,
    JOB, PENDING, Packet, RESULT, ip, mac, port, secret,
};
use std::net::SocketAddrV4;
use switchml_rack::vectors::{Job, Member, Subject};

const ROUNDS: u32 = 64;
const SLOT: u16 = 3;
const LANES: u32 = 64;
/// Where all ranks are: frames by several ports may overtake each other.
const PORT: u16 = 1;

/// What a job of so many ranks sends.
type Burst = fn(u16) -> Vec<Packet>;

/// With jobs of several sizes: the fewer the ranks, the sooner comes the next round of the same
/// set.
pub fn play<P: Ports>(switch: &mut P4Switch<P>) {
    for ranks in 1..=3 {
        let bursts: [(&str, Burst); 2] =
            [("rounds", rounds), ("duplicates", rounds_with_duplicates)];
        for (name, burst) in bursts {
            switch.reset().expect("without jobs");
            switch.open(&job(ranks)).expect("open");
            let wrong = play_one(switch, ranks, &burst(ranks));
            assert_eq!(wrong, Ok(()), "{name} of {ranks} ranks");
        }
    }
}

fn play_one<P: Ports>(
    switch: &mut P4Switch<P>,
    ranks: u16,
    burst: &[Packet],
) -> Result<(), String> {
    let frames: Vec<_> = burst.iter().map(Packet::frame).collect();
    for (port, answer) in switch.exchange(PORT, &frames)? {
        check(ranks, port, &answer)?;
    }
    // The last round of each set is there still.
    for round in ROUNDS - 2..ROUNDS {
        for rank in 0..ranks {
            let frame = contribution(rank, round).frame();
            let left = switch.exchange(PORT, &[frame])?;
            let expected = result(ranks, rank, round).reply(rank);
            if left != [(PORT, expected)] {
                return Err(format!("rank {rank} asks for round {round} and gets {left:02x?}"));
            }
        }
    }
    Ok(())
}

/// One round after the other: rule 24.5 asks no more of a member than that it has begun the one
/// before last.
fn rounds(ranks: u16) -> Vec<Packet> {
    (0..ROUNDS).flat_map(|round| (0..ranks).map(move |rank| contribution(rank, round))).collect()
}

/// With a duplicate of each round right behind it, and another one when its set is about to have
/// the next.
fn rounds_with_duplicates(ranks: u16) -> Vec<Packet> {
    let of_round = |round: u32| {
        let late =
            round.checked_sub(2).map(|earlier| contribution(earlier as u16 % ranks, earlier));
        let all = (0..ranks).map(move |rank| contribution(rank, round));
        late.into_iter().chain(all).chain([contribution(round as u16 % ranks, round)])
    };
    (0..ROUNDS).flat_map(of_round).collect()
}

/// Whether what left is right: by arithmetic, from the slot and round that it says it is of.
fn check(ranks: u16, port: u16, answer: &[u8]) -> Result<(), String> {
    let number = |at: usize, bytes: usize| {
        answer[at..at + bytes].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
    };
    let (kind, rank, round) = (answer[43], number(50, 2) as u16, number(54, 4));
    let expected = match kind {
        RESULT if rank == EVERYONE => result_for_all(ranks, round).to_group(),
        RESULT => result(ranks, rank, round).reply(rank),
        PENDING => {
            let seen = number(78, 4);
            contribution(rank, round).pending(seen.into()).reply(rank)
        }
        _ => return Err(format!("an answer of kind {kind} to rank {rank}: {answer:02x?}")),
    };
    if (port, answer) == (PORT, &expected) {
        Ok(())
    } else {
        Err(format!(
            "round {round}, rank {rank}: at port {port} left\n{answer:02x?}, not\n{expected:02x?}"
        ))
    }
}

fn contribution(rank: u16, round: u32) -> Packet {
    let values: Vec<_> = (0..LANES).map(|lane| value(rank, round, lane)).collect();
    Packet::contribution(rank, SLOT, round, &values)
}

fn result(ranks: u16, rank: u16, round: u32) -> Packet {
    contribution(rank, round).result(CHECKED, ranks.into(), &sums(ranks, round))
}

fn result_for_all(ranks: u16, round: u32) -> Packet {
    contribution(0, round).result_for_all(CHECKED, ranks.into(), &sums(ranks, round))
}

/// What differs from each other rank's, round's and lane's.
fn value(rank: u16, round: u32, lane: u32) -> u32 {
    u32::from(rank + 1) << 24 | (round + 1) << 12 | lane
}

fn sums(ranks: u16, round: u32) -> Vec<u32> {
    (0..LANES).map(|lane| (0..ranks).map(|rank| value(rank, round, lane)).sum()).collect()
}

fn job(ranks: u16) -> Job {
    let member = |rank| Member {
        secret: secret(rank),
        port: PORT,
        mac: mac(rank),
        address: SocketAddrV4::new(ip(rank).into(), port(rank)),
        newcomer: false,
    };
    Job {
        number: JOB,
        epoch: EPOCH,
        slots: 16,
        mac: AGGREGATOR_MAC,
        aggregator: SocketAddrV4::new(AGGREGATOR_IP.into(), AGGREGATOR_PORT),
        group: SocketAddrV4::new(GROUP_IP.into(), GROUP_PORT),
        members: (0..ranks).map(member).collect(),
    }
}
