//! Causes every kind of trouble that keeps packets from passing; `switchml-worker doctor` names
//! each, and the command that it gives fixes it. The doctor runs without any privilege.

use std::os::fd::AsFd;
use std::process::Command;

use libbpf_rs::{Xdp, XdpFlags};
use switchml_rack::{
    AGGREGATOR_ADDRESS, Aggregator, Binaries, Fabric, Mode, Multicast, Namespace, Rack,
    RackOptions, Router, Shaping, Topology, filter_udp_at_ingress, in_both_modes, load_udp_filter,
    needs_racks, skip,
};

use crate::{Cluster, PATIENCE, drops_of_xdp};

in_both_modes! {
    where_all_is_well_nothing_is_named,
    lost_multicast,
    multicast_filtered_by_this_host,
    a_port_filtered_on_the_way_out_of_this_host,
    a_port_filtered_on_the_way_in_to_this_host,
    a_port_filtered_by_a_router,
    a_router_that_refuses_a_port_is_named,
    a_smaller_mtu_that_its_router_tells,
    a_smaller_mtu_that_nobody_tells,
    a_smaller_mtu_at_the_aggregators_port,
    a_missing_neighbour,
    nobody_who_listens,
    a_wrong_neighbour,
    a_foreign_program_at_this_host,
    an_aggregator_that_is_not_on_that_port,
    an_asymmetric_route,
    causes_behind_two_routers,
    causes_in_a_vlan,
    rdma_that_neither_side_has,
}

const HERE: &str = "this host";
const THERE: &str = "the aggregator's host";

/// The output of the doctor.
pub struct Said {
    pub code: Option<i32>,
    pub text: String,
}

/// Runs the doctor on a worker, without any capability.
fn doctor(cluster: &Cluster, rank: usize) -> Said {
    run(cluster, rank, unprivileged(cluster))
}

/// The worker's command line, without any capability.
fn unprivileged(cluster: &Cluster) -> Command {
    let arguments = ["--bounding-set=-all", "--inh-caps=-all"];
    let mut command = Command::new("setpriv");
    command.args(arguments).arg(&cluster.binaries.worker);
    command
}

/// Runs the doctor on a worker, with all capabilities.
fn privileged_doctor(cluster: &Cluster, rank: usize) -> Said {
    run(cluster, rank, Command::new(&cluster.binaries.worker))
}

fn run(cluster: &Cluster, rank: usize, command: Command) -> Said {
    run_with(cluster, rank, command, &[])
}

/// Runs the doctor with further options.
fn run_with(cluster: &Cluster, rank: usize, mut command: Command, options: &[&str]) -> Said {
    command.args(["doctor", "--aggregator", cluster.aggregator.control()]).args(options);
    let mut doctor = cluster.rack.worker(rank).spawn("doctor", command).unwrap();
    let code = doctor.wait(PATIENCE).unwrap().code();
    Said { code, text: doctor.stdout() }
}

impl Said {
    /// The rest of each line with this beginning.
    pub fn lines(&self, begin: &str) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.strip_prefix(begin)).collect()
    }

    /// Checks that the doctor names this cause and no other. Returns the host and the command that
    /// fixes it.
    pub fn blames(&self, cause: &str) -> (&str, &str) {
        let causes = self.lines("WHY   ");
        assert!(matches!(causes[..], [only] if only.contains(cause)), "{cause}\n{}", self.text);
        assert!(self.code != Some(0), "{}", self.text);
        self.fix()
    }

    /// Checks that all works, but less well than it could for this reason.
    pub fn remarks(&self, cause: &str) -> (&str, &str) {
        let remarks = self.lines("NOTE  ");
        assert!(matches!(remarks[..], [only] if only.contains(cause)), "{cause}\n{}", self.text);
        assert!(self.lines("WHY   ").is_empty(), "{}", self.text);
        assert_eq!(self.code, Some(0), "{}", self.text);
        self.fix()
    }

    fn fix(&self) -> (&str, &str) {
        let fixes = self.lines("FIX   on ");
        let &[fix] = &fixes[..] else { panic!("{}", self.text) };
        fix.split_once(": ").unwrap()
    }

    pub fn is_content(&self) {
        assert_eq!(self.code, Some(0), "{}", self.text);
        assert!(self.text.lines().all(|line| line.starts_with("ok ")), "{}", self.text);
    }
}

