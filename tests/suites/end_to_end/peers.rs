//! Jobs without an aggregator of their own, whose ranks serve each other; and jobs at several
//! aggregators of different kinds at once.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use switchml_protocol::CONTROL_PORT;
use switchml_rack::{
    Aggregator, Binaries, Ip, Mode, Process, Rack, RackOptions, Signal, in_both_modes, needs_racks,
};
use switchml_worker::{Builder, Communicator, ReduceOp};

use crate::lost_ranks::{LONG, LOST, RANKS, others_name_it};
use crate::{Cluster, PATIENCE, report};

in_both_modes! {
    aggregators_of_all_kinds_share_a_job,
}

/// Where the ranks of a rack meet.
fn meeting(ip: Ip) -> String {
    SocketAddr::new(ip.of(Rack::worker_address(0)), 29_500).to_string()
}

/// Whole numbers, so that sums are exact in f32, and differ between ranks.
fn element(rank: u32, i: usize) -> i32 {
    (i as i32 * 37 + rank as i32 * 1_000_003) % 99_991
}

/// Adds up tensors of many sizes, twice each, and checks every element.
pub fn add_up(communicator: &Communicator) {
    for count in [1, 100, 5_000, 200_000, 1_000_003, 1, 100, 5_000, 200_000] {
        let mut values: Vec<f32> =
            (0..count).map(|i| element(communicator.rank(), i) as f32).collect();
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        for (i, value) in values.iter().enumerate() {
            let sum: i32 = (0..communicator.world_size()).map(|rank| element(rank, i)).sum();
            assert_eq!(*value, sum as f32, "element {i} of {count}");
        }
    }
}

/// Runs `life` as each rank of a rack without a daemon, in its namespace.
fn run_peers<T: Send + 'static>(
    rack: &Rack,
    ranks: usize,
    life: impl Fn(u32, Builder) -> T + Clone + Send + 'static,
) -> Vec<T> {
    run_peers_by(Ip::V4, rack, ranks, life)
}

