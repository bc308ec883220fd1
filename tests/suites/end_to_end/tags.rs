//! Ranks in a VLAN; and tags that a device removes from a frame and passes on outside of it, where
//! XDP cannot see them.

use std::process::Command;

use switchml_rack::{
    AGGREGATOR_ADDRESS, Mode, Namespace, Rack, RackOptions, in_both_modes, needs_racks, wait_until,
};
use switchml_worker::ReduceOp;

use crate::{Cluster, PATIENCE, report};
use switchml_rack::raw_socket::RawSocket;
use switchml_test_support::frame::{Envelope, Packet};

in_both_modes! {
    ranks_in_a_vlan_get_right_sums,
    ranks_in_different_vlans_are_told_so,
    a_tag_that_a_device_inserts_is_seen,
}

const AGGREGATOR_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0xFE];
/// A tag of 802.1ad, which is not served.
const TAG: [u8; 4] = [0x88, 0xA8, 0x00, 0x05];
/// Offset of the EtherType, behind both MACs.
const ETHERTYPE: usize = 12;

fn tool(namespace: &Namespace, line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    String::from_utf8(namespace.output(command).unwrap().stdout).unwrap()
}

/// In native XDP frames contain the tag; at tc ingress the kernel has removed it, of superpackets,
/// too.
fn ranks_in_a_vlan_get_right_sums(mode: Mode) {
    let vlans = vec![5; 4];
    let cluster = Cluster::new(RackOptions { mode, vlans, ..RackOptions::default() });
    let arguments = ["-b", "8", "-e", "4M", "-f", "724", "--dtype", "i32", "-n", "5"];
    let report = report(cluster.bench(4, "tagged", &arguments));
    assert_eq!(report["out_of_bounds"], 0, "{report}");
    assert_eq!(report["lanes"], 352, "{report}");
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(
            (&row["out_of_place"]["wrong"], &row["in_place"]["wrong"]),
            (&0.into(), &0.into())
        );
    }
    assert_eq!(cluster.counter("vlan"), 0);
    // If multicast did not arrive, three ranks would ask again for each RESULT.
    let (completed, replayed) = (cluster.counter("completed"), cluster.counter("replayed"));
    assert!(replayed < completed / 2, "{replayed} of {completed}");
}

/// Rule 5.11.
fn ranks_in_different_vlans_are_told_so(mode: Mode) {
    let vlans = vec![0, 5];
    let cluster = Cluster::new(RackOptions { workers: 2, mode, vlans, ..RackOptions::default() });
    let errors = cluster.run_ranks(2, "mixed", |_, builder| {
        let connected = builder.connect();
        connected
            .and_then(|communicator| communicator.all_reduce(&mut [1.0f32], ReduceOp::Sum))
            .expect_err("refused")
            .to_string()
    });
    for error in errors {
        let expected = "rank 0 is in no VLAN, rank 1 in VLAN 5, but RESULTs go to all in one \
                        frame; have all ranks of a job in one VLAN";
        assert!(error.contains(expected), "{error}");
    }
}

/// Sends frames like a sub-interface for a VLAN on `eth0`: the tag is kept beside the frame, and
/// the device inserts it. A bridge does the same: the kernel removes the tag of frames that come in
/// at one port, and lets the device of the other port insert it again.
fn behind_a_bridge(worker: &Namespace) -> RawSocket {
    tool(worker, "ip link add tagger type bridge");
    tool(worker, "ip link set tagger up");
    tool(worker, "ip link add source type veth peer name sink");
    for port in ["eth0", "sink"] {
        tool(worker, &format!("ip link set {port} master tagger up"));
    }
    tool(worker, "ip link set source up");
    // A bridge drops frames until the kernel has told it of the ports' carrier.
    wait_until!(
        PATIENCE,
        tool(worker, "ip -d link show master tagger").matches("state forwarding").count() >= 2,
        "the bridge does not forward"
    );
    RawSocket::open_on(worker, "source", 0)
}

fn a_tag_that_a_device_inserts_is_seen(mode: Mode) {
    let cluster = Cluster::in_mode(1, mode);
    let socket = behind_a_bridge(cluster.rack.worker(0));
    // The packet belongs to a job that does not exist: if it is served, it is counted as such.
    let packet = Packet::hello(0, 32);
    let envelope = Envelope {
        mac_destination: AGGREGATOR_MAC,
        source: Rack::worker_address(0).octets(),
        destination: AGGREGATOR_ADDRESS.octets(),
        ..packet.request()
    };
    let untagged = envelope.bytes(&packet.bytes());
    let mut tagged = untagged.clone();
    tagged.splice(ETHERTYPE..ETHERTYPE, TAG);
    socket.send(&tagged);
    socket.send(&untagged);
    wait_until!(PATIENCE, cluster.counter("unknown_job") != 0, "the untagged one does not arrive");
    assert_eq!((cluster.counter("vlan"), cluster.counter("unknown_job")), (1, 1));
    cluster.stop();
}

/// Whether the ports remove tags of both kinds.
fn strips(cluster: &Cluster) -> [bool; 2] {
    let features = tool(cluster.rack.switch(), "ethtool -k p0");
    ["rx-vlan-offload", "rx-vlan-stag-hw-parse"].map(|name| {
        let line = features
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{features}"));
        line.contains(": on")
    })
}

#[test]
fn ports_take_off_no_tags_while_xdp_runs() {
    needs_racks!();
    let mut cluster = Cluster::in_mode(1, Mode::Native);
    assert_eq!(strips(&cluster), [false; 2]);
    let log = cluster.aggregator.process().stderr();
    let line = "interface p0: it leaves VLAN tags in frames (rxvlan off) while XDP runs there";
    assert_eq!(log.matches(line).count(), 1, "{log}");
    // A daemon that takes over knows which offloads were on, even if they were switched on
    // meanwhile.
    cluster.aggregator.process().kill().unwrap();
    assert_eq!(strips(&cluster), [false; 2]);
    tool(cluster.rack.switch(), "ethtool -K p0 rxvlan on");
    cluster.restart();
    assert_eq!(strips(&cluster), [false; 2]);
    cluster.aggregator.process().terminate(PATIENCE).unwrap();
    assert_eq!(strips(&cluster), [true; 2]);
    // Offloads that were off before stay off; `detach` does the same as a daemon that ends.
    tool(cluster.rack.switch(), "ethtool -K p0 rxvlan off");
    cluster.restart();
    cluster.aggregator.process().kill().unwrap();
    cluster.ask(&["detach"]);
    assert_eq!(strips(&cluster), [false, true]);
}

/// No setting of the port shows the tags that its other end removes. The log says so, with what
/// helps.
#[test]
fn a_veth_whose_other_end_may_hide_tags_is_named() {
    needs_racks!();
    let line = "interface p0 is a veth, whose other end hides VLAN tags from XDP: answers to \
                tagged frames go out without a tag until `ethtool -K <other end> txvlan off \
                tx-vlan-stag-hw-insert off`; or use --mode bundle";
    for (mode, times) in [(Mode::Native, 1), (Mode::Auto, 0)] {
        let mut cluster = Cluster::in_mode(1, mode);
        let log = cluster.aggregator.process().stderr();
        assert_eq!(log.matches(line).count(), times, "{log}");
        cluster.stop();
    }
}

#[test]
fn at_tc_ingress_tags_may_be_taken_off() {
    needs_racks!();
    let cluster = Cluster::in_mode(1, Mode::Auto);
    assert_eq!(strips(&cluster), [true; 2]);
    cluster.stop();
}
