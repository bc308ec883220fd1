//! The line that rank 0 of a process's first job writes when the job starts: how its ranks are
//! joined, what a sum costs each link, and what would cost less.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use switchml_protocol::RANKS_PER_GROUP;
use switchml_protocol::capabilities::Capabilities;
use switchml_worker_core::cost;
use switchml_worker_core::numerics::{Codec, DType, Reduction};

use crate::communicator::{Info, Stripe};
use crate::warning::note;

/// Another way must lower the load to this part, or it is not worth its machine.
const WORTH: f64 = 0.95;

/// Writes the line, if this is rank 0 of the process's first job of several ranks.
pub(crate) fn write(info: &Info, adds_up: bool) {
    static IS_WRITTEN: AtomicBool = AtomicBool::new(false);
    if info.rank == 0 && info.world_size > 1 && !IS_WRITTEN.swap(true, Ordering::Relaxed) {
        note(Summary { info, adds_up });
    }
}

/// The line.
struct Summary<'a> {
    info: &'a Info,
    /// Whether ranks of a host may add up before they send.
    adds_up: bool,
}

/// How the ranks of a host send.
#[derive(Clone, Copy, PartialEq)]
enum Sending {
    /// One contribution for all of them, in one packet.
    Together,
    /// Each for itself, for this reason.
    Apart(&'static str),
    /// This rank has no others on its host, or they do not share memory.
    Unknown,
}

impl Summary<'_> {
    fn ranks(&self) -> u32 {
        self.info.world_size
    }

    fn hosts(&self) -> u32 {
        let hosts = self.info.stripes.iter().map(|stripe| stripe.links.hosts).max();
        hosts.unwrap_or(1).max(1)
    }

    /// Ranks of a host, in the mean.
    fn ranks_per_host(&self) -> f64 {
        f64::from(self.ranks()) / f64::from(self.hosts())
    }

    fn sending(&self) -> Sending {
        let any = |is: fn(&Stripe) -> bool| self.info.stripes.iter().any(is);
        let cannot = |stripe: &Stripe| !stripe.capabilities.contains(Capabilities::PARTIAL_SUMS);
        if self.ranks() == self.hosts() {
            Sending::Together
        } else if !self.adds_up {
            Sending::Apart("local sums are switched off")
        } else if any(|stripe| stripe.tag_len > 0) {
            Sending::Apart("packets have tags")
        } else if any(cannot) {
            Sending::Apart("the aggregator takes no partial sums")
        } else if any(|stripe| stripe.local_ranks.is_empty()) || self.has_groups() {
            Sending::Unknown
        } else {
            Sending::Together
        }
    }

    /// Whether ranks of a host may be in several groups, which add up apart.
    fn has_groups(&self) -> bool {
        let has_others = |stripe: &Stripe| self.ranks_per_host() > stripe.local_ranks.len() as f64;
        self.ranks() > RANKS_PER_GROUP.into() && self.info.stripes.iter().any(has_others)
    }

    /// How often a link of a rank's host carries the tensor each way in a sum, if ranks of a host
    /// send together.
    fn load(&self) -> f64 {
        let mut parts = HashMap::new();
        for (stripe, share) in self.info.stripes.iter().zip(self.info.shares()) {
            if stripe.links.is_on_ranks_host {
                *parts.entry(stripe.aggregator.ip()).or_default() += share;
            }
        }
        let loads = parts.into_values().map(|part| cost::load(self.hosts(), part));
        // A host without an aggregator sends all it has.
        let least = if self.hosts() > 1 { 1.0 } else { cost::load(1, self.part_of_ranks_hosts()) };
        loads.fold(least, f64::max)
    }

    fn part_of_ranks_hosts(&self) -> f64 {
        let shares = self.info.stripes.iter().zip(self.info.shares());
        shares.filter(|(stripe, _)| stripe.links.is_on_ranks_host).map(|(_, share)| share).sum()
    }

    /// How often the busiest link of an aggregator that runs on no rank's host carries the tensor,
    /// if ranks of a host send together, and its links are known.
    fn aggregators_load(&self) -> Option<f64> {
        let load = |(stripe, share): (&Stripe, f64)| {
            let links = Some(stripe.links.interfaces).filter(|links| *links > 0)?;
            Some(f64::from(self.hosts()) * share / f64::from(links))
        };
        let is_dedicated = |(stripe, _): &(&Stripe, f64)| !stripe.links.is_on_ranks_host;
        let has_combiners = self.info.stripes.iter().any(|stripe| stripe.links.has_combiners);
        let stripes = self.info.stripes.iter().zip(self.info.shares()).filter(is_dedicated);
        let loads = stripes.map(load).collect::<Option<Vec<_>>>().filter(|_| !has_combiners)?;
        loads.into_iter().reduce(f64::max)
    }

    fn has_peers(&self) -> bool {
        self.info.stripes.iter().any(|stripe| stripe.peer.is_some())
    }

