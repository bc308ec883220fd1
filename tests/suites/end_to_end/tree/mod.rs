//! A root and combiners in racks, on each data plane that supports them: sums are right whatever
//! happens to combiners, uplinks and ranks, and errors name the ranks at fault, with their rack.

mod bits;
mod copies;
mod hostile;
mod switched;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use serde_json::json;
use switchml_rack::{
    Binaries, Direction, Faults, Impairment, Mode, Namespace, Plane, Process, RackOptions, Racks,
    needs_racks, wait_until,
};
use switchml_worker::{Communicator, Error, ReduceOp};

use crate::{PATIENCE, SOON, host_name, report};
use bits::eight_ranks_in_two_racks_have_the_bits_of_one_rack;
use bits::sixteen_ranks_in_four_racks_have_the_bits_of_one_rack;
use copies::copies_of_a_combiner_reach_a_host_once;
use hostile::partial_sums_that_are_no_combiners_change_no_sum;
use hostile::partial_sums_that_overlap_add_nobody_twice;

/// Tests on all data planes: in processes, natively, and in bundles.
macro_rules! on_all_planes {
    ($($test:ident),+ $(,)?) => {
        on_all_planes!(software, Plane::Software, Mode::Auto, $($test)+);
        on_all_planes!(native, Plane::Programs, Mode::Native, $($test)+);
        on_all_planes!(bundles, Plane::Programs, Mode::Auto, $($test)+);
    };
    ($name:ident, $plane:expr, $mode:expr, $($test:ident)+) => {
        mod $name {
            use super::*;
            $(
                #[test]
                fn $test() {
                    needs_racks!();
                    let options = RackOptions { mode: $mode, ..RackOptions::default() };
                    super::$test($plane, options);
                }
            )+
        }
    };
}

on_all_planes! {
    sums_over_combiners_have_the_bits_of_those_without,
    eight_ranks_in_two_racks_have_the_bits_of_one_rack,
    sixteen_ranks_in_four_racks_have_the_bits_of_one_rack,
    combiners_below_combiners,
    sums_of_several_threads,
    a_job_at_two_roots_uses_both,
    a_fifth_of_what_the_uplinks_carry_is_lost,
    a_killed_rank_is_named_with_its_rack,
    different_calls_are_named_across_racks,
    calls_go_on_with_the_next_combiner,
    a_combiner_that_stays_away_is_named,
    partial_sums_that_are_no_combiners_change_no_sum,
    partial_sums_that_overlap_add_nobody_twice,
    copies_of_a_combiner_reach_a_host_once,
}

/// Two ranks in each of two racks.
const RANKS: usize = 4;
/// Time to wait for lost ranks, with some time for a busy machine.
const GRACE: Duration = Duration::from_secs(15);

/// Racks with a daemon at the root, and one in each rack.
struct Site {
    binaries: Binaries,
    plane: Plane,
    // Declared before the racks, so that they are dropped first: the racks' end would kill them.
    root: Process,
    combiners: Vec<Process>,
    /// The impairment of open uplinks: they lose a fifth of packets in each direction.
    uplinks: Option<Impairment>,
    racks: Racks,
    /// The control plane that each rank joins.
    joined: Vec<String>,
}

/// The root's control plane.
const ROOT: &str = "10.88.0.254:48865";

fn combiner_at(rack: usize) -> String {
    format!("10.88.{}.254:48865", rack + 1)
}

impl Site {
    /// A site with combiners below the root.
    fn new(plane: Plane, options: RackOptions) -> Self {
        Self::with_parents(plane, options, [ROOT.to_owned(), ROOT.to_owned()])
    }