/// Types a line in a namespace.
pub fn shell(namespace: &Namespace, line: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    namespace.output(command).unwrap();
}

fn rack(mode: Mode, topology: Topology) -> RackOptions {
    RackOptions { workers: 2, mode, topology, ..RackOptions::default() }
}

fn one_nic(multicast: Multicast) -> Topology {
    Topology::OneNic(Fabric { multicast, ..Fabric::default() })
}

pub fn routed() -> Topology {
    Topology::Routed(Router::default())
}

/// Sets up a firewall with a chain at each hook, like those of distributions, that drops by this
/// rule.
pub fn filter(namespace: &Namespace, hook: &str, rule: &str) {
    shell(namespace, "nft add table inet filter");
    for hook in ["input", "forward", "output"] {
        let chain = format!("{hook} '{{ type filter hook {hook} priority 0 ; }}'");
        shell(namespace, &format!("nft add chain inet filter {chain}"));
    }
    shell(namespace, &format!("nft add rule inet filter {hook} {rule}"));
}

fn where_all_is_well_nothing_is_named(mode: Mode) {
    for topology in [Topology::Star, one_nic(Multicast::Flooded), one_nic(Multicast::Queried)] {
        let cluster = Cluster::new(rack(mode, topology));
        for rank in 0..2 {
            doctor(&cluster, rank).is_content();
        }
        privileged_doctor(&cluster, 0).is_content();
        cluster.stop();
    }
    // Routers pass no multicast; nothing else is wrong.
    for nat in [false, true] {
        let router = Router { nat, ..Router::default() };
        let cluster = Cluster::new(rack(mode, Topology::Routed(router)));
        doctor(&cluster, 0).remarks("lost multicast");
        cluster.stop();
    }
}

/// Restarts the daemon with this command, in the rack's mode.
fn start_as(cluster: Cluster, command: &str) -> Cluster {
    let mode = cluster.rack.mode().argument();
    start_exactly_as(cluster, &format!("{command} --mode {mode}"))
}

/// Restarts the daemon with this command.
fn start_exactly_as(cluster: Cluster, command: &str) -> Cluster {
    let Cluster { binaries, aggregator, rack, .. } = cluster;
    aggregator.stop().unwrap();
    let options: Vec<_> = command.split(' ').skip(1).collect();
    let aggregator = Aggregator::with_options(&binaries, &rack, &options).unwrap();
    Cluster { binaries, aggregator, rack, ranks_of_host: 1 }
}

fn lost_multicast(mode: Mode) {
    let options = rack(mode, one_nic(Multicast::Blocked));
    let cluster = Cluster::with_options(options, &["--fanout", "multicast"]);
    let said = doctor(&cluster, 0);
    let (host, command) = said.blames("lost multicast: results to 239.");
    let expected = "switchml-aggregator --fanout auto --iface nic0";
    assert_eq!((host, command), (THERE, expected));
    let cluster = start_as(cluster, command);
    let said = doctor(&cluster, 0);
    let (_, command) = said.remarks("lost multicast: results do not arrive");
    shell(cluster.rack.network().unwrap(), &command.replace("PORT", "p0"));
    doctor(&cluster, 0).is_content();
    cluster.stop();
}

/// Filters like the firewalls of distributions: only answers to packets that this host has sent
/// come in.
fn multicast_filtered_by_this_host(mode: Mode) {
    let cluster = Cluster::new(rack(mode, one_nic(Multicast::Flooded)));
    let worker = cluster.rack.worker(0);
    filter(worker, "input", "ct state established,related accept");
    shell(worker, "nft add rule inet filter input iifname lo accept");
    shell(worker, "nft add rule inet filter input udp sport 48864 ip daddr != 224.0.0.0/4 accept");
    shell(worker, "nft add rule inet filter input counter drop");
    let said = doctor(&cluster, 0);
    let (host, command) = said.remarks("filtered multicast: results to 239.");
    assert!(said.text.contains(" are dropped by this host's firewall"), "{}", said.text);
    assert_eq!(host, HERE);
    assert!(command.starts_with("iptables -I INPUT -d 239."), "{command}");
    let said = privileged_doctor(&cluster, 0);
    let (_, command) = said.remarks("filtered multicast: results to 239.");
    shell(worker, command);
    doctor(&cluster, 0).is_content();
    // Another rank is not affected.
    doctor(&cluster, 1).is_content();
    cluster.stop();
    // The doctor's remark is different when the network drops multicast.
    let cluster = Cluster::new(rack(mode, one_nic(Multicast::Blocked)));
    doctor(&cluster, 0).remarks("lost multicast");
    cluster.stop();
}

