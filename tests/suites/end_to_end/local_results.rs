//! Several ranks of a host, without multicast: one of them takes results for all, so a link carries
//! each value once, whatever the number of ranks.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread::{self, sleep};
use std::time::Duration;

use switchml_rack::{
    Aggregator, Binaries, Ip, Mode, Namespace, Process, Rack, RackOptions, Signal, in_both_modes,
    needs_racks,
};
use switchml_worker::{Builder, Communicator, ReduceOp, Reduction};

use crate::local_sums::bits;
use crate::lost_ranks::{LONG, others_name};
use crate::{Cluster, report, side_by_side};

in_both_modes! {
    copies_of_the_kernel_data_plane_reach_a_host_once,
    copies_over_ipv6_reach_a_host_once,
    bits_are_those_without_shared_results,
}

/// Elements of f32 of a measured call: 8 MiB.
const ELEMENTS: usize = 2 << 20;
/// Bytes of a frame for each of its payload, at an MTU of 1500.
pub const HEADERS: f64 = 1482.0 / 1408.0;

pub fn rack(workers: usize, ip: Ip) -> Rack {
    Rack::new(RackOptions { workers, ip, ..RackOptions::default() }).unwrap()
}

/// The ranks of each host, as many as `per_host` says.
fn ranks_of(per_host: &[usize]) -> Vec<Vec<u32>> {
    let mut first = 0;
    let ranks = per_host.iter().map(|ranks| {
        let own = first..first + *ranks as u32;
        first = own.end;
        own.collect()
    });
    ranks.collect()
}

/// Runs `life` as each rank of hosts with so many ranks, with a builder that `with` has changed.
pub fn run<T: Send + 'static>(
    rack: &Rack,
    per_host: &[usize],
    with: impl Fn(Builder) -> Builder,
    life: impl Fn(u32, Builder) -> T + Clone + Send + 'static,
) -> Vec<T> {
    run_on(rack.workers(), per_host, |_, builder| with(builder), life)
}

/// The same on these hosts, with a builder that `with` has changed for each of them.
fn run_on<T: Send + 'static>(
    hosts: &[Namespace],
    per_host: &[usize],
    with: impl Fn(usize, Builder) -> Builder,
    life: impl Fn(u32, Builder) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let world_size = per_host.iter().sum::<usize>() as u32;
    thread::scope(|scope| {
        let start = |(host, ranks): (usize, Vec<u32>)| {
            let builder = |rank| {
                let builder = with(host, Communicator::builder().job("hosts"));
                (rank, builder.rank(rank).world_size(world_size))
            };
            let ranks: Vec<_> = ranks.into_iter().map(builder).collect();
            let (namespace, life) = (&hosts[host], life.clone());
            scope.spawn(move || namespace.run(move || side_by_side(ranks, &life)))
        };
        let started: Vec<_> = ranks_of(per_host).into_iter().enumerate().map(start).collect();
        started.into_iter().flat_map(|host| host.join().unwrap()).collect()
    })
}

/// A job without an aggregator, which meets at rank 0.
pub fn peers(ip: Ip) -> impl Fn(Builder) -> Builder {
    let place = SocketAddr::new(ip.of(Rack::worker_address(0)), 29_500);
    move |builder| builder.meeting(place.to_string())
}

/// Bytes that the host's link has carried so far, out and in.
fn carried() -> [u64; 2] {
    ["tx", "rx"].map(|way| {
        let counter =
            std::fs::read_to_string(format!("/sys/class/net/eth0/statistics/{way}_bytes"));
        counter.unwrap().trim().parse().unwrap()
    })
}

/// Calls of which the least counts. Beside heavy load, most calls send a packet again.
const CALLS: usize = 16;

/// Bytes that the busiest link carries each way for a call, per byte of the tensor.
fn load(
    rack: &Rack,
    per_host: &[usize],
    with: impl Fn(Builder) -> Builder,
    call: fn(&Communicator, &mut [f32]),
) -> f64 {
    load_on(rack.workers(), per_host, |_, builder| with(builder), call)
}

