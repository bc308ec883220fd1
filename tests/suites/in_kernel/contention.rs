//! Two CPUs on the same slot, or the same [cell](cells), at the same time: every sum is exact, and
//! every round completes once.
//!
//! A run of the program without its lock proves that the two CPUs do meet: it must lose
//! contributions or get sums wrong, and must do neither on one CPU.

mod cells;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use switchml_protocol::outcome::Outcome;
use switchml_rack::{Mode, in_both_modes};

use crate::cpu::{pin_to, two_cpus};
use switchml_test_support::frame::{CHECKED, Packet, RESULT};
use switchml_test_support::kernel::{FIRST_SLOT, Kernel, Run};

in_both_modes! {
    two_cpus_on_the_same_slot_lose_nothing,
    without_the_lock_two_cpus_break_rounds,
}

/// The ranks of the job. Each of two threads plays half of them.
const RANKS: u16 = 8;
const ROUNDS: u32 = 1_000;
/// Rounds at most until the two CPUs must have met in the slot once. On a busy machine one of them
/// often waits while the other is in it.
const MOST_ROUNDS: u32 = 100 * ROUNDS;
/// The most lanes possible, so that a packet occupies the slot for long.
const LANES: u32 = 768;
const XDP_DROP: u32 = 1;
/// Offset of the packet's kind in a frame.
const KIND: usize = 42 + 1;
/// The time after which the other thread has failed.
const PATIENCE: Duration = Duration::from_secs(10);

fn value(rank: u16, round: u32, lane: u32) -> u32 {
    (u32::from(rank) + 1).wrapping_mul(round.wrapping_mul(0x9E37_79B9).wrapping_add(lane))
}

/// The sum of all ranks' values: 1 + 2 + … + 8 = 36.
fn sum(round: u32) -> Vec<u32> {
    (0..LANES).map(|lane| value(35, round, lane)).collect()
}

fn contribution(rank: u16, round: u32) -> Packet {
    let values: Vec<u32> = (0..LANES).map(|lane| value(rank, round, lane)).collect();
    Packet::contribution(rank, 0, round, &values)
}

/// The reason to give up.
type Broken = String;

/// Threads that go from round to round together.
struct Players {
    number: u32,
    arrivals: AtomicU32,
    broken: AtomicBool,
}

impl Players {
    /// Waits until all threads are here, the `time`-th time that they meet.
    fn meet(&self, time: u32) -> Result<(), Broken> {
        self.arrivals.fetch_add(1, Ordering::SeqCst);
        let begin = Instant::now();
        while self.arrivals.load(Ordering::SeqCst) < self.number * time {
            self.look_after(begin)?;
            // Threads do not sleep here, so that all go on in the same instant; but the other one
            // may need this CPU.
            thread::yield_now();
        }
        Ok(())
    }

    fn look_after(&self, begin: Instant) -> Result<(), Broken> {
        if self.broken.load(Ordering::SeqCst) {
            return Err("the other thread gave up".to_owned());
        }
        if begin.elapsed() > PATIENCE { Err("no result".to_owned()) } else { Ok(()) }
    }

    fn play(&self, ranks: &Range<u16>, rounds: u32, round: PlayRound) -> Result<(), Broken> {
        let played = (0..rounds).try_for_each(|number| round(self, ranks.clone(), number));
        if played.is_err() {
            self.broken.store(true, Ordering::SeqCst);
        }
        played
    }
}

/// Plays one round as these ranks.
type PlayRound<'a> = &'a (dyn Fn(&Players, Range<u16>, u32) -> Result<(), Broken> + Sync);

/// Ranks that have lost everything, and send again and again until each of them has the result.
fn play_round(
    program: Program,
    players: &Players,
    ranks: Range<u16>,
    round: u32,
) -> Result<(), Broken> {
    let waiting = ranks.map(|rank| contribution(rank, round));
    let mut waiting: Vec<_> = waiting.map(|packet| (packet.frame(), packet)).collect();
    let sum = sum(round);
    players.meet(round + 1)?;
    let begin = Instant::now();
    while !waiting.is_empty() {
        players.look_after(begin).map_err(|why| format!("round {round}: {why}"))?;
        let mut wrong = None;
        waiting.retain(|(frame, packet)| match result(program, frame, packet, &sum) {
            None => true,
            Some(right) => {
                wrong = wrong.or((!right).then_some(packet.rank));
                false
            }
        });
        if let Some(rank) = wrong {
            return Err(format!("round {round}: rank {rank} got a wrong result"));
        }
    }
    Ok(())
}

