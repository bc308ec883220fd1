//! The vectors of `tests/vectors` against each data plane: one set of packets binds them all.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`in_kernel`] | both programs in the kernel's own test run, as a subject |
//! | [`superpackets`] | the program for tc ingress, which takes runs of packets as one |
//! | [`software`] | the software data plane over real sockets, as a subject |
//! | [`combiner`] | the protocol crate's combiner, as a subject |
//! | [`p4`] | a switch that runs a program of `p4/`, as a subject |
//! | [`bmv2`] | `p4/bmv2.p4` on `simple_switch`, at whose ports are veths |
//! | [`tofino`] | the programs for Tofino on a model of the chip |
//! | [`bursts`] | frames without pauses, into either of these switches |
//! | [`losses`] | either of these switches, which loses each packet once |
//! | [`spec`] | a job in the form that data planes get |
//! | [`files`] | the files are what their generator writes |

mod bmv2;
mod bursts;
mod combiner;
mod files;
mod in_kernel;
mod losses;
mod p4;
mod software;
mod spec;
mod superpackets;
mod tofino;

use in_kernel::{Hook, InKernel, PORTS};
use losses::LostFirst;
use software::OverSockets;
use std::path::Path;
use std::slice::from_ref;
use switchml_p4::entries::PORTS_OF_PIPELINE;
use switchml_rack::vectors::{Answer, Event, Played, Subject, Vector, play, play_all, read_all};
use switchml_rack::{
    Rack, RackOptions, SimpleSwitch, can_build_racks, leave_out, needs_racks, tofino_model,
};
use switchml_test_support::frame::Packet;

/// The folder of the vectors.
fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/vectors"))
}

/// The vectors for aggregators.
fn of_roots() -> Vec<Vector> {
    read_all(folder()).into_iter().filter(|vector| !is_of_combiners(vector)).collect()
}

/// The vectors for combiners.
fn of_combiners() -> Vec<Vector> {
    read_all(folder()).into_iter().filter(is_of_combiners).collect()
}

fn is_of_combiners(vector: &Vector) -> bool {
    vector.needs.features.iter().any(|feature| feature == "combiner")
}

/// A rack has interfaces for the vectors' ports, and is a place for addresses of theirs.
fn rack() -> Rack {
    Rack::new(RackOptions { workers: in_kernel::PORTS, ..RackOptions::default() }).expect("a rack")
}

/// Plays all vectors in the namespace of a rack's switch.
fn in_rack(play: impl FnOnce(&[Vector]) -> Played + Send + 'static) -> Played {
    let rack = rack();
    rack.switch().run(move || play(&of_roots()))
}

#[test]
fn xdp() {
    needs_racks!();
    let played = in_rack(|vectors| play_all(vectors, &mut InKernel::new(Hook::Xdp)));
    played.conclude("XDP");
    assert!(played.left_out.iter().all(|(_, lacks)| lacks == "roce"), "all else is offered");
}

#[test]
fn xdp_with_rocev2() {
    needs_racks!();
    let played = in_rack(|vectors| play_all(vectors, &mut InKernel::new(Hook::XdpWithRoce)));
    played.conclude("XDP with RoCEv2");
    assert_eq!(played.left_out, [], "the XDP program offers everything");
}

#[test]
fn tc() {
    needs_racks!();
    let played = in_rack(|vectors| play_all(vectors, &mut InKernel::new(Hook::Tc)));
    played.conclude("tc ingress");
    let others = played.left_out.iter().filter(|(_, lacks)| lacks != "roce");
    let names: Vec<_> = others.map(|(vector, _)| vector.as_str()).collect();
    assert_eq!(
        names,
        ["packets_too_long", "runts", "tagged", "tagged_with_a_priority"],
        "all else is offered"
    );
}

/// Plays runs of packets as superpackets: each vector that consists of packets only must come out
/// the same.
#[test]
fn tc_superpackets() {
    needs_racks!();
    let results = rack().switch().run(|| {
        let mut subject = InKernel::new(Hook::Tc);
        let vectors = of_roots();
        let playable = vectors.iter().filter(|vector| superpackets::can_play(vector));
        playable.map(|vector| superpackets::play(vector, &mut subject)).collect::<Vec<_>>()
    });
    let failed: Vec<_> =
        results.iter().filter_map(|result| result.as_ref().err()).cloned().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let superpackets: usize = results.iter().flatten().sum();
    println!(
        "superpackets: {} vectors passed, with {superpackets} of several packets",
        results.len()
    );
    assert!(superpackets > 50, "{superpackets} superpackets of several packets");
}