fn a_port_filtered_on_the_way_out_of_this_host(mode: Mode) {
    let cluster = Cluster::in_mode(1, mode);
    let worker = cluster.rack.worker(0);
    filter(worker, "output", "udp dport 48864 drop");
    let said = doctor(&cluster, 0);
    let (host, command) = said.blames("filtered port: UDP to port 48864 is dropped by this host's");
    assert_eq!(host, HERE);
    assert_eq!(command, "iptables -I OUTPUT -p udp --dport 48864 -j ACCEPT", "nothing is seen");
    assert!(said.text.contains("only root can see its rules"), "{}", said.text);
    let said = privileged_doctor(&cluster, 0);
    let (_, command) = said.blames("this host's firewall on its way out");
    shell(worker, command);
    doctor(&cluster, 0).is_content();
    cluster.stop();
}

fn a_port_filtered_on_the_way_in_to_this_host(mode: Mode) {
    let cluster = Cluster::in_mode(1, mode);
    let worker = cluster.rack.worker(0);
    filter(worker, "input", "udp sport 48864 drop");
    let said = privileged_doctor(&cluster, 0);
    let (host, command) = said.blames("UDP from port 48864 is dropped by this host's firewall");
    assert_eq!(host, HERE);
    shell(worker, command);
    doctor(&cluster, 0).is_content();
    cluster.stop();
}

/// Filters at the router, in both directions, are named, with a command that fixes them.
fn udp_filters_at_the_router_are_named(cluster: &Cluster, router: &Namespace, at: &str) {
    filter(router, "forward", "udp dport 48864 drop");
    let said = doctor(cluster, 0);
    let expected = format!("UDP to port 48864 gets to {at}, and is dropped");
    let (host, command) = said.blames(&expected);
    assert_eq!(host, format!("{at}, or the next one"));
    shell(router, command);
    doctor(cluster, 0).remarks("lost multicast");
    shell(router, "nft add rule inet filter forward udp sport 48864 drop");
    let said = doctor(cluster, 0);
    let (_, command) = said.blames("UDP to port 48864 gets to the aggregator, and its answers");
    shell(router, command);
    doctor(cluster, 0).remarks("lost multicast");
}

fn a_port_filtered_by_a_router(mode: Mode) {
    let cluster = Cluster::new(rack(mode, routed()));
    let router = cluster.rack.network().unwrap();
    udp_filters_at_the_router_are_named(&cluster, router, "10.88.1.254");
    let control = cluster.aggregator.control().rsplit(':').next().unwrap();
    shell(router, &format!("nft add rule inet filter forward tcp dport {control} drop"));
    let said = doctor(&cluster, 0);
    let (_, command) = said.blames(&format!("TCP to port {control} gets to 10.88.1.254"));
    shell(router, command);
    doctor(&cluster, 0).remarks("lost multicast");
    cluster.stop();
}

fn a_router_that_refuses_a_port_is_named(mode: Mode) {
    let cluster = Cluster::new(rack(mode, routed()));
    let router = cluster.rack.network().unwrap();
    filter(router, "forward", "udp dport 48864 reject with icmp admin-prohibited");
    let said = doctor(&cluster, 0);
    let (host, command) = said.blames("UDP to port 48864 is refused by 10.88.1.254");
    assert_eq!(host, "10.88.1.254");
    shell(router, command);
    doctor(&cluster, 0).remarks("lost multicast");
    cluster.stop();
}

/// A router whose link to the aggregator takes less than all others.
fn narrow(mode: Mode) -> Cluster {
    let cluster = Cluster::new(RackOptions { mtu: 3500, ..rack(mode, routed()) });
    shell(cluster.rack.network().unwrap(), "ip link set dev uplink mtu 1500");
    cluster
}

