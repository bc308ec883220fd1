//! Nanoseconds per packet of the program alone, with warm caches, as a root and as a combiner; and
//! the gain of two CPUs over one.
//!
//! `SWITCHML_MEASURE=1 cargo test --release -p switchml-rack --test in_kernel speed -- --nocapture
//! --test-threads 1`, on a quiet machine. Without the variable there are few rounds, which only
//! check that the measured packets are of the named kind.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use switchml_protocol::bpf_types::uplink::Uplink;
use switchml_protocol::outcome::Outcome;
use switchml_rack::needs_racks;

use crate::combiner::{below, uplink};
use crate::cpu::{cpus, go_first, pin_to, two_cpus};
use crate::driver::{Driver, slot_of};
use crate::roce::job_by_roce;
use switchml_test_support::frame::{
    CHECKED, Envelope, JOB, MAX, Packet, RETRANSMIT, SUM, key, tagged,
};
use switchml_test_support::kernel::{Kernel, job, member};

/// The hook at which a program runs.
#[derive(Clone, Copy)]
enum Hook {
    Xdp,
    Tc,
}

/// The role of a program.
#[derive(Clone, Copy)]
enum Role {
    Root,
    /// A root whose job's packets have tags.
    Tagged,
    /// A root that takes RoCEv2, too.
    BesideRoce,
    /// A root whose ranks come by RoCEv2.
    ByRoce,
    /// All ranks are below.
    Combiner,
    /// A combiner to which ranks resend packets that it does not know.
    Passing,
}

impl Role {
    fn kernel(self) -> Kernel {
        const CELLS: u32 = 512;
        match self {
            Self::Root => return Kernel::with_job(RANKS.into()),
            Self::Tagged => {
                let mut kernel = Kernel::of_root();
                kernel.open_tagged_job(RANKS.into());
                return kernel;
            }
            Self::BesideRoce => {
                let mut kernel = Kernel::with_roce();
                kernel.open_job(RANKS.into());
                return kernel;
            }
            Self::ByRoce => return job_by_roce(RANKS.into()),
            Self::Combiner | Self::Passing => {}
        }
        let mut kernel = Kernel::combiner(CELLS);
        kernel.set_uplink(JOB, &Uplink { below: below(0b1111), ..uplink(CELLS) });
        for rank in 0..RANKS {
            kernel.set_member(JOB, rank, &member(rank));
        }
        kernel.set_job(JOB, &job(RANKS.into()));
        kernel
    }

    const fn has_tags(self) -> bool {
        matches!(self, Self::Tagged)
    }

    /// Bytes of a packet.
    const fn packet_len(self, lanes: u32) -> usize {
        HEADERS + 4 * lanes as usize + if self.has_tags() { TAG_LEN } else { 0 }
    }

    const fn flags(self) -> u8 {
        match self {
            Self::Passing => CHECKED | RETRANSMIT,
            _ => CHECKED,
        }
    }

    /// The outcomes of a round's contributions, with their counts.
    const fn outcomes(self) -> &'static [(Outcome, u64)] {
        match self {
            Self::Root | Self::Tagged | Self::BesideRoce | Self::ByRoce => {
                &[(Outcome::Started, 1), (Outcome::Added, 2), (Outcome::Completed, 1)]
            }
            Self::Combiner => &[(Outcome::Held, 3), (Outcome::Combined, 1)],
            Self::Passing => &[(Outcome::Passed, 4)],
        }
    }
}

/// Whether to measure, on a quiet machine.
fn measures() -> bool {
    std::env::var_os("SWITCHML_MEASURE").is_some()
}

/// Rounds of a slot that are timed, packet by packet.
fn rounds() -> u32 {
    if measures() { 2_000 } else { 8 }
}

/// Repetitions in one thread: some milliseconds, so that it does not matter which thread begins
/// first.
const PARALLEL_REPEAT: u32 = 20_000;

/// The number of measurements on two CPUs.
fn parallel_runs() -> usize {
    if measures() { 31 } else { 2 }
}

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const RANKS: u16 = 4;
const HEADERS: usize = 32;
const TAG_LEN: usize = 8;

/// The frame of a packet that is not for the aggregator.
fn passed_on(packet: &Packet) -> Vec<u8> {
    Envelope { mac_destination: [2; 6], ..packet.request() }.bytes(&packet.bytes())
}

