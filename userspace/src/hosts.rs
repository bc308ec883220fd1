//! Limits of the control plane for each host: connections at once; and in a minute connections,
//! joins, requests of strangers, cancelled requests, and lines of the log. So no host can keep the
//! others out.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use switchml_userspace_core::rate::Rate;

use crate::throttle::Throttle;

/// Most connections of a host at once, whatever the limit of open files: enough for 16 jobs of 1024
/// ranks behind one combiner.
const MOST_CONNECTIONS: u64 = 16 << 10;
/// Most joins from a host in a minute: 5 times the 1024 joins of a combiner with all ranks of the
/// largest job.
pub const MOST_JOINS: u32 = 6000;
/// Most connections that a host opens in a minute: two for each join.
const MOST_OPENED: u32 = 2 * MOST_JOINS;
/// Most requests of strangers from a host in a minute: 100 a second. Each costs the daemon about a
/// millisecond, and they are served one at a time.
pub const MOST_REQUESTS: u32 = 6000;
/// Most requests that a host cancels in a minute. A client that hangs up cancels its open requests,
/// so a job of 1024 ranks behind a combiner cancels 1024.
pub const MOST_RESETS: u32 = 2000;
/// Most lines of the log that a host causes in a minute, before they are limited to one a second:
/// enough for a job of 1024 ranks behind a combiner, which join and leave.
const MOST_LINES: u32 = 2500;
/// How often idle hosts are forgotten.
const SWEEP: Duration = Duration::from_secs(60);

/// The limit that a host has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TooMuch {
    #[error(
        "it has {0} connections already, the most for one address; close some, or raise the limit \
         of open files (ulimit -n), of which a host may have half, up to {MOST_CONNECTIONS}"
    )]
    Connections(u64),
    #[error(
        "{MOST_OPENED} connections came from this address within a minute, the most for one; try \
         again in a minute"
    )]
    Opened,
    #[error(
        "{MOST_REQUESTS} requests that belong to no rank came from this address within a minute, \
         the most for one; try again in a minute"
    )]
    Requests,
    #[error(
        "{MOST_JOINS} joins came from this address within a minute, the most for one; try again in \
         a minute"
    )]
    Joins,
}

/// The present use of the control plane by each host.
#[derive(Debug)]
pub struct Hosts {
    most_connections: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    hosts: HashMap<IpAddr, Host>,
    swept: Instant,
}

#[derive(Debug)]
struct Host {
    connections: u64,
    opened: Rate,
    joins: Rate,
    requests: Rate,
    resets: Rate,
    lines: Rate,
    /// Lines beyond these.
    more_lines: Throttle,
}

impl Host {
    fn new(now: Instant) -> Self {
        let rate = Rate::new(now);
        Self {
            connections: 0,
            opened: rate,
            joins: rate,
            requests: rate,
            resets: rate,
            lines: rate,
            more_lines: Throttle::default(),
        }
    }

    /// Whether the host can be forgotten.
    fn is_idle(&self, now: Instant) -> bool {
        let rates = [self.opened, self.joins, self.requests, self.resets, self.lines];
        self.connections == 0 && rates.iter().all(|rate| rate.is_over(now))
    }
}

/// A connection of a host, which counts until this is dropped.
#[derive(Debug)]
pub struct Seat {
    hosts: Arc<Hosts>,
    host: IpAddr,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(host) = self.hosts.lock().hosts.get_mut(&self.host) {
            host.connections -= 1;
        }
    }
}

impl Default for Hosts {
    /// Limits from this process's limit of open files: one host may have half of them.
    fn default() -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::new(most_connections(files))
    }
}

/// Most connections of a host, if this process may have `files` open files.
fn most_connections(files: u64) -> u64 {
    (files / 2).clamp(1, MOST_CONNECTIONS)
}

impl Hosts {
    fn new(most_connections: u64) -> Self {
        let state = State { hosts: HashMap::new(), swept: Instant::now() };
        Self { most_connections, state: Mutex::new(state) }
    }

    /// Counts a connection from this host.
    pub fn connect(self: &Arc<Self>, from: IpAddr) -> Result<Seat, TooMuch> {
        let (host, now) = (host_of(from), Instant::now());
        let mut state = self.lock();
        state.sweep(now);
        let has = state.of(host, now);
        if has.connections >= self.most_connections {
            return Err(TooMuch::Connections(has.connections));
        }
        if !has.opened.pass(now, MOST_OPENED) {
            return Err(TooMuch::Opened);
        }
        has.connections += 1;
        drop(state);
        Ok(Seat { hosts: Arc::clone(self), host })
    }

    /// Counts a join from this host.
    pub fn join(&self, from: IpAddr, now: Instant) -> Result<(), TooMuch> {
        let passes = self.lock().of(host_of(from), now).joins.pass(now, MOST_JOINS);
        passes.then_some(()).ok_or(TooMuch::Joins)
    }

    /// Counts a request from this host that is not for a rank of a job.
    pub fn ask(&self, from: IpAddr, now: Instant) -> Result<(), TooMuch> {
        let passes = self.lock().of(host_of(from), now).requests.pass(now, MOST_REQUESTS);
        passes.then_some(()).ok_or(TooMuch::Requests)
    }

