//! Ranks that share no code join one job: ranks of the worker library, and ranks of
//! `tests/independent_worker`, which is written in Python from docs/spec alone. Every result
//! is right, and bitwise the same on all ranks. One job has the specification's core alone.
//!
//! Mutations of the Python worker that these tests catch: no padding of a small call's exponent
//! chunk; chunks that are always speculative, or from 64 chunks on; a call without elements that
//! takes no number; 16-bit floats mapped like f32; ties that round up; lanes of a broadcast in the
//! machine's byte order; check words that are not compared.
//!
//! `SWITCHML_PYTHON` names an interpreter that has grpcio-tools and mypy; `cargo xtask test` makes
//! one.

mod python;
mod script;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use switchml_rack::{
    Aggregator, Binaries, FaultCounts, Faults, Impairment, Ip, Mode, Rack, RackOptions,
    SimpleSwitch, can_build_racks, in_both_modes, leave_out,
};
use switchml_worker::Communicator;

use python::{Rank, interpreter};
use script::Script;

in_both_modes! {
    one_of_ours_and_two_of_the_core,
    two_of_ours_and_one_other,
    two_of_ours_and_two_others,
    one_of_ours_and_two_others_over_ipv6,
    on_bad_links,
}

/// Far longer than any test here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn one_of_ours_and_two_of_the_core(mode: Mode) {
    let name = format!("one_of_ours_and_two_of_the_core, {mode:?}");
    let Some(python) = interpreter(&name) else { return };
    let rack = Rack::new(RackOptions { workers: 3, mode, ..RackOptions::default() }).unwrap();
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    let script = Script::core(3);
    play(&python, &rack, &aggregator, &[0, 2], &format!("core-{mode:?}"), &script);
}

fn two_of_ours_and_one_other(mode: Mode) {
    let Some(python) = interpreter(&format!("two_of_ours_and_one_other, {mode:?}")) else { return };
    let rack = Rack::new(RackOptions { workers: 3, mode, ..RackOptions::default() }).unwrap();
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    run(&python, &rack, &aggregator, &[1], &format!("one-{mode:?}"));
}

fn two_of_ours_and_two_others(mode: Mode) {
    let Some(python) = interpreter(&format!("two_of_ours_and_two_others, {mode:?}")) else {
        return;
    };
    let rack = Rack::new(RackOptions { workers: 4, mode, ..RackOptions::default() }).unwrap();
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    run(&python, &rack, &aggregator, &[0, 3], &format!("two-{mode:?}"));
}

fn one_of_ours_and_two_others_over_ipv6(mode: Mode) {
    let name = format!("one_of_ours_and_two_others_over_ipv6, {mode:?}");
    let Some(python) = interpreter(&name) else { return };
    let options = RackOptions { workers: 3, mode, ip: Ip::V6, ..RackOptions::default() };
    let rack = Rack::new(options).unwrap();
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    run(&python, &rack, &aggregator, &[0, 1], &format!("ipv6-{mode:?}"));
}

fn on_bad_links(mode: Mode) {
    let Some(python) = interpreter(&format!("on_bad_links, {mode:?}")) else { return };
    let binaries = Binaries::for_test().unwrap();
    let rack =
        Rack::new(RackOptions { workers: 3, mode, wires: true, ..RackOptions::default() }).unwrap();
    let aggregator = Aggregator::in_rack(&binaries, &rack).unwrap();
    let faults = Faults { loss: 0.02, duplication: 0.02, flips: 0.01, ..Faults::default() };
    let impairment = Impairment::in_rack(&binaries, &rack, 27, |_, _| faults).unwrap();
    let resent = run(&python, &rack, &aggregator, &[2], &format!("bad-{mode:?}"));
    let mut total = FaultCounts::default();
    impairment.stop().unwrap().into_iter().flatten().for_each(|counts| total += counts);
    assert!(total.lost > 0 && total.duplicated > 0 && total.flipped > 0, "{total:?}");
    assert!(resent > 0, "the other worker sent nothing again: {total:?}");
}

#[test]
fn over_the_software_data_plane() {
    let name = "over_the_software_data_plane";
    if !can_build_racks(name) {
        return;
    }
    let Some(python) = interpreter(name) else { return };
    let rack = Rack::new(RackOptions { workers: 3, ..RackOptions::default() }).unwrap();
    let aggregator = Aggregator::software_in_rack(&Binaries::for_test().unwrap(), &rack).unwrap();
    run(&python, &rack, &aggregator, &[1], "software");
}

/// A rack whose daemon also serves ranks by RoCEv2 (section 37): in native XDP, or on bmv2, if that
/// is the rack's mode, else in software.
fn rack_with_rocev2(name: &str, options: RackOptions) -> Option<(PathBuf, Rack, Aggregator)> {
    if !can_build_racks(name) {
        return None;
    }
    let python = interpreter(name)?;
    let rack = Rack::new(options).unwrap();
    let binaries = Binaries::for_test().unwrap();
    let aggregator = match rack.mode() {
        Mode::Native | Mode::Bmv2 => Aggregator::in_rack_with(&binaries, &rack, &["--rocev2"]),
        _ => {
            let options = ["--data-plane", "software", "--rocev2"];
            Aggregator::with_options(&binaries, &rack, &options)
        }
    };
    Some((python, rack, aggregator.unwrap()))
}

#[test]
fn over_rocev2() {
    play_over_rocev2(Mode::Auto);
}

