//! The main use from end to end: the real daemon, its programs in the kernel and real workers, each
//! in its own namespace.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`bad_links`] | links that lose, double, reorder and corrupt: every sum exact |
//! | [`benchmark`] | the benchmark's sizes, types, operators and frames, every element checked |
//! | [`data_threads`] | several data threads per rank: sums, a rank that dies, a daemon that dies |
//! | [`drop_rate`] | an aggregator that loses packets itself, on purpose |
//! | [`failover`] | an aggregator of several dies in mid-call, and another one goes on |
//! | [`bits`] | the same bits on every rank, whatever the order of arrival |
//! | [`local_results`] | several ranks of a host, of which one takes results for all |
//! | [`local_sums`] | several ranks of a host, which add up before they send |
//! | [`lost_ranks`] | ranks that die or freeze: the others end in time, and name them |
//! | [`mismatch`] | ranks that make different calls, or leave too early: all hear which rank called what |
//! | [`packed`] | sums in 16 and 8 bits: on bad links, beside NaN, with a rank that dies |
//! | [`packet_tags`] | tags of packets: right sums, and who forges packets without their keys |
//! | [`missing_ranks`] | a job that not all ranks join |
//! | [`slots`] | for whom a job waits that hangs |
//! | [`slow_ranks`] | which rank makes a job slow, and why |
//! | [`special_values`] | NaN and infinities |
//! | [`summary`] | the line that a job's first rank writes when it starts |
//! | [`security`] | a tree with mutual TLS, and control planes that would be open to the Internet |
//! | [`strangers`] | a host that is not a member, and sends everything that it can |
//! | [`multicast`] | a rank that multicast does not reach |
//! | [`networks`] | a switch host with a single port, at an Ethernet switch or a router |
//! | [`doctor`] | each cause of trouble that `switchml-worker doctor` names, made and mended |
//! | [`doctor_of_ranks`] | what it says of ranks that serve each other |
//! | [`ipv6`] | hosts with IPv6 addresses only |
//! | [`mtu`] | hosts with a larger MTU than a switch between them |
//! | [`tags`] | VLAN tags that devices take off frames |
//! | [`tree`] | combiners in racks below a root: sums, deaths, forged partial sums |
//! | [`zeros`] | ranks that have only zeros to add: few bytes, right sums |
//! | [`payload_share`] | how much of a link's bytes are values |
//! | [`jobs`] | several jobs at once, and one after the other |
//! | [`public`] | ranks at public addresses, which strangers reach |
//! | [`quotas`] | quotas of tenants, whose jobs outlive the daemon |
//! | [`restart`] | the daemon is killed, and another takes its place or does not |
//! | [`peers`] | ranks that serve each other without an aggregator, and jobs at several |
//! | [`ports`] | ports that go down and up, lose their program, or are removed |
//! | [`loops`] | ranks that add up again and again, every element checked |

mod bad_links;
mod benchmark;
mod bits;
mod data_threads;
mod doctor;
mod doctor_of_ranks;
mod drop_rate;
mod failover;
mod ipv6;
mod jobs;
mod local_results;
mod local_sums;
mod loops;
mod lost_ranks;
mod mismatch;
mod missing_ranks;
mod mtu;
mod multicast;
mod networks;
mod one_host;
mod packed;
mod packet_tags;
mod parts;
mod payload_share;
mod peers;
mod ports;
mod public;
mod quotas;
mod restart;
mod security;
mod slots;
mod slow_ranks;
mod special_values;
mod strangers;
mod summary;
mod tags;
mod tree;
mod zeros;

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, TcAttachType};
use serde_json::Value;
use switchml_rack::{Aggregator, Binaries, Mode, Namespace, Process, Rack, RackOptions};
use switchml_worker::{Builder, Communicator};

/// Far longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The name of this machine, which all namespaces of a rack share.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A rank of the rack as errors and logs name it.
fn in_words(rank: u32, address: &str) -> String {
    format!("rank {rank} ({address}, host {})", host_name())
}

/// Bound for events that should happen soon, on a busy machine, too: without the event, a wait
/// would take much longer, as a rule 30 minutes. The simulator tests in virtual time how soon they
/// happen.
const SOON: Duration = Duration::from_secs(60);
/// Seconds that ranks of a benchmark may stand still. By default they are waited for as late ones
/// are.
const STANDSTILL: &str = "5";