/// The remark about the MTU, besides one about a lost group: its line, and its fix.
fn mtu_remark(said: &Said) -> (String, String, String) {
    assert_eq!(said.code, Some(0), "{}", said.text);
    let remarks = said.lines("NOTE  ");
    let place = remarks.iter().position(|remark| remark.starts_with("smaller MTU"));
    let place = place.unwrap_or_else(|| panic!("{}", said.text));
    let (host, command) = said.lines("FIX   on ")[place].split_once(": ").unwrap();
    (remarks[place].to_owned(), host.to_owned(), command.to_owned())
}

fn a_smaller_mtu_that_its_router_tells(mode: Mode) {
    let cluster = narrow(mode);
    let (why, host, command) = mtu_remark(&doctor(&cluster, 0));
    let expected = "smaller MTU: 1500 behind 10.88.1.254, which says so; eth0 here takes 3500, IP \
                    packets of 1468 bytes pass, those of 1596 vanish";
    assert_eq!((why.as_str(), host.as_str()), (expected, "10.88.1.254"));
    shell(cluster.rack.network().unwrap(), &command);
    doctor(&cluster, 0).remarks("lost multicast");
    cluster.stop();
}

fn a_smaller_mtu_that_nobody_tells(mode: Mode) {
    let cluster = narrow(mode);
    filter(cluster.rack.network().unwrap(), "output", "icmp type destination-unreachable drop");
    let (why, host, command) = mtu_remark(&doctor(&cluster, 0));
    let expected = "smaller MTU: between 10.88.1.254 and the aggregator; eth0 here takes 3500";
    assert!(why.starts_with(expected), "{why}");
    assert_eq!((host.as_str(), command.as_str()), (HERE, "ip link set dev eth0 mtu 1500"));
    shell(cluster.rack.worker(0), &command);
    doctor(&cluster, 0).remarks("lost multicast");
    cluster.stop();
}

fn a_smaller_mtu_at_the_aggregators_port(mode: Mode) {
    let options = RackOptions { mtu: 3500, ..rack(mode, one_nic(Multicast::Flooded)) };
    let cluster = Cluster::new(options);
    let switch = cluster.rack.switch();
    shell(switch, "ip link set dev nic0 mtu 1500");
    let said = doctor(&cluster, 0);
    let (host, command) = said.remarks("smaller MTU: 1500 on nic0 of the aggregator's host");
    assert_eq!((host, command), (THERE, "ip link set dev nic0 mtu 3500"));
    shell(switch, command);
    doctor(&cluster, 0).is_content();
    cluster.stop();
}

fn a_missing_neighbour(mode: Mode) {
    let cluster = Cluster::in_mode(1, mode);
    let switch = cluster.rack.switch();
    shell(switch, "ip link set dev br0 arp off");
    let said = doctor(&cluster, 0);
    // To the doctor this looks as if the address were wrong.
    let (host, _) = said.blames(
        "missing neighbour: nobody answers ARP for 10.88.0.254 on eth0; no host there has this \
         address, or it is down",
    );
    assert_eq!(host, "this host, with the address of a host that is up");
    answer_arp(&cluster);
    doctor(&cluster, 0).is_content();
    cluster.stop();
}

/// Makes the switch answer ARP again, and clears the worker's pending requests, because the kernel
/// would make the next connection wait for their failure.
fn answer_arp(cluster: &Cluster) {
    shell(cluster.rack.switch(), "ip link set dev br0 arp on");
    shell(cluster.rack.worker(0), "ip neigh flush dev eth0");
}

/// The host is up, but no daemon runs.
fn nobody_who_listens(mode: Mode) {
    let Cluster { binaries, aggregator, rack, .. } = Cluster::in_mode(1, mode);
    let control = aggregator.control().to_owned();
    aggregator.stop().unwrap();
    let port = control.rsplit(':').next().unwrap();
    let mut command = Command::new(&binaries.worker);
    command.args(["doctor", "--aggregator", &control]);
    let mut doctor = rack.worker(0).spawn("doctor", command).unwrap();
    let said = Said { code: doctor.wait(PATIENCE).unwrap().code(), text: doctor.stdout() };
    let (host, command) = said.blames(&format!(
        "nobody listens: {AGGREGATOR_ADDRESS} is up, and refuses TCP to port {port}"
    ));
    assert_eq!(host, AGGREGATOR_ADDRESS.to_string());
    assert!(command.starts_with("switchml-aggregator --iface INTERFACE"), "{command}");
}

