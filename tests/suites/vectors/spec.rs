//! A vector's job in the form that a data plane gets.

use std::collections::BTreeMap;
use switchml_protocol::wire::auth::Key;
use switchml_rack::vectors::Job;
use switchml_userspace_core::data_plane::JobSpec;

/// The jobs that are open, by number, each with its first slot in the pool.
pub type OpenJobs = BTreeMap<u16, (Job, u32)>;

/// The first slot of the first job.
pub const FIRST_SLOT: u32 = 10;

/// A job as the data plane gets it: with the same slots if it was open before, or otherwise with
/// the slots behind all others'.
pub fn spec(open: &OpenJobs, job: &Job) -> JobSpec {
    let first_slot = match open.get(&job.number) {
        Some((_, first_slot)) => *first_slot,
        None => open.values().map(|(other, first)| first + other.slots).max().unwrap_or(FIRST_SLOT),
    };
    let (aggregator, group) = job.over_v4();
    JobSpec {
        number: job.number,
        epoch: job.epoch,
        // At a combiner the ranks are added one by one.
        secrets: match job.parent {
            None => job.members.iter().map(|member| member.secret).collect(),
            Some(_) => Vec::new(),
        },
        keys: job.members.iter().map(|member| key(member.key)).collect(),
        key: key(job.key),
        slots: first_slot..first_slot + job.slots,
        address: (*aggregator.ip()).into(),
        group: (*group.ip(), group.port()),
        parent: job.parent.map(|parent| parent.address),
    }
}

/// A key as vectors have it.
pub fn key(bytes: Option<[u8; 16]>) -> Key {
    bytes.map_or(Key::NONE, Key::from_bytes)
}