#[test]
fn software() {
    needs_racks!();
    let played = in_rack(|vectors| {
        software::make_addresses_local();
        play_all(vectors, &mut OverSockets::new())
    });
    played.conclude("software");
    let is_offered = |lacks: &str| !["frames", "group", "ipv6"].contains(&lacks);
    assert!(played.left_out.iter().all(|(_, lacks)| !is_offered(lacks)), "all else is");
}

/// Whether there is a `simple_switch` to test.
fn has_bmv2(name: &str) -> bool {
    let obstacle = SimpleSwitch::obstacle();
    can_build_racks(name) && obstacle.inspect(|obstacle| leave_out(name, obstacle)).is_none()
}

#[test]
fn bmv2() {
    if has_bmv2("bmv2") {
        let played = play_all(&of_roots(), &mut bmv2::start());
        played.conclude("bmv2");
        let of_roce = |(vector, _): &&(String, String)| vector.starts_with("roce_");
        assert_eq!(played.left_out.iter().find(of_roce), None, "it takes messages");
    }
}

#[test]
fn bmv2_of_256_lanes() {
    if has_bmv2("bmv2_of_256_lanes") {
        play_all(&of_roots(), &mut bmv2::start_for_256_lanes()).conclude("bmv2 of 256 lanes");
    }
}

#[test]
fn combiner() {
    let played = play_all(&of_combiners(), &mut combiner::Combiner::default());
    played.conclude("combiner");
    assert!(played.left_out.iter().all(|(_, lacks)| lacks == "frames"), "all else is offered");
}

#[test]
fn bmv2_as_a_combiner() {
    if has_bmv2("bmv2_as_a_combiner") {
        let played = play_all(&of_combiners(), &mut bmv2::start_combiner());
        played.conclude("bmv2 as a combiner");
        assert_eq!(played.left_out, [], "all is offered");
    }
}

/// A daemon that was killed leaves its tables, which would make nonsense of the next one's.
#[test]
fn bmv2_is_taken_over_with_what_an_earlier_daemon_left() {
    if has_bmv2("bmv2_is_taken_over_with_what_an_earlier_daemon_left") {
        let mut switch = bmv2::start();
        let vectors = of_roots();
        let vector =
            vectors.iter().find(|vector| vector.name == "aborted_job").expect("such a vector");
        assert_eq!(play(vector, &mut switch), Ok(()));
        let mut switch = bmv2::taken_over(switch);
        assert_eq!(play(vector, &mut switch), Ok(()));
    }
}

#[test]
fn bmv2_in_bursts() {
    if has_bmv2("bmv2_in_bursts") {
        bursts::play(&mut bmv2::start(), &[64]);
        bursts::play(&mut bmv2::start_for_256_lanes(), &[64, 224, 256]);
    }
}

#[test]
fn bmv2_that_loses_each_packet_once() {
    if has_bmv2("bmv2_that_loses_each_packet_once") {
        let lossy = |switch| LostFirst(switch);
        play_all(&of_roots(), &mut lossy(bmv2::start())).conclude("bmv2");
        let mut of_256 = lossy(bmv2::start_for_256_lanes());
        play_all(&of_roots(), &mut of_256).conclude("bmv2 of 256 lanes");
        play_all(&of_combiners(), &mut lossy(bmv2::start_combiner())).conclude("a combiner");
    }
}

/// Whether there is a model of the chip to test, and the program.
fn has_tofino_model(name: &str, program: &str) -> bool {
    tofino::obstacle(program).inspect(|obstacle| leave_out(name, obstacle)).is_none()
}

#[test]
fn tofino_model() {
    if has_tofino_model("tofino_model", tofino::OF_64) {
        play_all(&of_roots(), &mut tofino::start(tofino::OF_64, 0)).conclude("Tofino model");
    }
}

/// Each pipeline has registers, recirculation ports and learning filters of its own.
#[test]
fn tofino_model_in_other_pipelines() {
    if has_tofino_model("tofino_model_in_other_pipelines", tofino::OF_64) {
        for pipeline in [1, 2] {
            let played = play_all(&of_roots(), &mut tofino::start(tofino::OF_64, pipeline));
            played.conclude(&format!("Tofino model in pipeline {pipeline}"));
        }
    }
}

#[test]
fn tofino_model_of_256_lanes() {
    if has_tofino_model("tofino_model_of_256_lanes", tofino::OF_256) {
        let played = play_all(&of_roots(), &mut tofino::start(tofino::OF_256, 0));
        played.conclude("Tofino model of 256 lanes");
    }
}