    fn write_ways(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let daemons: Vec<_> =
            self.info.stripes.iter().filter(|stripe| stripe.peer.is_none()).collect();
        match daemons[..] {
            [] => f.write_str(" serve each other"),
            [only] => write!(f, " use the aggregator {}", only.control),
            _ => write!(f, " use {} aggregators", daemons.len()),
        }?;
        if self.has_peers() && !daemons.is_empty() {
            f.write_str(", and their hosts help it")?;
        }
        match self.sending() {
            _ if self.ranks() == self.hosts() => Ok(()),
            Sending::Together => f.write_str("; ranks of a host share memory"),
            Sending::Apart(why) => write!(f, "; each rank sends for itself, because {why}"),
            Sending::Unknown => Ok(()),
        }?;
        f.write_str(". ")
    }

    /// The loads of links. Returns that of ranks' hosts.
    fn write_loads(&self, f: &mut fmt::Formatter<'_>) -> Result<f64, fmt::Error> {
        let apart = self.ranks_per_host();
        let sends_apart = matches!(self.sending(), Sending::Apart(_));
        let factor = if sends_apart { apart } else { 1.0 };
        let load = factor * self.load();
        if load == 0.0 {
            f.write_str("No link carries values.")?;
            return Ok(load);
        }
        write!(f, "In a sum, the link of each host carries {load:.2} times the tensor each way")?;
        if self.sending() == Sending::Unknown {
            let apart = apart * self.load();
            write!(f, " if its ranks share memory, otherwise {apart:.2} times in the mean")?;
        }
        if let Some(load) = self.aggregators_load() {
            write!(f, ", each link of an aggregator {:.2} times", factor * load)?;
        }
        f.write_char('.')?;
        Ok(load)
    }

    /// What would lower this load of the links.
    fn write_advice(&self, f: &mut fmt::Formatter<'_>, load: f64) -> fmt::Result {
        let ranks = self.ranks() as usize;
        if Codec::reduction(DType::F32, Reduction::SUM16, ranks, 1).is_ok() {
            f.write_str(" Sums in 16 bits carry half of that.")?;
        }
        if let Sending::Apart(_) = self.sending() {
            return write!(f, " With shared memory it is {:.2} times.", self.load());
        }
        if !self.info.stripes.iter().all(|stripe| stripe.links.is_on_ranks_host) {
            return Ok(());
        }
        for (machine, capacity) in
            [("a spare machine", 1.0), ("a switch host with a port for each host", f64::INFINITY)]
        {
            let lower = cost::aggregated(self.hosts(), self.hosts(), capacity);
            if lower <= WORTH * load {
                write!(f, " An aggregator on {machine} lowers it to {lower:.2} times.")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ranks, hosts) = (self.ranks(), self.hosts());
        write!(f, "{ranks} ranks on {hosts} host{}", if hosts == 1 { "" } else { "s" })?;
        if self.info.stripes.iter().all(|stripe| stripe.is_in_memory) {
            return f.write_str(" add up in shared memory. No link carries values.");
        }
        self.write_ways(f)?;
        match self.write_loads(f)? {
            0.0 => Ok(()),
            load => self.write_advice(f, load),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use switchml_worker_core::stripes::Links;

    use super::*;

    /// An aggregator at 10.0.0.(1 + host) of a job on so many hosts, on one of which it runs if it
    /// is a rank's; that rank adds up with these.
    fn stripe(hosts: u32, host: u8, peer: Option<u16>, local_ranks: &[u16]) -> Stripe {
        let is_on_ranks_host = peer.is_some();
        Stripe {
            control: format!("10.0.0.{}:48865", 1 + host),
            peer,
            aggregator: SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1 + host), 48864)),
            weight: 1,
            links: Links { hosts, interfaces: 1, is_on_ranks_host, ..Links::default() },
            data_threads: 1,
            slots: 64,
            tag_len: 0,
            multicast: None,
            device: None,
            capabilities: Capabilities::PARTIAL_SUMS,
            local_ranks: local_ranks.to_vec(),
            is_in_memory: false,
        }
    }

    fn line_of(world_size: u32, stripes: Vec<Stripe>, adds_up: bool) -> String {
        let (job, hello_rtt) = ("job".to_owned(), Duration::ZERO);
        let info =
            Info { rank: 0, world_size, job, chunk_lanes: 352, narrow: None, hello_rtt, stripes };
        Summary { info: &info, adds_up }.to_string()
    }

    fn line(world_size: u32, stripes: Vec<Stripe>) -> String {
        line_of(world_size, stripes, true)
    }

    /// The ranks' own aggregators on so many hosts with two ranks each.
    fn pairs(hosts: u32) -> Vec<Stripe> {
        (0..hosts).map(|host| stripe(hosts, host as u8, Some(2 * host as u16), &[0, 1])).collect()
    }

