//! The kernel's counters of packets that come in to this host, which tell where packets end.

use std::collections::BTreeMap;
use std::fs;

/// Counters of this network namespace, or their growth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// IP packets that came in, past XDP; like the next two, of one IP version.
    pub received: u64,
    /// IP packets for this host, past the firewall.
    pub delivered: u64,
    /// IP packets that were forwarded to other hosts.
    pub forwarded: u64,
    /// IP packets from an interface through which no route leads to their sender (`rp_filter`).
    pub reverse_path: u64,
    /// Frames that came in through each interface.
    pub frames: BTreeMap<String, u64>,
}

impl Counters {
    /// The counters now. Counters that the kernel does not have are 0; there is no `rp_filter` for
    /// IPv6.
    pub fn read(is_ipv6: bool) -> Self {
        let file = |name: &str| {
            fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default()
        };
        if is_ipv6 {
            let snmp6 = file("snmp6");
            let ip = |name| line(&snmp6, name);
            return Self {
                received: ip("Ip6InReceives"),
                delivered: ip("Ip6InDelivers"),
                forwarded: ip("Ip6OutForwDatagrams"),
                reverse_path: 0,
                frames: frames(),
            };
        }
        let (snmp, netstat) = (file("snmp"), file("netstat"));
        let ip = |name| field(&snmp, "Ip:", name);
        Self {
            received: ip("InReceives"),
            delivered: ip("InDelivers"),
            forwarded: ip("ForwDatagrams"),
            reverse_path: field(&netstat, "TcpExt:", "IPReversePathFilter"),
            frames: frames(),
        }
    }

    /// The growth of the counters since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let frames = self.frames.iter().map(|(name, now)| {
            (name.clone(), now.saturating_sub(before.frames.get(name).copied().unwrap_or(0)))
        });
        Self {
            received: self.received.saturating_sub(before.received),
            delivered: self.delivered.saturating_sub(before.delivered),
            forwarded: self.forwarded.saturating_sub(before.forwarded),
            reverse_path: self.reverse_path.saturating_sub(before.reverse_path),
            frames: frames.collect(),
        }
    }

    /// IP packets that came in and went nowhere, except those that `rp_filter` dropped.
    pub fn dropped(&self) -> u64 {
        let known = self.delivered + self.forwarded + self.reverse_path;
        self.received.saturating_sub(known)
    }

    /// Frames that came in through this interface.
    pub fn frames_by(&self, interface: &str) -> u64 {
        self.frames.get(interface).copied().unwrap_or(0)
    }
}

/// A counter of a text in which a line of names comes before each line of numbers.
fn field(text: &str, group: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let found = lines.next().zip(lines.next()).and_then(|(names, numbers)| {
        let place = names.split_whitespace().position(|known| known == name)?;
        numbers.split_whitespace().nth(place)?.parse().ok()
    });
    found.unwrap_or(0)
}

/// A counter of a text that has a name and a number in each line.
fn line(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().map(str::split_whitespace);
    let found =
        lines.find_map(|mut words| words.next().filter(|known| *known == name).and(words.next()));
    found.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn frames() -> BTreeMap<String, u64> {
    let interfaces = fs::read_dir("/sys/class/net").into_iter().flatten();
    let frames = interfaces.filter_map(|interface| {
        let interface = interface.ok()?;
        let count = fs::read_to_string(interface.path().join("statistics/rx_packets")).ok()?;
        Some((interface.file_name().into_string().ok()?, count.trim().parse().ok()?))
    });
    frames.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name() {
        let text =
            "Ip: Forwarding DefaultTTL InReceives\nIp: 1 64 4711\nUdp: InDatagrams\nUdp: 7\n";
        let read = |group, name| field(text, group, name);
        assert_eq!(read("Ip:", "InReceives"), 4711);
        assert_eq!(read("Udp:", "InDatagrams"), 7);
        assert_eq!(read("Udp:", "InReceives"), 0);
        let text = "Ip6InReceives     \t42\nIp6InDelivers \t7\n";
        assert_eq!([line(text, "Ip6InDelivers"), line(text, "Ip6In")], [7, 0]);
    }

    #[test]
    fn what_is_left_was_dropped() {
        let before = Counters { received: 100, delivered: 90, ..Counters::default() };
        let now = Counters { received: 120, delivered: 95, reverse_path: 7, ..before.clone() };
        assert_eq!(now.since(&before).dropped(), 20 - 5 - 7);
    }
}