/// The same on these hosts, with a builder that `with` has changed for each of them.
pub fn load_on(
    namespaces: &[Namespace],
    per_host: &[usize],
    with: impl Fn(usize, Builder) -> Builder,
    call: fn(&Communicator, &mut [f32]),
) -> f64 {
    let (all, hosts) = (Arc::new(Barrier::new(per_host.iter().sum())), per_host.len());
    let loads = run_on(namespaces, per_host, with, move |rank, builder| {
        let communicator = builder.connect().unwrap();
        let values: Vec<f32> = (0..ELEMENTS).map(|i| ((i as u32 + rank) % 99) as f32).collect();
        call(&communicator, &mut values.clone());
        // Packets that were sent again for a rank that waited for a core are no news: the least of
        // some calls counts. Calls take turns at the hosts (rule 36.3), and each turn counts.
        let mut least = vec![u64::MAX; hosts];
        for call_number in 0..CALLS * hosts {
            let mut values = values.clone();
            all.wait();
            let before = carried();
            all.wait();
            call(&communicator, &mut values);
            all.wait();
            let after = carried();
            let load = (after[0] - before[0]).max(after[1] - before[1]);
            let least = &mut least[call_number % hosts];
            *least = load.min(*least);
        }
        communicator.close().unwrap();
        least
    });
    loads.into_iter().flatten().max().unwrap() as f64 / (4 * ELEMENTS) as f64
}

pub fn all_reduce(communicator: &Communicator, values: &mut [f32]) {
    communicator.all_reduce(values, ReduceOp::Sum).unwrap();
}

/// Of H hosts, each is the aggregator of a part: contributions and results of (H - 1) / H of the
/// tensor leave it, and come.
#[test]
fn links_carry_each_value_once_without_an_aggregator() {
    needs_racks!();
    for per_host in [&[2, 2][..], &[2, 4], &[4, 4], &[1, 3], &[2, 2, 2]] {
        let hosts = per_host.len() as f64;
        let load = load(&rack(per_host.len(), Ip::V4), per_host, peers(Ip::V4), all_reduce);
        let least = 2.0 * (hosts - 1.0) / hosts;
        println!("{per_host:?} ranks: {load:.3} of the tensor, at least {least:.3}");
        assert!(load <= 1.05 * least * HEADERS, "{per_host:?}: {load} of the tensor");
    }
}

#[test]
fn links_carry_each_value_once_without_an_aggregator_over_ipv6() {
    needs_racks!();
    let load = load(&rack(2, Ip::V6), &[2, 2], peers(Ip::V6), all_reduce);
    assert!(load <= 1.05 * HEADERS, "{load} of the tensor");
}

fn software(rack: &Rack) -> Aggregator {
    Aggregator::software_in_rack(&Binaries::for_test().unwrap(), rack).unwrap()
}

#[test]
fn copies_of_the_software_data_plane_reach_a_host_once() {
    needs_racks!();
    for ip in [Ip::V4, Ip::V6] {
        let rack = rack(2, ip);
        let aggregator = software(&rack);
        let with = |builder: Builder| builder.aggregator(aggregator.control()).own_hosts(false);
        let load = load(&rack, &[2, 3], with, all_reduce);
        assert!(load <= 1.05 * HEADERS, "{load} of the tensor");
    }
}

fn load_of_copies(mode: Mode, ip: Ip) -> f64 {
    let options = RackOptions { workers: 2, mode, ip, ..RackOptions::default() };
    let cluster = Cluster::with_options(options, &["--fanout", "unicast"]);
    let with = |builder: Builder| builder.aggregator(cluster.aggregator.control()).own_hosts(false);
    let load = load(&cluster.rack, &[2, 3], with, all_reduce);
    cluster.stop();
    load
}

fn copies_of_the_kernel_data_plane_reach_a_host_once(mode: Mode) {
    let load = load_of_copies(mode, Ip::V4);
    assert!(load <= 1.05 * HEADERS, "{load} of the tensor");
}

fn copies_over_ipv6_reach_a_host_once(mode: Mode) {
    let load = load_of_copies(mode, Ip::V6);
    assert!(load <= 1.05 * HEADERS, "{load} of the tensor");
}

/// A call of which links carry other parts than of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Parts {
    ReduceScatter,
    AllGather,
    /// From rank 0.
    Broadcast,
}

impl Parts {
    const ALL: [Self; 3] = [Self::ReduceScatter, Self::AllGather, Self::Broadcast];

    fn call(self) -> fn(&Communicator, &mut [f32]) {
        match self {
            Self::ReduceScatter => |communicator, values| {
                communicator.reduce_scatter(values, Reduction::SUM).unwrap();
            },
            Self::AllGather => |communicator, values| {
                communicator.all_gather(values).unwrap();
            },
            Self::Broadcast => |communicator, values| {
                communicator.broadcast(values, 0).unwrap();
            },
        }
    }

