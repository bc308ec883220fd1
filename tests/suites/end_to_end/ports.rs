//! Ports of the switch that go down and come up, lose the aggregator's program, or are removed; and
//! a worker's own interface.

use std::net::TcpStream;
use std::process::Command;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use aya::programs::{ProgramInfo, SchedClassifier, TcAttachType};
use libbpf_rs::libbpf_sys;
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
use switchml_rack::{Mode, Namespace, in_both_modes, needs_racks, wait_until};
use switchml_worker::control;
use switchml_worker::{Error, ReduceOp};

use crate::loops::{Ended, Loops};
use crate::{Cluster, PATIENCE, SOON, drops_of_xdp, filters, in_words};

in_both_modes! {
    collectives_survive_a_port_that_goes_down_and_up,
    collectives_survive_an_interface_that_goes_down_and_up,
    collectives_survive_another_mac_of_the_aggregator,
    a_rank_whose_mac_changes_says_so_to_all,
    a_port_that_stays_down_ends_the_job_within_seconds,
    a_program_that_is_detached_ends_its_jobs_and_is_attached_again,
    an_interface_that_is_removed_ends_its_jobs_and_comes_back,
}

const RANKS: usize = 3;
/// The rank behind the port that something happens to, `p1`.
const BEHIND: usize = 1;
const DEADLINE: Duration = Duration::from_secs(30);

fn ip(namespace: &Namespace, arguments: &str) -> String {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    String::from_utf8(namespace.output(command).unwrap().stdout).unwrap()
}

fn all_went_well(ended: Vec<Ended>) {
    for (rank, ended) in ended.into_iter().enumerate() {
        assert_eq!(ended.result, Ok(()), "rank {rank}");
    }
}

/// A job on the ports as they are now, from start to end.
fn a_job_works(cluster: &Cluster) {
    let sums = cluster.run_ranks(RANKS, "train", |rank, builder| {
        let communicator = builder.connect().unwrap();
        let mut values = vec![rank as i32; 1000];
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        communicator.close().unwrap();
        values
    });
    assert!(sums.iter().flatten().all(|&sum| sum == 3));
}

/// Takes a link down for a while shorter than the deadline, at either end.
fn outage(cluster: &Cluster, namespace: &Namespace, device: &str) {
    let loops = Loops::start(cluster, "train", DEADLINE);
    ip(namespace, &format!("link set {device} down"));
    sleep(Duration::from_millis(1500));
    ip(namespace, &format!("link set {device} up"));
    loops.wait_for_progress(3);
    cluster.wait_for_job(&["train", "started", "3 of 3"]);
    all_went_well(loops.stop());
}

fn collectives_survive_a_port_that_goes_down_and_up(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    outage(&cluster, cluster.rack.switch(), "p1");
    cluster.stop();
}

fn collectives_survive_an_interface_that_goes_down_and_up(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    outage(&cluster, cluster.rack.worker(BEHIND), "eth0");
    cluster.stop();
}

/// A rank's interface goes down after it has contributed, so the results for it do not get there.
#[test]
fn results_that_a_driver_does_not_take_are_counted_at_their_port() {
    needs_racks!();
    let cluster = Cluster::in_mode(RANKS, Mode::Native);
    let sums = cluster.run_ranks(RANKS, "train", |rank, builder| {
        let communicator = builder.connect().unwrap();
        communicator.barrier().unwrap();
        let set = |state: &str, after: u64| {
            sleep(Duration::from_millis(after));
            let line = ["link", "set", "eth0", state];
            assert!(Command::new("ip").args(line).status().unwrap().success());
        };
        let mut values = vec![rank as i32; 1000];
        scope(|scope| {
            if rank as usize == BEHIND {
                // In the rank's namespace, as a thread that it has started.
                scope.spawn(|| {
                    set("down", 500);
                    set("up", 1500);
                });
            } else {
                sleep(Duration::from_millis(1200));
            }
            communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        });
        communicator.close().unwrap();
        values
    });
    assert!(sums.iter().flatten().all(|&sum| sum == 3));
    let status = cluster.ask(&["status", "--connect", cluster.aggregator.control()]);
    assert!(drops_of_xdp(&status, "p1") > 0, "{status}");
    assert_eq!(drops_of_xdp(&status, "p0"), 0, "{status}");
    cluster.stop();
}

