//! Two CPUs on the same slots at the same time: every sum is exact, and every round completes once.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use switchml_protocol::outcome::Outcome;
use switchml_rack::can_build_racks;

use crate::kernel::{FIRST_SLOT, Kernel};
use crate::packet::{CHECKED, Packet, RESULT, SUM};

/// Ranks 0 to 3 are played by one thread, ranks 4 to 7 by the other.
const RANKS: u16 = 8;
const ROUNDS: u32 = 1500;
const SLOTS: u16 = 2;
const LANES: u32 = 352;
/// The other thread may have failed.
const PATIENCE: Duration = Duration::from_secs(10);

fn value(rank: u16, round: u32, lane: u32) -> u32 {
    (u32::from(rank) + 1).wrapping_mul(round.wrapping_mul(0x9E37_79B9).wrapping_add(lane))
}

fn contribution(rank: u16, slot: u16, round: u32) -> Packet {
    let values: Vec<u32> = (0..LANES).map(|lane| value(rank, round, lane)).collect();
    Packet::contribution(rank, slot, round, &values)
}

/// Sends like a worker that has lost everything until it has the result; returns it.
fn insist(kernel: &Kernel, frame: &[u8]) -> Vec<u8> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let run = kernel.run(frame);
        let kind = run.frame[42 + 1];
        if run.verdict != 1 && kind == RESULT {
            return run.frame;
        }
        // The others are in the other thread.
        thread::yield_now();
    }
    panic!("no result within {PATIENCE:?}");
}

fn play(kernel: &Kernel, ranks: std::ops::Range<u16>) {
    for round in 0..ROUNDS {
        for slot in 0..SLOTS {
            for rank in ranks.clone() {
                kernel.run(&contribution(rank, slot, round).frame());
            }
        }
        for slot in 0..SLOTS {
            // 1 + 2 + … + 8 = 36
            let sum: Vec<u32> = (0..LANES).map(|lane| value(35, round, lane)).collect();
            for rank in ranks.clone() {
                let packet = contribution(rank, slot, round);
                let result = insist(kernel, &packet.frame());
                let one = packet.result(CHECKED, u32::from(RANKS), &sum);
                // The last one in gets it as everyone does.
                let all = packet.result_for_all(CHECKED, u32::from(RANKS), &sum);
                assert!(
                    result == one.reply(rank) || result == all.to_group(),
                    "rank {rank}, slot {slot}, round {round}: a wrong result"
                );
            }
        }
    }
}

#[test]
fn two_cpus_on_the_same_slots_lose_nothing() {
    if !can_build_racks("two_cpus_on_the_same_slots_lose_nothing") {
        return;
    }
    assert_eq!(contribution(0, 0, 0).op, SUM);
    let kernel = Kernel::with_job(u32::from(RANKS));
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for half in 0..2 {
            let (kernel, start) = (&kernel, &start);
            scope.spawn(move || {
                let mut cpus = CpuSet::new();
                cpus.set(usize::from(half) % thread::available_parallelism().map_or(1, usize::from));
                sched_setaffinity(None, &cpus).expect("the CPU is there");
                start.wait();
                play(kernel, half * 4..half * 4 + 4);
            });
        }
    });
    let counters = kernel.counters();
    let count = |outcome: Outcome| counters[outcome as usize];
    let rounds = u64::from(ROUNDS) * u64::from(SLOTS);
    println!("{rounds} rounds, {} times busy", count(Outcome::SlotBusy));
    assert_eq!(count(Outcome::Started), rounds);
    assert_eq!(count(Outcome::Added), rounds * u64::from(RANKS - 2));
    assert_eq!(count(Outcome::Completed), rounds);
    for slot in 0..u32::from(SLOTS) {
        assert_eq!(kernel.slot(FIRST_SLOT + slot).lock, 0);
    }
}
