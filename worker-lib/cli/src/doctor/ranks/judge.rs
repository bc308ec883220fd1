//! What is wrong with the ways between the hosts of ranks, by the reports of all.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::super::cause::unseen;
use super::super::fix::Fix;
use super::super::probes::BURST;
use super::report::{End, NoTcp, Packets, Report, Try};

/// A protocol of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// How ranks join.
    Tcp,
    /// How values travel.
    Udp,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// Where packets end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// At the sender's firewall.
    Out,
    /// At the receiver's firewall.
    In,
    /// At this router, which reports it.
    Router(IpAddr),
    /// At the receiver's firewall, or on the way there.
    OnTheWay,
    /// At the receiver, which refuses connections.
    Refused,
    /// The sender's system does not send them, for this reason.
    System(String),
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Packets from these ranks do not arrive at this one.
    Blocked {
        /// The packets' protocol.
        protocol: Protocol,
        /// The ranks that send.
        from: Vec<End>,
        /// The rank that receives.
        to: End,
        /// Where the packets end.
        place: Place,
        /// The firewall's chains there, if its rank can see them.
        chains: Option<Vec<String>>,
    },
    /// Large packets do not arrive.
    Narrow {
        /// The rank that sends.
        from: End,
        /// The rank that receives.
        to: End,
        /// Bytes of IP packets that pass, and of those that do not.
        bytes: [u32; 2],
        /// The end with a smaller MTU than the other one, its interface, and both MTUs in bytes.
        smaller: Option<(End, String, [u32; 2])>,
        /// The router that reports a smaller MTU, and that MTU in bytes.
        router: Option<(IpAddr, u32)>,
    },
}

/// The findings in the reports of the ranks that try the ways of their hosts.
pub fn judge(reports: &[Report]) -> Vec<Finding> {
    let mut blocked: BTreeMap<_, Vec<End>> = BTreeMap::new();
    let mut narrow = Vec::new();
    for from in reports {
        for to in reports {
            let Some(tried) = tries(from, to) else { continue };
            for (protocol, place) in blocks(from, to, tried) {
                blocked
                    .entry((protocol, to.end.clone(), place))
                    .or_default()
                    .push(from.end.clone());
            }
            narrow.extend(narrows(from, to, tried));
        }
    }
    let chains = |place: &Place, from: &[End], to: &End| {
        let at = |rank, hook: usize| {
            let report = reports.iter().find(|report| report.end.rank == rank)?;
            report.chains[hook].clone()
        };
        match place {
            Place::Out => at(from.first()?.rank, 0),
            _ => at(to.rank, 1),
        }
    };
    let blocked = blocked.into_iter().flat_map(|((protocol, to, place), from)| {
        // Each sender's firewall has a rule of its own.
        let groups = match place {
            Place::Out | Place::System(_) => from.into_iter().map(|end| vec![end]).collect(),
            _ => vec![from],
        };
        let finding = |from: Vec<End>| {
            let chains = chains(&place, &from, &to);
            Finding::Blocked { protocol, from, to: to.clone(), place: place.clone(), chains }
        };
        groups.into_iter().map(finding).collect::<Vec<_>>()
    });
    blocked.chain(narrow).collect()
}

fn tries<'a>(from: &'a Report, to: &Report) -> Option<&'a Try> {
    from.tries.iter().find(|tried| tried.to == to.end.rank)
}

fn arrived(at: &Report, from: &Report) -> Packets {
    let found = at.arrived.iter().find(|(rank, _)| *rank == from.end.rank);
    found.map(|(_, packets)| *packets).unwrap_or_default()
}

/// The protocols of which nothing arrives, and where it ends.
fn blocks(from: &Report, to: &Report, tried: &Try) -> Vec<(Protocol, Place)> {
    // A connection sends fewer packets than a burst has.
    let receiver = |least| if to.dropped >= least { Place::In } else { Place::OnTheWay };
    let tcp = tried.tcp.as_ref().map(|why| match why {
        NoTcp::Silent => receiver(1),
        NoTcp::Refused => Place::Refused,
        NoTcp::System(text) => Place::System(text.clone()),
    });
    // Answers to what has arrived there come from the same port as packets of a job.
    let lost_answers =
        tries(to, from).is_some_and(|back| arrived(from, to).small > 0 && back.answers.small == 0);
    let is_lost = arrived(to, from).small == 0 || lost_answers;
    let udp = is_lost.then(|| match tried.prohibits {
        _ if tried.refused > 0 => Place::Out,
        Some(router) => Place::Router(router),
        None => receiver(BURST.into()),
    });
    let both = [(Protocol::Tcp, tcp), (Protocol::Udp, udp)];
    both.into_iter().filter_map(|(protocol, place)| Some((protocol, place?))).collect()
}

