//! What ranks tell each other of the ways between their hosts.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A rank, and what it has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The rank.
    pub end: End,
    /// The interface towards the other hosts, and its MTU in bytes.
    pub interface: (String, u32),
    /// The tries of the ways to other hosts; none if another rank tries them for this host.
    pub tries: Vec<Try>,
    /// Packets that came, by the rank that sent them.
    pub arrived: Vec<(u16, Packets)>,
    /// IP packets that came in to this host meanwhile, and went nowhere.
    pub dropped: u64,
    /// Chains of the firewall on the way out and in, if the rank can see them.
    pub chains: [Option<Vec<String>>; 2],
}

/// A rank, for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct End {
    /// The rank.
    pub rank: u16,
    /// The address of its host.
    pub address: IpAddr,
    /// The name of its host; empty if the rank has not told it.
    pub host: String,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, address, host } = self;
        match host.as_str() {
            "" => write!(f, "rank {rank} ({address})"),
            _ => write!(f, "rank {rank} ({address}, host {host})"),
        }
    }
}

/// The try of the ways to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Try {
    /// The rank that tries them there.
    pub to: u16,
    /// Why TCP does not connect, if it does not.
    pub tcp: Option<NoTcp>,
    /// Packets that this host's firewall did not let out.
    pub refused: u32,
    /// Packets that came back.
    pub answers: Packets,
    /// The router that reports that packets are prohibited.
    pub prohibits: Option<IpAddr>,
    /// The router that reports a smaller MTU, and that MTU in bytes.
    pub narrows: Option<(IpAddr, u32)>,
    /// Bytes of a small and of a large IP packet.
    pub bytes: [u32; 2],
}

/// Why TCP does not connect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NoTcp {
    /// Nothing comes back.
    Silent,
    /// The host refuses.
    Refused,
    /// The system says this.
    System(String),
}

/// Numbers of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// Small ones.
    pub small: u32,
    /// Those that are as large as the sender's interface takes, or as a job's are.
    pub large: u32,
}
