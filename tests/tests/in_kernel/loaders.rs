//! libbpf, and so bpftool and whatever builds on it, takes the object as aya does.

use libbpf_rs::{MapCore, MapFlags, ObjectBuilder, ProgramInput};
use switchml_rack::can_build_racks;
use zerocopy::IntoBytes;

use crate::kernel::{job, member};
use crate::packet::{AGGREGATOR_IP, AGGREGATOR_PORT, CHECKED, JOB, Packet};

#[test]
fn libbpf_loads_the_object_and_runs_it() {
    if !can_build_racks("libbpf_loads_the_object_and_runs_it") {
        return;
    }
    let mut object = ObjectBuilder::default().open_memory(switchml_userspace::xdp_object()).expect("libbpf parses it");
    for mut map in object.maps_mut() {
        if map.name() == "SLOTS" {
            map.set_max_entries(64).unwrap();
        }
    }
    let object = object.load().expect("libbpf creates the maps, and the verifier takes the program");
    let mut names: Vec<_> = object.maps().map(|map| map.name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, ["COUNTERS", "EVENTS", "GROUPS", "JOBS", "LOCAL", "MEMBERS", "SLOTS"]);

    let update = |name: &str, key: &[u8], value: &[u8]| {
        let map = object.maps().find(|map| map.name() == name).expect("the map");
        map.update(key, value, MapFlags::ANY).expect("key and value are of the map's sizes");
    };
    let mut endpoint = AGGREGATOR_IP.to_vec();
    endpoint.extend(AGGREGATOR_PORT.to_be_bytes());
    endpoint.extend([0, 0]);
    update("LOCAL", &endpoint, &[1]);
    update("JOBS", &u32::from(JOB).to_ne_bytes(), job(2).as_bytes());
    for rank in 0..2 {
        update("MEMBERS", &(u32::from(JOB) * 64 + u32::from(rank)).to_ne_bytes(), member(rank).as_bytes());
    }

    let program = object.progs_mut().find(|program| program.name() == "switchml").expect("the program");
    let run = |packet: &Packet| {
        let (frame, mut out) = (packet.frame(), vec![0; 2048]);
        let input = ProgramInput { data_in: Some(&frame), data_out: Some(&mut out), ..ProgramInput::default() };
        let output = program.test_run(input).expect("the test run");
        (output.return_value, output.data.expect("a frame").to_vec())
    };
    let packet = Packet::contribution(0, 0, 0, &[3; 32]);
    assert_eq!(run(&packet).0, 1, "XDP_DROP: started");
    assert_eq!(run(&packet), (4, packet.pending(1).reply(0)), "XDP_REDIRECT: pending");
    assert_eq!(packet.flags, CHECKED);
}