/// A rack with the daemon on its ports.
struct Cluster {
    binaries: Binaries,
    // Declared before the rack, so that it is dropped first: the rack's end would kill it.
    aggregator: Aggregator,
    rack: Rack,
    /// Ranks in each worker's namespace.
    ranks_of_host: usize,
}

impl Cluster {
    fn new(options: RackOptions) -> Self {
        Self::with_options(options, &[])
    }

    /// A cluster with further options of the daemon.
    fn with_options(rack: RackOptions, options: &[&str]) -> Self {
        let binaries = Binaries::for_test().unwrap();
        let rack = Rack::new(rack).unwrap();
        let aggregator = Aggregator::in_rack_with(&binaries, &rack, options).unwrap();
        Self { binaries, aggregator, rack, ranks_of_host: 1 }
    }

    /// A cluster of `hosts` hosts, each with `ranks_of_host` ranks.
    fn of_hosts(hosts: usize, ranks_of_host: usize, mode: Mode) -> Self {
        Self { ranks_of_host, ..Self::in_mode(hosts, mode) }
    }

    /// The namespace of a rank.
    fn host(&self, rank: usize) -> &Namespace {
        self.rack.worker(rank / self.ranks_of_host)
    }

    fn of(workers: usize) -> Self {
        Self::in_mode(workers, Mode::Auto)
    }

    fn in_mode(workers: usize, mode: Mode) -> Self {
        Self::new(RackOptions { workers, mode, ..RackOptions::default() })
    }

