//! A network that does not bring the group's packets to some or all of the ranks: these get copies.
//! Where the operator insists on multicast, such a rank asks for each result, and all are slow.

use std::process::Command;

use switchml_rack::{Mode, Namespace, Process, RackOptions, in_both_modes};

use crate::loops::Loops;
use crate::{Cluster, PATIENCE};

in_both_modes! {
    a_rank_that_gets_no_multicast_gets_copies,
    without_multicast_all_get_copies_also_after_a_restart,
    a_rank_that_gets_no_multicast_says_so_once,
    the_operator_and_the_doctor_learn_which_rank_it_is,
}

const RANKS: usize = 3;
/// The rank without multicast.
const CUT_OFF: usize = 1;

/// Drops what comes in to a multicast MAC, as a switch does that knows of no listener at that port:
/// of the 48 bits of the address, the lowest of the first byte says so. Broadcasts pass.
fn block_multicast(worker: &Namespace) {
    let program = "4,48 0 0 0,21 0 1 1,6 0 0 2,6 0 0 4294967295";
    for arguments in [
        ["qdisc", "add", "dev", "eth0", "clsact"].as_slice(),
        &["filter", "add", "dev", "eth0", "ingress", "bpf", "da", "bytecode", program],
    ] {
        let mut command = Command::new("tc");
        command.args(arguments);
        worker.output(command).unwrap();
    }
}

/// A bench of more than a second; what each rank says of itself.
fn said(cluster: &Cluster) -> Vec<String> {
    let arguments = ["-b", "256K", "-e", "256K", "-n", "40", "-w", "1"];
    let mut ranks = cluster.bench(RANKS, "train", &arguments);
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    ranks.iter().map(Process::stderr).collect()
}

/// An aggregator that sends results by multicast alone.
fn insisting(mode: Mode) -> Cluster {
    let options = RackOptions { workers: RANKS, mode, ..RackOptions::default() };
    Cluster::with_options(options, &["--fanout", "multicast"])
}

/// Ranks ask for results that got lost; here none does.
fn asked_again(cluster: &Cluster) -> u64 {
    cluster.counter("replayed")
}

fn a_rank_that_gets_no_multicast_gets_copies(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    block_multicast(cluster.rack.worker(CUT_OFF));
    assert_eq!(said(&cluster), [""; RANKS], "all is well");
    let line = "copies of results for ranks that multicast does not reach: 1";
    cluster.aggregator.process().wait_for_line(line, PATIENCE).unwrap();
    let loops = Loops::start(&cluster, "train", PATIENCE);
    cluster.wait_for_job(&["train", "(copies: 1)"]);
    for ended in loops.stop() {
        assert_eq!(ended.result, Ok(()));
    }
    let (code, text) = doctor(&cluster, CUT_OFF);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("copies of this rank's own: multicast does not reach it"), "{text}");
    let (completed, asked) = (cluster.counter("completed"), asked_again(&cluster));
    assert!(asked * 20 < completed, "{asked} of {completed} results were asked for again");
    cluster.stop();
}

fn without_multicast_all_get_copies_also_after_a_restart(mode: Mode) {
    let mut cluster = Cluster::in_mode(RANKS, mode);
    cluster.rack.workers().iter().for_each(block_multicast);
    let loops = Loops::start(&cluster, "train", PATIENCE);
    cluster.wait_for_job(&["train", "(copies: 0 1 2)"]);
    cluster.aggregator.process().kill().unwrap();
    cluster.restart();
    cluster.wait_for_job(&["train", "(copies: 0 1 2)"]);
    loops.wait_for_progress(5);
    for ended in loops.stop() {
        assert_eq!(ended.result, Ok(()));
    }
    cluster.stop();
}

fn a_rank_that_gets_no_multicast_says_so_once(mode: Mode) {
    let cluster = insisting(mode);
    assert_eq!(said(&cluster), [""; RANKS], "all is well");
    block_multicast(cluster.rack.worker(CUT_OFF));
    let said = said(&cluster);
    for (rank, said) in said.iter().enumerate() {
        if rank == CUT_OFF {
            let begin = "switchml: rank 1 of job \"train\": no result comes by multicast; this \
                         rank has to ask for a copy of each";
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
    let mut cluster = insisting(mode);
    let (code, text) = doctor(&cluster, 0);
    assert_eq!(code, Some(0), "{text}");
    block_multicast(cluster.rack.worker(CUT_OFF));
    let loops = Loops::start(&cluster, "train", PATIENCE);
    cluster.wait_for_job(&["train", "(no multicast: 1)"]);
    let line = "\"train\": rank 1 (10.88.0.2) gets no results by multicast";
    cluster.aggregator.process().wait_for_line(line, PATIENCE).unwrap();
    let (code, text) = doctor(&cluster, 0);
    assert_eq!(code, Some(1), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("FAIL  other ranks"), "{text}");
    let expected = "results by multicast do not arrive at rank 1 (10.88.0.2) of job \"train\"";
    assert!(last.contains(expected), "{text}");
    let (code, text) = doctor(&cluster, CUT_OFF);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.lines().last().unwrap().starts_with("FAIL  results"), "{text}");
    for ended in loops.stop() {
        assert_eq!(ended.result, Ok(()));
    }
    cluster.stop();
}
