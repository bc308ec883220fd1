//! `doctor` of ranks that serve each other: the first rank of each host tries the ways to all
//! hosts, also to its own, and all ranks hear what all have found.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`listener`] | what a rank answers the others |
//! | [`report`] | what ranks tell each other |
//! | [`judge`] | what is wrong, by the reports of all |
//! | [`tries`] | the tries of the ways |

mod judge;
mod listener;
mod report;
mod tries;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_worker::interface::Interface;
use switchml_worker::{Builder, Error, MetRanks, ReduceOp};

use super::counters::Counters;
use super::fix::Fix;
use super::{Clock, Failure, TIMEOUT, explain, firewall, step};
use judge::{Finding, Place, Protocol, judge};
use listener::Listener;
use report::{End, Report};

/// From the meeting to the reports, which takes all tries: a connection that nobody answers, and
/// two bursts.
const TRYING: Duration = Duration::from_secs(3);
/// How much longer rank 0 waits for reports, and the others for its answer.
const LATE: Duration = Duration::from_secs(4);
/// Elements of the sum that ranks make in the end.
const ELEMENTS: usize = 16 << 10;

/// Prints a line for every step, of which the first that fails is the last, then the causes.
pub fn check(settings: &Builder) -> Result<(), Failure> {
    let mut found = Vec::new();
    let outcome = steps(settings, &mut found);
    for finding in &found {
        explain(finding, finding.breaks(), finding.fix());
    }
    outcome
}

fn steps(settings: &Builder, found: &mut Vec<Finding>) -> Result<(), Failure> {
    let mut listener = None;
    let met = step("meeting", || meet(settings, &mut listener))
        .inspect_err(|_| nobody_at_the_place(settings))?;
    let Some(listener) = listener else { return Ok(()) };
    let hosts = Hosts::of(&met.addresses);
    if hosts.0.len() > 1 {
        let reports = step("tcp", || {
            let (reports, all) = find(&met, &hosts, &listener);
            *found = all;
            verdict(found, Protocol::Tcp, &hosts).map(|detail| (reports, detail))
        })?;
        step("udp", || {
            let detail = verdict(found, Protocol::Udp, &hosts)?;
            Ok(((), detail + &sizes(&reports, found)))
        })?;
    }
    step("all-reduce", || reduce(settings))
}

/// Meets the other ranks, which are told the ports of this one.
fn meet(
    settings: &Builder,
    listener: &mut Option<Listener>,
) -> Result<(MetRanks, String), Failure> {
    let open = |address: IpAddr| {
        let opened = Listener::open(address).map_err(|error| Error::System {
            what: "a port for other ranks",
            why: error.to_string(),
        })?;
        Ok(listener.insert(opened).address)
    };
    let met = settings.meet_ranks(open).map_err(Failure::joining)?;
    let detail = Hosts::of(&met.addresses).to_string();
    Ok((met, detail))
}

/// The ranks of each host, by its address.
struct Hosts(BTreeMap<IpAddr, Vec<u16>>);

impl Hosts {
    fn of(addresses: &[SocketAddr]) -> Self {
        let mut hosts: BTreeMap<_, Vec<u16>> = BTreeMap::new();
        for (rank, address) in (0..).zip(addresses) {
            hosts.entry(address.ip()).or_default().push(rank);
        }
        Self(hosts)
    }

    /// Whether a rank tries the ways for its host.
    fn is_first(&self, rank: u16) -> bool {
        self.0.values().any(|ranks| ranks[0] == rank)
    }

    fn count(&self) -> String {
        match self.0.len() {
            1 => "1 host".to_owned(),
            hosts => format!("{hosts} hosts"),
        }
    }
}

