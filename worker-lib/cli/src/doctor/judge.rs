//! Derives the cause from the evidence.

use std::net::{IpAddr, SocketAddr};

use switchml_worker::control::{ExamineReply, Port};

use super::cause::{Cause, FEW_HOSTS, Flow, Hook, Place, SlowPort, beside_a_ring};
use super::counters::Counters;
use super::here::Here;
use super::probes::{BURST, Outcome, What};

/// Evidence about a path on which nothing comes back.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The destination of packets.
    pub target: SocketAddr,
    /// The kernel's knowledge of the path.
    pub here: Here,
    /// The outcome of packets that were sent there.
    pub outcome: Outcome,
    /// The growth of this host's counters meanwhile.
    pub growth: Counters,
    /// Other interfaces that frames came in through, and that drop packets that should come in
    /// through this one.
    pub strict: Vec<String>,
    /// The last router that reports that packets reach it.
    pub last_router: Option<IpAddr>,
    /// Chains of this host's firewall for packets out and in, if they can be seen.
    pub chains: [Option<Vec<String>>; 2],
    /// The aggregator's view; `None` if it cannot be asked.
    pub aggregator: Option<Aggregator>,
}

/// The aggregator's view of the path.
#[derive(Clone, Debug, Default)]
pub struct Aggregator {
    /// The reply about this rank.
    pub reply: ExamineReply,
    /// The aggregator's ports.
    pub ports: Vec<Port>,
}

impl Evidence {
    /// The cause, if the evidence tells it.
    pub fn cause(&self) -> Option<Cause> {
        self.out().or_else(|| self.asymmetric()).or_else(|| match &self.aggregator {
            None => self.without_aggregator(),
            Some(aggregator) if aggregator.reply.hello_seen => Some(self.back(aggregator)),
            Some(aggregator) => Some(self.there(aggregator)),
        })
    }

    /// The cause that keeps packets from leaving.
    fn out(&self) -> Option<Cause> {
        let Here { interface, neighbour, gateway, .. } = &self.here;
        if self.outcome.refused > 0 {
            return Some(self.filtered(Place::Out(self.chains[0].clone())));
        }
        let neighbour = neighbour.as_ref()?;
        let address = self.here.next_hop(self.target.ip());
        let name = interface.name.clone();
        let known = self.aggregator.as_ref().filter(|_| gateway.is_none());
        let macs = known.map(|aggregator| aggregator.reply.macs.as_slice()).unwrap_or_default();
        match neighbour.mac {
            None => {
                let (mac, program) = (macs.first().cloned(), interface.program);
                let may_be_mistyped = self.aggregator.is_none() && gateway.is_none();
                Some(Cause::NoNeighbour { address, interface: name, mac, program, may_be_mistyped })
            }
            Some(mac) => {
                let is_right = macs.contains(&switchml_host::neighbours::mac_text(mac));
                // The aggregator answers on the same path, unless it has another address.
                let is_suspect = match known {
                    Some(_) => !macs.is_empty() && !is_right,
                    None => self.aggregator.is_none() && self.is_silent(),
                };
                (neighbour.is_permanent && is_suspect).then_some(Cause::WrongNeighbour {
                    address,
                    interface: name,
                    mac,
                })
            }
        }
    }

    fn asymmetric(&self) -> Option<Cause> {
        let back = self.strict.first().filter(|_| self.growth.reverse_path > 0)?;
        let (target, out) = (self.target.ip(), self.here.interface.name.clone());
        Some(Cause::AsymmetricRoute { target, out, back: back.clone() })
    }

    /// The cause if not even the control plane can be reached.
    fn without_aggregator(&self) -> Option<Cause> {
        if let Some(program) = self.own_program().filter(|_| self.growth.received == 0) {
            return Some(program);
        }
        if self.has_dropped() {
            return Some(self.filtered(Place::In(self.chains[1].clone())));
        }
        // The host is up and answers, but not at this port.
        let answers = |what| self.complaint_of_target() == Some(what);
        answers(What::PortUnreachable).then(|| self.filtered(Place::There(self.last_router)))
    }