    fn with_parents(plane: Plane, options: RackOptions, parents: [String; 2]) -> Self {
        let binaries = Binaries::for_test().unwrap();
        let racks = Racks::new(2, RackOptions { workers: RANKS, ..options.clone() }).unwrap();
        assert_eq!(racks.root_address().to_string() + ":48865", ROOT);
        let fifth = |_, _: Direction| Faults { loss: 0.2, ..Faults::default() };
        let impair = || Impairment::on_uplinks(&binaries, &racks, 7, fifth).unwrap();
        let uplinks = options.wires.then(impair);
        let root = start_root(&binaries, plane, &racks);
        let joined = (0..RANKS).map(|rank| combiner_at(racks.rack_of(rank))).collect();
        let mut site =
            Self { binaries, plane, root, combiners: Vec::new(), uplinks, racks, joined };
        for (rack, parent) in parents.iter().enumerate() {
            let combiner = site.start_combiner(rack, parent);
            site.combiners.push(combiner);
        }
        site
    }

    fn start_combiner(&self, rack: usize, parent: &str) -> Process {
        self.start_combiner_with(rack, parent, &[])
    }

    /// Starts one with further options.
    fn start_combiner_with(&self, rack: usize, parent: &str, options: &[&str]) -> Process {
        let address = combiner_at(rack);
        assert_eq!(self.racks.host_address(rack).to_string() + ":48865", address);
        let ports = self.racks.host_ports(rack);
        let mut command = daemon(&self.binaries, self.plane, self.racks.mode(), &ports);
        command.args(["--control", &address, "--parent", parent]).args(options);
        serve(self.racks.hosts()[rack].spawn("combiner", command).unwrap())
    }

    /// A counter of the root's daemon, or of a rack's combiner.
    fn counter(&self, rack: Option<usize>, name: &str) -> u64 {
        let (host, address) = match rack {
            None => (self.racks.root(), ROOT.to_owned()),
            Some(rack) => (&self.racks.hosts()[rack], combiner_at(rack)),
        };
        counter(&self.binaries, host, &address, name)
    }