    /// 2 * 1 / 2, and 2 * 3 / 4; a spare machine with the link of a rank's host lowers the latter
    /// to 2 * 4 * 3 / (16 + 4 - 2) = 1.33.
    #[test]
    fn ranks_that_serve_each_other() {
        assert_eq!(
            line(4, pairs(2)),
            "4 ranks on 2 hosts serve each other; ranks of a host share memory. In a sum, the link \
             of each host carries 1.00 times the tensor each way. Sums in 16 bits carry half of \
             that."
        );
        assert_eq!(
            line(8, pairs(4)),
            "8 ranks on 4 hosts serve each other; ranks of a host share memory. In a sum, the link \
             of each host carries 1.50 times the tensor each way. Sums in 16 bits carry half of \
             that. An aggregator on a spare machine lowers it to 1.33 times. An aggregator on a \
             switch host with a port for each host lowers it to 1.00 times."
        );
        let alone = (0..3).map(|host| stripe(3, host, Some(host.into()), &[])).collect();
        let text = line(3, alone);
        // 2 * 2 / 3.
        let start = "3 ranks on 3 hosts serve each other. In a sum, the link of each host carries \
                     1.33 times the tensor each way.";
        assert!(text.starts_with(start), "{text}");
    }

    /// Without shared memory, 2 of 4 ranks each send half of the tensor to the other host, and get
    /// half; their own halves' sums go to 2 ranks there, and 2 contributions come.
    #[test]
    fn ranks_that_send_apart() {
        let apart = "4 ranks on 2 hosts serve each other; each rank sends for itself, because";
        let load = "In a sum, the link of each host carries 2.00 times the tensor each way. Sums \
                    in 16 bits carry half of that. With shared memory it is 1.00 times.";
        let text = line_of(4, pairs(2), false);
        assert_eq!(text, format!("{apart} local sums are switched off. {load}"));
        let with_tags = |stripe| Stripe { tag_len: 8, ..stripe };
        let text = line(4, pairs(2).into_iter().map(with_tags).collect());
        assert_eq!(text, format!("{apart} packets have tags. {load}"));
        // The first rank may be alone on its host, beside one with three.
        let unknown = (0..2).map(|host| stripe(2, host, Some(host.into()), &[])).collect();
        assert_eq!(
            line(4, unknown),
            "4 ranks on 2 hosts serve each other. In a sum, the link of each host carries 1.00 \
             times the tensor each way if its ranks share memory, otherwise 2.00 times in the \
             mean. Sums in 16 bits carry half of that."
        );
    }

    #[test]
    fn ranks_of_one_host() {
        let here = |is_in_memory| {
            let stripe = |rank| Stripe { is_in_memory, ..stripe(1, 0, Some(rank), &[0, 1, 2, 3]) };
            line(4, (0..4).map(stripe).collect())
        };
        let in_memory = "4 ranks on 1 host add up in shared memory. No link carries values.";
        assert_eq!(here(true), in_memory);
        let by_sockets = "4 ranks on 1 host serve each other; ranks of a host share memory. No \
                          link carries values.";
        assert_eq!(here(false), by_sockets);
    }

    /// One link for four hosts carries the contributions of all, and results for all.
    #[test]
    fn ranks_with_aggregators() {
        let one = |interfaces, ranks| {
            let links = Links { interfaces, ..stripe(4, 9, None, &[]).links };
            line(ranks, vec![Stripe { links, ..stripe(4, 9, None, &[0, 1]) }])
        };
        assert_eq!(
            one(1, 8),
            "8 ranks on 4 hosts use the aggregator 10.0.0.10:48865; ranks of a host share memory. \
             In a sum, the link of each host carries 1.00 times the tensor each way, each link of \
             an aggregator 4.00 times. Sums in 16 bits carry half of that."
        );
        assert!(one(4, 8).contains(", each link of an aggregator 1.00 times. "));
        assert!(one(0, 8).contains(" carries 1.00 times the tensor each way. "));
        // 16 bits are for up to 128 ranks.
        assert!(one(4, 129).ends_with(
            "otherwise 32.25 times in the mean, each link of an \
                                       aggregator 1.00 times."
        ));
    }

    /// With c = 1 a rank's host takes a sixth, and the spare machine a third: 1 + 2 / 6, and
    /// 4 * 1 / 3.
    #[test]
    fn ranks_that_help_an_aggregator() {
        let mut all: Vec<_> = (0..4).map(|host| stripe(4, host, Some(host.into()), &[])).collect();
        all.push(Stripe { weight: 2, ..stripe(4, 9, None, &[]) });
        assert_eq!(
            line(4, all),
            "4 ranks on 4 hosts use the aggregator 10.0.0.10:48865, and their hosts help it. In a \
             sum, the link of each host carries 1.33 times the tensor each way, each link of an \
             aggregator 1.33 times. Sums in 16 bits carry half of that."
        );
    }
}
