//! A job's link to a combiner's parent.

use core::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::U16;
use crate::bpf_types::job::Binding;
use crate::ranks::{GROUPS, Ranks};
use crate::wire::ip::Ip;

/// A job's link to the combiner's parent.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Uplink {
    /// The session's epoch.
    pub epoch: u32,
    /// The combiner's own data port, at which it serves what is below.
    pub port: U16,
    /// The combiner's MAC towards its parent.
    pub mac: [u8; 6],
    /// The number of the combiner's cells.
    pub cells: u32,
    /// The combiner's address towards its parent.
    pub address: Ip,
    /// The parent's address and data port, and how frames get there: interface, MAC of the next
    /// hop, VLAN.
    pub parent: Binding,
    /// The ranks that are below.
    pub below: Ranks,
}

impl Uplink {
    /// The entry of a number that no job has.
    pub const NONE: Self = Self {
        epoch: 0,
        port: U16::ZERO,
        mac: [0; 6],
        cells: 0,
        address: Ip([0; 16]),
        parent: Binding {
            ip: Ip([0; 16]),
            ifindex: 0,
            mac: [0; 6],
            port: U16::ZERO,
            vlan: 0,
            roce: [0; 2],
        },
        below: Ranks::NONE,
    };
}

const _: () = assert!(size_of::<Uplink>() == 64 + 4 * GROUPS);