fn run_peers_by<T: Send + 'static>(
    ip: Ip,
    rack: &Rack,
    ranks: usize,
    life: impl Fn(u32, Builder) -> T + Clone + Send + 'static,
) -> Vec<T> {
    thread::scope(|scope| {
        let start = |rank: usize| {
            let life = life.clone();
            scope.spawn(move || {
                rack.worker(rank).run(move || {
                    let builder = Communicator::builder().meeting(meeting(ip)).job("peers");
                    life(rank as u32, builder.rank(rank as u32).world_size(ranks as u32))
                })
            })
        };
        let ranks: Vec<_> = (0..ranks).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub fn rack(workers: usize) -> Rack {
    Rack::new(RackOptions { workers, ..RackOptions::default() }).unwrap()
}

/// A software aggregator on one of the rack's hosts.
fn on_host(binaries: &Binaries, rack: &Rack, host: usize, port: u16) -> Aggregator {
    let control = SocketAddr::from((Rack::worker_address(host), port));
    Aggregator::software_on(binaries, rack.worker(host), control).unwrap()
}

#[test]
fn ranks_without_an_aggregator_serve_each_other() {
    let rack = rack(4);
    let stripes = run_peers(&rack, 4, |_, builder| {
        let communicator = builder.connect().unwrap();
        add_up(&communicator);
        let stripes = communicator.info().stripes.clone();
        communicator.close().unwrap();
        stripes
    });
    // One on each rank's host, in the same order for all ranks, with equal parts.
    let hosts = |rank: usize| {
        let mut hosts: Vec<_> = stripes[rank].iter().map(|stripe| stripe.aggregator.ip()).collect();
        assert_eq!(stripes[rank].iter().map(|stripe| stripe.weight).max(), Some(2500));
        hosts.dedup();
        hosts
    };
    let first = hosts(0);
    assert!((1..4).all(|rank| hosts(rank) == first), "{stripes:?}");
    assert!((0..4).all(|rank| first.contains(&Rack::worker_address(rank).into())), "{first:?}");
}

/// Daemons with programs in the kernel, on the ranks' own hosts. A rank reaches that of its host by
/// the loopback interface.
#[test]
fn daemons_on_the_ranks_own_hosts_share_a_job() {
    needs_racks!();
    let (binaries, rack) = (Binaries::for_test().unwrap(), rack(3));
    let daemon = |host: usize| {
        let mut command = Command::new(&binaries.aggregator);
        let control = SocketAddr::from((Rack::worker_address(host), CONTROL_PORT));
        command.args(["--control", &control.to_string()]);
        command.args(["--iface", "eth0", "--iface", "lo"]);
        let mut process = rack.worker(host).spawn("aggregator", command).unwrap();
        process.wait_for_line("ready: control", PATIENCE).unwrap();
        process
    };
    let mut daemons: Vec<Process> = (0..3).map(daemon).collect();
    let all = [0, 1, 2].map(|host| Rack::worker_address(host).to_string()).join(",");
    let stripes = run_peers(&rack, 3, move |_, builder| {
        let communicator = builder.aggregator(&all).connect().unwrap();
        add_up(&communicator);
        let stripes = communicator.info().stripes.clone();
        communicator.close().unwrap();
        stripes
    });
    for stripe in stripes.into_iter().flatten() {
        assert_eq!((stripe.weight, stripe.links.is_on_ranks_host), (3333, true), "{stripe:?}");
    }
    for daemon in &mut daemons {
        daemon.signal(Signal::INT).unwrap();
        daemon.wait_success(PATIENCE).unwrap();
    }
}

#[test]
fn ranks_serve_each_other_over_ipv6() {
    let rack = Rack::new(RackOptions { workers: 3, ip: Ip::V6, ..RackOptions::default() }).unwrap();
    run_peers_by(Ip::V6, &rack, 3, |_, builder| {
        let communicator = builder.connect().unwrap();
        add_up(&communicator);
        assert!(communicator.info().stripes.iter().all(|stripe| stripe.aggregator.is_ipv6()));
        communicator.close().unwrap();
    });
}

/// The aggregators of ranks that have left are not missed, as long as nobody makes more calls.
#[test]
fn a_rank_that_leaves_early_disturbs_nobody() {
    let rack = rack(3);
    run_peers(&rack, 3, |rank, builder| {
        let communicator = builder.connect().unwrap();
        add_up(&communicator);
        if rank != 1 {
            // Longer than the aggregator of rank 1 waits for the others.
            sleep(Duration::from_secs(4));
        }
        let begin = Instant::now();
        communicator.close().unwrap();
        assert!(begin.elapsed() < PATIENCE);
    });
}

#[test]
fn a_call_after_a_rank_has_left_names_it() {
    let rack = rack(3);
    let errors = run_peers(&rack, 3, |rank, builder| {
        let communicator = builder.connect().unwrap();
        add_up(&communicator);
        if rank == 1 {
            communicator.close().unwrap();
            return None;
        }
        sleep(Duration::from_secs(4));
        let mut values = vec![1.0f32; 1_000_000];
        communicator.all_reduce(&mut values, ReduceOp::Sum).err().map(|error| error.ranks())
    });
    assert_eq!(errors, [Some(vec![1]), None, Some(vec![1])]);
}

/// A rank of the command line's benchmark, which has no other setting than torchrun's.
fn bench(binaries: &Binaries, rack: &Rack, rank: usize, arguments: &[&str]) -> Process {
    bench_with(binaries, rack, rank, arguments, &[])
}

fn bench_with(
    binaries: &Binaries,
    rack: &Rack,
    rank: usize,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Process {
    let mut command = Command::new(&binaries.worker);
    command.env_remove("SWITCHML_AGGREGATOR");
    command.env("MASTER_ADDR", Rack::worker_address(0).to_string()).env("MASTER_PORT", "29500");
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", RANKS.to_string());
    command.args(["bench", "--json", "-"]).args(arguments).envs(variables.iter().copied());
    rack.worker(rank).spawn(&format!("worker {rank}"), command).unwrap()
}

#[test]
fn a_killed_rank_is_named_although_its_aggregator_dies_with_it() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(RANKS);
    let mut ranks: Vec<_> = (0..RANKS).map(|rank| bench(&binaries, &rack, rank, &LONG)).collect();
    // They make calls as soon as all data paths are open, which takes far less.
    sleep(Duration::from_secs(3));
    ranks[LOST].kill().unwrap();
    others_name_it(&mut ranks);
}

/// Its host is there, so the others wait for it as for a late one.
#[test]
fn a_rank_that_is_stopped_is_waited_for_and_one_that_is_killed_then_is_named() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(RANKS);
    let mut ranks: Vec<_> = (0..RANKS).map(|rank| bench(&binaries, &rack, rank, &LONG)).collect();
    sleep(Duration::from_secs(3));
    ranks[LOST].signal(Signal::STOP).unwrap();
    // The deadline of calls is 5 s.
    sleep(Duration::from_secs(7));
    ranks[LOST].signal(Signal::CONT).unwrap();
    sleep(Duration::from_secs(1));
    for rank in &mut ranks {
        assert!(rank.is_running(), "{}", rank.stderr());
    }
    ranks[LOST].kill().unwrap();
    others_name_it(&mut ranks);
}

/// Its process is as it was, but nobody acknowledges what is sent there.
#[test]
fn a_rank_whose_host_is_gone_is_named() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(RANKS);
    let mut ranks: Vec<_> = (0..RANKS).map(|rank| bench(&binaries, &rack, rank, &LONG)).collect();
    sleep(Duration::from_secs(3));
    let mut ip = Command::new("ip");
    ip.args(["link", "set", "eth0", "down"]);
    assert!(rack.worker(LOST).output(ip).unwrap().status.success());
    others_name_it(&mut ranks);
}

#[test]
fn a_rank_that_is_stopped_for_too_long_is_named_and_says_so() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(RANKS);
    let limit = [("SWITCHML_STANDSTILL", "2")];
    let start = |rank| bench_with(&binaries, &rack, rank, &LONG, &limit);
    let mut ranks: Vec<_> = (0..RANKS).map(start).collect();
    sleep(Duration::from_secs(3));
    ranks[LOST].signal(Signal::STOP).unwrap();
    others_name_it(&mut ranks);
    ranks[LOST].signal(Signal::CONT).unwrap();
    ranks[LOST].wait(PATIENCE).unwrap();
    let said = ranks[LOST].stderr();
    assert!(said.contains("this process stood still for"), "{said}");
}