    /// The cause if packets do not reach the aggregator's program.
    fn there(&self, aggregator: &Aggregator) -> Cause {
        let ports: Vec<_> = aggregator.ports.iter().map(|port| port.name.clone()).collect();
        let interface = &aggregator.reply.interface;
        let port = aggregator.port();
        let is_passed_by = self.complaint_of_target() == Some(What::PortUnreachable);
        let Some(port) = port else {
            let interface = Some(interface.clone()).filter(|name| !name.is_empty());
            return match (interface, is_passed_by) {
                (None, false) => self.filtered(self.on_the_way()),
                (interface, _) => Cause::NotOnPort { interface, ports },
            };
        };
        if let Some(foreign) = foreign_at(port) {
            return foreign;
        }
        if !port.problem.is_empty() {
            let (port, why) = (port.name.clone(), port.problem.clone());
            return Cause::NotAttached { port, why };
        }
        if is_passed_by {
            return Cause::NotOnPort { interface: None, ports };
        }
        self.filtered(self.on_the_way())
    }

    /// The cause if answers do not come back from the aggregator's program.
    fn back(&self, aggregator: &Aggregator) -> Cause {
        let Here { interface, has_gro, gateway, .. } = &self.here;
        let is_veth = interface.kind.as_deref() == Some("veth");
        let is_deaf = is_veth && *has_gro == Some(false) && interface.program.is_none();
        if let Some(port) = aggregator.port().filter(|port| port.drops_answers) {
            let here = Some(interface.name.clone()).filter(|_| is_deaf && gateway.is_none());
            return Cause::GroOff { port: port.name.clone(), here };
        }
        let has_arrived = self.growth.frames_by(&interface.name) >= u64::from(BURST);
        if has_arrived
            && self.growth.received < u64::from(BURST)
            && let Some(program) = self.own_program()
        {
            return program;
        }
        if self.has_dropped() {
            return self.filtered(Place::In(self.chains[1].clone()));
        }
        self.filtered(Place::Back)
    }

    fn own_program(&self) -> Option<Cause> {
        let interface = &self.here.interface;
        interface.program.map(|id| Cause::ForeignProgram {
            is_here: true,
            interface: interface.name.clone(),
            id,
            hook: if interface.program_is_generic { Hook::Generic } else { Hook::Driver },
        })
    }

    fn filtered(&self, place: Place) -> Cause {
        let port = self.target.port();
        let flow = match self.aggregator {
            Some(_) => Flow::Data(port),
            None => Flow::Control(port),
        };
        Cause::Filtered { flow, place, is_ipv6: self.target.is_ipv6() }
    }

    /// The cause if nothing comes back by RDMA, though datagrams do: this evidence is about
    /// datagrams to RDMA's port. Packets that this host's firewall refuses, Soft-RoCE counts as
    /// failed sends; those of NICs pass no firewall here.
    pub fn filtered_by_rdma(&self, hello_seen: bool, is_soft: bool, sends_failed: bool) -> Cause {
        let place = match hello_seen {
            false if self.outcome.refused > 0 && sends_failed => Place::Out(self.chains[0].clone()),
            false => self.on_the_way(),
            true if is_soft && self.has_dropped() => Place::In(self.chains[1].clone()),
            true => Place::Back,
        };
        Cause::Filtered { flow: Flow::Rdma, place, is_ipv6: self.target.is_ipv6() }
    }

    /// Whether the target's host has got packets to its port, and said that nobody listens there.
    pub fn reaches_host(&self) -> bool {
        self.complaint_of_target() == Some(What::PortUnreachable)
    }

    /// Where packets are dropped before the aggregator sees them.
    fn on_the_way(&self) -> Place {
        let refusing = self.outcome.complaints.iter().find(|complaint| {
            matches!(complaint.what, What::Prohibited | What::PortUnreachable)
                && complaint.from != self.target.ip()
        });
        match refusing {
            Some(complaint) => Place::Router(complaint.from),
            None => Place::There(self.last_router),
        }
    }

    /// The ICMP message from the target's own host.
    fn complaint_of_target(&self) -> Option<What> {
        let mut complaints = self.outcome.complaints.iter();
        complaints.find(|complaint| complaint.from == self.target.ip()).map(|found| found.what)
    }

    /// Whether this host has dropped answers after they came in.
    fn has_dropped(&self) -> bool {
        self.growth.dropped() >= u64::from(BURST)
    }

    fn is_silent(&self) -> bool {
        self.outcome.answers == 0 && self.outcome.complaints.is_empty()
    }
}

impl Aggregator {
    /// The port through which packets of this host come in, if it is one of the aggregator's.
    fn port(&self) -> Option<&Port> {
        self.ports.iter().find(|port| port.name == self.reply.interface)
    }

    /// Other programs on the port, which see frames first.
    pub fn foreign_program(&self) -> Option<Cause> {
        self.port().and_then(foreign_at).filter(|foreign| {
            // A program at tc ingress may leave frames to others, as most do.
            !matches!(foreign, Cause::ForeignProgram { hook: Hook::Ingress, .. })
        })
    }

