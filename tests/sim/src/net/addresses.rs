//! Addresses, and what they belong to.

use std::net::{Ipv4Addr, SocketAddrV4};

use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::{DATA_PORT, U16};

/// What is above a worker or a combiner: its packets go there, and its control connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Above {
    /// An aggregator.
    Aggregator(usize),
    /// A combiner.
    Combiner(usize),
}

impl Above {
    /// A combiner, or else the only aggregator of a job with combiners.
    pub fn in_tree(combiner: Option<usize>) -> Self {
        combiner.map_or(Self::Aggregator(0), Self::Combiner)
    }

    /// The data address.
    pub fn address(self) -> SocketAddrV4 {
        let ip = match self {
            // The first one is on the host of the first worker.
            Self::Aggregator(0) => address_of(0),
            Self::Aggregator(number) => Ipv4Addr::new(10, 2, 0, number as u8),
            Self::Combiner(number) => address_of_combiner(number),
        };
        SocketAddrV4::new(ip, DATA_PORT)
    }
}

/// The address of the host whose first worker is `first`.
pub fn address_of(first: usize) -> Ipv4Addr {
    let [high, low] = (first as u16 + 1).to_be_bytes();
    Ipv4Addr::new(10, 0, high, low)
}

/// The source of datagrams from the host whose first worker is `first`, behind that interface of
/// the aggregator.
pub fn binding_of(first: usize, port: u16, ifindex: u32) -> Binding {
    let ip = address_of(first).octets();
    let mac = [2, 0, 0, 0, ip[2], ip[3]];
    Binding { ifindex, ip: ip.into(), mac, port: U16::new(port), ..Binding::default() }
}

/// The first UDP port of workers.
const FIRST_PORT: u16 = 16_384;
/// Ports of a worker, and of each of its shards: one start after another takes the next.
const PORTS: u16 = 8_192;
const STARTS: u16 = PORTS / 8;

/// The UDP port of a shard of the worker at a place on its host, which has opened so many sockets
/// before.
pub fn port_of(place: usize, shard: usize, sockets: u16) -> u16 {
    FIRST_PORT + place as u16 * PORTS + shard as u16 * STARTS + sockets % STARTS
}

/// The shard whose UDP port this is.
pub fn shard_at(port: u16) -> usize {
    usize::from(port.saturating_sub(FIRST_PORT) % PORTS / STARTS)
}

/// The source of a combiner's datagrams.
pub(super) fn binding_of_combiner(combiner: usize, port: u16) -> Binding {
    let ip = address_of_combiner(combiner).octets();
    let mac = [2, 0, 0, 1, ip[2], ip[3]];
    let ifindex = COMBINER_PORTS + combiner as u32;
    Binding { ifindex, ip: ip.into(), mac, port: U16::new(port), ..Binding::default() }
}

/// The source of a parent's datagrams, as a combiner sees it.
pub(super) fn binding_of_parent(parent: Above) -> Binding {
    let address = parent.address();
    let (ip, port) = (address.ip().octets().into(), U16::new(address.port()));
    Binding { ip, port, ..Binding::default() }
}

/// A combiner's address.
pub fn address_of_combiner(combiner: usize) -> Ipv4Addr {
    let [high, low] = (combiner as u16 + 1).to_be_bytes();
    Ipv4Addr::new(10, 1, high, low)
}

/// The number of the stranger, beyond those of workers.
pub const STRANGER: usize = 60_000;

/// The first interface of combiners, after those of workers.
const COMBINER_PORTS: u32 = 100_000;

/// What an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A worker.
    Worker(usize),
    /// A combiner.
    Combiner(usize),
    /// The stranger.
    Stranger,
}

impl Place {
    /// What the address of a binding belongs to.
    pub fn of(binding: &Binding) -> Self {
        let [.., kind, high, low] = binding.ip.0;
        let number = usize::from(u16::from_be_bytes([high, low]));
        match (kind, number) {
            _ if number == STRANGER + 1 => Self::Stranger,
            (1, _) => Self::Combiner(number - 1),
            _ => {
                let place = binding.port.get().saturating_sub(FIRST_PORT) / PORTS;
                Self::Worker(number - 1 + usize::from(place))
            }
        }
    }
}
