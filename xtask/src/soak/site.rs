//! The hosts of a soak, their aggregators, and what is done to both.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result};
use switchml_rack::{Aggregator, Binaries, Mode, Namespace, Rack, RackOptions, Signal};

/// Ranks of a job, each on a host of its own.
pub const RANKS: usize = 4;
/// Aggregators of a job: one in the switch, the others on hosts behind those of the ranks.
pub const AGGREGATORS: usize = 3;

/// A table of a firewall that all faults of a host's link are in.
const TABLE: &str = "netdev soak";

/// See the module.
pub struct Site {
    pub binaries: Binaries,
    // Dropped before the rack, whose end would kill them. `None` after a kill.
    aggregators: Vec<Option<Aggregator>>,
    /// The addresses of their control planes, which stay.
    addresses: Vec<String>,
    pub rack: Rack,
}

impl Site {
    pub fn new(binaries: &Binaries) -> Result<Self> {
        let workers = RANKS + AGGREGATORS - 1;
        let rack = Rack::new(RackOptions { workers, mode: Mode::Auto, ..RackOptions::default() })?;
        let mut site = Self {
            binaries: binaries.clone(),
            aggregators: Vec::new(),
            addresses: Vec::new(),
            rack,
        };
        for host in site.hosts() {
            make_sink(host)?;
        }
        for number in 0..AGGREGATORS {
            let aggregator = site.start(number, None)?;
            site.addresses.push(aggregator.control().to_owned());
            site.aggregators.push(Some(aggregator));
        }
        Ok(site)
    }

    fn start(&self, number: usize, control: Option<&str>) -> Result<Aggregator> {
        let (binaries, rack) = (&self.binaries, &self.rack);
        let started = match (number, control) {
            (0, None) => Aggregator::in_rack(binaries, rack),
            (0, Some(control)) => Aggregator::in_rack_at(binaries, rack, control, &[]),
            (_, control) => {
                let host = RANKS + number - 1;
                let any = || SocketAddr::from((Rack::worker_address(host), 0)).to_string();
                let control = control.map_or_else(any, str::to_owned);
                Aggregator::software_on(binaries, rack.worker(host), control.parse()?)
            }
        };
        started.with_context(|| format!("aggregator {number} does not start"))
    }

    fn hosts(&self) -> impl Iterator<Item = &Namespace> {
        self.rack.workers().iter().chain([self.rack.switch()])
    }

    /// The aggregators, as ranks take them.
    pub fn list(&self) -> String {
        self.addresses.join(",")
    }

    /// The host of a rank, or of an aggregator.
    pub fn host_of_rank(&self, rank: usize) -> &Namespace {
        self.rack.worker(rank)
    }

    /// The host of an aggregator.
    pub fn host_of_aggregator(&self, number: usize) -> &Namespace {
        match number {
            0 => self.rack.switch(),
            _ => self.rack.worker(RANKS + number - 1),
        }
    }

    /// Kills an aggregator; its data plane may live on.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        if let Some(mut aggregator) = self.aggregators[number].take() {
            aggregator.process().kill()?;
        }
        Ok(())
    }

    /// Sends an aggregator a signal.
    pub fn signal(&mut self, number: usize, signal: Signal) -> Result<()> {
        if let Some(aggregator) = &mut self.aggregators[number] {
            aggregator.process().signal(signal)?;
        }
        Ok(())
    }

    /// Starts an aggregator again that was killed.
    pub fn revive(&mut self, number: usize) -> Result<()> {
        if self.aggregators[number].is_none() {
            let control = self.addresses[number].clone();
            self.aggregators[number] = Some(self.start(number, Some(&control))?);
        }
        Ok(())
    }

    /// Mends everything: all links carry, and all aggregators run.
    pub fn heal(&mut self) -> Result<()> {
        for host in self.hosts() {
            mend(host)?;
        }
        for number in 0..AGGREGATORS {
            self.signal(number, Signal::CONT)?;
            self.revive(number)?;
        }
        Ok(())
    }
}

/// A host gets none of what is sent to it, and sends nothing.
pub fn cut(host: &Namespace) -> Result<()> {
    filter(host, "")
}

/// A host loses one in 20 datagrams each way.
pub fn lose(host: &Namespace) -> Result<()> {
    filter(host, "meta l4proto udp numgen random mod 20 0")
}

/// Has packets that match get lost at the device, both ways. What a host sends goes to a device
/// without others behind it: if it was dropped, TCP would hear of that, which no cable tells, and
/// count the time of several outages together, until its user timeout breaks the connection.
fn filter(host: &Namespace, matching: &str) -> Result<()> {
    mend(host)?;
    let device = device(host);
    let hooks = [("ingress", "drop"), ("egress", "fwd to sink")].map(|(hook, what)| {
        let chain = format!("type filter hook {hook} device {device} priority 0;");
        format!("add chain {TABLE} {hook} {{ {chain} }}; add rule {TABLE} {hook} {matching} {what}")
    });
    nft(host, &format!("add table {TABLE}; {}", hooks.join("; ")))
}

/// Makes the device in which a host's packets get lost.
fn make_sink(host: &Namespace) -> Result<()> {
    for line in ["add sink type veth peer name drain", "set sink up", "set drain up"] {
        let mut ip = Command::new("ip");
        ip.arg("link").args(line.split(' '));
        host.output(ip)?;
    }
    Ok(())
}

/// The device that has a host's address: a bridge at the rack's switch.
fn device(host: &Namespace) -> &'static str {
    let mut bridge = Command::new("ip");
    bridge.args(["link", "show", "br0"]);
    if host.output(bridge).is_ok() { "br0" } else { "eth0" }
}

/// Mends a host's link.
pub fn mend(host: &Namespace) -> Result<()> {
    // A table that is added before can be deleted, whether it was there or not.
    nft(host, &format!("add table {TABLE}; delete table {TABLE}"))
}

fn nft(host: &Namespace, line: &str) -> Result<()> {
    let mut command = Command::new("nft");
    command.arg(line);
    host.output(command)?;
    Ok(())
}
