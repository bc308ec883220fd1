//! Nanoseconds a packet, of the program alone and warm; and how much more two CPUs do than one.
//!
//! `cargo test --release -p switchml-rack --test in_kernel speed -- --nocapture`, on a quiet
//! machine. What it checks is that what it times is what it says.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use switchml_protocol::outcome::Outcome;
use switchml_rack::can_build_racks;

use crate::cpu::{cpus, go_first, pin_to, two_cpus};
use crate::driver::{Driver, slot_of};
use crate::kernel::Kernel;
use crate::packet::{AGGREGATOR_PORT, Envelope, MAX, Packet, SUM};

const REPEAT: u32 = 5_000;
/// The best of this many, for whatever else the machine does only ever makes it slower.
const RUNS: u32 = 20;

/// Of one thread: some milliseconds, so that it does not matter which one begins first.
const PARALLEL_REPEAT: u32 = 20_000;
const PARALLEL_RUNS: usize = 31;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

fn nanoseconds(driver: &Driver, frame: &[u8], verdict: u32) -> u32 {
    let run = |_| {
        let (duration, result) = driver.run(frame, REPEAT).expect("the test run");
        assert_eq!(result, verdict);
        duration
    };
    (0..RUNS).map(run).min().unwrap()
}

/// The frame of a packet that is not for the aggregator.
fn passed_on(packet: &Packet) -> Vec<u8> {
    Envelope { destination_port: AGGREGATOR_PORT + 1, ..packet.request() }.bytes(&packet.bytes())
}

/// A middle contribution can be made once only. So a driver takes its rank out of the slot before
/// each run; its own cost, measured with a packet that is passed on at once, is taken off.
#[test]
fn speed() {
    if !can_build_racks("speed") {
        return;
    }
    let cpu = cpus()[0];
    pin_to(cpu);
    for (op, name) in [(SUM, "sum"), (MAX, "max")] {
        for lanes in [64, 256, 352, 768] {
            let kernel = Kernel::with_job(3);
            let driver = Driver::new(&kernel).expect("the driver loads");
            let values: Vec<u32> = (0..lanes).collect();
            let packet =
                |rank| Packet { op, ..Packet::contribution(rank, slot_of(cpu), 0, &values) };
            kernel.run(&packet(0).frame());
            let passed = nanoseconds(&driver, &passed_on(&packet(1)), XDP_PASS);
            let added_ns = nanoseconds(&driver, &packet(1).frame(), XDP_DROP);
            let added = kernel.counters()[Outcome::Added as usize];
            assert_eq!(
                added,
                u64::from(REPEAT) * u64::from(RUNS),
                "every run is a middle contribution"
            );
            println!("{name} {lanes:3} lanes: {:4} ns ({passed} ns taken off)", added_ns - passed);
        }
    }
}

/// Nanoseconds a packet when CPUs send theirs at the same time, on the slower one.
///
/// All by one program: before the kernel runs another than those that it already runs, it waits
/// until all CPUs have done with those.
fn together(driver: &Driver, work: &[(usize, Vec<u8>)], verdict: u32) -> u32 {
    let waiting = AtomicUsize::new(work.len());
    let run = |(cpu, frame): &(usize, Vec<u8>)| {
        pin_to(*cpu);
        go_first();
        waiting.fetch_sub(1, Ordering::SeqCst);
        // None sleeps, so that all begin in the same instant. Each has a CPU of its own.
        while waiting.load(Ordering::SeqCst) > 0 {
            hint::spin_loop();
        }
        let (duration, result) = driver.run(frame, PARALLEL_REPEAT).expect("the test run");
        assert_eq!(result, verdict);
        duration
    };
    thread::scope(|scope| {
        let threads: Vec<_> = work.iter().map(|work| scope.spawn(|| run(work))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the thread does not panic"))
            .max()
            .unwrap()
    })
}

fn median(mut values: Vec<u32>) -> f64 {
    values.sort_unstable();
    f64::from(values[values.len() / 2])
}

/// Nanoseconds a packet on one CPU, and on each of two at the same time.
fn one_and_two(cpus: [usize; 2], lanes: u32) -> (f64, f64) {
    let kernel = Kernel::with_job(3);
    let driver = Driver::new(&kernel).expect("the driver loads");
    let values: Vec<u32> = (0..lanes).collect();
    let packet = |rank, cpu| Packet::contribution(rank, slot_of(cpu), 0, &values);
    for cpu in cpus {
        kernel.run(&packet(0, cpu).frame());
    }
    let work = cpus.map(|cpu| (cpu, packet(1, cpu).frame()));
    let nothing = [(cpus[0], passed_on(&packet(1, cpus[0])))];
    let (mut passed, mut one, mut two) = (Vec::new(), Vec::new(), Vec::new());
    // In turns, for whatever else the machine does goes on meanwhile.
    for run in 0..PARALLEL_RUNS {
        passed.push(together(&driver, &nothing, XDP_PASS));
        one.push(together(&driver, &work[run % 2..][..1], XDP_DROP));
        two.push(together(&driver, &work, XDP_DROP));
    }
    let packets = PARALLEL_RUNS as u64 * 3 * u64::from(PARALLEL_REPEAT);
    assert_eq!(
        kernel.counters()[Outcome::Added as usize],
        packets,
        "every run is a middle contribution"
    );
    let passed = median(passed);
    (median(one) - passed, median(two) - passed)
}

/// Slots share nothing but the maps, which packets only read, and counters are each CPU's own: two
/// CPUs do about twice as much as one. Less is asserted, and a few times, for something else may
/// take one of them away.
#[test]
fn speed_of_two_cpus_on_different_slots() {
    const NAME: &str = "speed_of_two_cpus_on_different_slots";
    if !can_build_racks(NAME) {
        return;
    }
    let Some(cpus) = two_cpus(NAME) else { return };
    for lanes in [352, 768] {
        let enough = (0..5).any(|_| {
            let (one, two) = one_and_two(cpus, lanes);
            let ratio = 2.0 * one / two;
            println!(
                "{lanes} lanes: {one:.0} ns on one CPU, {two:.0} ns on each of two: {ratio:.2} \
                 times as much"
            );
            ratio > 1.3
        });
        assert!(enough, "two CPUs do hardly more than one");
    }
}
