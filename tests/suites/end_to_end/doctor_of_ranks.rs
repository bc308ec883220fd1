//! `switchml-worker doctor` without an aggregator: each cause that keeps the hosts of ranks from
//! serving each other is named by all ranks, and its command fixes it.

use std::process::Command;

use switchml_rack::{Binaries, Ip, Process, Rack, RackOptions, needs_racks};

use crate::doctor::{Said, filter, routed, shell};
use crate::local_results::rack;
use crate::{PATIENCE, host_name};

/// Starts the doctor as a rank of so many, on a host.
fn start(rack: &Rack, host: usize, rank: usize, world_size: usize, options: &[&str]) -> Process {
    let mut command = Command::new(&Binaries::for_test().unwrap().worker);
    command.env_remove("SWITCHML_AGGREGATOR");
    command.env("MASTER_ADDR", rack.address(0).to_string()).env("MASTER_PORT", "29500");
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", world_size.to_string());
    command.arg("doctor").args(options);
    rack.worker(host).spawn(&format!("rank {rank}"), command).unwrap()
}

fn end(mut rank: Process) -> Said {
    let code = rank.wait(PATIENCE).unwrap().code();
    Said { code, text: rank.stdout() + &rank.stderr() }
}

/// Runs the doctor as all ranks, so many on each host.
fn all(rack: &Rack, per_host: &[usize]) -> Vec<Said> {
    let hosts = per_host.iter().enumerate().flat_map(|(host, ranks)| vec![host; *ranks]);
    let world_size = per_host.iter().sum();
    let start = |(rank, host)| start(rack, host, rank, world_size, &[]);
    let ranks: Vec<_> = hosts.enumerate().map(start).collect();
    ranks.into_iter().map(end).collect()
}

fn are_content(rack: &Rack, per_host: &[usize]) {
    all(rack, per_host).iter().for_each(Said::is_content);
}

/// A rank as the doctor names it.
fn named(rack: &Rack, rank: usize) -> String {
    format!("rank {rank} ({}, host {})", rack.address(rank), host_name())
}

/// All ranks blame the same, and name the same command. Returns where to run it, and the command.
fn all_blame(said: &[Said], cause: &str) -> (String, String) {
    for rank in said {
        assert_eq!(rank.code, Some(3), "{}", rank.text);
        assert_eq!(rank.blames(cause), said[0].blames(cause), "{}", rank.text);
    }
    let (host, command) = said[0].blames(cause);
    (host.to_owned(), command.to_owned())
}

#[test]
fn where_all_is_well_nothing_is_named() {
    needs_racks!();
    let two = rack(2, Ip::V4);
    for per_host in [&[2, 2][..], &[1, 3], &[1, 1]] {
        are_content(&two, per_host);
    }
    are_content(&rack(3, Ip::V4), &[1, 1, 1]);
    are_content(&rack(2, Ip::V6), &[1, 2]);
    // On one host there is no way to try.
    let alone = all(&rack(1, Ip::V4), &[2]);
    alone.iter().for_each(Said::is_content);
    let lines = |said: &Said| said.text.lines().count();
    assert_eq!(alone.iter().map(lines).collect::<Vec<_>>(), [2, 2]);
}

/// The firewall of a host drops UDP that comes in from the other.
#[test]
fn udp_that_a_firewall_drops_on_its_way_in_is_named() {
    needs_racks!();
    let rack = rack(2, Ip::V4);
    filter(rack.worker(1), "input", "meta l4proto udp drop");
    let said = all(&rack, &[1, 1]);
    let [sender, receiver] = [0, 1].map(|rank| named(&rack, rank));
    let cause =
        format!("filtered UDP: the firewall of {receiver} drops it on its way in from {sender}");
    let (host, command) = all_blame(&said, &cause);
    assert_eq!(host, receiver);
    shell(rack.worker(1), &command);
    are_content(&rack, &[1, 1]);
}

#[test]
fn udp_that_a_firewall_drops_on_its_way_out_is_named() {
    needs_racks!();
    let rack = rack(3, Ip::V4);
    let [_, receiver, _] = [0, 1, 2].map(|rank| rack.address(rank));
    filter(rack.worker(2), "output", &format!("ip daddr {receiver} meta l4proto udp drop"));
    let said = all(&rack, &[1, 1, 1]);
    let [_, to, from] = [0, 1, 2].map(|rank| named(&rack, rank));
    let cause = format!("filtered UDP: the firewall of {from} drops it on its way out to {to}");
    let (host, command) = all_blame(&said, &cause);
    assert_eq!(host, from);
    shell(rack.worker(2), &command);
    are_content(&rack, &[1, 1, 1]);
}