    /// The port, if it is too slow for hosts with links like this one, of `own` bits per second.
    pub fn slow_port(&self, interface: &str, own: u64) -> Option<Cause> {
        let port = self.port().filter(|port| port.link_speed > 0)?;
        let is_slower = |hosts: &u32| beside_a_ring(*hosts, port.link_speed, own) > 1.0;
        let most = (2..=FEW_HOSTS).find(is_slower).filter(|_| self.ports.len() == 1);
        (most.is_some() || port.link_speed < own).then(|| {
            Cause::SlowPort(SlowPort {
                port: port.name.clone(),
                speed: port.link_speed,
                interface: interface.to_owned(),
                own,
                most,
            })
        })
    }

    /// The MTU of the port.
    pub fn mtu(&self) -> Option<(String, u32)> {
        self.port().map(|port| (port.name.clone(), port.mtu))
    }
}

fn foreign_at(port: &Port) -> Option<Cause> {
    let (id, hook) = match (port.foreign_program, port.program_before) {
        (0, 0) => return None,
        (0, id) => (id, Hook::Ingress),
        (id, _) => (id, if port.foreign_is_generic { Hook::Generic } else { Hook::Driver }),
    };
    Some(Cause::ForeignProgram { is_here: false, interface: port.name.clone(), id, hook })
}