/// Slots 0, 3, 6 … recirculate by the pipeline's own port, the others by two ports in loopback. In
/// the bursts there is slot 3 alone, which recirculates by the second of two ports.
#[test]
fn tofino_model_with_ports_in_loopback() {
    if has_tofino_model("tofino_model_with_ports_in_loopback", tofino::OF_256) {
        let in_one = |ports: &[u16]| [(); 4].map(|()| ports.to_vec());
        let mut switch = tofino::start_with(tofino::OF_256, 1, &in_one(&[196, 184, 188]));
        play_all(&of_roots(), &mut switch).conclude("Tofino model with ports in loopback");
        let mut switch = tofino::start_with(tofino::OF_256, 0, &in_one(&[68, 56]));
        bursts::play(&mut switch, &[64, 224, 256]);
    }
}

/// Each part of a packet is added up in another pipeline; then two in that of the ranks, and two in
/// a pipeline before it.
#[test]
fn tofino_model_with_parts_in_several_pipelines() {
    if has_tofino_model("tofino_model_with_parts_in_several_pipelines", tofino::OF_256) {
        let in_four = [vec![68], vec![184, 188], vec![312, 316, 304], vec![440]];
        for (pipeline, ports) in
            [(0, in_four), (1, [vec![196], vec![196], vec![56, 60], vec![56, 60]])]
        {
            let mut switch = tofino::start_with(tofino::OF_256, pipeline, &ports);
            play_all(&of_roots(), &mut switch).conclude("Tofino model with several pipelines");
            bursts::play(&mut switch, &[64, 224, 256]);
        }
    }
}

/// A frame that looks as if it came again is not believed at ports that strangers send to.
#[test]
fn tofino_model_believes_no_stranger() {
    if has_tofino_model("tofino_model_believes_no_stranger", tofino::OF_64) {
        let mut switch = tofino::start(tofino::OF_64, 0);
        // What a RESULT to one rank has in its last pass: the kind of pass, the port that it is to
        // leave by, the set, the other ranks. The set holds round 0, as all sets do at first.
        let pass = [4, 0, 2, 0, 0, 0];
        let inner = Packet::contribution(0, 0, 0, &[7; 64]).frame();
        let frame = [&pass[..], &inner].concat();
        let believed =
            switch.exchange(tofino::SECOND_CHANNEL, from_ref(&frame)).expect("exchanged");
        let [(2, answer)] = &believed[..] else { panic!("{believed:02x?}") };
        assert_eq!(answer.len(), inner.len(), "without what was in front");
        let left = switch.exchange(1, from_ref(&frame)).expect("exchanged");
        let to_all_others: Vec<_> = (2..=PORTS as u16).map(|port| (port, frame.clone())).collect();
        assert_eq!(left, to_all_others, "switched like any frame");
    }
}

/// At a port in loopback it is believed, but not at the one beside it.
#[test]
fn tofino_model_believes_ports_in_loopback() {
    if has_tofino_model("tofino_model_believes_ports_in_loopback", tofino::OF_256) {
        let ports = [(); 4].map(|()| vec![68, 56]);
        let mut switch = tofino::start_with(tofino::OF_256, 0, &ports);
        // As above; then the part, the blocks of lanes and the rank's bit.
        let pass = [4, 0, 2, 0, 0, 0, 0, 2, 0, 0, 0, 1];
        let inner = Packet::contribution(0, 0, 0, &[7; 64]).frame();
        let frame = [&pass[..], &inner].concat();
        let believed = switch.exchange(56, from_ref(&frame)).expect("exchanged");
        let [(2, answer)] = &believed[..] else { panic!("{believed:02x?}") };
        assert_eq!(answer.len(), inner.len(), "without what was in front");
        let left = switch.exchange(57, from_ref(&frame)).expect("exchanged");
        let to_all: Vec<_> = (1..=PORTS as u16).map(|port| (port, frame.clone())).collect();
        assert_eq!(left, to_all, "switched like any frame");
    }
}