    /// What a host's ranks send to an aggregator for a stretch of the tensor, of which its own
    /// elements are `own`, and what results come to it: the lanes, and the chunks without lanes. A
    /// rank that has no elements says so (EMPTY), and a host that needs no results is told (DONE).
    fn stretch(self, ranks: usize, has_root: bool, len: f64, own: f64) -> ([f64; 2], [f64; 2]) {
        let (sent, needed) = match self {
            Self::ReduceScatter => (len, own),
            // A rank alone on its host has its own elements already.
            Self::AllGather if ranks == 1 => (own, len - own),
            Self::AllGather => (own, len),
            Self::Broadcast if has_root && ranks == 1 => (len, 0.0),
            Self::Broadcast if has_root => (len, len),
            Self::Broadcast => (0.0, len),
        };
        let empty = match self {
            Self::ReduceScatter => 0.0,
            _ => ranks as f64 * len - sent,
        };
        ([sent, needed], [empty, len - needed])
    }

    /// How often the busiest link of a host carries the tensor in one direction. Each host adds up
    /// an equal stretch, in the order of hosts; or another machine all of it, if `is_elsewhere`.
    fn load(self, per_host: &[usize], is_elsewhere: bool) -> f64 {
        let hosts = || 0..per_host.len();
        let ranks = per_host.iter().sum::<usize>() as f64;
        let bounds = |host: usize, of: f64, each: &dyn Fn(usize) -> f64| {
            let begin = (0..host).map(each).sum::<f64>() / of;
            (begin, begin + each(host) / of)
        };
        let own = |host| bounds(host, ranks, &|host| per_host[host] as f64);
        let stretches: Vec<_> = match is_elsewhere {
            true => vec![(None, (0.0, 1.0))],
            false => hosts()
                .map(|host| (Some(host), bounds(host, per_host.len() as f64, &|_| 1.0)))
                .collect(),
        };
        let mut carried = vec![[0.0; 2]; per_host.len()];
        for (at, (begin, end)) in stretches {
            for host in hosts().filter(|host| at != Some(*host)) {
                let own = own(host);
                let own = (own.1.min(end) - own.0.max(begin)).max(0.0);
                let (lanes, headers) = self.stretch(per_host[host], host == 0, end - begin, own);
                let [out, back] = [0, 1].map(|way| lanes[way] + HEADER * headers[way]);
                carried[host][0] += out;
                carried[host][1] += back;
                if let Some(at) = at {
                    carried[at][1] += out;
                    carried[at][0] += back;
                }
            }
        }
        carried.into_iter().flatten().fold(0.0, f64::max)
    }
}

/// Bytes of a frame that has no lanes, as a part of the lanes of a full one.
const HEADER: f64 = 74.0 / 1408.0;

#[test]
fn parts_by_hand() {
    let is = |parts: Parts, per_host: &[usize], lanes: f64, headers: f64| {
        let load = parts.load(per_host, false);
        assert!((load - lanes - HEADER * headers).abs() < 1e-9, "{parts:?}, {per_host:?}: {load}");
    };
    // A host adds up its own ranks' half: the others' contributions to it come, and it sends as
    // many. It tells the other host that the half is complete.
    is(Parts::ReduceScatter, &[2, 2], 0.5, 0.5);
    is(Parts::ReduceScatter, &[2, 2, 2], 2.0 / 3.0, 2.0 / 3.0);
    // Of the half that host 0 adds up, a third of the whole is its own rank's, and the rest goes to
    // the others.
    is(Parts::ReduceScatter, &[2, 4], 0.5 + 1.0 / 6.0, 1.0 / 3.0);
    // The half that is added up here leaves; for the other half two ranks have nothing to say.
    is(Parts::AllGather, &[2, 2], 0.5, 1.0);
    // A half as contributions, and a half as results for the other host; one rank has nothing to
    // say.
    is(Parts::Broadcast, &[2, 2], 1.0, 0.5);
    is(Parts::Broadcast, &[2, 2, 2], 4.0 / 3.0, 2.0 / 3.0);
    // All of the tensor, and the sum's part of this rank alone.
    let elsewhere = Parts::ReduceScatter.load(&[2, 3], true);
    assert!((elsewhere - 1.0).abs() < 1e-9, "{elsewhere}");
}

