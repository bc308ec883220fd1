//! Whether a port is too slow for the hosts behind it.
//!
//! With this aggregator, a tensor passes each host's link once each way, and so a port once for
//! each host behind it. A ring has other costs: see [`cost`].

use std::collections::BTreeMap;

use switchml_worker_core::cost;

/// A port of the aggregator that a job uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPort {
    /// The port's name.
    pub name: String,
    /// The speed of the port's link, in bits per second.
    pub speed: u64,
    /// Hosts behind it that contribute.
    pub hosts: usize,
}

impl SharedPort {
    /// Each host's share of the port's speed.
    fn share(&self) -> f64 {
        self.speed as f64 / self.hosts as f64
    }
}

/// The ports in `hosts`, which has one port number for each contributing host; `None` if the speed
/// of one is not known. `port` tells name and speed of a port by its number.
pub fn ports_of(
    hosts: impl IntoIterator<Item = u32>,
    port: impl Fn(u32) -> Option<(String, u64)>,
) -> Option<Vec<SharedPort>> {
    let mut behind = BTreeMap::<u32, usize>::new();
    for number in hosts {
        *behind.entry(number).or_default() += 1;
    }
    let ports = behind
        .into_iter()
        .map(|(number, hosts)| port(number).map(|(name, speed)| SharedPort { name, speed, hosts }));
    ports.collect()
}

/// The link speed, in bits per second, up to which a ring of `hosts` hosts is no faster than this
/// aggregator, of whose port each host has `share` bits per second.
pub fn ring_is_no_faster_below(hosts: usize, share: f64) -> f64 {
    cost::ring(hosts as u32) * share
}

/// A line about the slowest port of a job, if several hosts share it, and it may cost more than a
/// ring. `link` is the speed of the hosts' slowest link, if it is known.
pub fn slowest(ports: &[SharedPort], link: Option<u64>) -> Option<String> {
    let hosts = ports.iter().map(|port| port.hosts).sum();
    let port = ports.iter().min_by(|a, b| a.share().total_cmp(&b.share()))?;
    if port.hosts < 2 {
        return None;
    }
    let SharedPort { name, speed, hosts: behind } = port;
    let head = format!("{behind} hosts share port {name} of {} Gb/s", gigabits(*speed as f64));
    let remedy = "the ranks' hosts help, unless the job has TLS, a token or tags; so does a \
                  faster port";
    let limit = ring_is_no_faster_below(hosts, port.share());
    let Some(link) = link.map(|link| link as f64) else {
        return Some(format!(
            "{head}; if their own links are faster than {} Gb/s, a ring such as Gloo's takes less \
             time: {remedy}",
            gigabits(limit)
        ));
    };
    let times =
        cost::aggregated(*behind as u32, 0, *speed as f64 / link) / cost::ring(hosts as u32);
    (link > limit).then(|| {
        format!(
            "{head}; by their own links of {} Gb/s a ring such as Gloo's takes less time: this \
             takes {times:.1} times as long; {remedy}",
            gigabits(link)
        )
    })
}

/// A speed in Gb/s, rounded to two places.
pub fn gigabits(speed: f64) -> f64 {
    (speed / 1e7).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 1_000_000_000;

    fn port(name: &str, gigabits: u64, hosts: usize) -> SharedPort {
        SharedPort { name: name.to_owned(), speed: gigabits * GIGABIT, hosts }
    }

    /// 4 hosts of one port move 4 tensors through it, a ring of them 1.5 through each link: that
    /// takes the same time by links of 1.5 / 4 of its speed.
    #[test]
    fn one_port_for_all() {
        let line = slowest(&[port("eth1", 10, 4)], None).unwrap();
        let expected = "4 hosts share port eth1 of 10 Gb/s; if their own links are faster than \
                        3.75 Gb/s, a ring such as Gloo's takes less time: ";
        assert!(line.starts_with(expected), "{line}");
        // With two hosts, a ring moves as much as the aggregator does.
        assert!(slowest(&[port("eth1", 1, 2)], None).unwrap().contains("than 0.5 Gb/s"));
    }

    #[test]
    fn the_slowest_of_several_ports() {
        let ports = [port("fast", 25, 2), port("slow", 10, 2)];
        let line = slowest(&ports, None).unwrap();
        // 2 * 3 / 4 of 5.
        assert!(line.starts_with("2 hosts share port slow of 10 Gb/s;"), "{line}");
        assert!(line.contains("faster than 7.5 Gb/s"), "{line}");
        // 2 / (10 / 25) of the time of a host's link, to 1.5.
        let line = slowest(&ports, Some(25 * GIGABIT)).unwrap();
        assert!(line.contains("this takes 3.3 times as long"), "{line}");
        assert_eq!(slowest(&ports, Some(7 * GIGABIT)), None);
    }

    /// Hosts with links of 1 Gb/s: 4 / 1 of a link's time to 1.5, or 4 / 3 of it.
    #[test]
    fn what_a_port_costs_is_said_if_links_are_known() {
        let with = |gigabits| slowest(&[port("eth1", gigabits, 4)], Some(GIGABIT));
        assert_eq!(
            with(1).unwrap(),
            "4 hosts share port eth1 of 1 Gb/s; by their own links of 1 Gb/s a ring such as \
             Gloo's takes less time: this takes 2.7 times as long; the ranks' hosts help, unless \
             the job has TLS, a token or tags; so does a faster port"
        );
        assert_eq!(with(3), None);
        assert_eq!(with(10), None);
    }

    /// With a port for each host, as behind a switch, the aggregator is faster than a ring over any
    /// links.
    #[test]
    fn a_port_for_each_host_is_nothing_to_say() {
        let ports = [port("p0", 10, 1), port("p1", 10, 1), port("p2", 1, 1)];
        assert_eq!(slowest(&ports, None), None);
        assert_eq!(slowest(&[], None), None);
    }

    #[test]
    fn hosts_by_port() {
        let known = |number: u32| (number < 3).then(|| (format!("p{number}"), GIGABIT));
        let expected = vec![port("p1", 1, 2), port("p2", 1, 1)];
        assert_eq!(ports_of([1, 2, 1], known), Some(expected));
        assert_eq!(ports_of([1, 3], known), None);
    }
}
