//! A network that does not bring the group's packets to one of the ranks: it asks for each result, and all ranks are slow.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_rack::{Mode, Namespace, Process, in_both_modes};

use crate::loops::Loops;
use crate::{Cluster, PATIENCE};

in_both_modes! {
    a_rank_that_gets_no_multicast_says_so_once,
    the_operator_and_the_doctor_learn_which_rank_it_is,
}

const RANKS: usize = 3;
const DEAF: usize = 1;

/// Drops what comes in to a multicast MAC, as a switch does that knows of no listener at that port: the lowest bit of the first byte is set, and
/// the first byte is that of IPv4 groups.
fn block_multicast(worker: &Namespace) {
    for arguments in [
        "qdisc add dev eth0 clsact",
        "filter add dev eth0 ingress bpf direct-action bytecode 4,48_0_0_0,21_0_1_1,6_0_0_2,6_0_0_4294967295",
    ] {
        let mut command = Command::new("tc");
        command.args(arguments.split(' ').map(|argument| argument.replace('_', " ")));
        worker.output(command).unwrap();
    }
}

/// A bench of more than a second; what each rank says of itself.
fn said(cluster: &Cluster) -> Vec<String> {
    let mut ranks = cluster.bench(RANKS, "train", &["-b", "256K", "-e", "256K", "-n", "40", "-w", "1"]);
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    ranks.iter().map(Process::stderr).collect()
}

fn a_rank_that_gets_no_multicast_says_so_once(mode: Mode) {
    let cluster = Cluster::in_mode(RANKS, mode);
    assert_eq!(said(&cluster), [""; RANKS], "all is well");
    block_multicast(cluster.rack.worker(DEAF));
    let said = said(&cluster);
    for (rank, said) in said.iter().enumerate() {
        if rank == DEAF {
            let begin = "switchml: rank 1 of job \"train\": no result comes by multicast; this rank has to ask for a copy of each";
            assert!(said.starts_with(begin) && said.lines().count() == 1, "{said}");
            assert!(said.contains("Have the network bring group 239."), "{said}");
        } else {
            assert_eq!(said, "", "rank {rank}");
        }
    }
    cluster.stop();
}

fn doctor(cluster: &Cluster, rank: usize) -> (Option<i32>, String) {
    let mut command = Command::new(&cluster.binaries.worker);
    command.args(["doctor", "--aggregator", cluster.aggregator.control()]);
    let mut doctor = cluster.rack.worker(rank).spawn("doctor", command).unwrap();
    let status = doctor.wait(PATIENCE).unwrap();
    (status.code(), doctor.stdout())
}

fn the_operator_and_the_doctor_learn_which_rank_it_is(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    let (code, text) = doctor(&cluster, 0);
    assert_eq!(code, Some(0), "{text}");
    block_multicast(cluster.rack.worker(DEAF));
    let loops = Loops::start(&cluster, "train", PATIENCE);
    let begin = Instant::now();
    while !cluster.list_jobs().contains("(no multicast: 1)") {
        assert!(begin.elapsed() < PATIENCE, "{}", cluster.list_jobs());
        sleep(Duration::from_millis(50));
    }
    let line = "\"train\": rank 1 (10.88.0.2) gets no results by multicast";
    cluster.aggregator.process().wait_for_line(line, PATIENCE).unwrap();
    let (code, text) = doctor(&cluster, 0);
    assert_eq!(code, Some(1), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("FAIL  other ranks"), "{text}");
    assert!(last.contains("results by multicast do not arrive at rank 1 (10.88.0.2) of job \"train\""), "{text}");
    let (code, text) = doctor(&cluster, DEAF);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.lines().last().unwrap().starts_with("FAIL  results"), "{text}");
    for ended in loops.stop() {
        assert_eq!(ended.result, Ok(()));
    }
    cluster.stop();
}
