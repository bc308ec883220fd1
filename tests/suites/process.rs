//! Processes in a rack: their output, how they end, and what a test is told when they misbehave.

use std::{os::unix::process::ExitStatusExt, process::Command, time::Duration};
use switchml_rack::{Error, Namespace, Process, Rack, RackOptions, Signal, needs_racks};

const SOON: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(50);

fn rack() -> Rack {
    Rack::new(RackOptions { workers: 1, ..RackOptions::default() }).expect("a rack")
}

fn shell(rack: &Rack, script: &str) -> Process {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    rack.worker(0).spawn("script", command).expect("spawn")
}

#[test]
fn output_is_kept_apart_and_searched() {
    needs_racks!();
    let rack = rack();
    let mut process = shell(&rack, "echo one; echo two >&2; sleep 0.1; echo three; printf four");
    assert_eq!(process.wait_for_line("hre", SOON).unwrap(), "three");
    assert_eq!(
        process.wait_for_line("two", SHORT).unwrap(),
        "two",
        "lines that came earlier count"
    );
    process.wait_success(SOON).unwrap();
    assert_eq!(process.stdout(), "one\nthree\nfour\n");
    assert_eq!(process.stderr(), "two\n");
}

#[test]
fn a_line_that_does_not_come_is_an_error_that_shows_what_came() {
    needs_racks!();
    let rack = rack();
    let mut ends = shell(&rack, "echo port in use; exit 3");
    assert_eq!(
        ends.wait_for_line("ready", SOON).unwrap_err().to_string(),
        "script: waited for a line with \"ready\", but it ended (exit status: 3); its last \
         lines:\nport in use"
    );
    let mut hangs = shell(&rack, "echo starting; exec sleep 1000");
    hangs.wait_for_line("starting", SOON).unwrap();
    assert_eq!(
        hangs.wait_for_line("ready", SHORT).unwrap_err().to_string(),
        "script: no line with \"ready\" within 50ms; its last lines:\nstarting"
    );
    assert!(matches!(hangs.wait(SHORT), Err(Error::Timeout { .. })));
}

#[test]
fn a_failure_is_told_from_success() {
    needs_racks!();
    let rack = rack();
    assert_eq!(shell(&rack, "exit 3").wait(SOON).unwrap().code(), Some(3));
    assert!(matches!(shell(&rack, "exit 3").wait_success(SOON), Err(Error::Ended { .. })));
}

#[test]
fn a_program_that_does_not_exist_is_named() {
    needs_racks!();
    let error = rack()
        .worker(0)
        .spawn("typo", Command::new("swithcml-worker"))
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot start `swithcml-worker` in worker 0: No such file or directory"),
        "{error}"
    );
}

#[test]
fn terminate_asks_first_and_kills_after_the_grace() {
    needs_racks!();
    let rack = rack();
    let mut polite =
        shell(&rack, "trap 'echo bye; exit 0' TERM; echo on; while :; do sleep 0.01; done");
    polite.wait_for_line("on", SOON).unwrap();
    assert!(polite.terminate(SOON).unwrap().success());
    assert_eq!(polite.stdout(), "on\nbye\n");
    let mut deaf = shell(&rack, "trap '' TERM; echo on; while :; do sleep 0.01; done");
    deaf.wait_for_line("on", SOON).unwrap();
    assert_eq!(deaf.terminate(SHORT).unwrap().signal(), Some(9));
    assert!(!deaf.is_running());
    assert!(matches!(deaf.signal(Signal::TERM), Err(Error::Process { .. })));
}

#[test]
fn a_process_that_is_dropped_is_killed_and_reaped() {
    needs_racks!();
    let rack = rack();
    let mut process = shell(&rack, "echo on; exec sleep 1000");
    process.wait_for_line("on", SOON).unwrap();
    let files = format!("/proc/{}", process.id());
    assert!(std::fs::exists(&files).unwrap());
    drop(process);
    assert!(!std::fs::exists(&files).unwrap(), "not even a zombie is left");
}

#[test]
fn a_process_can_be_stopped_and_continued() {
    needs_racks!();
    let rack = rack();
    let mut process = shell(&rack, "echo on; sleep 0.1; echo done");
    process.wait_for_line("on", SOON).unwrap();
    process.signal(Signal::STOP).unwrap();
    // The shell is stopped, whatever its child does.
    assert!(process.wait_for_line("done", Duration::from_millis(300)).is_err());
    process.signal(Signal::CONT).unwrap();
    process.wait_for_line("done", SOON).unwrap();
}

#[test]
fn the_host_serves_as_a_namespace_without_privilege() {
    let host = Namespace::of_host().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo on; exec sleep 1000"]);
    let mut process = host.spawn("script", command).unwrap();
    process.wait_for_line("on", SOON).unwrap();
    let net = |pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    assert_eq!(net(process.id()), net(std::process::id()));
    drop(host);
    assert_eq!(process.wait(Duration::MAX).unwrap().signal(), Some(9), "it dies with the value");
}