#[test]
fn over_rocev2_and_native_xdp() {
    play_over_rocev2(Mode::Native);
}

/// Through the P4 program, whose packets have up to 64 lanes.
#[test]
fn over_rocev2_on_bmv2() {
    let name = "over_rocev2_on_bmv2";
    if let Some(obstacle) = SimpleSwitch::obstacle() {
        return leave_out(name, &obstacle);
    }
    for others in [&[0, 1, 2][..], &[0, 2]] {
        let options = RackOptions { workers: 3, mode: Mode::Bmv2, ..RackOptions::default() };
        let Some((python, rack, aggregator)) = rack_with_rocev2(name, options) else { return };
        play(&python, &rack, &aggregator, others, "rocev2", &Script::core(3).by_rocev2(64));
    }
}

/// Ranks by RoCEv2 alone, and beside ranks with sockets.
fn play_over_rocev2(mode: Mode) {
    for (script, others) in [
        (Script::core(2), &[0, 1][..]),
        (Script::core(2), &[1]),
        (Script::new(3), &[0, 1, 2]),
        (Script::new(3), &[0, 2]),
    ] {
        let (ranks, script) = (script.ranks, script.by_rocev2(usize::MAX));
        let options = RackOptions { workers: ranks, mode, ..RackOptions::default() };
        let name = format!("over_rocev2, {mode:?}");
        let Some((python, rack, aggregator)) = rack_with_rocev2(&name, options) else {
            return;
        };
        play(&python, &rack, &aggregator, others, "rocev2", &script);
    }
}

#[test]
fn over_rocev2_on_bad_links() {
    play_over_rocev2_on_bad_links(Mode::Auto);
}

#[test]
fn over_rocev2_and_native_xdp_on_bad_links() {
    play_over_rocev2_on_bad_links(Mode::Native);
}

/// Frames get lost, come twice, and with wrong bits.
fn play_over_rocev2_on_bad_links(mode: Mode) {
    let options = RackOptions { workers: 3, wires: true, mode, ..RackOptions::default() };
    let name = &format!("over_rocev2_on_bad_links, {mode:?}");
    let Some((python, rack, aggregator)) = rack_with_rocev2(name, options) else { return };
    let faults = Faults { loss: 0.01, duplication: 0.01, flips: 0.01, ..Faults::default() };
    let binaries = Binaries::for_test().unwrap();
    let impairment = Impairment::in_rack(&binaries, &rack, 37, |_, _| faults).unwrap();
    let script = Script::new(3).by_rocev2(usize::MAX);
    let resent = play(&python, &rack, &aggregator, &[0, 1], "bad-rocev2", &script);
    let mut total = FaultCounts::default();
    impairment.stop().unwrap().into_iter().flatten().for_each(|counts| total += counts);
    assert!(total.lost > 0 && total.duplicated > 0 && total.flipped > 0, "{total:?}");
    assert!(resent > 0, "the ranks by RoCEv2 sent nothing again: {total:?}");
}

/// Plays calls of all kinds, as [`play`] does.
fn run(python: &Path, rack: &Rack, aggregator: &Aggregator, others: &[usize], job: &str) -> u64 {
    play(python, rack, aggregator, others, job, &Script::new(rack.workers().len()))
}

/// Plays the script in a job of all workers of the rack, with the ranks `others` in Python. Returns
/// the number of packets that the ranks in Python resent.
fn play(
    python: &Path,
    rack: &Rack,
    aggregator: &Aggregator,
    others: &[usize],
    job: &str,
    script: &Script,
) -> u64 {
    let ranks = script.ranks;
    let others: Vec<_> = others
        .iter()
        .map(|&rank| Rank::start(python, rack, aggregator.control(), job, rank, script))
        .collect();
    let is_ours = |rank: &usize| !others.iter().any(|other| other.rank == *rank);
    let mut results = vec![Vec::new(); ranks];
    thread::scope(|scope| {
        let start = |rank: usize| {
            let (control, job, script) =
                (aggregator.control().to_owned(), job.to_owned(), script.clone());
            scope.spawn(move || rack.worker(rank).run(move || ours(&control, &job, rank, &script)))
        };
        let threads: Vec<_> = (0..ranks).filter(is_ours).map(|rank| (rank, start(rank))).collect();
        for (rank, thread) in threads {
            results[rank] = thread.join().unwrap();
        }
    });
    let mut resent = 0;
    for other in others {
        let rank = other.rank;
        let (found, again) = other.finish(PATIENCE);
        results[rank] = found;
        resent += again;
    }
    for (rank, found) in results.iter().enumerate() {
        script.check(rank, found);
        for (step, (found, first)) in script.steps.iter().zip(found.iter().zip(&results[0])) {
            assert!(found == first, "ranks 0 and {rank} have other bits in {step:?}");
        }
    }
    resent
}

/// The life of a rank of the worker library.
fn ours(control: &str, job: &str, rank: usize, script: &Script) -> Vec<Vec<u8>> {
    let builder = Communicator::builder().aggregator(control).job(job).rank(rank as u32);
    let builder = builder.world_size(script.ranks as u32).join_timeout(PATIENCE).deadline(PATIENCE);
    // bmv2 says no speed of links, and so seems slower than hosts of ranks' own (rule 36.15), which
    // those in Python do not have.
    let communicator = builder.own_hosts(false).connect().unwrap();
    let results = script.steps.iter().map(|step| step.run(&communicator, rank)).collect();
    communicator.close().unwrap();
    results
}
