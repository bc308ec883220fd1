//! libbpf, and so bpftool and other tools based on it, loads the object as aya does. The verifier
//! also accepts the object that logs each packet.

use switchml_rack::{Mode, in_both_modes, needs_racks};

use crate::libbpf::Libbpf;
use switchml_test_support::frame::{JOB, PENDING, Packet};
use switchml_test_support::kernel::{Kernel, job, member};

in_both_modes! {
    libbpf_loads_the_object_and_runs_it,
}

fn libbpf_loads_the_object_and_runs_it(mode: Mode) {
    let mut libbpf = Libbpf::new(mode);
    assert_eq!(
        libbpf.map_names(),
        [
            ".rodata",
            "AVERAGE",
            "CELLS",
            "COUNTERS",
            "EVENTS",
            "GROUPS",
            "JOBS",
            "LEAVING",
            "LOCAL",
            "MEMBERS",
            "PORTS",
            "RECEIVERS",
            "SCRATCH",
            "SLOTS",
            "TIMES",
            "TURNS",
            "UNSENT",
            "UPLINKS"
        ]
    );
    libbpf.set_job(JOB, &job(2));
    for rank in 0..2 {
        libbpf.set_member(JOB, rank, &member(rank));
    }
    let packet = Packet::contribution(0, 0, 0, &[3; 32]);
    assert_eq!(libbpf.run(&packet.frame()).verdict, 1, "XDP_DROP: started");
    let again = libbpf.run(&packet.frame());
    assert_eq!((again.verdict, again.frame[43]), (4, PENDING), "XDP_REDIRECT: pending");
}

/// Loads it with aya alone: aya-log declares its map in a way that libbpf no longer supports.
#[test]
fn the_verifier_takes_what_tells_of_each_packet() {
    needs_racks!();
    let object = switchml_data_plane::xdp_trace_object();
    let mut root = Kernel::load(object);
    root.open_job(2);
    let packet = Packet::contribution(0, 0, 0, &[3; 32]);
    assert_eq!(root.run(&packet.frame()).verdict, 1, "XDP_DROP: started");
    Kernel::load_with_roce(object);
    Kernel::load_combiner(object, 16);
}
