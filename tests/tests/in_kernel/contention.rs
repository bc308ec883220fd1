//! Two CPUs on the same slot at the same time: every sum is exact, and every round completes once.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use switchml_protocol::outcome::Outcome;
use switchml_rack::can_build_racks;

use crate::kernel::{FIRST_SLOT, Kernel};
use crate::packet::{CHECKED, Packet, RESULT};

/// Ranks 0 to 3 are played by one thread, ranks 4 to 7 by the other.
const RANKS: u16 = 8;
const ROUNDS: u32 = 1500;
/// As many as can be, so that a packet is in the slot for long.
const LANES: u32 = 768;
const XDP_DROP: u32 = 1;
/// Where a frame has the packet's kind.
const KIND: usize = 42 + 1;
/// The other thread may have failed.
const PATIENCE: Duration = Duration::from_secs(10);

fn value(rank: u16, round: u32, lane: u32) -> u32 {
    (u32::from(rank) + 1).wrapping_mul(round.wrapping_mul(0x9E37_79B9).wrapping_add(lane))
}

fn contribution(rank: u16, round: u32) -> Packet {
    let values: Vec<u32> = (0..LANES).map(|lane| value(rank, round, lane)).collect();
    Packet::contribution(rank, 0, round, &values)
}

/// Waits until both threads are here, the `time`-th time that they meet.
fn meet(arrivals: &AtomicU32, time: u32) {
    arrivals.fetch_add(1, Ordering::SeqCst);
    let begin = Instant::now();
    while arrivals.load(Ordering::SeqCst) < 2 * time {
        assert!(begin.elapsed() < PATIENCE, "the other thread is gone");
        // Nobody sleeps, so that both go on in the same instant; the other one may need this CPU, though.
        thread::yield_now();
    }
}

/// Plays ranks that have lost everything and send again and again until each of them has the result.
fn play(kernel: &Kernel, ranks: std::ops::Range<u16>, arrivals: &AtomicU32) {
    for round in 0..ROUNDS {
        let mut waiting: Vec<_> =
            ranks.clone().map(|rank| contribution(rank, round)).map(|packet| (packet.frame(), packet)).collect();
        // 1 + 2 + … + 8 = 36
        let sum: Vec<u32> = (0..LANES).map(|lane| value(35, round, lane)).collect();
        meet(arrivals, round + 1);
        let begin = Instant::now();
        while !waiting.is_empty() {
            assert!(begin.elapsed() < PATIENCE, "round {round}: no result");
            waiting.retain(|(frame, packet)| !has_result(kernel, frame, packet, &sum));
        }
    }
}

/// Whether the contribution is answered with the RESULT, which must be the sum then.
fn has_result(kernel: &Kernel, frame: &[u8], packet: &Packet, sum: &[u32]) -> bool {
    let run = kernel.run(frame);
    if run.verdict == XDP_DROP || run.frame[KIND] != RESULT {
        return false;
    }
    let one = packet.result(CHECKED, u32::from(RANKS), sum).reply(packet.rank);
    // The last one in gets it as everyone does.
    let all = packet.result_for_all(CHECKED, u32::from(RANKS), sum).to_group();
    assert!(run.frame == one || run.frame == all, "rank {}, round {}: a wrong result", packet.rank, packet.round);
    true
}

#[test]
fn two_cpus_on_the_same_slot_lose_nothing() {
    if !can_build_racks("two_cpus_on_the_same_slot_lose_nothing") {
        return;
    }
    let kernel = Kernel::with_job(u32::from(RANKS));
    let arrivals = AtomicU32::new(0);
    thread::scope(|scope| {
        for half in 0..2 {
            let (kernel, arrivals) = (&kernel, &arrivals);
            scope.spawn(move || {
                let mut cpus = CpuSet::new();
                cpus.set(usize::from(half) % thread::available_parallelism().map_or(1, usize::from));
                sched_setaffinity(None, &cpus).expect("the CPU is there");
                play(kernel, half * 4..half * 4 + 4, arrivals);
            });
        }
    });
    let counters = kernel.counters();
    let count = |outcome: Outcome| counters[outcome as usize];
    let rounds = u64::from(ROUNDS);
    println!("{rounds} rounds, {} times busy", count(Outcome::SlotBusy));
    assert_eq!(count(Outcome::Started), rounds);
    assert_eq!(count(Outcome::Added), rounds * u64::from(RANKS - 2));
    assert_eq!(count(Outcome::Completed), rounds);
    assert_eq!(kernel.slot(FIRST_SLOT).lock, 0);
}