    /// Counts a cancelled request from this host. Returns whether it is within the limit.
    pub fn reset(&self, from: IpAddr, now: Instant) -> bool {
        self.lock().of(host_of(from), now).resets.pass(now, MOST_RESETS)
    }

    /// Asks for a line of the log about this host. If the line is allowed, returns how many were
    /// left out since the last one.
    pub fn line(&self, from: IpAddr, now: Instant) -> Option<u64> {
        let mut state = self.lock();
        let host = state.of(host_of(from), now);
        if host.lines.pass(now, MOST_LINES) {
            return Some(0);
        }
        host.more_lines.pass(now).map(|lines| lines - 1)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of(&mut self, host: IpAddr, now: Instant) -> &mut Host {
        self.hosts.entry(host).or_insert_with(|| Host::new(now))
    }

    /// Forgets idle hosts, if it is time for that.
    fn sweep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        self.hosts.retain(|_, host| !host.is_idle(now));
    }
}

/// The key of a host. For IPv6 it is the /64 network, because a host has all addresses of one.
fn host_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_host_has_so_many_connections_and_keeps_nobody_out() {
        let hosts = Arc::new(Hosts::new(2));
        let connect = |from| hosts.connect(address(from));
        let mut first = vec![connect("10.0.0.1").unwrap(), connect("10.0.0.1").unwrap()];
        assert_eq!(connect("10.0.0.1").unwrap_err(), TooMuch::Connections(2));
        let _other = connect("10.0.0.2").unwrap();
        first.pop();
        let _again = connect("10.0.0.1").unwrap();
        assert!(connect("10.0.0.1").is_err());
        // A host with an IPv6 network can use all its addresses.
        let _six = [connect("2001:db8::1").unwrap(), connect("2001:db8::2").unwrap()];
        assert!(connect("2001:db8::3").is_err());
        let _neighbour = connect("2001:db8:0:1::1").unwrap();
    }

    #[test]
    fn a_host_has_half_of_the_files_and_16384_connections_at_most() {
        for (files, connections) in
            [(0, 1), (3, 1), (1024, 512), (32_768, 16_384), (1 << 20, 16_384), (u64::MAX, 16_384)]
        {
            assert_eq!(most_connections(files), connections, "{files} files");
        }
    }

    #[test]
    fn a_host_joins_so_often_in_a_minute_whatever_it_closes() {
        let (hosts, now) = (Arc::new(Hosts::new(1)), Instant::now());
        let (one, other) = (address("10.0.0.1"), address("10.0.0.2"));
        for _ in 0..6000 {
            drop(hosts.connect(one).unwrap());
            hosts.join(one, now).unwrap();
        }
        assert_eq!(hosts.join(one, now), Err(TooMuch::Joins));
        assert_eq!(hosts.join(other, now), Ok(()));
        // The minute began with the first connection, a little after `now`.
        assert_eq!(hosts.join(one, now + Duration::from_secs(90)), Ok(()));
    }

    #[test]
    fn a_host_opens_so_many_connections_in_a_minute() {
        let hosts = Arc::new(Hosts::new(1));
        for _ in 0..12_000 {
            drop(hosts.connect(address("10.0.0.1")).unwrap());
        }
        assert_eq!(hosts.connect(address("10.0.0.1")).unwrap_err(), TooMuch::Opened);
        drop(hosts.connect(address("10.0.0.2")).unwrap());
    }

    #[test]
    fn a_host_asks_and_takes_back_so_often_in_a_minute() {
        let (hosts, now) = (Hosts::new(1), Instant::now());
        let (one, other) = (address("10.0.0.1"), address("10.0.0.2"));
        assert!((0..6000).all(|_| hosts.ask(one, now).is_ok()));
        assert_eq!(hosts.ask(one, now), Err(TooMuch::Requests));
        assert!((0..2000).all(|_| hosts.reset(one, now)) && !hosts.reset(one, now));
        assert!(hosts.ask(other, now).is_ok() && hosts.reset(other, now));
        let later = now + Duration::from_secs(61);
        assert!(hosts.ask(one, later).is_ok() && hosts.reset(one, later));
    }

    #[test]
    fn a_host_that_does_much_has_a_line_a_second_which_counts() {
        let (hosts, now) = (Hosts::new(1), Instant::now());
        let (one, other) = (address("10.0.0.1"), address("10.0.0.2"));
        assert!((0..2500).all(|_| hosts.line(one, now) == Some(0)));
        // 400 a second for three seconds.
        let at = |i: u64| now + Duration::from_micros(2500 * i);
        let lines: Vec<_> = (0..1200).filter_map(|i| hosts.line(one, at(i))).collect();
        assert_eq!(lines, [0, 399, 399]);
        assert_eq!(hosts.line(other, at(1200)), Some(0));
    }

    #[test]
    fn hosts_that_hold_nothing_are_forgotten() {
        let hosts = Arc::new(Hosts::new(1));
        let seat = hosts.connect(address("10.0.0.1")).unwrap();
        drop(hosts.connect(address("10.0.0.2")).unwrap());
        let later = Instant::now() + Duration::from_secs(61);
        hosts.join(address("10.0.0.3"), later).unwrap();
        hosts.lock().sweep(later);
        let mut left: Vec<_> = hosts.lock().hosts.keys().copied().collect();
        left.sort();
        assert_eq!(left, [address("10.0.0.1"), address("10.0.0.3")]);
        drop(seat);
    }
}