fn a_wrong_neighbour(mode: Mode) {
    let cluster = Cluster::in_mode(1, mode);
    let worker = cluster.rack.worker(0);
    shell(worker, "ip neigh replace 10.88.0.254 lladdr 02:00:00:00:00:99 dev eth0 nud permanent");
    let said = doctor(&cluster, 0);
    let (host, command) = said.blames("wrong neighbour: 10.88.0.254 was given the MAC 02:00:00:00");
    assert_eq!((host, command), (HERE, "ip neigh del 10.88.0.254 dev eth0"));
    shell(worker, command);
    doctor(&cluster, 0).is_content();
    cluster.stop();
}

/// Attaches a program to an interface that drops UDP, as protection against floods does. It stays
/// attached.
fn attach_udp_filter(namespace: &Namespace, interface: &'static str) {
    namespace.run(move || {
        let program = load_udp_filter().unwrap();
        let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"));
        let index = index.unwrap().trim().parse().unwrap();
        Xdp::new(program.as_fd()).attach(index, XdpFlags::DRV_MODE).unwrap();
    });
}

#[test]
fn a_foreign_program_at_the_aggregators_port() {
    needs_racks!();
    // In native XDP the aggregator's own program would be there.
    let cluster = Cluster::in_mode(2, Mode::Auto);
    let switch = cluster.rack.switch();
    attach_udp_filter(switch, "p1");
    doctor(&cluster, 0).is_content();
    let said = doctor(&cluster, 1);
    let (host, command) = said.blames("foreign XDP program: the program with id ");
    assert!(said.text.contains(" on p1 of the aggregator's host sees frames"), "{}", said.text);
    assert_eq!((host, command), (THERE, "ip link set dev p1 xdp off"));
    let status = cluster.ask(&["status", "--connect", cluster.aggregator.control()]);
    assert!(status.contains("\nfault        p1: XDP program "), "{status}");
    shell(switch, command);
    doctor(&cluster, 1).is_content();
    let status = cluster.ask(&["status", "--connect", cluster.aggregator.control()]);
    assert!(!status.contains("fault"), "{status}");
    cluster.stop();
}

#[test]
fn a_foreign_program_before_the_aggregators_at_tc_ingress() {
    needs_racks!();
    let cluster = Cluster::in_mode(2, Mode::Auto);
    let switch = cluster.rack.switch();
    let Ok(filter) = switch.run(|| filter_udp_at_ingress("p1")) else {
        return skip(
            "a_foreign_program_before_the_aggregators_at_tc_ingress",
            "programs are not attached at tc ingress by links before Linux 6.6",
        );
    };
    doctor(&cluster, 0).is_content();
    let said = doctor(&cluster, 1);
    let (host, command) = said.blames("foreign program: the program with id ");
    let place = " at tc ingress of p1 of the aggregator's host sees frames before the aggregator";
    assert!(said.text.contains(place), "{}", said.text);
    assert_eq!((host, command), (THERE, "systemctl restart switchml-aggregator"));
    drop(filter);
    doctor(&cluster, 1).is_content();
    cluster.stop();
}

fn a_foreign_program_at_this_host(mode: Mode) {
    // In `Mode::Native` the rack's own program would be there.
    let mode = if mode == Mode::Native { Mode::NativeWithGro } else { mode };
    let cluster = Cluster::in_mode(1, mode);
    let worker = cluster.rack.worker(0);
    attach_udp_filter(worker, "eth0");
    let said = doctor(&cluster, 0);
    let (host, command) = said.blames("on eth0 of this host sees frames before the rank does");
    assert_eq!((host, command), (HERE, "ip link set dev eth0 xdp off"));
    shell(worker, command);
    doctor(&cluster, 0).is_content();
    cluster.stop();
}

fn an_aggregator_that_is_not_on_that_port(mode: Mode) {
    let binaries = Binaries::for_test().unwrap();
    let rack = Rack::new(rack(mode, Topology::Star)).unwrap();
    let options = ["--iface", "p1", "--mode", mode.argument()];
    let aggregator = Aggregator::with_options(&binaries, &rack, &options).unwrap();
    let cluster = Cluster { binaries, aggregator, rack, ranks_of_host: 1 };
    doctor(&cluster, 1).is_content();
    let said = doctor(&cluster, 0);
    let (host, command) = said.blames(
        "aggregator not on that port: packets from here reach its host through p0, and it serves \
         p1",
    );
    assert_eq!((host, command), (THERE, "switchml-aggregator --iface p1 --iface p0"));
    let cluster = start_as(cluster, command);
    doctor(&cluster, 0).is_content();
    cluster.stop();
}