    /// The data plane's counters, as `switchml-aggregator status` shows them.
    fn counters(&self) -> BTreeMap<String, u64> {
        let text = self.ask(&["status", "--connect", self.aggregator.control()]);
        // Name, number and explanation, below a line of titles.
        let counter = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        };
        text.lines().skip_while(|line| !line.starts_with("packets")).filter_map(counter).collect()
    }

    /// One of the data plane's counters.
    fn counter(&self, name: &str) -> u64 {
        self.counters().get(name).copied().unwrap_or(0)
    }

    /// Starts a new daemon at the same address. The earlier one has ended.
    fn restart(&mut self) {
        let control = self.aggregator.control().to_owned();
        self.aggregator =
            Aggregator::in_rack_at(&self.binaries, &self.rack, &control, &[]).unwrap();
    }

    /// The output of `switchml-aggregator` in the switch, with these arguments. It gives a daemon 5
    /// s to answer, which on a busy machine may be too short.
    fn ask(&self, arguments: &[&str]) -> String {
        const PATIENCE: Duration = Duration::from_secs(30);
        let begin = Instant::now();
        loop {
            let mut command = Command::new(&self.binaries.aggregator);
            command.args(arguments);
            match self.rack.switch().output(command) {
                Err(error)
                    if begin.elapsed() < PATIENCE
                        && error.to_string().contains("did not answer for 5 s") => {}
                output => return String::from_utf8(output.unwrap().stdout).unwrap(),
            }
        }
    }

    /// The list of jobs.
    fn list_jobs(&self) -> String {
        self.ask(&["jobs", "--connect", self.aggregator.control()])
    }

    /// Whether no job has slots.
    fn has_all_slots_free(&self) -> bool {
        let status = self.ask(&["status", "--connect", self.aggregator.control()]);
        let slots =
            status.lines().find_map(|line| line.strip_prefix("slots")).expect("a line about slots");
        let words: Vec<&str> = slots.split_whitespace().collect();
        matches!(words[..], [free, "of", all, "free"] if free == all)
    }

    /// Waits until a line of the list of jobs contains all of this; the line.
    fn wait_for_job(&self, texts: &[&str]) -> String {
        let begin = Instant::now();
        loop {
            let jobs = self.list_jobs();
            if let Some(line) =
                jobs.lines().find(|line| texts.iter().all(|text| line.contains(text)))
            {
                return line.to_owned();
            }
            assert!(begin.elapsed() < PATIENCE, "no job with {texts:?}:\n{jobs}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the daemon cleanly, which must leave nothing: no program, and nothing in the BPF
    /// file system.
    fn stop(self) {
        let Self { aggregator, rack, .. } = self;
        aggregator.stop().unwrap();
        assert_eq!(left_behind(rack.switch()), "");
    }

    /// Starts a benchmark of `world_size` ranks; rank 0 prints JSON.
    fn bench(&self, world_size: usize, job: &str, arguments: &[&str]) -> Vec<Process> {
        let start = |rank: usize| {
            let mut command = Command::new(&self.binaries.worker);
            command.args([
                "bench",
                "--aggregator",
                self.aggregator.control(),
                "--job",
                job,
                "--json",
                "-",
            ]);
            command.args(["--rank", &rank.to_string(), "--world-size", &world_size.to_string()]);
            command.args(["--own-hosts", "0"]).args(arguments);
            command.env("SWITCHML_STANDSTILL", STANDSTILL);
            self.host(rank).spawn(&format!("worker {rank}"), command).unwrap()
        };
        (0..world_size).map(start).collect()
    }

    /// Runs `life` as each of the first `world_size` ranks, in their namespaces and all at the same
    /// time. Returns each result. As in benchmarks, no rank's host helps the aggregator.
    fn run_ranks<T: Send + 'static>(
        &self,
        world_size: usize,
        job: &str,
        life: impl Fn(u32, Builder) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        thread::scope(|scope| {
            let start = |host: usize| {
                let first = host * self.ranks_of_host;
                let builder = |rank: usize| {
                    Communicator::builder()
                        .aggregator(self.aggregator.control())
                        .own_hosts(false)
                        .job(job)
                        .rank(rank as u32)
                        .world_size(world_size as u32)
                };
                let ranks = first..(first + self.ranks_of_host).min(world_size);
                let ranks: Vec<_> = ranks.map(|rank| (rank as u32, builder(rank))).collect();
                let (namespace, life) = (self.rack.worker(host), life.clone());
                scope.spawn(move || namespace.run(move || side_by_side(ranks, &life)))
            };
            let hosts: Vec<_> = (0..world_size.div_ceil(self.ranks_of_host)).map(start).collect();
            hosts.into_iter().flat_map(|host| host.join().unwrap()).collect()
        })
    }
}

/// Runs `life` as each of these ranks, in this thread's namespace. Returns each result.
fn side_by_side<T: Send>(
    ranks: Vec<(u32, Builder)>,
    life: &(impl Fn(u32, Builder) -> T + Clone + Send),
) -> Vec<T> {
    thread::scope(|scope| {
        let start = |(rank, builder)| {
            let life = life.clone();
            scope.spawn(move || life(rank, builder))
        };
        let ranks: Vec<_> = ranks.into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Programs that are attached to interfaces, and files in the BPF file system.
fn left_behind(namespace: &Namespace) -> String {
    namespace.run(|| {
        let pins =
            std::fs::read_dir("/sys/fs/bpf").unwrap().map(|entry| entry.unwrap().file_name());
        let pins = pins.map(|name| name.into_string().unwrap());
        let links = Command::new("ip").arg("link").output().unwrap().stdout;
        let links = String::from_utf8(links).unwrap();
        let programs = links.lines().filter(|line| line.contains("xdp")).map(str::to_owned);
        let interfaces = std::fs::read_dir("/sys/class/net").unwrap().map(Result::unwrap);
        // With a bond, the folder has other files, too.
        let interfaces = interfaces.filter(|entry| entry.path().is_dir());
        let at_ingress = interfaces
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(|name| is_at_ingress(name));
        let programs = programs.chain(at_ingress);
        // The kernel's own files are always there.
        let ours = pins
            .chain(programs)
            .filter(|name| !matches!(name.as_str(), "maps.debug" | "progs.debug"));
        ours.collect::<Vec<_>>().join("\n")
    })
}

/// Whether a program is at the tc ingress of an interface of the calling thread's namespace.
fn is_at_ingress(interface: &str) -> bool {
    match SchedClassifier::query_tcx(interface, TcAttachType::Ingress) {
        Ok((_, programs)) => !programs.is_empty(),
        Err(_) => !filters(interface).is_empty(),
    }
}

/// The filters at the tc ingress of an interface of the calling thread's namespace, where programs
/// are attached before Linux 6.6.
fn filters(interface: &str) -> String {
    let shown =
        Command::new("tc").args(["filter", "show", "dev", interface, "ingress"]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

/// Frames that XDP could not send by a port, as `status` says.
fn drops_of_xdp(status: &str, port: &str) -> u64 {
    let prefix = format!("dropped      {port}: ");
    let mut lines = status.lines().filter_map(|line| line.strip_prefix(&prefix));
    lines
        .find_map(|line| line.strip_suffix(" frames that native XDP sent there"))
        .map_or(0, |frames| frames.parse().unwrap())
}

/// Waits for a benchmark that must succeed; rank 0's JSON.
fn report(mut ranks: Vec<Process>) -> Value {
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    serde_json::from_str(&ranks[0].stdout()).unwrap()
}
