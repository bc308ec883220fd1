//! The files of the vectors.

use crate::folder;
use std::collections::BTreeSet;
use std::process::Command;
use switchml_protocol::outcome::Outcome;
use switchml_rack::skip;
use switchml_rack::vectors::read_all;

/// Fails if only a file was changed, or only the generator.
#[test]
fn the_files_are_what_their_generator_writes() {
    let output = Command::new("python3")
        .arg(folder().join("generate.py"))
        .arg("--check")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    match output {
        Err(error) => skip(
            "files::the_files_are_what_their_generator_writes",
            &format!("no python3: {error}"),
        ),
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr))
        }
    }
}

/// Rule 24.5 leaves a data plane with less state nothing to compare in these, or in too many steps.
/// All other vectors say at each step how it may answer.
#[test]
fn strict_are_those_alone_that_less_state_cannot_play() {
    let vectors = read_all(folder());
    let strict: Vec<_> = vectors.iter().filter(|vector| vector.needs.strict).collect();
    let names: Vec<_> = strict.iter().map(|vector| vector.name.as_str()).collect();
    let of_less_state = [
        "empty_before_its_turn",
        "mismatch_after_completion",
        "mismatch_of_fingerprint",
        "mismatch_of_lanes",
        "mismatch_of_op",
        "new_epoch_rounds",
        "partial_sums_refused",
        "rounds_before_their_turn",
    ];
    assert_eq!(names, of_less_state);
}

/// Every outcome occurs in a vector, except for those that no sequence of packets causes in every
/// data plane.
#[test]
fn every_outcome_comes_up() {
    let vectors = read_all(folder());
    let counted: BTreeSet<_> =
        vectors.iter().flat_map(|vector| vector.counters.keys().map(String::as_str)).collect();
    // These need, in this order: another CPU that has the slot; a superpacket with segments of
    // several jobs; a kernel that does not send; a combiner that sends two packets for one; a data
    // plane that loses packets on purpose.
    let left_out = ["slot_busy", "mixed_jobs", "send_failed", "flushed", "lost_for_tests"];
    let all: BTreeSet<_> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
    assert_eq!(counted, all.difference(&left_out.into()).copied().collect());
}