fn behind_two_routers() -> Topology {
    Topology::Routed(Router { core: Some(1500), ..Router::default() })
}

fn causes_behind_two_routers(mode: Mode) {
    let cluster = Cluster::new(rack(mode, behind_two_routers()));
    doctor(&cluster, 0).remarks("lost multicast");
    let routers = [(cluster.rack.network(), "10.88.1.254"), (cluster.rack.core(), "10.88.255.2")];
    for (router, at) in routers {
        udp_filters_at_the_router_are_named(&cluster, router.unwrap(), at);
    }
    cluster.stop();

    // The link between the routers is the narrow one.
    let cluster = Cluster::new(RackOptions { mtu: 3500, ..rack(mode, behind_two_routers()) });
    let (why, host, command) = mtu_remark(&doctor(&cluster, 0));
    assert!(why.starts_with("smaller MTU: 1500 behind 10.88.1.254, which says so"), "{why}");
    assert_eq!(host, "10.88.1.254");
    shell(cluster.rack.network().unwrap(), &command);
    // Now the second router's end of the link silently drops what the first one sends. The worker's
    // kernel would remember for ten minutes what it was told before.
    shell(cluster.rack.worker(0), "ip route flush cache");
    let (why, host, command) = mtu_remark(&doctor(&cluster, 0));
    let expected = "smaller MTU: between 10.88.1.254 and the aggregator; eth0 here takes 3500";
    assert!(why.starts_with(expected), "{why}");
    assert_eq!((host.as_str(), command.as_str()), (HERE, "ip link set dev eth0 mtu 1500"));
    cluster.stop();
}

/// Hosts in a VLAN see no tags, so nothing differs for them.
fn causes_in_a_vlan(mode: Mode) {
    let cluster = Cluster::new(RackOptions { vlans: vec![5; 2], ..rack(mode, Topology::Star) });
    let (worker, switch) = (cluster.rack.worker(0), cluster.rack.switch());
    doctor(&cluster, 0).is_content();
    filter(worker, "input", "udp sport 48864 drop");
    let said = privileged_doctor(&cluster, 0);
    let (_, command) = said.blames("UDP from port 48864 is dropped by this host's firewall");
    shell(worker, command);
    doctor(&cluster, 0).is_content();
    shell(worker, "ip neigh replace 10.88.0.254 lladdr 02:00:00:00:00:99 dev eth0 nud permanent");
    let said = doctor(&cluster, 0);
    let (_, command) = said.blames("wrong neighbour: 10.88.0.254 was given the MAC 02:00:00:00");
    shell(worker, command);
    doctor(&cluster, 0).is_content();
    // In this order: the end of the last connection could ask for the neighbour in between.
    shell(switch, "ip link set dev br0 arp off");
    shell(worker, "ip neigh flush dev eth0");
    doctor(&cluster, 0).blames("missing neighbour: nobody answers ARP for 10.88.0.254");
    answer_arp(&cluster);
    doctor(&cluster, 0).is_content();
}

/// Racks have no RDMA device, unless the machine has one, which has none of their addresses.
fn rdma_that_neither_side_has(mode: Mode) {
    let devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().count();
    let here = match devices {
        0 => "no RDMA: this host has no RDMA device",
        _ => "no RDMA: none of this host's RDMA devices (",
    };
    let by_option = |cluster: &Cluster| {
        let mut command = unprivileged(cluster);
        command.env_remove("SWITCHML_RDMA");
        run_with(cluster, 0, command, &["--rdma", "1"])
    };
    let by_environment = |cluster: &Cluster| {
        let mut command = unprivileged(cluster);
        command.env("SWITCHML_RDMA", "1");
        run(cluster, 0, command)
    };
    let cluster = Cluster::in_mode(1, mode);
    doctor(&cluster, 0).is_content();
    for said in [by_option(&cluster), by_environment(&cluster)] {
        let there = "no RDMA: the aggregator at 10.88.0.254:48864 does not take it (it has no \
                     --rocev2)";
        let causes = said.lines("WHY   ");
        assert!(causes.len() == 2 && causes[0].starts_with(here), "{}", said.text);
        assert_eq!((causes[1], said.code), (there, Some(1)), "{}", said.text);
    }
    let said = by_option(&cluster);
    let fix = said.lines("FIX   on the aggregator's host: ");
    assert_eq!(fix, ["switchml-aggregator --rocev2 --iface p0"]);
    let cluster = start_exactly_as(cluster, fix[0]);
    by_option(&cluster).blames(here);
    cluster.stop();
}