    /// Runs `life` as each rank, all at the same time. Returns each result.
    fn run<T: Send + 'static>(
        &self,
        job: &str,
        life: impl Fn(usize, Communicator) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        thread::scope(|scope| {
            let start = |rank: usize| {
                let builder = Communicator::builder()
                    .aggregator(&self.joined[rank])
                    .job(job)
                    .rank(rank as u32)
                    .world_size(RANKS as u32)
                    .deadline(Duration::from_secs(5));
                let (namespace, life) = (&self.racks.workers()[rank], life.clone());
                scope.spawn(move || {
                    namespace.run(move || life(rank, builder.connect().expect("connected")))
                })
            };
            let threads: Vec<_> = (0..RANKS).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// A benchmark with these options, as processes.
    fn bench(&self, options: &[&str]) -> Vec<Process> {
        let start = |rank: usize| {
            let mut command = Command::new(&self.binaries.worker);
            command.args(["bench", "--aggregator", &self.joined[rank], "--job", "bench"]);
            command.args(["--rank", &rank.to_string(), "--world-size", &RANKS.to_string()]);
            command.args(options);
            self.racks.workers()[rank].spawn(&format!("worker {rank}"), command).unwrap()
        };
        (0..RANKS).map(start).collect()
    }

    /// Starts a long benchmark, and waits until it makes progress.
    fn long_bench(&self) -> Vec<Process> {
        let ranks = self.bench(&["-b", "1M", "-e", "1M", "-n", "1000000"]);
        wait_until!(PATIENCE, self.counter(None, "completed") >= 5_000, "no progress");
        ranks
    }
}

fn start_root(binaries: &Binaries, plane: Plane, racks: &Racks) -> Process {
    let mut command = daemon(binaries, plane, racks.mode(), &racks.root_ports());
    command.args(["--control", ROOT]);
    serve(racks.root().spawn("root", command).unwrap())
}

/// A daemon with this data plane, at these ports if it uses any.
fn daemon(binaries: &Binaries, plane: Plane, mode: Mode, ports: &[String]) -> Command {
    let mut command = Command::new(&binaries.aggregator);
    match plane {
        Plane::Software => {
            command.args(["--data-plane", "software"]);
        }
        Plane::Programs => {
            command.args(["--mode", mode.argument()]);
            command.args(ports.iter().flat_map(|port| ["--iface", port]));
        }
    }
    command
}

/// A counter of the daemon at this address of a host.
fn counter(binaries: &Binaries, host: &Namespace, address: &str, name: &str) -> u64 {
    let mut command = Command::new(&binaries.aggregator);
    command.args(["status", "--connect", address]);
    let text = String::from_utf8(host.output(command).unwrap().stdout).unwrap();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
    line.map_or(0, |line| line.split_whitespace().nth(1).unwrap().parse().unwrap())
}

/// Waits until it serves.
fn serve(mut daemon: Process) -> Process {
    daemon.wait_for_line("ready: control", PATIENCE).unwrap();
    daemon
}

/// The sums of a few sizes and types, as bits, each checked against arithmetic where it is exact.
fn sums(rank: usize, communicator: &Communicator) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for elements in [1, 352, 5_000, 200_000] {
        let mut values: Vec<i32> = (0..elements).map(|i| i * (rank as i32 + 1)).collect();
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        // 1 + 2 + 3 + 4
        assert!((0..elements).zip(&values).all(|(i, sum)| *sum == 10 * i), "{elements}");
        let mut values: Vec<i32> = (0..elements).map(|i| i ^ (rank as i32) << 20).collect();
        communicator.all_reduce(&mut values, ReduceOp::Max).unwrap();
        assert!((0..elements).zip(&values).all(|(i, most)| *most == i ^ 3 << 20), "{elements}");
        let scale = 10f32.powi(rank as i32 - 2);
        let mut values: Vec<f32> = (0..elements).map(|i| (i as f32).sin() * scale).collect();
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        all.push(values.iter().map(|value| value.to_bits()).collect());
    }
    all
}

/// All ranks' sums have the same bits; these.
fn same_everywhere(ranks: Vec<Vec<Vec<u32>>>) -> Vec<Vec<u32>> {
    let first = ranks[0].clone();
    assert!(ranks.iter().all(|sums| *sums == first), "ranks differ");
    first
}

fn life(rank: usize, communicator: Communicator) -> Vec<Vec<u32>> {
    let sums = sums(rank, &communicator);
    communicator.close().unwrap();
    sums
}

fn sums_over_combiners_have_the_bits_of_those_without(plane: Plane, options: RackOptions) {
    let mut site = Site::new(plane, options);
    let by_combiners = same_everywhere(site.run("tree", life));
    for rack in [0, 1] {
        assert!(site.counter(Some(rack), "combined") > 1_000, "rack {rack}");
    }
    // Each rack's two contributions travel as one partial sum.
    assert!(site.counter(None, "completed") * 3 > site.counter(None, "added") * 2);
    let mixed = {
        site.joined[3] = ROOT.to_owned();
        same_everywhere(site.run("mixed", life))
    };
    site.joined = vec![ROOT.to_owned(); RANKS];
    let before = site.counter(Some(0), "combined");
    let without = same_everywhere(site.run("flat", life));
    assert_eq!(site.counter(Some(0), "combined"), before, "nobody joined a combiner");
    assert!(by_combiners == without, "bits differ");
    assert!(mixed == without, "bits differ");
    site.root.terminate(PATIENCE).unwrap();
}

/// Rack 1's combiner has rack 0's as its parent.
fn combiners_below_combiners(plane: Plane, options: RackOptions) {
    let site = Site::with_parents(plane, options, [ROOT.to_owned(), combiner_at(0)]);
    same_everywhere(site.run("deep", life));
    assert!(site.counter(Some(1), "combined") > 1_000);
    // All four ranks are below the upper one: whole rounds leave it, unless a rank was late on a
    // busy machine. If parts of rounds left it, the root would start as many as it completes.
    assert!(site.counter(Some(0), "combined") > 1_000);
    let (started, completed) = (site.counter(None, "started"), site.counter(None, "completed"));
    assert!(completed > 1_000 && started * 2 < completed, "{started} of {completed}");
}

/// Each thread's shard has its own uplink ports.
fn sums_of_several_threads(plane: Plane, options: RackOptions) {
    let site = Site::new(plane, options);
    let sizes = ["-b", "4K", "-e", "4M", "-f", "32", "-n", "3"];
    let report =
        report(site.bench(&[&sizes[..], &["--data-threads", "2", "--json", "-"]].concat()));
    assert_eq!((&report["out_of_bounds"], &report["differing"]), (&json!(0), &json!([])));
    assert_eq!(report["data_threads"], 2);
    for rack in [0, 1] {
        assert!(site.counter(Some(rack), "combined") > 1_000, "rack {rack}");
    }
}

/// The second root, with combiners of its own, is in software: a job over two kinds of data planes.
fn a_job_at_two_roots_uses_both(plane: Plane, options: RackOptions) {
    let mut site = Site::new(plane, options);
    let control = |rack: usize| format!("10.88.{rack}.254:48875");
    let start = |host: &Namespace, rack: usize, options: &[&str]| {
        let mut command = daemon(&site.binaries, Plane::Software, site.racks.mode(), &[]);
        command.args(["--control", &control(rack), "--data-port", "48874"]).args(options);
        serve(host.spawn("second", command).unwrap())
    };
    let _root = start(site.racks.root(), 0, &[]);
    let parent = control(0);
    let hosts = site.racks.hosts().iter().zip(1..);
    let _combiners: Vec<Process> =
        hosts.map(|(host, rack)| start(host, rack, &["--parent", &parent])).collect();
    let place = |rank: usize| control(site.racks.rack_of(rank) + 1);
    let places: Vec<String> = (0..RANKS).map(place).collect();
    for (rank, (joined, place)) in site.joined.iter_mut().zip(places).enumerate() {
        // In any order.
        *joined =
            if rank % 2 == 0 { format!("{joined},{place}") } else { format!("{place},{joined}") };
    }
    let sizes = ["-b", "8", "-e", "4M", "-f", "32", "-n", "3", "--json", "-"];
    let report = report(site.bench(&sizes));
    assert_eq!((&report["out_of_bounds"], &report["differing"]), (&json!(0), &json!([])));
    assert!(site.counter(None, "completed") > 1_000 && site.counter(Some(1), "combined") > 1_000);
    let at_second = counter(&site.binaries, site.racks.root(), &parent, "completed");
    assert!(at_second > 1_000, "{at_second}");
}

fn a_fifth_of_what_the_uplinks_carry_is_lost(plane: Plane, options: RackOptions) {
    let mut site = Site::new(plane, RackOptions { wires: true, ..options });
    same_everywhere(site.run("lossy", life));
    let counts = site.uplinks.take().expect("impaired").stop().unwrap();
    assert!(counts.iter().flatten().all(|count| count.lost > 100), "{counts:?}");
}

fn a_killed_rank_is_named_with_its_rack(plane: Plane, options: RackOptions) {
    let site = Site::new(plane, options);
    let mut ranks = site.long_bench();
    ranks[3].kill().unwrap();
    for (rank, process) in ranks.iter_mut().enumerate().take(3) {
        process.wait(SOON).unwrap();
        let stderr = process.stderr();
        assert!(stderr.contains("rank 3 (10.88.2.2, rack "), "rank {rank}: {stderr}");
        let place = format!(" at 10.88.2.254, host {}) is gone: ", host_name());
        assert!(stderr.contains(&place), "rank {rank}: {stderr}");
    }
}

fn different_calls_are_named_across_racks(plane: Plane, options: RackOptions) {
    let site = Site::new(plane, options);
    let errors = site.run("apart", |rank, communicator| {
        let mut values = vec![1i32; if rank == 2 { 1000 } else { 2000 }];
        communicator.all_reduce(&mut values, ReduceOp::Sum).expect_err("a mismatch").to_string()
    });
    for (rank, error) in errors.iter().enumerate() {
        let both = ["call 1 of rank 2 is all_reduce(sum, i32, 1000)", "all_reduce(sum, i32, 2000)"];
        assert!(both.iter().all(|call| error.contains(call)), "rank {rank}: {error}");
    }
}

/// Rank 0's word that all stop ends the loop in the same round for all.
fn sum_until(
    rank: usize,
    communicator: &Communicator,
    stop: &AtomicBool,
    rounds: &AtomicU64,
) -> Result<(), Error> {
    for round in 0.. {
        let stops = rank == 0 && stop.load(Ordering::Relaxed);
        let mut values: Vec<i32> = (0..50_000).map(|i| i + round + rank as i32).collect();
        values.push(i32::from(stops));
        communicator.all_reduce(&mut values, ReduceOp::Sum)?;
        let stops = values.pop() == Some(1);
        // 0 + 1 + 2 + 3
        assert!((0..50_000).zip(&values).all(|(i, sum)| *sum == 4 * (i + round) + 6));
        rounds.fetch_add(1, Ordering::Relaxed);
        if stops {
            break;
        }
    }
    Ok(())
}

/// Ranks that add up until they are told to stop.
struct Summing {
    stop: Arc<AtomicBool>,
    /// Rounds of all ranks together.
    rounds: Arc<AtomicU64>,
    ranks: Vec<JoinHandle<Result<(), Error>>>,
}

impl Summing {
    fn start(site: &Site) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut ranks = Vec::new();
        for rank in 0..RANKS {
            let builder = Communicator::builder()
                .aggregator(&site.joined[rank])
                .job("lasting")
                .rank(rank as u32)
                .world_size(RANKS as u32)
                .deadline(GRACE);
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            ranks.push(site.racks.workers()[rank].run(move || {
                thread::spawn(move || {
                    let communicator = builder.connect().expect("connected");
                    sum_until(rank, &communicator, &stop, &rounds)?;
                    communicator.close()
                })
            }));
        }
        Self { stop, rounds, ranks }
    }