#[test]
fn the_command_line_needs_no_aggregator() {
    let binaries = Binaries::for_test().unwrap();
    let rack = rack(RANKS);
    let arguments = ["-b", "8", "-e", "1M", "-f", "8"];
    let ranks = (0..RANKS).map(|rank| bench(&binaries, &rack, rank, &arguments)).collect();
    let report = report(ranks);
    assert_eq!(report["data_plane"], "software");
    assert_eq!(report["out_of_bounds"], 0);
}

/// As a headless service of Kubernetes has.
#[test]
fn a_name_with_several_addresses_is_an_aggregator_at_each() {
    let (binaries, rack) = (Binaries::for_test().unwrap(), rack(4));
    let on = |host: usize| on_host(&binaries, &rack, host, CONTROL_PORT);
    let _both = [on(2), on(3)];
    let names = std::env::temp_dir().join(format!("switchml-hosts-{}", std::process::id()));
    let line = |host| format!("{} both.example\n", Rack::worker_address(host));
    std::fs::write(&names, line(2) + &line(3)).unwrap();
    for rank in 0..2 {
        let mut mount = Command::new("mount");
        mount.arg("--bind").arg(&names).arg("/etc/hosts");
        assert!(rack.worker(rank).output(mount).unwrap().status.success());
    }
    let found = run_peers(&rack, 2, |_, builder| {
        let communicator = builder.aggregator("both.example").own_hosts(false).connect().unwrap();
        add_up(&communicator);
        let stripes = communicator.info().stripes.iter().map(|stripe| stripe.aggregator.ip());
        let stripes: Vec<_> = stripes.collect();
        communicator.close().unwrap();
        stripes
    });
    std::fs::remove_file(&names).unwrap();
    assert_eq!(found[0], found[1]);
    let mut found = found[0].clone();
    found.sort();
    assert_eq!(found, [2, 3].map(|host| IpAddr::from(Rack::worker_address(host))));
}