/// A contribution of one rank to each of the slots from 0 on, in one frame of `segments` packets.
fn frame(segments: u16, rank: u16, round: u32, (op, role): (u8, Role), lanes: u32) -> Vec<u8> {
    let values: Vec<u32> = (0..lanes).map(|lane| lane * u32::from(rank + 1)).collect();
    let flags = role.flags();
    let packet = |slot| Packet { op, flags, ..Packet::contribution(rank, slot, round, &values) };
    let bytes = |slot| match role.has_tags() {
        true => tagged(&packet(slot).bytes(), key(rank)),
        false => packet(slot).bytes(),
    };
    let payload: Vec<u8> = (0..segments).flat_map(bytes).collect();
    match role {
        Role::ByRoce => packet(0).message_of(&payload),
        _ => packet(0).request().bytes(&payload),
    }
}

/// Calls the function once for each turn, from 0 on, on these CPUs in turn: a thread on each, which
/// sleeps never. Its results, by turn.
fn in_turn<T: Send>(cpus: &[usize], turns: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (mut senders, receivers): (Vec<_>, Vec<_>) = cpus.iter().map(|_| mpsc::channel()).unzip();
    senders[0].send(()).expect("the receiver is here");
    senders.rotate_left(1);
    let play = |first: usize, next: mpsc::Sender<()>, mine: mpsc::Receiver<()>| {
        pin_to(cpus[first]);
        let turn = |turn| {
            while let Err(nothing) = mine.try_recv() {
                assert_eq!(nothing, mpsc::TryRecvError::Empty, "the other thread gave up");
                hint::spin_loop();
            }
            let result = f(turn);
            // At the end, the other thread may be gone.
            let _ = next.send(());
            result
        };
        (first..turns).step_by(cpus.len()).map(turn).collect::<Vec<_>>()
    };
    let mut results: Vec<_> = thread::scope(|scope| {
        let play = &play;
        let threads = senders.into_iter().zip(receivers).enumerate();
        let threads: Vec<_> = threads
            .map(|(first, (next, mine))| scope.spawn(move || play(first, next, mine)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<T>>| thread.join().expect("no panic");
        threads.into_iter().map(|thread| join(thread).into_iter()).collect()
    });
    (0..turns).map(|turn| results[turn % cpus.len()].next().expect("a result")).collect()
}

/// Times in ns of the first, a middle and the last contribution of a round, in frames of `segments`
/// packets, in XDP (one packet) or at tc. The ranks' packets come in on these CPUs, in turn. The
/// time of a packet that is passed on at once, timer included, is subtracted.
fn of_a_round(place: (Hook, Role), cpus: &[usize], segments: u16, op: u8, lanes: u32) -> [f64; 3] {
    let [times] = of_rounds(place, cpus, [segments], op, lanes);
    times
}

/// The times of a round for several numbers of segments, measured alternately: the processor's
/// clock may change from one second to the next.
fn of_rounds<const N: usize>(
    (hook, role): (Hook, Role),
    cpus: &[usize],
    segments: [u16; N],
    op: u8,
    lanes: u32,
) -> [[f64; 3]; N] {
    let kernels = segments.map(|_| role.kernel());
    let segment_len = role.packet_len(lanes);
    let run = |kernel: &Kernel, frame: &[u8]| {
        let run = match hook {
            Hook::Xdp => kernel.run_xdp(frame),
            Hook::Tc => kernel.tc().run_superpacket(frame, segment_len),
        };
        run.time.as_nanos() as u32
    };
    let nothing = passed_on(&Packet::contribution(0, 0, 0, &[0; 32]));
    let ranks = usize::from(RANKS);
    let times = in_turn(cpus, rounds() as usize * ranks, |turn| {
        let (round, rank) = ((turn / ranks) as u32, (turn % ranks) as u16);
        let frame = |segments| frame(segments, rank, round, (op, role), lanes);
        std::array::from_fn::<_, N, _>(|index| {
            [run(&kernels[index], &nothing), run(&kernels[index], &frame(segments[index]))]
        })
    });
    std::array::from_fn(|index| {
        every_packet_was_what_it_is_timed_as((hook, role), &kernels[index], segments[index]);
        [0, 1, ranks - 1].map(|rank| {
            let of_rank = || times.iter().skip(rank).step_by(ranks).map(|times| times[index]);
            usual(of_rank().map(|[_, time]| time)) - usual(of_rank().map(|[passed, _]| passed))
        })
    })
}

fn every_packet_was_what_it_is_timed_as(
    (hook, role): (Hook, Role),
    kernel: &Kernel,
    segments: u16,
) {
    let counters = match hook {
        Hook::Xdp => kernel.counters(),
        Hook::Tc => kernel.tc().counters(),
    };
    let rounds = u64::from(rounds()) * u64::from(segments);
    for (outcome, times) in role.outcomes() {
        assert_eq!(counters[*outcome as usize], times * rounds, "{outcome:?}");
    }
}

/// The mean of the middle half: the clock may tick every 10 ns only.
fn usual(times: impl Iterator<Item = u32>) -> f64 {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    let middle = &times[times.len() / 4..times.len() * 3 / 4];
    f64::from(middle.iter().sum::<u32>()) / middle.len() as f64
}

/// The times for one more segment of a superpacket. A test run takes at most two segments of the
/// usual size, so the fixed cost of a superpacket is subtracted.
fn of_a_segment(role: Role, cpus: &[usize], op: u8, lanes: u32) -> [f64; 3] {
    let [one, two] = of_rounds((Hook::Tc, role), cpus, [1, 2], op, lanes);
    std::array::from_fn(|index| two[index] - one[index])
}

fn print(what: &str, [first, middle, last]: [f64; 3]) {
    println!("{what}: first {first:4.0} ns, middle {middle:4.0} ns, last {last:4.0} ns");
}

/// Times of the first, a middle and the last contribution of a round.
#[test]
fn speed() {
    needs_racks!();
    let cpu = &cpus()[..1];
    for (op, name) in [(SUM, "sum"), (MAX, "max")] {
        for lanes in [64, 352, 768] {
            let what = |hook| format!("{hook}, {name}, {lanes} lanes");
            print(&what("XDP"), of_a_round((Hook::Xdp, Role::Root), cpu, 1, op, lanes));
            print(&what("tc, one packet"), of_a_round((Hook::Tc, Role::Root), cpu, 1, op, lanes));
            // More lanes do not fit into a page.
            if lanes <= 352 {
                print(&what("tc, one more segment"), of_a_segment(Role::Root, cpu, op, lanes));
            }
        }
    }
}

/// The cost of tags.
#[test]
fn speed_of_tags() {
    needs_racks!();
    type Timed = fn(Role, &[usize]) -> [f64; 3];
    let hooks: [(&str, Timed); 3] = [
        ("XDP", |role, cpu| of_a_round((Hook::Xdp, role), cpu, 1, SUM, 352)),
        ("tc, one packet", |role, cpu| of_a_round((Hook::Tc, role), cpu, 1, SUM, 352)),
        ("tc, one more segment", |role, cpu| of_a_segment(role, cpu, SUM, 352)),
    ];
    for (hook, timed) in hooks {
        let roles = [(Role::Root, "without tags"), (Role::Tagged, "with tags")];
        side_by_side(hook, roles, timed);
    }
}

/// The cost of RoCEv2, for ranks with sockets and for ranks with queue pairs.
#[test]
fn speed_of_rocev2() {
    needs_racks!();
    let roles = [
        (Role::Root, "datagrams"),
        (Role::BesideRoce, "datagrams with --rocev2"),
        (Role::ByRoce, "messages"),
    ];
    for lanes in [32, 224] {
        let timed = |role, cpu: &[usize]| of_a_round((Hook::Xdp, role), cpu, 1, SUM, lanes);
        side_by_side(&format!("XDP, {lanes} lanes"), roles, timed);
    }
}

/// Prints median and range of several runs of each role, in turn, so that all see the same machine.
fn side_by_side<const N: usize>(
    what: &str,
    roles: [(Role, &str); N],
    timed: impl Fn(Role, &[usize]) -> [f64; 3],
) {
    let cpu = &cpus()[..1];
    let runs = if measures() { 5 } else { 1 };
    let runs: Vec<_> = (0..runs).map(|_| roles.map(|(role, _)| timed(role, cpu))).collect();
    for (role, (_, name)) in roles.iter().enumerate() {
        let of_position = |position: usize| {
            let mut times: Vec<_> = runs.iter().map(|run| run[role][position]).collect();
            times.sort_by(f64::total_cmp);
            let last = times.len() - 1;
            format!("{:.0} ({:.0} to {:.0})", times[last / 2], times[0], times[last])
        };
        let [first, middle, last] = [0, 1, 2].map(of_position);
        println!("{what}, {name}: first {first} ns, middle {middle} ns, last {last} ns");
    }
}

/// Times of a combiner's contributions: the first and a middle one are held, and the last one
/// becomes a partial sum; or all are passed on.
#[test]
fn speed_of_a_combiner() {
    needs_racks!();
    let cpu = &cpus()[..1];
    for (role, name) in [(Role::Combiner, "combined"), (Role::Passing, "passed")] {
        let what = |hook| format!("{hook}, {name}, 352 lanes");
        print(&what("XDP"), of_a_round((Hook::Xdp, role), cpu, 1, SUM, 352));
        print(&what("tc, one packet"), of_a_round((Hook::Tc, role), cpu, 1, SUM, 352));
        print(&what("tc, one more segment"), of_a_segment(role, cpu, SUM, 352));
    }
}

/// Times of a round whose ranks come in on two CPUs, so that the other CPU wrote to the slot last.
#[test]
fn speed_of_two_cpus_on_one_slot() {
    needs_racks!();
    let Some(cpus) = two_cpus("speed_of_two_cpus_on_one_slot") else { return };
    for (cpus, name) in [(&cpus[..1], "one CPU"), (&cpus[..], "two CPUs in turn")] {
        print(&format!("XDP, {name}"), of_a_round((Hook::Xdp, Role::Root), cpus, 1, SUM, 352));
        print(
            &format!("tc, one packet, {name}"),
            of_a_round((Hook::Tc, Role::Root), cpus, 1, SUM, 352),
        );
        print(&format!("tc, one more segment, {name}"), of_a_segment(Role::Root, cpus, SUM, 352));
    }
}

/// Nanoseconds per packet on the slowest CPU when CPUs process packets at the same time.
///
/// One program does this: before the kernel runs a different program, it waits until all CPUs have
/// finished the current ones.
fn together(driver: &Driver, work: &[(usize, Vec<u8>)], verdict: u32) -> u32 {
    let waiting = AtomicUsize::new(work.len());
    let run = |(cpu, frame): &(usize, Vec<u8>)| {
        pin_to(*cpu);
        go_first();
        waiting.fetch_sub(1, Ordering::SeqCst);
        // Threads do not sleep here, so that all begin in the same instant. Each has its own CPU.
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
    // The measurements alternate, because other work on the machine goes on meanwhile.
    for run in 0..parallel_runs() {
        passed.push(together(&driver, &nothing, XDP_PASS));
        one.push(together(&driver, &work[run % 2..][..1], XDP_DROP));
        two.push(together(&driver, &work, XDP_DROP));
    }
    let packets = parallel_runs() as u64 * 3 * u64::from(PARALLEL_REPEAT);
    assert_eq!(
        kernel.counters()[Outcome::Added as usize],
        packets,
        "every run is a middle contribution"
    );
    let passed = median(passed);
    (median(one) - passed, median(two) - passed)
}

/// Slots share nothing except the maps, which packets only read, and counters are per CPU: two CPUs
/// do about twice as much as one. The test asserts less, tries a few times, and only on a quiet
/// machine: something else may take a CPU away.
#[test]
fn speed_of_two_cpus_on_different_slots() {
    needs_racks!();
    let Some(cpus) = two_cpus("speed_of_two_cpus_on_different_slots") else { return };
    for lanes in [352, 768] {
        let enough = (0..5).any(|_| {
            let (one, two) = one_and_two(cpus, lanes);
            let ratio = 2.0 * one / two;
            println!(
                "{lanes} lanes: {one:.0} ns on one CPU, {two:.0} ns on each of two: {ratio:.2} \
                 times as much"
            );
            ratio > 1.3 || !measures()
        });
        assert!(enough, "two CPUs do hardly more than one");
    }
}