#[cfg(test)]
pub mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::doctor::probes::Complaint;
    use switchml_host::interfaces::Interface;
    use switchml_host::neighbours::Neighbour;

    const AGGREGATOR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 254));

    /// Evidence about the path from `eth0` to the aggregator's port `p0`.
    pub fn evidence() -> Evidence {
        let name = "eth0".to_owned();
        let reply = ExamineReply {
            interface: "p0".to_owned(),
            macs: vec!["02:00:00:00:00:fe".to_owned()],
            ..ExamineReply::default()
        };
        let ports = vec![Port { name: "p0".to_owned(), ..Port::default() }];
        Evidence {
            target: SocketAddr::new(AGGREGATOR, 48864),
            here: Here { interface: Interface { name, ..Interface::default() }, ..Here::default() },
            outcome: Outcome::default(),
            growth: Counters::default(),
            strict: vec![],
            last_router: None,
            chains: [None, None],
            aggregator: Some(Aggregator { reply, ports }),
        }
    }

    fn fix(evidence: &Evidence) -> (String, String) {
        let fix = evidence.cause().unwrap().fix();
        (fix.host, fix.command)
    }

    fn neighbour(mac: Option<u8>) -> Option<Neighbour> {
        let mac = mac.map(|last| [2, 0, 0, 0, 0, last]);
        Some(Neighbour { mac, is_permanent: mac.is_some() })
    }

    #[test]
    fn a_neighbour_that_the_aggregator_knows_is_entered() {
        let mut evidence = evidence();
        evidence.here.neighbour = neighbour(None);
        let expected = "ip neigh replace 10.0.0.254 lladdr 02:00:00:00:00:fe dev eth0";
        assert_eq!(fix(&evidence).1, expected);
        evidence.here.neighbour = neighbour(Some(0x99));
        assert_eq!(fix(&evidence).1, "ip neigh del 10.0.0.254 dev eth0");
        evidence.here.neighbour = neighbour(Some(0xFE));
        assert!(matches!(evidence.cause(), Some(Cause::Filtered { .. })), "it is the right one");
        // Only the settings say that this host exists.
        let unknown = Evidence { aggregator: None, ..evidence.clone() };
        let unknown = Evidence {
            here: Here { neighbour: neighbour(None), ..unknown.here.clone() },
            ..unknown
        };
        assert!(fix(&unknown).1.starts_with("switchml-worker doctor --aggregator "));
        let line = unknown.cause().unwrap().to_string();
        assert!(
            line.ends_with(" on eth0; no host there has this address, or it is down"),
            "{line}"
        );
        // A router's MAC is not one of the aggregator's.
        evidence.here.gateway = Some(Ipv4Addr::new(10, 0, 1, 254).into());
        evidence.here.neighbour = neighbour(Some(0x99));
        assert!(matches!(evidence.cause(), Some(Cause::Filtered { .. })));
    }

    #[test]
    fn a_port_without_the_program_is_named() {
        let mut evidence = evidence();
        let aggregator = evidence.aggregator.as_mut().unwrap();
        aggregator.ports[0].problem = "it is down".to_owned();
        let cause = evidence.cause().unwrap().to_string();
        assert!(cause.ends_with("its program is not attached to p0: it is down"), "{cause}");
        let what = What::PortUnreachable;
        evidence.outcome.complaints = vec![Complaint { from: AGGREGATOR, what }];
        let aggregator = evidence.aggregator.as_mut().unwrap();
        aggregator.ports[0].problem.clear();
        let expected = "switchml-aggregator --iface p0 --iface INTERFACE";
        assert_eq!(fix(&evidence).1, expected, "its host's kernel got them");
    }

    #[test]
    fn a_program_before_the_aggregators_is_named_if_nothing_gets_there() {
        let mut evidence = evidence();
        let aggregator = evidence.aggregator.as_mut().unwrap();
        aggregator.ports[0].program_before = 7;
        assert_eq!(aggregator.foreign_program(), None, "it may leave frames to others");
        let cause = evidence.cause().unwrap().to_string();
        let expected = "foreign program: the program with id 7 at tc ingress of p0 of the \
                        aggregator's host sees frames before the aggregator does";
        assert_eq!(cause, expected);
    }

    /// 4 hosts with links of speed s behind a port of 4 s are as fast as with wires of their own. A
    /// ring of 2 moves each byte over each link once; the port moves it twice.
    #[test]
    fn a_port_is_too_slow_if_it_is_slower_or_shared() {
        let mut evidence = evidence();
        let aggregator = evidence.aggregator.as_mut().unwrap();
        let mut remark = |speed: u64, own: u64, ports: usize| {
            let port = Port { name: "p0".to_owned(), link_speed: speed, ..Port::default() };
            aggregator.ports = vec![port; ports];
            aggregator.slow_port("eth0", own).map(|cause| cause.to_string())
        };
        const GIGABIT: u64 = 1_000_000_000;
        let line = remark(10 * GIGABIT, 10 * GIGABIT, 1).unwrap();
        let expected = "slow port: p0 of the aggregator's host has 10 Gb/s, eth0 of this host 10 \
                        Gb/s; all hosts share it, so with 2 or more of them ";
        assert!(line.starts_with(expected), "{line}");
        // 8 / 1 of a link's time, and 2 * 7 / 8 of it.
        assert!(line.ends_with("less time; with 8 this takes 4.6 times as long"), "{line}");
        // 2 (n - 1) / n^2 is below 0.4 from n = 4 on, and below 0.25 from 7 on.
        assert!(remark(25 * GIGABIT, 10 * GIGABIT, 1).unwrap().contains("with 4 or more of them"));
        assert!(remark(40 * GIGABIT, 10 * GIGABIT, 1).unwrap().contains("with 7 or more of them"));
        assert_eq!(remark(100 * GIGABIT, 10 * GIGABIT, 1), None);
        // With several ports, each port may have one host.
        assert_eq!(remark(10 * GIGABIT, 10 * GIGABIT, 2), None);
        assert!(
            remark(GIGABIT, 10 * GIGABIT, 2)
                .unwrap()
                .ends_with("has 1 Gb/s, eth0 of this host 10 Gb/s")
        );
        assert_eq!(remark(0, 10 * GIGABIT, 1), None, "nobody knows");
    }

    #[test]
    fn the_ranks_hosts_help_where_all_hosts_share_a_port() {
        let slow = |most| {
            let (port, interface) = ("p0".to_owned(), "eth0".to_owned());
            Cause::SlowPort(SlowPort { port, speed: 1, interface, own: 10, most }).fix()
        };
        assert_eq!(slow(Some(2)).command, "switchml-aggregator --data-plane software");
        assert!(slow(Some(2)).host.starts_with("each rank's host"));
        assert_eq!(slow(None).command, "switchml-aggregator --iface p0 --iface INTERFACE");
    }

    #[test]
    fn gro_is_off_here_only_if_nothing_is_in_between() {
        let mut evidence = evidence();
        let aggregator = evidence.aggregator.as_mut().unwrap();
        aggregator.reply.hello_seen = true;
        aggregator.ports[0].drops_answers = true;
        evidence.here.interface.kind = Some("veth".to_owned());
        evidence.here.has_gro = Some(false);
        let here = ("this host".to_owned(), "ethtool -K eth0 gro on".to_owned());
        assert_eq!(fix(&evidence), here);
        let there = ("the other end of p0".to_owned(), "ethtool -K INTERFACE gro on".to_owned());
        evidence.here.has_gro = Some(true);
        assert_eq!(fix(&evidence), there);
        evidence.here.has_gro = Some(false);
        evidence.here.gateway = Some(AGGREGATOR);
        assert_eq!(fix(&evidence), there);
    }

    #[test]
    fn a_program_here_is_at_fault_only_if_frames_end_there() {
        let mut evidence = evidence();
        evidence.aggregator.as_mut().unwrap().reply.hello_seen = true;
        evidence.here.interface.program = Some(7);
        assert!(matches!(evidence.cause(), Some(Cause::Filtered { place: Place::Back, .. })));
        evidence.growth.frames.insert("eth0".to_owned(), 8);
        assert_eq!(fix(&evidence).1, "ip link set dev eth0 xdp off");
        // The frames got past the program.
        evidence.growth.received = 8;
        assert!(matches!(evidence.cause(), Some(Cause::Filtered { place: Place::In(_), .. })));
        evidence.growth.delivered = 8;
        assert!(matches!(evidence.cause(), Some(Cause::Filtered { place: Place::Back, .. })));
    }

    #[test]
    fn a_strict_interface_is_at_fault_only_if_it_has_dropped_something() {
        let mut evidence = evidence();
        evidence.strict = vec!["eth1.5".to_owned()];
        assert!(matches!(evidence.cause(), Some(Cause::Filtered { .. })));
        evidence.growth.reverse_path = 1;
        assert_eq!(fix(&evidence).1, "sysctl -w net.ipv4.conf.eth1/5.rp_filter=2");
    }

    #[test]
    fn without_the_aggregator_its_host_may_still_speak() {
        let mut evidence = Evidence { aggregator: None, ..evidence() };
        assert_eq!(evidence.cause(), None, "it may be down");
        let what = What::PortUnreachable;
        evidence.outcome.complaints = vec![Complaint { from: AGGREGATOR, what }];
        let (flow, place) = (Flow::Control(48864), Place::There(None));
        let expected = Cause::Filtered { flow, place, is_ipv6: false };
        assert_eq!(evidence.cause(), Some(expected));
    }

    /// Answers by RDMA go to port 4791, too (rule 37.3).
    #[test]
    fn packets_by_rdma_are_filtered_where_datagrams_pass() {
        let mut evidence = evidence();
        evidence.target.set_port(4791);
        let command = |evidence: &Evidence, hello_seen, sends_failed| {
            evidence.filtered_by_rdma(hello_seen, sends_failed, sends_failed).fix().command
        };
        let forward = "nft insert rule inet filter forward udp dport 4791 accept";
        assert_eq!(command(&evidence, false, false), forward);
        assert_eq!(command(&evidence, true, false), forward);
        evidence.outcome.refused = 8;
        assert_eq!(command(&evidence, false, false), forward, "a NIC's packets pass no firewall");
        let out = "iptables -I OUTPUT -p udp --dport 4791 -j ACCEPT";
        assert_eq!(command(&evidence, false, true), out, "Soft-RoCE's do");
        evidence.growth.received = 8;
        let nic = evidence.filtered_by_rdma(true, false, false);
        assert_eq!(nic.fix().command, forward, "others' packets were dropped");
        let filtered = evidence.filtered_by_rdma(true, true, false);
        assert_eq!(filtered.fix().command, "iptables -I INPUT -p udp --dport 4791 -j ACCEPT");
        let line = filtered.to_string();
        let expected = "filtered port: UDP to port 4791 is dropped by this host's firewall on its \
                        way in (only root can see its rules: `sudo nft list ruleset`)";
        assert_eq!(line, expected);
        let from: IpAddr = Ipv4Addr::new(10, 0, 1, 254).into();
        evidence.outcome.complaints = vec![Complaint { from, what: What::Prohibited }];
        let refused = evidence.filtered_by_rdma(false, false, false);
        assert_eq!(refused.fix().host, "10.0.1.254");
        assert_eq!(refused.to_string(), "filtered port: UDP to port 4791 is refused by 10.0.1.254");
    }

    #[test]
    fn over_ipv6_causes_have_its_words_and_commands() {
        let mut evidence = evidence();
        evidence.target = "[fd00::fe]:48864".parse().unwrap();
        evidence.outcome.refused = 8;
        let expected = "ip6tables -I OUTPUT -p udp --dport 48864 -j ACCEPT";
        assert_eq!(fix(&evidence).1, expected);
        evidence.outcome.refused = 0;
        evidence.here.neighbour = neighbour(None);
        let cause = evidence.cause().unwrap().to_string();
        let expected = "missing neighbour: nobody answers neighbour discovery for fd00::fe on eth0";
        assert_eq!(cause, expected);
        let expected = "ip neigh replace fd00::fe lladdr 02:00:00:00:00:fe dev eth0";
        assert_eq!(fix(&evidence).1, expected);
    }
}
