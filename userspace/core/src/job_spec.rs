//! A job, as data planes know it.

use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::{JobEntry, MemberEntry};
use switchml_protocol::wire::auth::Key;

/// A job, as the data plane needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Number of the job.
    pub number: u16,
    /// The job's epoch, never 0.
    pub epoch: u32,
    /// The secret that each rank's HELLO must carry, by rank; 1 to 1024 of them. A combiner ignores
    /// them: its data plane is told of the ranks below one by one.
    pub secrets: Vec<u32>,
    /// The key of each rank's packet tags, by rank; none in a job without tags.
    pub keys: Vec<Key>,
    /// The key of tags of RESULTs to all; none in a job without tags.
    pub key: Key,
    /// The job's slots in the pool.
    pub slots: Range<u32>,
    /// The address that the job's workers send to.
    pub address: IpAddr,
    /// Multicast group of a RESULT for all, and its UDP port; unused where the fan-out is unicast,
    /// and 0 over IPv6 (rule 5.12).
    pub group: (Ipv4Addr, u16),
    /// At a combiner: the data address and port of its parent, to which it sends partial sums.
    pub parent: Option<SocketAddr>,
}

impl JobSpec {
    /// The ranks' entries in the data plane's table, by rank: none has said HELLO yet.
    pub fn members(&self) -> impl Iterator<Item = MemberEntry> {
        let keys = self.keys.iter().copied().chain(iter::repeat(Key::NONE));
        let member = |(&secret, key)| MemberEntry { secret, key, ..MemberEntry::default() };
        self.secrets.iter().zip(keys).map(member)
    }

    /// The job's entry in the data plane's table, in the given state.
    pub fn entry(&self, state: u32) -> JobEntry {
        JobEntry {
            state,
            epoch: self.epoch,
            ranks: self.secrets.len() as u32,
            first_slot: self.slots.start,
            slots: self.slots.end - self.slots.start,
            address: self.address.into(),
            group: self.group.0.octets(),
            group_port: U16::new(self.group.1),
            reserved: [0; 6],
            key: self.key,
        }
    }
}