/// Each pipeline has registers of its own, so a job of ranks in several would wait forever.
#[test]
fn tofino_model_refuses_ranks_in_several_pipelines() {
    if has_tofino_model("tofino_model_refuses_ranks_in_several_pipelines", tofino::OF_64) {
        let mut switch = tofino::start(tofino::OF_64, 0);
        let vector = of_roots().into_iter().find(|vector| vector.name == "sum_of_2");
        let Some(Event::Open(mut job)) = vector.expect("such a vector").events.into_iter().next()
        else {
            panic!("it opens a job")
        };
        let elsewhere = PORTS_OF_PIPELINE + 1;
        job.members[1].port = elsewhere;
        let refused = switch.open(&job).expect_err("a job in two pipelines");
        let what = "start job 7 on the switch: all ranks must be at ports of one pipeline, but \
                    found rank 0 at port 1 of pipeline 0, rank 1 at port 129 of pipeline 1";
        assert_eq!(refused, what);
    }
}

#[test]
fn tofino_model_that_loses_each_packet_once() {
    for program in [tofino::OF_64, tofino::OF_256, tofino::COMBINER] {
        if has_tofino_model("tofino_model_that_loses_each_packet_once", program) {
            let vectors = if program == tofino::COMBINER { of_combiners() } else { of_roots() };
            play_all(&vectors, &mut LostFirst(tofino::start(program, 0))).conclude(program);
        }
    }
}

#[test]
fn tofino_model_as_a_combiner() {
    if has_tofino_model("tofino_model_as_a_combiner", tofino::COMBINER) {
        let played = play_all(&of_combiners(), &mut tofino::start(tofino::COMBINER, 0));
        played.conclude("Tofino model as a combiner");
        let names: Vec<_> = played.left_out.iter().map(|(vector, _)| vector.as_str()).collect();
        assert_eq!(names, ["combiner_cells", "combiner_damage", "combiner_patience"]);
    }
}

#[test]
fn tofino_model_as_a_combiner_of_one_cell() {
    if let Some(obstacle) = tofino_model::obstacle_to_compiling() {
        return leave_out("tofino_model_as_a_combiner_of_one_cell", &obstacle);
    }
    tofino::compile_one_cell().expect("a program");
    let played = play_all(&of_combiners(), &mut tofino::start(tofino::OF_ONE_CELL, 0));
    played.conclude("Tofino model as a combiner of one cell");
    let names: Vec<_> = played.left_out.iter().map(|(vector, _)| vector.as_str()).collect();
    assert_eq!(names, ["combiner_damage"]);
}

#[test]
fn tofino_model_in_bursts() {
    if has_tofino_model("tofino_model_in_bursts", tofino::OF_64) {
        bursts::play(&mut tofino::start(tofino::OF_64, 0), &[64]);
    }
}

#[test]
fn tofino_model_of_256_lanes_in_bursts() {
    if has_tofino_model("tofino_model_of_256_lanes_in_bursts", tofino::OF_256) {
        bursts::play(&mut tofino::start(tofino::OF_256, 0), &[64, 224, 256]);
    }
}

/// Any wrong byte of any expected frame is detected, and reported with vector, step and field.
#[test]
fn a_byte_that_differs_is_named() {
    needs_racks!();
    rack().switch().run(|| {
        let mut subject = InKernel::new(Hook::Xdp);
        let mut vector =
            of_roots().into_iter().find(|vector| vector.name == "sum_of_2").expect("a vector");
        let result_of_round_0 = 2;
        let length = expected_frame(&mut vector, result_of_round_0).len();
        for at in 0..length {
            expected_frame(&mut vector, result_of_round_0)[at] ^= 0x10;
            let failure = play(&vector, &mut subject).expect_err("another byte");
            expected_frame(&mut vector, result_of_round_0)[at] ^= 0x10;
            assert!(
                failure.starts_with("sum_of_2, event 3 (rank 1 completes round 0 of slot 0): "),
                "{failure}"
            );
            if let Some(field) = [
                (5, "Ethernet destination"),
                (43, "kind"),
                (69, "check"),
                (74, "lane 0"),
                (201, "lane 31"),
            ]
            .iter()
            .find_map(|(byte, field)| (*byte == at).then_some(field))
            {
                assert!(failure.contains(&format!("): {field} is ")), "{failure}");
            }
        }
        assert_eq!(length, 202);
        assert_eq!(play(&vector, &mut subject), Ok(()));
    });
}

/// The first expected frame of an event.
fn expected_frame(vector: &mut Vector, event: usize) -> &mut Vec<u8> {
    let Event::Step(step) = &mut vector.events[event] else { panic!("event {event} is no step") };
    match &mut step.expected[0].answer {
        Some(Answer::Group(_, frame) | Answer::Port(_, frame) | Answer::Passed(frame)) => frame,
        Some(Answer::Ranks(..)) => panic!("event {event} has several"),
        None => panic!("event {event} has no answer"),
    }
}