impl std::fmt::Display for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks: usize = self.0.values().map(Vec::len).sum();
        write!(f, "{ranks} ranks on {}", self.count())?;
        for (place, (address, ranks)) in self.0.iter().enumerate() {
            let ranks: Vec<_> = ranks.iter().map(u16::to_string).collect();
            let ranks = ranks.join(", ");
            write!(f, "{} {ranks} on {address}", if place == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

/// The reports of all, and what is wrong by these; by this rank's own if it cannot hear of others.
fn find(met: &MetRanks, hosts: &Hosts, listener: &Listener) -> (Vec<Report>, Vec<Finding>) {
    let begin = Instant::now();
    let own = examine(met, hosts, listener, begin);
    let first = End {
        rank: 0,
        address: met.addresses[0].ip(),
        host: if met.rank == 0 { own.end.host.clone() } else { String::new() },
    };
    let reports = match met.rank {
        0 => collect(own, met.addresses.len(), listener, begin),
        _ => match exchange(&own, met.addresses[0]) {
            Ok(reports) => reports,
            Err(_) => return (Vec::new(), vec![unreported(vec![own.end], first, &[])]),
        },
    };
    let mut found = judge(&reports);
    let has_reported = |rank| reports.iter().any(|report| report.end.rank == rank);
    let silent: Vec<_> = (0..)
        .zip(&met.addresses)
        .filter(|(rank, _)| !has_reported(*rank))
        .map(|(rank, address)| End { rank, address: address.ip(), host: String::new() })
        .collect();
    let known = found.iter_mut().find_map(|finding| match finding {
        Finding::Blocked { protocol: Protocol::Tcp, from, to, .. } if to.rank == 0 => Some(from),
        _ => None,
    });
    match known {
        Some(from) => from.extend(silent),
        None if silent.is_empty() => {}
        None => found.push(unreported(silent, first, &reports)),
    }
    (reports, found)
}

/// That reports of these ranks do not arrive at rank 0.
fn unreported(from: Vec<End>, first: End, reports: &[Report]) -> Finding {
    let at_first = reports.iter().find(|report| report.end.rank == 0);
    let drops = at_first.is_some_and(|report| report.dropped > 0);
    Finding::Blocked {
        protocol: Protocol::Tcp,
        from,
        to: first,
        place: if drops { Place::In } else { Place::OnTheWay },
        chains: at_first.and_then(|report| report.chains[1].clone()),
    }
}

/// What this rank finds by itself.
fn examine(met: &MetRanks, hosts: &Hosts, listener: &Listener, begin: Instant) -> Report {
    let own = met.addresses[usize::from(met.rank)];
    let is_other = |(_, address): &(u16, SocketAddr)| address.ip() != own.ip();
    let other = (0..).zip(met.addresses.iter().copied()).find(is_other);
    let is_ipv6 = own.is_ipv6();
    let before = Counters::read(is_ipv6);
    let interface = other.and_then(|(_, address)| Interface::towards(address));
    let interface = interface.map(|interface| (interface.name, interface.mtu)).unwrap_or_default();
    // Ranks of a host reach each other by its own address.
    let firsts = (0..).zip(met.addresses.iter().copied());
    let firsts = firsts.filter(|(rank, _)| hosts.is_first(*rank));
    let tries = match hosts.is_first(met.rank) {
        true => tries::all(met.rank, firsts.collect(), interface.1),
        false => Vec::new(),
    };
    // Until others have tried the ways to here.
    sleep(TRYING.saturating_sub(begin.elapsed()));
    Report {
        end: End {
            rank: met.rank,
            address: own.ip(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        },
        interface,
        tries,
        arrived: listener.arrived(),
        dropped: Counters::read(is_ipv6).since(&before).dropped(),
        chains: ["output", "input"].map(|hook| firewall::chains(hook, is_ipv6)),
    }
}

/// The reports of all ranks that come in time, in the order of ranks; all of these ranks get them.
fn collect(own: Report, ranks: usize, listener: &Listener, begin: Instant) -> Vec<Report> {
    let (mut reports, mut streams) = (vec![own], Vec::new());
    while reports.len() < ranks {
        let left = (TRYING + LATE).saturating_sub(begin.elapsed());
        let Ok((report, stream)) = listener.visitors.recv_timeout(left) else { break };
        reports.push(report);
        streams.push(stream);
    }
    reports.sort_by_key(|report| report.end.rank);
    for stream in &streams {
        // A rank that has gone needs none.
        let _ = listener::send(stream, &reports);
    }
    reports
}

/// Tells rank 0 this report. Returns those of all ranks.
fn exchange(own: &Report, first: SocketAddr) -> io::Result<Vec<Report>> {
    let stream = TcpStream::connect_timeout(&first, LATE / 2)?;
    listener::send(&stream, own)?;
    listener::receive(&stream, 2 * LATE)
}

/// Whether packets of a protocol pass between all hosts.
fn verdict(found: &[Finding], protocol: Protocol, hosts: &Hosts) -> Result<String, Failure> {
    let hosts = hosts.count();
    match found.iter().any(|finding| finding.protocol() == Some(protocol)) {
        false => Ok(format!("{protocol} passes both ways between all {hosts}")),
        true => {
            let why = format!("{protocol} does not pass both ways between all {hosts}");
            Err(Failure::Join(Error::NoPeer { why }))
        }
    }
}

/// Which packets pass.
fn sizes(reports: &[Report], found: &[Finding]) -> String {
    let all = || reports.iter().flat_map(|report| &report.tries).map(|tried| tried.bytes);
    let bytes = match found.is_empty() {
        true => all().map(|[_, large]| large).min(),
        false => all().map(|[small, _]| small).min(),
    };
    let others = if found.is_empty() { "" } else { "; larger ones do not pass all ways" };
    bytes.map(|bytes| format!(", in IP packets of {bytes} bytes{others}")).unwrap_or_default()
}

/// Says why nobody answers where ranks meet.
fn nobody_at_the_place(settings: &Builder) {
    let settings = settings.settings();
    let Some(place) = settings.meeting.as_ref().filter(|_| settings.rank != Some(0)) else {
        return;
    };
    let Ok(found) = switchml_worker::control::resolve(place) else { return };
    let (ip, port) = (found[0].ip(), found[0].port());
    let Err(error) = TcpStream::connect_timeout(&found[0], tries::CONNECT) else { return };
    let why = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("no process listens: {ip} is up, and refuses TCP to port {port}")
        }
        io::ErrorKind::TimedOut => {
            format!("filtered TCP: nothing comes back from port {port} of {ip}")
        }
        _ => format!("no way to {ip}: {error}"),
    };
    let command = match error.kind() {
        io::ErrorKind::ConnectionRefused => "switchml-worker doctor --rank 0".to_owned(),
        io::ErrorKind::TimedOut => {
            let iptables = if ip.is_ipv6() { "ip6tables" } else { "iptables" };
            format!("{iptables} -I INPUT -p tcp --dport {port} -j ACCEPT")
        }
        _ => "ip address".to_owned(),
    };
    explain(&why, true, Fix { host: format!("rank 0 ({ip})"), command });
}

/// A sum of all ranks, as their job makes it.
fn reduce(settings: &Builder) -> Result<((), String), Failure> {
    let settings = settings.clone().deadline(TIMEOUT);
    let communicator = settings.connect().map_err(Failure::joining)?;
    let ranks = communicator.world_size() as i32;
    let mut sum = vec![communicator.rank() as i32 + 1; ELEMENTS];
    let begin = Instant::now();
    communicator.all_reduce(&mut sum, ReduceOp::Sum).map_err(Failure::Collective)?;
    let took = Clock(begin.elapsed());
    communicator.close().map_err(Failure::Collective)?;
    if sum.iter().any(|sum| *sum != ranks * (ranks + 1) / 2) {
        return Err(Failure::Wrong("the sum over all ranks is wrong".to_owned()));
    }
    Ok(((), format!("a sum of 64 KiB over all ranks is right, and took {took}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_the_ranks_with_their_address() {
        let addresses =
            ["10.0.0.1:5", "10.0.0.1:6", "10.0.0.2:5"].map(|text| text.parse().unwrap());
        let hosts = Hosts::of(&addresses);
        assert_eq!(hosts.to_string(), "3 ranks on 2 hosts: 0, 1 on 10.0.0.1; 2 on 10.0.0.2");
        assert_eq!([0, 1, 2].map(|rank| hosts.is_first(rank)), [true, false, true]);
    }
}
