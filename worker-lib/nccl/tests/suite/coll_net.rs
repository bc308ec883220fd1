//! NCCL's calls for collectives, in a rack: a program in C makes them, in a process for each host.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use switchml_rack::{Aggregator, Binaries, Process, Rack, RackOptions, needs_racks};

const RANKS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// An empty folder, with the library by the name that NCCL looks for.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libnccl_net_switchml.so");
    std::os::unix::fs::symlink(library, folder.join("libnccl-net-switchml.so")).unwrap();
    folder
}

/// The program in C, built with every warning an error.
fn harness(folder: &Path) -> PathBuf {
    let program = folder.join("harness");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness.c");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .arg("-ldl")
        .output()
        .expect("cc, which Rust links with, is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs the program successfully on all hosts. Returns the output of each rank.
fn run(what: &str) -> Vec<String> {
    let rack = Rack::new(RackOptions { workers: RANKS, ..RackOptions::default() }).unwrap();
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    let folder = folder(&format!("nccl-{what}"));
    let program = harness(&folder);
    let start = |rank: usize| -> Process {
        let mut command = Command::new(&program);
        command.arg("libnccl-net-switchml.so").arg(&folder);
        command.args([rank.to_string(), RANKS.to_string(), what.to_owned()]);
        command.env("LD_LIBRARY_PATH", &folder).env("SWITCHML_AGGREGATOR", aggregator.control());
        // Settings of the GPUs' job, not of the hosts that NCCL's groups are made of.
        command.env("RANK", "9").env("WORLD_SIZE", "2").env("SWITCHML_JOB", "another");
        // Other tests set this variable in this process.
        command.env_remove("NCCL_SOCKET_IFNAME");
        rack.worker(rank).spawn(&format!("rank {rank}"), command).unwrap()
    };
    let finish = |(rank, mut process): (usize, Process)| {
        process.wait_success(PATIENCE).unwrap();
        assert_eq!(process.stdout(), format!("rank {rank} of {RANKS}: all right\n"));
        process.stderr()
    };
    let processes: Vec<_> = (0..RANKS).map(start).collect();
    processes.into_iter().enumerate().map(finish).collect()
}

/// Two communicators, each with calls of all types in flight, out of place and in place; the
/// program checks the sums with its own arithmetic.
#[test]
fn sums_of_many_steps() {
    needs_racks!();
    for (rank, said) in run("sums").into_iter().enumerate() {
        let begin = format!("INFO NET/switchml: rank {rank} of 4 sums up at ");
        assert_eq!(said.matches(&begin).count(), 2, "{said}");
    }
}

/// Each of these logs names this rank.
fn expect_named<'a>(said: impl IntoIterator<Item = &'a String>, rank: usize) {
    let (begin, name) = ("WARN NET/switchml: ", format!("rank {rank} "));
    for said in said {
        let mut warnings = said.lines().filter(|line| line.starts_with(begin));
        assert!(warnings.any(|line| line.contains(&name)), "{said}");
    }
}

/// NCCL frees a call's memory when it is aborted, so the library must not use it any more.
#[test]
fn a_rank_that_is_aborted_gives_memory_back_and_is_named() {
    needs_racks!();
    expect_named(&run("abandoned")[1..], 0);
}

#[test]
fn a_rank_that_dies_is_named() {
    needs_racks!();
    let said = run("gone");
    expect_named([&said[0], &said[2], &said[3]], 1);
}

#[test]
fn a_rank_that_never_comes_is_named() {
    needs_racks!();
    expect_named(&run("missing")[..RANKS - 1], 3);
}
