//! Keys and values of other BPF maps that the programs and their loader share.

use core::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::U16;
use crate::bpf_types::job::Binding;
use crate::outcome::Outcome;
use crate::wire::header::Header;
use crate::wire::ip::Ip;

/// Jobs at once. Each has a number below this.
pub const MAX_JOBS: usize = 512;

/// Entries of the job table: a job has one for each data thread of a rank. Half of them are enough
/// for all jobs.
pub const MAX_SHARDS: usize = 1024;

/// Slots that lie together in memory, allocated when they are first needed: the number of slots of
/// one entry of the job table.
pub const SLOTS_PER_SHARD: usize = 512;

/// Most interfaces that a data plane serves.
pub const MAX_PORTS: usize = 1024;

/// Key of the set of endpoints that the aggregator answers to. With port and MAC 0 it is an address
/// of the aggregator's, which nobody else may send from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Endpoint {
    /// IP address.
    pub ip: Ip,
    /// UDP port.
    pub port: U16,
    /// Ethernet address.
    pub mac: [u8; 6],
}

impl Endpoint {
    /// The endpoint of the aggregator with this MAC, address and port.
    #[inline(always)]
    pub const fn served(mac: [u8; 6], ip: Ip, port: U16) -> Self {
        Self { ip, port, mac }
    }

    /// An address that nobody else may send from.
    #[inline(always)]
    pub const fn own(ip: Ip) -> Self {
        Self::served([0; 6], ip, U16::ZERO)
    }
}

/// A notable packet ([`Outcome::is_notable`]), as told to user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Event {
    /// Where the packet came from.
    pub binding: Binding,
    /// Epoch of the packet.
    pub epoch: u32,
    /// Round of the packet.
    pub round: u32,
    /// Job of the packet.
    pub job: u16,
    /// Rank of the packet.
    pub rank: u16,
    /// Slot of the packet.
    pub slot: u16,
    /// The [`Outcome`], as a number.
    pub outcome: u8,
    /// Zero.
    pub reserved: u8,
}

impl Event {
    /// A packet of that outcome, which came from there.
    #[inline(always)]
    pub const fn new(outcome: Outcome, binding: &Binding, header: &Header) -> Self {
        Self {
            binding: *binding,
            epoch: header.epoch.get(),
            round: header.round.get(),
            job: header.job.get(),
            rank: header.rank.get(),
            slot: header.slot.get(),
            outcome: outcome as u8,
            reserved: 0,
        }
    }
}

const _: () = {
    assert!(size_of::<Endpoint>() == 24);
    assert!(size_of::<Event>() == 48);
};
