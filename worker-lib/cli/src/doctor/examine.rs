//! Looks for the cause of a failed step.

use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

use switchml_host::interfaces;
use switchml_protocol::LANES_PER_BLOCK;
use switchml_worker::control::{self, Access, Assigned, Membership};
use switchml_worker::interface::Interface;
use switchml_worker_core::engine::Identity;
use switchml_worker_core::hello::{Hello, HelloStep};
use switchml_worker_core::packet::{ip_packet_len, packet_len};

use super::TIMEOUT;
use super::cause::{Cause, Instead, Narrow, SmallMtu};
use super::counters::Counters;
use super::firewall;
use super::here::{self, Here};
use super::judge::{Aggregator, Evidence};
use super::probes::{Complaint, Outcome, Probes, What};

/// Wait for a connection attempt to fail.
const CONNECT: Duration = Duration::from_millis(500);
/// Most routers on the path to ask for.
const MOST_ROUTERS: u32 = 8;

/// Why the control plane at this address cannot be reached. `before` are the counters from before
/// the attempt.
pub fn control_plane(target: SocketAddr, before: &Counters) -> Option<Cause> {
    match TcpStream::connect_timeout(&target, CONNECT) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            return Some(Cause::NobodyListens(target));
        }
        // The connection works now.
        Ok(_) => return None,
        Err(_) => {}
    }
    gather(target, &[0], before, None)?.cause()
}

/// Why nothing comes back on the data path. `name` names a job for this examination.
pub fn data_path(access: &Access, name: &str) -> Option<Cause> {
    as_member(access, name, |assigned| closed_path(access, assigned)).flatten()
}

/// Does something as the only rank of a job.
pub fn as_member<T>(access: &Access, name: &str, action: impl FnOnce(&Assigned) -> T) -> Option<T> {
    let (membership, assigned) =
        Membership::join(access.clone(), name, 0, 1, Some(1), TIMEOUT).ok()?;
    let outcome = action(&assigned);
    membership.leave();
    Some(outcome)
}

fn closed_path(access: &Access, assigned: &Assigned) -> Option<Cause> {
    let evidence = datagrams(access, assigned)?;
    match evidence.outcome.answers {
        0 => evidence.cause(),
        _ => narrow_path(&evidence.here, assigned, evidence.aggregator.as_ref()?, 0, 0),
    }
}

/// What happens to HELLOs as datagrams; `None` on the aggregator's own host.
pub fn datagrams(access: &Access, assigned: &Assigned) -> Option<Evidence> {
    let target = assigned.data_address;
    if Interface::has(target.ip()) {
        // The step has said that this is the aggregator's own host.
        return None;
    }
    let before = Counters::read(target.is_ipv6());
    let hello = hello(assigned, 0);
    let mut evidence = gather(target, &hello, &before, None)?;
    evidence.aggregator = aggregator(access, assigned);
    Some(evidence)
}

/// Where the path takes no packets of more than `narrow` lanes with `around` bytes, why this rank
/// `has_copies` of results, and other causes that the aggregator sees on the path. `name` names a
/// job for this examination.
pub fn open_path(
    access: &Access,
    name: &str,
    (narrow, around): (Option<u16>, usize),
    has_copies: bool,
) -> Vec<Cause> {
    let Ok((membership, assigned)) = Membership::join(access.clone(), name, 0, 1, Some(1), TIMEOUT)
    else {
        let lost = Cause::LostMulticast { group: None, instead: Instead::Copies };
        return has_copies.then_some(lost).into_iter().collect();
    };
    let mut causes = Vec::new();
    if has_copies {
        let group = assigned.shards().next().and_then(|(_, group)| group);
        causes.push(lost_group(assigned.data_address, group, None, Instead::Copies));
    }
    if let Some(aggregator) = aggregator(access, &assigned) {
        causes.extend(aggregator.foreign_program());
        let here = Here::towards(assigned.data_address.ip());
        if let Some((lanes, here)) = narrow.zip(here.as_ref()) {
            causes.extend(narrow_path(here, &assigned, &aggregator, lanes.into(), around));
        }
        let link = here.map(|here| here.interface.name);
        let link = link.and_then(|name| interfaces::link_speed(&name).map(|speed| (name, speed)));
        causes.extend(link.and_then(|(name, speed)| aggregator.slow_port(&name, speed)));
    }
    membership.leave();
    causes
}

