//! The vectors of `tests/vectors` against each data plane: one set of packets binds them all.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`in_kernel`] | both programs in the kernel's own test run, as a subject |
//! | [`superpackets`] | the program for tc ingress, which takes runs of packets as one |
//! | [`software`] | the software data plane over real sockets, as a subject |
//! | [`files`] | the files are what their generator writes |

mod files;
mod in_kernel;
#[path = "../in_kernel/kernel.rs"]
#[allow(dead_code)] // of the tests that it was written for
mod kernel;
#[path = "../in_kernel/packet.rs"]
#[allow(dead_code)]
mod packet;
mod software;
mod superpackets;
#[path = "../in_kernel/twin.rs"]
#[allow(dead_code)]
mod twin;

use in_kernel::{Hook, InKernel};
use software::OverSockets;
use std::path::Path;
use switchml_rack::vectors::{Played, Vector, play_all, read_all};
use switchml_rack::{Rack, RackOptions, can_build_racks};

/// Where the vectors are.
fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/vectors"))
}

/// A rack has interfaces for the vectors' ports, and is a place for addresses of theirs.
fn rack() -> Rack {
    Rack::new(RackOptions { workers: in_kernel::PORTS, ..RackOptions::default() }).expect("a rack")
}

/// Plays all vectors in the namespace of a rack's switch.
fn in_rack(play: impl FnOnce(&[Vector]) -> Played + Send + 'static) -> Played {
    let rack = rack();
    rack.switch().run(move || play(&read_all(folder())))
}

#[test]
fn xdp() {
    if can_build_racks("xdp") {
        let played = in_rack(|vectors| play_all(vectors, &mut InKernel::new(Hook::Xdp)));
        played.conclude("XDP");
        assert_eq!(played.left_out, [], "the XDP program offers everything");
    }
}

#[test]
fn tc() {
    if can_build_racks("tc") {
        let played = in_rack(|vectors| play_all(vectors, &mut InKernel::new(Hook::Tc)));
        played.conclude("tc ingress");
        let names: Vec<_> = played.left_out.iter().map(|(vector, _)| vector.as_str()).collect();
        assert_eq!(names, ["packets_too_long", "runts"], "all else is offered");
    }
}

/// Runs of packets as superpackets: each vector that is nothing but packets must come out the same.
#[test]
fn tc_superpackets() {
    if !can_build_racks("tc_superpackets") {
        return;
    }
    let results = rack().switch().run(|| {
        let mut subject = InKernel::new(Hook::Tc);
        let vectors = read_all(folder());
        let playable = vectors.iter().filter(|vector| superpackets::can_play(vector));
        playable.map(|vector| superpackets::play(vector, &mut subject)).collect::<Vec<_>>()
    });
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).cloned().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let superpackets: usize = results.iter().flatten().sum();
    println!("superpackets: {} vectors passed, with {superpackets} of several packets", results.len());
    assert!(superpackets > 50, "{superpackets} superpackets of several packets");
}

#[test]
fn software() {
    if can_build_racks("software") {
        let played = in_rack(|vectors| {
            software::make_addresses_local();
            play_all(vectors, &mut OverSockets::new())
        });
        played.conclude("software");
        assert!(played.left_out.iter().all(|(_, lacks)| lacks == "frames"), "all else is offered");
    }
}
