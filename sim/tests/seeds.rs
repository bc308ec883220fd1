//! Seeds: those that have failed once, and as many others as there is time for.

use std::time::Duration;

use switchml_protocol::outcome::Outcome;
use switchml_sim::campaign::{self, Limits, Report};
use switchml_sim::simulate;
use switchml_sim::tally::{Fate, Fault};

/// Seeds in every test run; `cargo xtask sim` runs others, and more.
const SEEDS: u64 = 3_000;
/// The first of them. From here on even the rarest fault, a full socket, comes about often enough.
const FIRST: u64 = 0x1000;

fn assert_kept(report: &Report) {
    let failures = report.failures.iter().map(|(seed, violation)| {
        format!("seed {seed:#x}: {violation}\n    cargo xtask sim --seed {seed:#x} --trace\n")
    });
    let failures: String = failures.collect();
    assert!(failures.is_empty(), "promises were broken:\n{failures}");
}

#[test]
fn promises_are_kept_whatever_goes_wrong() {
    let report = campaign::run(&Limits { first: FIRST, seeds: SEEDS, time: Duration::MAX });
    assert_kept(&report);
    assert_eq!(report.tally.runs, SEEDS);
    println!("{}", report.tally);
    // What is promised says little if nothing goes wrong.
    let never: Vec<_> =
        Fault::ALL.iter().filter(|fault| report.tally.faults(**fault) < 10).collect();
    assert!(never.is_empty(), "hardly ever tried: {never:?}");
    let must_occur = [
        Fate::Finished,
        Fate::Missing,
        Fate::Silent,
        Fate::Damaged,
        Fate::WrongMaximum,
        Fate::Departed,
        Fate::Mismatch,
        Fate::Aborted,
        Fate::AbortedData,
        Fate::NotReady,
        Fate::NotJoined,
        Fate::Unreachable,
        Fate::Lost,
    ];
    let never: Vec<_> = must_occur.iter().filter(|fate| report.tally.fates(**fate) == 0).collect();
    assert!(never.is_empty(), "never came about: {never:?}");
    let served = |outcome: Outcome| report.tally.outcomes[outcome as usize];
    let must_occur = [
        Outcome::Replayed,
        Outcome::Pending,
        Outcome::Stale,
        Outcome::Mismatch,
        Outcome::Aborted,
        Outcome::BadCheck,
    ];
    let never: Vec<_> = must_occur.iter().filter(|outcome| served(**outcome) == 0).collect();
    assert!(never.is_empty(), "never served: {never:?}");
    assert_eq!(served(Outcome::WrongRound), 0);
    assert!(
        0 < report.tally.ahead_in_vain && report.tally.ahead_in_vain < report.tally.ahead,
        "predictions: {}",
        report.tally
    );
}

#[test]
fn seeds_that_have_failed() {
    let lines = include_str!("../regressions.txt").lines().filter(|line| !line.starts_with('#'));
    for line in lines {
        let seed = line.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let seed = seed.unwrap_or_else(|| panic!("{line:?} in regressions.txt is no seed"));
        assert_kept(&campaign::run(&Limits { first: seed, seeds: 1, time: Duration::MAX }));
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 0..40 {
        let [first, second] = [simulate(seed), simulate(seed)];
        assert_eq!(first.tally, second.tally, "seed {seed:#x}");
        assert_eq!(first.verdict, second.verdict, "seed {seed:#x}");
    }
}