/// A bridge takes its MAC from its ports unless it was given one, so its MAC may change at any
/// time.
fn collectives_survive_another_mac_of_the_aggregator(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", DEADLINE);
    ip(cluster.rack.switch(), "link set br0 address 02:00:00:00:00:fd");
    for worker in cluster.rack.workers() {
        // A host does this by itself once the old MAC does not answer.
        ip(worker, "neigh flush dev eth0");
    }
    let changed = "serving 10.88.0.254 at 02:00:00:00:00:fd, ";
    cluster.aggregator.process().wait_for_line(changed, PATIENCE).unwrap();
    loops.wait_for_progress(3);
    all_went_well(loops.stop());
    cluster.stop();
}

/// As a bond does at a failover, or a virtual machine that was moved.
fn a_rank_whose_mac_changes_says_so_to_all(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", Duration::from_secs(2));
    ip(cluster.rack.worker(BEHIND), "link set eth0 address 02:00:00:00:00:77");
    let begin = Instant::now();
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("no packet of rank 1 is admitted").to_string();
        let took = ended.at.saturating_duration_since(begin);
        assert!(took < SOON, "rank {rank}: {took:?}: {error}");
        let changed = "MAC address of eth0 has changed from 02:00:00:00:00:02 to 02:00:00:00:00:77";
        assert!(error.contains(changed), "rank {rank}: {error}");
        assert!(rank == BEHIND || error.contains("rank 1"), "rank {rank}: {error}");
    }
    cluster.stop();
}

fn a_port_that_stays_down_ends_the_job_within_seconds(mode: Mode) {
    let deadline = Duration::from_secs(2);
    let cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", deadline);
    ip(cluster.rack.switch(), "link set p1 down");
    let begin = Instant::now();
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("rank 1 is cut off");
        // The rank itself gets no answer; the other ranks hear from the daemon, which waits for 5
        // s.
        assert!(ended.at.saturating_duration_since(begin) < SOON, "rank {rank}: {error}");
        if rank == BEHIND {
            assert!(matches!(error, Error::AggregatorSilent { .. }), "{error}");
        } else {
            assert!(error.to_string().contains("rank 1"), "rank {rank}: {error}");
        }
    }
    ip(cluster.rack.switch(), "link set p1 up");
    // Address resolution has given up before.
    let begin = Instant::now();
    let control = cluster.aggregator.control().to_owned();
    while cluster.rack.worker(BEHIND).run({
        let control = control.clone();
        move || TcpStream::connect(control).is_err()
    }) {
        assert!(begin.elapsed() < PATIENCE, "no way to the switch");
    }
    a_job_works(&cluster);
    cluster.stop();
}

/// Id of the program at a port: in native XDP, or at tc ingress.
fn program_at(cluster: &Cluster, port: &'static str) -> Option<u32> {
    let shown = ip(cluster.rack.switch(), &format!("-d link show {port}"));
    if let Some((_, program)) = shown.split_once("prog/xdp id ") {
        return program.split_whitespace().next()?.parse().ok();
    }
    cluster.rack.switch().run(move || {
        match SchedClassifier::query_tcx(port, TcAttachType::Ingress) {
            Ok((_, programs)) => programs.first().map(ProgramInfo::id),
            Err(_) => filters(port).split_once(" id ")?.1.split_whitespace().next()?.parse().ok(),
        }
    })
}