fn narrows(from: &Report, to: &Report, tried: &Try) -> Option<Finding> {
    let Packets { small, large } = arrived(to, from);
    if small == 0 || large > 0 {
        return None;
    }
    let smaller = |one: &Report, other: &Report| {
        let ((name, mtu), (_, others)) = (&one.interface, &other.interface);
        (mtu < others).then(|| (one.end.clone(), name.clone(), [*mtu, *others]))
    };
    Some(Finding::Narrow {
        from: from.end.clone(),
        to: to.end.clone(),
        bytes: tried.bytes,
        smaller: smaller(to, from),
        router: tried.narrows,
    })
}

impl Finding {
    /// Whether ranks cannot serve each other.
    pub fn breaks(&self) -> bool {
        matches!(self, Self::Blocked { .. })
    }

    /// The protocol of which nothing arrives.
    pub fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Blocked { protocol, .. } => Some(*protocol),
            Self::Narrow { .. } => None,
        }
    }

    /// What to do about it.
    pub fn fix(&self) -> Fix {
        match self {
            Self::Blocked { protocol, from, to, place, chains } => {
                let fix = Pass { protocol: *protocol, from, to, chains };
                fix.at(place)
            }
            Self::Narrow { smaller: Some((end, interface, [_, mtu])), .. } => Fix {
                host: end.to_string(),
                command: format!("ip link set dev {interface} mtu {mtu}"),
            },
            Self::Narrow { bytes: [_, large], router, .. } => Fix {
                host: router.map_or_else(
                    || "each switch and router on the way".to_owned(),
                    |(router, _)| router.to_string(),
                ),
                command: format!("ip link set dev INTERFACE mtu {large}"),
            },
        }
    }
}

/// A rule that lets packets pass.
struct Pass<'a> {
    protocol: Protocol,
    from: &'a [End],
    to: &'a End,
    chains: &'a Option<Vec<String>>,
}

impl Pass<'_> {
    fn at(&self, place: &Place) -> Fix {
        let on = |host: String, command| Fix { host, command };
        match place {
            Place::Out => on(words(self.from), self.rule("daddr", "OUTPUT -d")),
            Place::In => on(self.to.to_string(), self.rule("saddr", "INPUT -s")),
            Place::OnTheWay => on(
                format!("{}, and each firewall on the way", self.to),
                self.rule("saddr", "INPUT -s"),
            ),
            Place::Router(router) => {
                let matches = format!("{} {}", self.matches("saddr"), self.matches("daddr"));
                let protocol = self.protocol.name();
                on(
                    router.to_string(),
                    format!(
                        "nft insert rule inet filter forward {matches} meta l4proto \
                         {protocol} accept"
                    ),
                )
            }
            Place::Refused | Place::System(_) => {
                on(self.to.to_string(), "switchml-worker doctor".to_owned())
            }
        }
    }

    /// The addresses at one end, as firewalls name them.
    fn addresses(&self, end: &str) -> Vec<String> {
        match end {
            "saddr" => self.from.iter().map(|end| end.address.to_string()).collect(),
            _ => vec![self.to.address.to_string()],
        }
    }

    fn matches(&self, end: &str) -> String {
        let family = if self.to.address.is_ipv6() { "ip6" } else { "ip" };
        match &self.addresses(end)[..] {
            [only] => format!("{family} {end} {only}"),
            several => format!("{family} {end} {{ {} }}", several.join(", ")),
        }
    }

    /// A rule for the end whose chains these are.
    fn rule(&self, end: &str, chain_of_iptables: &str) -> String {
        let protocol = self.protocol.name();
        let matches = self.matches(end);
        let rule =
            |chain| format!("nft insert rule {chain} {matches} meta l4proto {protocol} accept");
        let seen: Vec<_> = self.chains.iter().flatten().map(rule).collect();
        if !seen.is_empty() {
            return seen.join(" && ");
        }
        let iptables = if self.to.address.is_ipv6() { "ip6tables" } else { "iptables" };
        let addresses = self.addresses(end).join(",");
        format!("{iptables} -I {chain_of_iptables} {addresses} -p {protocol} -j ACCEPT")
    }
}