/// Why results to a group do not arrive from `target`; `named` is the group to name, if any.
pub fn lost_group(
    target: SocketAddr,
    group: Option<SocketAddrV4>,
    named: Option<SocketAddrV4>,
    instead: Instead,
) -> Cause {
    match group.filter(|group| firewall::drops_group(*group, target).unwrap_or(false)) {
        Some(group) => {
            Cause::FilteredGroup { group, chains: firewall::chains("input", false), instead }
        }
        None => Cause::LostMulticast { group: named, instead },
    }
}

/// The aggregator's view of this rank's path.
pub fn aggregator(access: &Access, assigned: &Assigned) -> Option<Aggregator> {
    let reply = control::examine(access.clone(), assigned, 0, TIMEOUT).ok()?;
    let ports = control::status(access.clone(), TIMEOUT).ok()?.ports;
    Some(Aggregator { reply, ports })
}

/// Sends packets to a target from which nothing comes back, and gathers what happens to them.
pub fn gather(
    target: SocketAddr,
    packet: &[u8],
    before: &Counters,
    aggregator: Option<Aggregator>,
) -> Option<Evidence> {
    let probes = Probes::to(target).ok()?;
    let outcome = probes.burst(packet);
    let growth = Counters::read(target.is_ipv6()).since(before);
    let here = Here::towards(target.ip())?;
    let mut frames: Vec<_> = growth.frames.iter().filter(|(_, frames)| **frames > 0).collect();
    frames.sort_by_key(|(_, frames)| std::cmp::Reverse(**frames));
    let other =
        |name: &&String| target.is_ipv4() && **name != here.interface.name && here::is_strict(name);
    let strict = frames.into_iter().map(|(name, _)| name).filter(other).cloned().collect();
    let last_router = here.gateway.and_then(|_| probes.walk(packet, MOST_ROUTERS).0.pop());
    let chains = ["output", "input"].map(|hook| firewall::chains(hook, target.is_ipv6()));
    Some(Evidence { target, here, outcome, growth, strict, last_router, chains, aggregator })
}

/// Where packets of more than `lanes` lanes vanish, which have `around` bytes more than datagrams.
fn narrow_path(
    here: &Here,
    assigned: &Assigned,
    aggregator: &Aggregator,
    lanes: usize,
    around: usize,
) -> Option<Cause> {
    let target = assigned.data_address;
    let mut large = hello(assigned, lanes + LANES_PER_BLOCK);
    large.resize(large.len() + around, 0);
    let mtu = here.interface.mtu;
    let port = aggregator.mtu().filter(|(_, small)| *small < mtu);
    let place = match port {
        Some((port, small)) => Narrow::Port(port, small),
        None => {
            let probes = Probes::to(target).ok()?;
            let Outcome { complaints, .. } = probes.burst(&large);
            let too_large = |complaint: &Complaint| match complaint.what {
                What::TooLarge(mtu) => Some(Narrow::Router(complaint.from, mtu, target.ip())),
                _ => None,
            };
            let told = complaints.iter().find_map(too_large);
            let walk = || here.gateway.and_then(|_| probes.walk(&large, MOST_ROUTERS).0.pop());
            told.unwrap_or_else(|| Narrow::Silent(walk()))
        }
    };
    Some(Cause::SmallMtu(SmallMtu {
        interface: here.interface.name.clone(),
        mtu,
        passes: ip_packet_len(hello(assigned, lanes).len() + around, target.is_ipv6()) as u32,
        vanishes: ip_packet_len(large.len(), target.is_ipv6()) as u32,
        works: lanes > 0,
        place,
    }))
}

/// A rank's HELLO of `lanes` lanes.
fn hello(assigned: &Assigned, lanes: usize) -> Vec<u8> {
    let identity = identity(assigned);
    let mut packet = vec![0; packet_len(lanes) + identity.tag_len()];
    let mut hello = Hello::new(identity, assigned.hello_secret, packet.len(), lanes as u16);
    if let HelloStep::Send(header) = hello.step(0) {
        hello.fill(&header, &mut packet);
    }
    packet
}

/// How the only rank of a job refers to itself in packets.
pub fn identity(assigned: &Assigned) -> Identity {
    let &Assigned { job, epoch, keys, .. } = assigned;
    Identity { job, epoch, rank: 0, ranks: 1, keys }
}