/// A host's ranks get the parts of a reduce-scatter that are theirs, of an all-gather those of
/// others, and those of each other.
#[test]
fn parts_reach_the_hosts_that_need_them() {
    needs_racks!();
    for per_host in [&[2, 2][..], &[2, 4], &[2, 2, 2], &[1, 3]] {
        let rack = rack(per_host.len(), Ip::V4);
        for parts in Parts::ALL {
            let (load, most) =
                (load(&rack, per_host, peers(Ip::V4), parts.call()), parts.load(per_host, false));
            println!("{parts:?}, {per_host:?} ranks: {load:.3} of the tensor, {most:.3} by theory");
            assert!(load <= 1.05 * most * HEADERS, "{parts:?}, {per_host:?}: {load} of the tensor");
        }
    }
}

#[test]
fn parts_that_come_as_copies_reach_a_host_once() {
    needs_racks!();
    let rack = rack(2, Ip::V4);
    let aggregator = software(&rack);
    for parts in Parts::ALL {
        let with = |builder: Builder| builder.aggregator(aggregator.control()).own_hosts(false);
        let (load, most) = (load(&rack, &[2, 3], with, parts.call()), parts.load(&[2, 3], true));
        println!("{parts:?} as copies: {load:.3} of the tensor, {most:.3} by theory");
        assert!(load <= 1.05 * most * HEADERS, "{parts:?}: {load} of the tensor");
    }
}

/// The same bits as where each rank gets its own results.
fn bits_are_those_without_shared_results(mode: Mode) {
    let options = RackOptions { workers: 3, mode, ..RackOptions::default() };
    let cluster = Cluster::with_options(options, &["--fanout", "unicast"]);
    let all_bits = |local_sums| {
        let with = |builder: Builder| {
            let builder = builder.aggregator(cluster.aggregator.control()).own_hosts(false);
            builder.local_sums(local_sums)
        };
        run(&cluster.rack, &[3, 1, 2], with, |_, builder| bits(&builder.connect().unwrap()))
    };
    let (with, without) = (all_bits(true), all_bits(false));
    assert!(with.iter().all(|bits| *bits == without[0]));
    cluster.stop();
}

/// Four ranks of a benchmark without an aggregator, so many on each host.
pub fn start(rack: &Rack, per_host: usize, arguments: &[&str]) -> Vec<Process> {
    let binaries = Binaries::for_test().unwrap();
    let start = |rank: usize| {
        let mut command = Command::new(&binaries.worker);
        command.env_remove("SWITCHML_AGGREGATOR").env("SWITCHML_STANDSTILL", "2");
        command.env("MASTER_ADDR", Rack::worker_address(0).to_string());
        command.env("MASTER_PORT", "29500").env("RANK", rank.to_string()).env("WORLD_SIZE", "4");
        command.args(["bench", "--json", "-"]).args(arguments);
        rack.worker(rank / per_host).spawn(&format!("worker {rank}"), command).unwrap()
    };
    (0..4).map(start).collect()
}

/// Whichever it is: the one that takes results, one that reads them, one with an aggregator.
#[test]
fn each_rank_of_a_host_that_is_killed_or_stopped_is_named() {
    needs_racks!();
    name_each(&rack(2, Ip::V4), 2);
}

/// Kills and stops each rank of a job, with so many on each host; the others name it.
pub fn name_each(rack: &Rack, per_host: usize) {
    for (lost, signal) in (0..4).flat_map(|rank| [(rank, Signal::KILL), (rank, Signal::STOP)]) {
        let mut ranks = start(rack, per_host, &LONG);
        sleep(Duration::from_secs(3));
        ranks[lost].signal(signal).unwrap();
        others_name(&mut ranks, lost);
    }
}

#[test]
fn each_rank_of_a_host_that_stands_still_for_a_moment_costs_time_alone() {
    needs_racks!();
    pause_each(&rack(2, Ip::V4), 2);
}

/// Stops each rank of a job for a moment, twice, with so many on each host; all sums are right.
pub fn pause_each(rack: &Rack, per_host: usize) {
    let ranks = start(rack, per_host, &["-b", "4M", "-e", "4M", "-n", "40", "-w", "1"]);
    sleep(Duration::from_secs(1));
    for stopped in ranks.iter().chain(&ranks) {
        stopped.signal(Signal::STOP).unwrap();
        sleep(Duration::from_millis(200));
        stopped.signal(Signal::CONT).unwrap();
        sleep(Duration::from_millis(20));
    }
    let report = report(ranks);
    assert_eq!(
        (&report["out_of_bounds"], &report["differing"]),
        (&0.into(), &serde_json::json!([]))
    );
}