fn words(ends: &[End]) -> String {
    ends.iter().map(End::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked { protocol, from, to, place, chains } => {
                let (from, unseen) = (words(from), unseen(chains));
                match place {
                    Place::Out => write!(
                        f,
                        "filtered {protocol}: the firewall of {from} drops it on its way out to \
                         {to}{unseen}"
                    ),
                    Place::In => write!(
                        f,
                        "filtered {protocol}: the firewall of {to} drops it on its way in from \
                         {from}{unseen}"
                    ),
                    Place::Router(router) => {
                        write!(f, "filtered {protocol}: {router} refuses it from {from} to {to}")
                    }
                    Place::OnTheWay => {
                        write!(f, "filtered {protocol}: it does not arrive from {from} at {to}")
                    }
                    Place::Refused => write!(
                        f,
                        "refused {protocol}: {to} refuses it from {from}; a firewall there rejects \
                         it, or the process has ended"
                    ),
                    Place::System(why) => {
                        write!(f, "no way: {from} cannot send {protocol} to {to}: {why}")
                    }
                }
            }
            Self::Narrow { from, to, bytes: [passes, vanishes], smaller, router } => {
                match (smaller, router) {
                    (Some((end, interface, [mtu, _])), _) => {
                        write!(f, "smaller MTU: {interface} of {end} takes {mtu}")?;
                    }
                    (None, Some((router, mtu))) => {
                        write!(f, "smaller MTU: {mtu} behind {router}, which says so")?;
                    }
                    (None, None) => write!(f, "smaller MTU on the way")?,
                }
                write!(
                    f,
                    "; IP packets of {passes} bytes pass from {from} to {to}, those of {vanishes} \
                     vanish"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Packets = Packets { small: BURST, large: BURST };

    fn end(rank: u16) -> End {
        let address = format!("10.0.0.{}", rank + 1).parse().unwrap();
        End { rank, address, host: format!("h{rank}") }
    }

    fn tried(to: u16) -> Try {
        Try {
            to,
            tcp: None,
            refused: 0,
            answers: ALL,
            prohibits: None,
            narrows: None,
            bytes: [128, 1500],
        }
    }

    /// So many hosts with a rank each, between which all passes.
    fn all_well(ranks: u16) -> Vec<Report> {
        let report = |rank: u16| Report {
            end: end(rank),
            interface: ("eth0".to_owned(), 1500),
            tries: (0..ranks).map(tried).collect(),
            arrived: (0..ranks).map(|other| (other, ALL)).collect(),
            dropped: 0,
            chains: [None, None],
        };
        (0..ranks).map(report).collect()
    }

    /// Nothing with UDP comes from this rank to that one.
    fn lose(reports: &mut [Report], from: u16, to: u16) {
        let at = |rank| usize::from(rank);
        reports[at(to)].arrived.retain(|(rank, _)| *rank != from);
        for (asks, of) in [(from, to), (to, from)] {
            let tried = reports[at(asks)].tries.iter_mut().find(|tried| tried.to == of);
            tried.unwrap().answers = Packets::default();
        }
    }

    fn lines(reports: &[Report]) -> Vec<String> {
        let line = |finding: &Finding| {
            let Fix { host, command } = finding.fix();
            format!("{finding} | {host}: {command}")
        };
        judge(reports).iter().map(line).collect()
    }

    #[test]
    fn where_all_passes_nothing_is_found() {
        assert_eq!(judge(&all_well(4)), []);
        // The second rank of a host tries nothing.
        let mut reports = all_well(2);
        let second = Report { tries: Vec::new(), arrived: Vec::new(), ..reports[1].clone() };
        reports.push(Report { end: End { rank: 2, ..end(1) }, ..second });
        assert_eq!(judge(&reports), []);
    }

    #[test]
    fn one_direction_is_named() {
        let mut reports = all_well(2);
        lose(&mut reports, 0, 1);
        let [from, to] = [0, 1].map(end);
        let expected = format!(
            "filtered UDP: it does not arrive from {from} at {to} | {to}, and each firewall on the \
             way: iptables -I INPUT -s 10.0.0.1 -p udp -j ACCEPT"
        );
        assert_eq!(lines(&reports), [expected]);
        assert!(judge(&reports)[0].breaks());
    }

    /// What asks gets through, and answers do not.
    #[test]
    fn lost_answers_count_as_their_direction() {
        let mut reports = all_well(2);
        reports[0].tries[1].answers = Packets::default();
        let start = "filtered UDP: it does not arrive from rank 1 (10.0.0.2, host h1) at rank 0";
        assert!(lines(&reports)[0].starts_with(start), "{:?}", lines(&reports));
        assert_eq!(lines(&reports).len(), 1);
    }

    #[test]
    fn a_firewall_at_the_receiver_has_a_rule_for_all_senders() {
        let mut reports = all_well(3);
        lose(&mut reports, 0, 2);
        lose(&mut reports, 1, 2);
        reports[2].dropped = 32;
        reports[2].chains[1] = Some(vec!["inet filter input".to_owned()]);
        let [one, other, to] = [0, 1, 2].map(end);
        let expected = format!(
            "filtered UDP: the firewall of {to} drops it on its way in from {one}, {other} | {to}: \
             nft insert rule inet filter input ip saddr {{ 10.0.0.1, 10.0.0.2 }} meta l4proto udp \
             accept"
        );
        assert_eq!(lines(&reports), [expected]);
        // A few packets may be others.
        reports[2].dropped = u64::from(BURST) - 1;
        assert!(lines(&reports)[0].contains("it does not arrive from rank 0"));
    }

    #[test]
    fn a_firewall_at_the_sender_is_told_from_others() {
        let mut reports = all_well(2);
        lose(&mut reports, 0, 1);
        let [from, to] = [0, 1].map(end);
        reports[0].tries[1].refused = BURST;
        let expected = format!(
            "filtered UDP: the firewall of {from} drops it on its way out to {to} (only root can \
             see its rules: `sudo nft list ruleset`) | {from}: iptables -I OUTPUT -d 10.0.0.2 -p \
             udp -j ACCEPT"
        );
        assert_eq!(lines(&reports), [expected]);
        reports[0].tries[1].refused = 0;
        reports[0].tries[1].prohibits = Some("10.0.0.254".parse().unwrap());
        let expected = format!(
            "filtered UDP: 10.0.0.254 refuses it from {from} to {to} | 10.0.0.254: nft insert rule \
             inet filter forward ip saddr 10.0.0.1 ip daddr 10.0.0.2 meta l4proto udp accept"
        );
        assert_eq!(lines(&reports), [expected]);
    }

    #[test]
    fn tcp_that_does_not_connect_is_named() {
        let mut reports = all_well(2);
        reports[0].tries[1].tcp = Some(NoTcp::Silent);
        reports[1].dropped = 1;
        let start = "filtered TCP: the firewall of rank 1 (10.0.0.2, host h1) drops it";
        assert!(lines(&reports)[0].starts_with(start), "{:?}", lines(&reports));
        reports[0].tries[1].tcp = Some(NoTcp::Refused);
        assert!(lines(&reports)[0].starts_with("refused TCP: rank 1 (10.0.0.2, host h1) refuses"));
    }

    #[test]
    fn a_smaller_mtu_slows_down_and_does_not_break() {
        let mut reports = all_well(2);
        reports[1].arrived[0].1.large = 0;
        assert!(lines(&reports)[0].starts_with("smaller MTU on the way; IP packets of 128 bytes"));
        assert!(lines(&reports)[0].ends_with("on the way: ip link set dev INTERFACE mtu 1500"));
        assert!(!judge(&reports)[0].breaks());
        reports[1].interface.1 = 1400;
        let [from, to] = [0, 1].map(end);
        let expected = format!(
            "smaller MTU: eth0 of {to} takes 1400; IP packets of 128 bytes pass from {from} to \
             {to}, those of 1500 vanish | {to}: ip link set dev eth0 mtu 1500"
        );
        assert_eq!(lines(&reports), [expected]);
    }
}