/// Ranks meet at a port that is open, but a job needs others, also on each host itself.
#[test]
fn tcp_to_other_ports_than_the_meetings_is_tried() {
    needs_racks!();
    let rack = rack(3, Ip::V4);
    filter(rack.worker(1), "input", "tcp dport != 29500 ct state new drop");
    let said = all(&rack, &[1, 1, 1]);
    let [first, closed, last] = [0, 1, 2].map(|rank| named(&rack, rank));
    let cause = format!(
        "filtered TCP: the firewall of {closed} drops it on its way in from {first}, {closed}, \
         {last}"
    );
    let (host, command) = all_blame(&said, &cause);
    assert_eq!(host, closed);
    shell(rack.worker(1), &command);
    are_content(&rack, &[1, 1, 1]);
}

/// The report of another rank does not arrive at rank 0, which is what each of the two says.
#[test]
fn a_rank_0_that_nobody_reaches_is_named() {
    needs_racks!();
    let rack = rack(2, Ip::V4);
    filter(rack.worker(0), "input", "tcp dport != 29500 ct state new drop");
    let said = all(&rack, &[1, 1]);
    for rank in &said {
        assert_eq!(rank.code, Some(3), "{}", rank.text);
    }
    let first = named(&rack, 0);
    let senders = format!("{first}, rank 1 ({})", rack.address(1));
    let cause =
        format!("filtered TCP: the firewall of {first} drops it on its way in from {senders}");
    let (host, command) = said[0].blames(&cause);
    assert_eq!(host, first);
    said[1].blames(&format!("filtered TCP: it does not arrive from {}", named(&rack, 1)));
    shell(rack.worker(0), command);
    are_content(&rack, &[1, 1]);
}

#[test]
fn a_router_between_hosts_is_named() {
    needs_racks!();
    let options = RackOptions { workers: 2, topology: routed(), ..RackOptions::default() };
    let rack = Rack::new(options).unwrap();
    let router = rack.network().unwrap();
    are_content(&rack, &[1, 1]);
    let [from, to] = [0, 1].map(|rank| rack.address(rank));
    let rule = format!("ip saddr {from} ip daddr {to} meta l4proto udp");
    filter(router, "forward", &format!("{rule} reject with icmp admin-prohibited"));
    let said = all(&rack, &[1, 1]);
    let (host, command) = all_blame(&said, " refuses it from rank 0 (");
    assert!(!host.contains("rank"), "{host}");
    shell(router, &command);
    are_content(&rack, &[1, 1]);
}

#[test]
fn a_smaller_mtu_is_a_remark() {
    needs_racks!();
    let rack = Rack::new(RackOptions { workers: 2, mtu: 3500, ..RackOptions::default() }).unwrap();
    are_content(&rack, &[1, 1]);
    shell(rack.worker(1), "ip link set dev eth0 mtu 1500");
    let receiver = named(&rack, 1);
    for rank in all(&rack, &[1, 1]) {
        let cause = format!("smaller MTU: eth0 of {receiver} takes 1500; IP packets of 128 bytes");
        assert_eq!(rank.remarks(&cause), (&*receiver, "ip link set dev eth0 mtu 3500"));
    }
    shell(rack.worker(1), "ip link set dev eth0 mtu 3500");
    are_content(&rack, &[1, 1]);
}

#[test]
fn ranks_that_do_not_come_are_named() {
    needs_racks!();
    let rack = rack(2, Ip::V4);
    let first = end(start(&rack, 0, 0, 2, &["--join-timeout", "1"]));
    assert_eq!(first.code, Some(3), "{}", first.text);
    assert!(first.text.contains("rank 1 of 2 is missing"), "{}", first.text);
    let alone = end(start(&rack, 1, 1, 2, &["--join-timeout", "1"]));
    assert_eq!(alone.code, Some(3), "{}", alone.text);
    let place = rack.address(0);
    let cause = format!("no process listens: {place} is up, and refuses TCP to port 29500");
    assert_eq!(
        alone.blames(&cause),
        (&*format!("rank 0 ({place})"), "switchml-worker doctor --rank 0")
    );
    filter(rack.worker(0), "input", "tcp dport 29500 drop");
    let alone = end(start(&rack, 1, 1, 2, &["--join-timeout", "1"]));
    alone.blames(&format!("filtered TCP: nothing comes back from port 29500 of {place}"));
}