/// Sends a contribution: `None` if the answer is no RESULT, else whether it is the right one.
fn result(program: Program, frame: &[u8], packet: &Packet, sum: &[u32]) -> Option<bool> {
    let run = program(frame);
    if run.verdict == XDP_DROP || run.frame[KIND] != RESULT {
        return None;
    }
    let one = packet.result(CHECKED, u32::from(RANKS), sum).reply(packet.rank);
    // The last rank gets the RESULT as all ranks do.
    let all = packet.result_for_all(CHECKED, u32::from(RANKS), sum).to_group();
    Some(run.frame == one || run.frame == all)
}

/// Runs a program on a frame.
type Program<'a> = &'a (dyn Fn(&[u8]) -> Run + Sync);

/// The program for that hook.
fn program(kernel: &Kernel, mode: Mode) -> impl Fn(&[u8]) -> Run + Sync {
    move |frame| match mode {
        Mode::Auto => kernel.tc().run(frame),
        _ => kernel.run_xdp(frame),
    }
}

fn play(kernel: &Kernel, mode: Mode, cpus: &[usize], rounds: u32) -> Result<(), Broken> {
    let program = program(kernel, mode);
    play_on(cpus, rounds, &|players, ranks, round| play_round(&program, players, ranks, round))
}

/// All ranks, an equal part of them on each of these CPUs.
fn play_on(cpus: &[usize], rounds: u32, round: PlayRound) -> Result<(), Broken> {
    let players = &Players {
        number: cpus.len() as u32,
        arrivals: AtomicU32::new(0),
        broken: AtomicBool::new(false),
    };
    let part = RANKS / cpus.len() as u16;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..RANKS)
            .step_by(part.into())
            .zip(cpus)
            .map(|(first, cpu)| {
                scope.spawn(move || {
                    pin_to(*cpu);
                    players.play(&(first..first + part), rounds, round)
                })
            })
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        ends.collect::<Vec<_>>().into_iter().collect()
    })
}

fn two_cpus_on_the_same_slot_lose_nothing(mode: Mode) {
    let Some(cpus) = two_cpus("two_cpus_on_the_same_slot_lose_nothing") else { return };
    let kernel = Kernel::with_job(u32::from(RANKS));
    assert_eq!(play(&kernel, mode, &cpus, ROUNDS), Ok(()));
    let (counters, slot) = match mode {
        Mode::Auto => (kernel.tc().counters(), kernel.tc().slot(FIRST_SLOT)),
        _ => (kernel.counters(), kernel.slot(FIRST_SLOT)),
    };
    let count = |outcome: Outcome| counters[outcome as usize];
    let rounds = u64::from(ROUNDS);
    println!(
        "{rounds} rounds, {} packets, {} times busy",
        counters.iter().sum::<u64>(),
        count(Outcome::SlotBusy)
    );
    assert_eq!(count(Outcome::Started), rounds);
    assert_eq!(count(Outcome::Added), rounds * u64::from(RANKS - 2));
    assert_eq!(count(Outcome::Completed), rounds);
    assert_eq!(slot.lock, 0);
}

/// The object with its lock always free: `r0 = cmpxchg(lock, r0, HELD)` has become `w0 = 0`, the
/// value that it finds in a free lock.
fn without_lock() -> Vec<u8> {
    const COMPARE_AND_EXCHANGE: [u8; 4] = [0xF1, 0, 0, 0];
    let mut object = switchml_data_plane::xdp_object().to_vec();
    let is_it = |code: &[u8; 8]| code[0] == 0xC3 && code[4..] == COMPARE_AND_EXCHANGE;
    let (instructions, _) = object.as_chunks_mut::<8>();
    let found: Vec<_> = instructions.iter_mut().filter(|code| is_it(code)).collect();
    // A function of roots at both hooks, and a combiner's program for each.
    assert_eq!(found.len(), 3, "each takes its lock in one place");
    for code in found {
        *code = [0xB4, 0, 0, 0, 0, 0, 0, 0];
    }
    object
}

/// If this fails, the test above proves nothing.
fn without_the_lock_two_cpus_break_rounds(mode: Mode) {
    let Some(cpus) = two_cpus("without_the_lock_two_cpus_break_rounds") else { return };
    let open = || {
        let mut kernel = Kernel::load(&without_lock());
        kernel.open_job(u32::from(RANKS));
        kernel
    };
    assert_eq!(play(&open(), mode, &cpus[..1], ROUNDS), Ok(()), "nothing else is broken");
    let broken = play(&open(), mode, &cpus, MOST_ROUNDS);
    println!("without lock: {broken:?}");
    assert!(broken.is_err(), "{MOST_ROUNDS} rounds, and the two CPUs never met in the slot");
}