/// Runs three ranks with an aggregator on a fourth host, whose one link they share.
fn run_with_slow_aggregator(rack: &Rack, may_help: bool) -> Vec<Vec<u32>> {
    let binaries = Binaries::for_test().unwrap();
    let aggregator = on_host(&binaries, rack, 3, 0);
    let control = aggregator.control().to_owned();
    run_peers(rack, 3, move |_, builder| {
        let communicator = builder.aggregator(&control).own_hosts(may_help).connect().unwrap();
        add_up(&communicator);
        let weights = communicator.info().stripes.iter().map(|stripe| stripe.weight);
        let mut weights: Vec<_> = weights.collect();
        weights.sort();
        communicator.close().unwrap();
        weights
    })
}

/// n = 3, m = 3, c = 1: y = 2 / 10 for each rank's host, and 4 / 10 for the aggregator given.
#[test]
fn ranks_hosts_help_an_aggregator_that_is_slower_than_a_ring() {
    let rack = rack(4);
    assert_eq!(run_with_slow_aggregator(&rack, true), vec![vec![2000, 2000, 2000, 4000]; 3]);
    assert_eq!(run_with_slow_aggregator(&rack, false), vec![vec![10_000]; 3]);
}

/// As behind a firewall, which says so, or does not: at a wrong MAC address nobody answers.
#[test]
fn two_ranks_that_do_not_reach_each_other_are_named_by_all() {
    let silent = "neigh replace ADDRESS lladdr 02:00:00:00:00:99 dev eth0";
    for kind in ["route add unreachable ADDRESS", silent] {
        let rack = rack(4);
        for (here, there) in [(1, 2), (2, 1)] {
            let mut ip = Command::new("ip");
            let wrong = kind.replace("ADDRESS", &Rack::worker_address(there).to_string());
            ip.args(wrong.split(' '));
            assert!(rack.worker(here).output(ip).unwrap().status.success());
        }
        let errors = run_peers(&rack, 4, |_, builder| builder.connect().err().unwrap());
        for (rank, error) in errors.iter().enumerate() {
            let text = error.to_string();
            // One of the two that says it itself need not name itself.
            let own = u16::try_from(rank).ok().filter(|rank| [1, 2].contains(rank));
            let named: BTreeSet<_> = error.ranks().into_iter().chain(own).collect();
            assert_eq!(named, BTreeSet::from([1, 2]), "{kind}, rank {rank}: {text}");
            assert!(text.contains("cannot be reached at"), "{kind}, rank {rank}: {text}");
        }
    }
}

/// As behind a firewall: rank 1 does not reach rank 2, but both reach the aggregator.
#[test]
fn where_ranks_do_not_reach_each_other_the_aggregator_works_alone() {
    let rack = rack(4);
    let mut ip = Command::new("ip");
    ip.args(["route", "add", "unreachable", &Rack::worker_address(2).to_string()]);
    assert!(rack.worker(1).output(ip).unwrap().status.success());
    assert_eq!(run_with_slow_aggregator(&rack, true), vec![vec![10_000]; 3]);
}

/// The switch in the kernel, a spare host and a rank's own host with the software data plane.
fn aggregators_of_all_kinds_share_a_job(mode: Mode) {
    let cluster = Cluster::in_mode(4, mode);
    let on = |host: usize| on_host(&cluster.binaries, &cluster.rack, host, 0);
    let (spare, of_rank) = (on(3), on(0));
    let all = [cluster.aggregator.control(), spare.control(), of_rank.control()].join(",");
    cluster.run_ranks(3, "mixed", move |_, builder| {
        let communicator = builder.aggregator(&all).connect().unwrap();
        add_up(&communicator);
        communicator.close().unwrap();
    });
    assert!(cluster.counter("completed") > 0);
    drop((spare, of_rank));
    cluster.stop();
}