    /// Waits for `more` more rounds.
    fn progress(&self, more: u64) {
        let (before, begin) = (self.rounds.load(Ordering::Relaxed), Instant::now());
        while self.rounds.load(Ordering::Relaxed) < before + more {
            assert!(begin.elapsed() < GRACE, "no progress");
            sleep(Duration::from_millis(10));
        }
    }

    /// Stops the ranks, and asserts that no sum was wrong.
    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for rank in self.ranks {
            assert!(matches!(rank.join().unwrap(), Ok(())));
        }
    }
}

/// Both combiners are killed during calls, and restarted at the same address.
fn calls_go_on_with_the_next_combiner(plane: Plane, options: RackOptions) {
    let mut site = Site::new(plane, options);
    let summing = Summing::start(&site);
    summing.progress(40);
    for rack in [0, 1] {
        site.combiners[rack].kill().unwrap();
        site.combiners[rack] = site.start_combiner(rack, ROOT);
        summing.progress(40);
        assert!(site.counter(Some(rack), "combined") > 0, "the next one adds up, too");
    }
    if plane == Plane::Programs {
        // The root's data plane continues meanwhile.
        site.root.kill().unwrap();
        summing.progress(5);
        site.root = start_root(&site.binaries, plane, &site.racks);
        summing.progress(40);
    }
    // No rank counts as lost after the time to come back.
    sleep(Duration::from_secs(6));
    summing.progress(40);
    summing.stop();
}

fn a_combiner_that_stays_away_is_named(plane: Plane, options: RackOptions) {
    let mut site = Site::new(plane, options);
    let mut ranks = site.long_bench();
    site.combiners[1].kill().unwrap();
    for (rank, process) in ranks.iter_mut().enumerate() {
        process.wait(GRACE).unwrap();
        let stderr = process.stderr();
        // Ranks behind the combiner know it by its address, the others by the root's report.
        let expected = match rank {
            2 | 3 => "10.88.2.254",
            _ => "rank 2 (10.88.2.1, rack ",
        };
        assert!(stderr.contains(expected), "rank {rank}: {stderr}");
    }
}

/// A root whose data plane does not outlive it.
#[test]
fn a_root_that_is_gone_is_named_below_its_combiners() {
    needs_racks!();
    let mut site = Site::new(Plane::Software, RackOptions::default());
    let mut ranks = site.long_bench();
    site.root.kill().unwrap();
    for (rank, process) in ranks.iter_mut().enumerate() {
        process.wait(GRACE).unwrap();
        let stderr = process.stderr();
        let expected = format!("the aggregator at {ROOT}, the parent of combiner ");
        assert!(stderr.contains(&expected), "rank {rank}: {stderr}");
    }
}