/// A worker with two links to a router, which takes the second one back.
fn an_asymmetric_route(mode: Mode) {
    let cluster = Cluster::new(rack(mode, routed()));
    let (worker, router) = (cluster.rack.worker(0), cluster.rack.network().unwrap());
    let peer = router.path();
    shell(worker, &format!("ip link add eth1 mtu 1500 type veth peer name q0 netns {peer}"));
    for line in ["ip address add 10.88.101.1/24 dev eth1", "ip link set eth1 up"] {
        shell(worker, line);
    }
    for line in [
        "ip address add 10.88.101.254/24 dev q0",
        "ip link set q0 up",
        "ip route add 10.88.1.1/32 via 10.88.101.1 dev q0",
    ] {
        shell(router, line);
    }
    shell(worker, "sysctl -w net.ipv4.conf.eth1.rp_filter=1");
    let said = doctor(&cluster, 0);
    let (host, command) = said.blames(
        "asymmetric route: packets to 10.88.0.254 leave through eth0, the answers come in through \
         eth1",
    );
    assert_eq!((host, command), (HERE, "sysctl -w net.ipv4.conf.eth1.rp_filter=2"));
    shell(worker, command);
    doctor(&cluster, 0).remarks("lost multicast");
    cluster.stop();
}

#[test]
fn gro_that_is_off() {
    needs_racks!();
    let cluster = Cluster::in_mode(2, Mode::NativeWithGro);
    let worker = cluster.rack.worker(1);
    doctor(&cluster, 1).is_content();
    shell(worker, "ethtool -K eth0 gro off");
    doctor(&cluster, 0).is_content();
    let said = doctor(&cluster, 1);
    let (host, command) = said.blames("GRO off: the other end of p1");
    assert_eq!((host, command), (HERE, "ethtool -K eth0 gro on"));
    let status = cluster.ask(&["status", "--connect", cluster.aggregator.control()]);
    assert!(status.contains("\nfault        p1: what XDP sends there is dropped"), "{status}");
    assert!(drops_of_xdp(&status, "p1") > 0, "its answers to the doctor: {status}");
    assert_eq!(drops_of_xdp(&status, "p0"), 0, "{status}");
    shell(worker, command);
    doctor(&cluster, 1).is_content();
    cluster.stop();
}

/// Of each 20 datagrams that come in here one is lost; all steps work all the same.
#[test]
fn a_path_that_loses_packets_is_told_with_the_part_that_it_loses() {
    let cluster = Cluster::new(rack(Mode::Auto, Topology::Star));
    filter(cluster.rack.worker(0), "input", "meta l4proto udp numgen random mod 20 0 drop");
    let said = doctor(&cluster, 0);
    let (host, command) = said.remarks("packets are lost: ");
    assert_eq!(host, "this host");
    assert!(command.starts_with("ip -s -s link show eth0; "), "{command}");
    doctor(&cluster, 1).is_content();
}

/// A virtual interface has no speed, so this is no remark.
#[test]
fn the_rate_of_a_slow_path_is_told() {
    let cluster = Cluster::new(rack(Mode::Auto, Topology::Star));
    let shaping = Shaping::of(cluster.rack.worker(0), 20_000_000).unwrap();
    // Its queue may overflow, which is a remark.
    let said = doctor(&cluster, 0);
    assert_eq!(said.code, Some(0), "{}", said.text);
    drop(shaping);
    let line = said.text.lines().find(|line| line.contains("burst")).expect("a burst");
    let (_, rate) = line.split_once(" packets were lost; ").expect("losses");
    let rate: f64 = rate.strip_suffix(" Mb/s each way").expect("a rate").parse().unwrap();
    // Of each MiB the link lets 128 KiB through at once after a pause.
    assert!((1.0..20.0 * 8.0 / 7.0).contains(&rate), "{line}");
}