/// Detaches the aggregator's program from a port, as `bpftool link detach` does, or `tc` where a
/// filter holds it.
fn detach(cluster: &Cluster, port: &'static str) {
    if cluster.rack.switch().run(move || !filters(port).is_empty()) {
        let mut command = Command::new("tc");
        command.args(["filter", "del", "dev", port, "ingress"]);
        cluster.rack.switch().output(command).unwrap();
        return;
    }
    let program = program_at(cluster, port).expect("a program");
    let index = cluster
        .rack
        .switch()
        .run(move || std::fs::read_to_string(format!("/sys/class/net/{port}/ifindex")));
    let index: u32 = index.unwrap().trim().parse().unwrap();
    // Program ids are global on the machine, and so is the list of links: other racks have an
    // interface with this index, too.
    let is_at_port = |link: &LinkTypeInfo| match link {
        LinkTypeInfo::Xdp(xdp) => xdp.ifindex == index,
        LinkTypeInfo::Tcx(tcx) => tcx.ifindex == index,
        _ => false,
    };
    let link =
        LinkInfoIter::default().find(|link| link.prog_id == program && is_at_port(&link.info));
    let link = link.expect("the link").id;
    // SAFETY: two system calls on a number; the descriptor is closed with this process.
    let failed = unsafe { libbpf_sys::bpf_link_detach(libbpf_sys::bpf_link_get_fd_by_id(link)) };
    assert_eq!(failed, 0);
}

/// All ranks hear it soon, with this text.
fn all_hear(loops: Loops, text: &str) {
    let begin = Instant::now();
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("frames may be missed");
        assert!(
            matches!(error, Error::Control(control::Error::Aborted { .. })),
            "rank {rank}: {error}"
        );
        assert!(
            error.to_string().contains(&format!(
                "{} cannot reach the aggregator any more",
                in_words(1, "10.88.0.2")
            )),
            "{error}"
        );
        assert!(error.to_string().contains(text), "rank {rank}: {error}");
        assert!(ended.at.saturating_duration_since(begin) < SOON, "rank {rank}");
    }
}

fn a_program_that_is_detached_ends_its_jobs_and_is_attached_again(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let text = match mode {
        Mode::Auto => {
            "the aggregator's program was detached from tc ingress of interface p1; join again"
        }
        _ => "the aggregator's XDP program was detached from interface p1; join again",
    };
    let loops = Loops::start(&cluster, "train", DEADLINE);
    detach(&cluster, "p1");
    all_hear(loops, text);
    a_job_works(&cluster);
    assert!(program_at(&cluster, "p1").is_some());
    assert!(cluster.aggregator.process().stderr().contains("attached to interface p1 again"));

    // Detaches the program while the daemon is away, for less than the deadline.
    let loops = Loops::start(&cluster, "train", PATIENCE);
    cluster.aggregator.process().kill().unwrap();
    detach(&cluster, "p1");
    cluster.restart();
    all_hear(loops, text);
    a_job_works(&cluster);
    cluster.stop();
}

fn an_interface_that_is_removed_ends_its_jobs_and_comes_back(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    let loops = Loops::start(&cluster, "train", DEADLINE);
    // The worker's end disappears with the port, and that rank has no other link.
    ip(cluster.rack.switch(), "link delete p1");
    let begin = Instant::now();
    for (rank, ended) in loops.wait().into_iter().enumerate() {
        let error = ended.result.expect_err("rank 1 is cut off").to_string();
        assert!(ended.at.saturating_duration_since(begin) < SOON, "rank {rank}: {error}");
        let text = "interface p1 of the aggregator was removed; join again";
        assert!(rank == BEHIND || error.contains(text), "rank {rank}: {error}");
    }
    let status = cluster.ask(&["status", "--connect", cluster.aggregator.control()]);
    assert!(status.contains("p0, p1 (not attached: there is no such interface), p2"), "{status}");
    // An interface with this name replaces the port.
    ip(cluster.rack.switch(), "link add p1 type veth peer name far");
    cluster
        .rack
        .switch()
        .output({
            let mut command = Command::new("ethtool");
            command.args(["-K", "far", "gro", "on"]);
            command
        })
        .unwrap();
    ip(cluster.rack.switch(), "link set far up");
    ip(cluster.rack.switch(), "link set p1 up");
    wait_until!(SOON, program_at(&cluster, "p1").is_some(), "p1 has no program");
    ip(cluster.rack.switch(), "link delete p1");
    cluster.stop();
}
