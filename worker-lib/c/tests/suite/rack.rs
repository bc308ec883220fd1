//! The example in C, built against the header and the shared library with the system's compiler:
//! processes of a job in a rack, and their output when a rank dies.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use switchml_rack::{Aggregator, Binaries, Process, Rack, RackOptions, Signal, needs_racks};

const PATIENCE: Duration = Duration::from_secs(60);

/// The folder in which cargo leaves `libswitchml.so` for this test.
fn library_folder() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A C program, built with every warning an error.
fn build(source: &str) -> PathBuf {
    let (folder, package) = (library_folder(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let program =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(Path::new(source).file_stem().unwrap());
    let output = Command::new("cc")
        .args(["-std=c99", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .arg(&program)
        .arg(package.join(source))
        .arg("-I")
        .arg(package.join("include"))
        .arg("-L")
        .arg(&folder)
        .arg("-lswitchml")
        .output()
        .expect("cc, which Rust links with, is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A rank of the example in its namespace.
fn start(
    program: &Path,
    rack: &Rack,
    aggregator: &Aggregator,
    rank: usize,
    rounds: usize,
) -> Process {
    let mut command = Command::new(program);
    command.arg(rounds.to_string()).env("LD_LIBRARY_PATH", library_folder());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", rack.workers().len().to_string());
    command.env("SWITCHML_AGGREGATOR", aggregator.control()).env("SWITCHML_JOB", "example");
    rack.worker(rank).spawn(&format!("rank {rank}"), command).unwrap()
}

fn rack_of(workers: usize) -> (Rack, Aggregator) {
    let rack = Rack::new(RackOptions { workers, ..RackOptions::default() }).unwrap();
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    (rack, aggregator)
}

#[test]
fn the_example_sums_in_a_rack() {
    needs_racks!();
    let program = build("examples/all_reduce.c");
    let (rack, aggregator) = rack_of(3);
    let ranks: Vec<_> = (0..3).map(|rank| start(&program, &rack, &aggregator, rank, 2)).collect();
    for (rank, mut process) in ranks.into_iter().enumerate() {
        process.wait_success(PATIENCE).unwrap();
        assert_eq!(
            process.stdout(),
            format!("rank {rank} of 3\nthe last rank is 2\nall sums are right\n")
        );
    }
}

#[test]
fn a_killed_rank_is_named_to_the_others() {
    needs_racks!();
    let program = build("examples/all_reduce.c");
    let (rack, aggregator) = rack_of(3);
    let mut ranks: Vec<_> =
        (0..3).map(|rank| start(&program, &rack, &aggregator, rank, 1_000_000)).collect();
    for (rank, process) in ranks.iter_mut().enumerate() {
        process.wait_for_line(&format!("rank {rank} of 3"), PATIENCE).unwrap();
    }
    ranks[1].signal(Signal::KILL).unwrap();
    for rank in [0, 2] {
        // The rank ends before a timeout, which is 30 minutes.
        assert_eq!(ranks[rank].wait(PATIENCE).unwrap().code(), Some(1));
        let said = ranks[rank].stderr();
        assert!(said.starts_with("all_reduce: ") && said.contains("rank 1 "), "{said}");
        assert!(said.contains("at fault: rank 1\n"), "{said}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused_in_one_line() {
    needs_racks!();
    let program = build("tests/arguments.c");
    let (rack, aggregator) = rack_of(1);
    let mut process = start(&program, &rack, &aggregator, 0, 0);
    process.wait_success(PATIENCE).unwrap();
}

#[test]
fn ranks_without_an_aggregator_meet_by_a_unique_id() {
    needs_racks!();
    let program = build("tests/unique_id.c");
    let rack = Rack::new(RackOptions { workers: 3, ..RackOptions::default() }).unwrap();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unique_id.bin");
    let _ = std::fs::remove_file(&file);
    let start = |rank: usize| {
        let mut command = Command::new(&program);
        command.arg(&file).env("LD_LIBRARY_PATH", library_folder());
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3");
        rack.worker(rank).spawn(&format!("rank {rank}"), command).unwrap()
    };
    let ranks: Vec<_> = (0..3).map(start).collect();
    ranks.into_iter().for_each(|mut rank| rank.wait_success(PATIENCE).unwrap());
}
