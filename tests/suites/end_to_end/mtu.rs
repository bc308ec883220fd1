//! Hosts that take larger packets than a switch between them, and a rank on the aggregator's own
//! host.

use std::process::Command;

use switchml_rack::{Faults, Impairment, Mode, Namespace, Process, RackOptions, in_both_modes};
use switchml_worker::ReduceOp;

use crate::{Cluster, PATIENCE};

in_both_modes! {
    a_switch_that_takes_less_than_the_hosts_costs_lanes_alone,
    a_rank_on_the_aggregators_own_host_is_told_so,
}

const HOSTS: u32 = 3500;
const SWITCH: u32 = 1500;

fn ip(namespace: &Namespace, arguments: &str) {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    namespace.output(command).unwrap();
}

fn doctor(cluster: &Cluster, namespace: &Namespace) -> Process {
    let mut command = Command::new(&cluster.binaries.worker);
    command.args(["doctor", "--aggregator", cluster.aggregator.control()]);
    namespace.spawn("doctor", command).unwrap()
}

fn a_switch_that_takes_less_than_the_hosts_costs_lanes_alone(mode: Mode) {
    let cluster = Cluster::new(RackOptions {
        workers: 2,
        mtu: HOSTS,
        mode,
        wires: true,
        ..RackOptions::default()
    });
    let _wires =
        Impairment::in_rack(&cluster.binaries, &cluster.rack, 0, |_, _| Faults::default()).unwrap();
    let wires = cluster.rack.wires().unwrap();
    for device in ["w0", "s0", "w1", "s1"] {
        ip(wires, &format!("link set {device} mtu {SWITCH}"));
    }
    let lanes = cluster.run_ranks(2, "train", |rank, builder| {
        let communicator = builder.connect().unwrap();
        let mut values = vec![rank as i32 + 1; 100_000];
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        assert!(values.iter().all(|&sum| sum == 3));
        let info = communicator.info().clone();
        communicator.close().unwrap();
        (info.chunk_lanes, info.narrow.map(|narrow| narrow.to_string()))
    });
    for (lanes, narrow) in lanes {
        // 11 blocks of 32 lanes fill 1500 bytes.
        assert_eq!(lanes, 352);
        let told = narrow.unwrap();
        let expected = "IP packets of 1468 bytes pass the way to 10.88.0.254 and back, those of \
                        1596 vanish although eth0 takes 3500: something on the way has a smaller \
                        MTU";
        assert!(told.starts_with(expected), "{told}");
    }
    let mut doctor = doctor(&cluster, cluster.rack.worker(0));
    doctor.wait_success(PATIENCE).unwrap();
    let text = doctor.stdout();
    assert!(
        text.contains("IP packets of 1468 bytes (352 lanes) pass both ways; larger ones do not"),
        "{text}"
    );
    let told = doctor.stderr();
    assert!(
        told.starts_with("switchml: rank 0 of job \"doctor-") && told.lines().count() == 1,
        "{told}"
    );
    cluster.stop();
}

fn a_rank_on_the_aggregators_own_host_is_told_so(mode: Mode) {
    let cluster = Cluster::in_mode(1, mode);
    let mut doctor = doctor(&cluster, cluster.rack.switch());
    let status = doctor.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(3));
    let text = doctor.stdout();
    let expected = "the data path to 10.88.0.254:48864 is closed: this rank runs on the \
                    aggregator's own host, so its packets do not come in through the ports that \
                    the data plane serves; start switchml-aggregator with --iface lo as well, or \
                    run this rank on another host";
    assert!(text.lines().last().unwrap().ends_with(expected), "{text}");
    cluster.stop();
}
