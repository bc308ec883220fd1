//! The control plane's description of a job for the data plane, and where the job's members live,
//! which the data plane learns.
//!
//! These structs are values of BPF maps: `#[repr(C)]`, without padding, the same size on both
//! sides. They are aligned to 8 bytes, because the BPF program copies them by 8-byte words, and its
//! stack allows no misaligned access.

use core::fmt;
use core::mem::size_of;
use core::net::SocketAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::U16;
use crate::wire::auth::Key;
use crate::wire::ip::Ip;

/// A job is absent, or gone: its packets count as an unknown job's.
pub const VACANT: u32 = 0;
/// A job is open for contributions.
pub const OPEN: u32 = 1;
/// A job was aborted: its members are told so, and no contribution is added any more.
pub const ABORTED: u32 = 2;

/// One job. The default is a vacant entry.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct JobEntry {
    /// [`VACANT`], [`OPEN`] or [`ABORTED`]. In one 8-byte word with the epoch, so that both change
    /// at once (rule 10.3).
    pub state: u32,
    /// The session's epoch; never 0.
    pub epoch: u32,
    /// Number of ranks N, 1..=1024.
    pub ranks: u32,
    /// The job's slots are `first_slot..first_slot + slots` of the pool.
    pub first_slot: u32,
    /// Number of slots S of the job.
    pub slots: u32,
    /// Source address of a RESULT for all: where the job's workers send to.
    pub address: Ip,
    /// Multicast group of a RESULT for all; IPv4 only.
    pub group: [u8; 4],
    /// UDP port of the group.
    pub group_port: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// Key of the RESULTs to all; [`Key::NONE`] in a job without tags.
    pub key: Key,
}

const _: () = assert!(size_of::<JobEntry>() == 64);

impl JobEntry {
    /// Rule 5.2: the destination of a frame to the job's group that leaves by this port.
    #[inline(always)]
    pub const fn group_at(&self, ifindex: u32) -> Binding {
        let [_, b, c, d] = self.group;
        let mac = [0x01, 0x00, 0x5E, b & 0x7F, c, d];
        let (ip, port) = (Ip::v4(self.group), self.group_port);
        Binding { ip, ifindex, mac, port, vlan: 0, roce: [0; 2] }
    }
}

/// Where a rank lives, as its frames show it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct Binding {
    /// IP address.
    pub ip: Ip,
    /// Index of the interface that its frames come in by; 0 where the data plane does not see
    /// interfaces.
    pub ifindex: u32,
    /// Ethernet address; zero where the data plane does not see frames.
    pub mac: [u8; 6],
    /// UDP port; by RoCEv2 the low 16 bits of the queue pair's number.
    pub port: U16,
    /// VLAN; 0 for none, or where the data plane does not see frames.
    pub vlan: u16,
    /// By RoCEv2 1, and the high 8 bits of the queue pair's number; otherwise zeros.
    pub roce: [u8; 2],
}

const _: () = assert!(size_of::<Binding>() == 32);

impl Binding {
    /// Rule 37.3: the same host's queue pair with this number, in place of its UDP port.
    pub const fn at_queue_pair(self, number: u32) -> Self {
        let (roce, port) = of_queue_pair(number);
        Self { port, roce, ..self }
    }

    /// Whether it is a queue pair of RoCEv2.
    #[inline(always)]
    pub const fn is_queue_pair(&self) -> bool {
        self.roce[0] != 0
    }

    /// Whether multicast can reach it: not over IPv6, nor a queue pair (rules 5.12 and 37.3).
    #[inline(always)]
    pub const fn can_be_in_group(&self) -> bool {
        self.ip.is_v4() && !self.is_queue_pair()
    }

    /// The queue pair's number, by RoCEv2.
    pub const fn queue_pair(&self) -> Option<u32> {
        match self.roce {
            [_, high] if self.is_queue_pair() => Some((high as u32) << 16 | self.port.get() as u32),
            _ => None,
        }
    }
}

/// [`Binding::roce`] and [`Binding::port`] of the queue pair with this number.
#[inline(always)]
pub(crate) const fn of_queue_pair(number: u32) -> ([u8; 2], U16) {
    let [_, high, a, b] = number.to_be_bytes();
    ([1, high], U16::from_bytes([a, b]))
}

/// Address, and port or queue pair.
impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queue_pair() {
            None => SocketAddr::new(self.ip.into(), self.port.get()).fmt(f),
            Some(number) => write!(f, "{} queue pair {number}", self.ip),
        }
    }
}

/// One rank of one job.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct MemberEntry {
    /// The secret that the rank's HELLO must carry, given to the rank by the control plane.
    pub secret: u32,
    /// Epoch in which `binding` was learned. If it is not the job's, the rank has not said HELLO
    /// yet.
    pub epoch: u32,
    /// Where the rank lives.
    pub binding: Binding,
    /// Key of the packets that the rank sends, and of answers to it alone.
    pub key: Key,
}

const _: () = assert!(size_of::<MemberEntry>() == 56);

impl MemberEntry {
    /// Where the rank lives, if it has said so in this epoch.
    #[inline(always)]
    pub const fn home(&self, epoch: u32) -> Option<Binding> {
        if self.epoch == epoch { Some(self.binding) } else { None }
    }
}
