//! The entries, against the P4 source and against the reference of admission; the writes to a
//! switch for each change; and what its registers say of unfinished rounds.

mod admission;
mod changes;
mod combiner;
mod losses;
mod roce;
mod source;
mod unfinished;

use std::collections::BTreeMap;

use switchml_protocol::wire::auth::Key;

use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::Binding;

use crate::entries::OpenJob;
use switchml_userspace_core::data_plane::JobSpec;

const EPOCH: u32 = 0xABCD_EF01;
/// Slots of a job.
const SLOTS: u32 = 16;

/// Ports, addresses and so on that follow from the rank.
fn binding(rank: u16) -> Binding {
    let low = rank as u8;
    Binding {
        ifindex: 8 + u32::from(rank),
        ip: [10, 0, 0, low].into(),
        mac: [2, 0, 0, 0, 0, low],
        port: U16::new(5000 + rank),
        ..Binding::default()
    }
}

fn spec(number: u16, ranks: u16, slots: std::ops::Range<u32>) -> JobSpec {
    JobSpec {
        number,
        epoch: EPOCH + u32::from(number),
        secrets: (0..ranks).map(|rank| 1000 * u32::from(number) + u32::from(rank)).collect(),
        keys: Vec::new(),
        key: Key::NONE,
        slots,
        address: [10, 0, 0, 254].into(),
        group: ([239, 255, 0, number as u8].into(), 48866),
        parent: None,
    }
}

/// A job of which all ranks have said HELLO, or none.
fn job(number: u16, ranks: u16, is_known: bool) -> OpenJob {
    let first = SLOTS * u32::from(number);
    let mut job = OpenJob::new(spec(number, ranks, first..first + SLOTS));
    if is_known {
        job.bindings = (0..ranks).map(|rank| (rank, binding(rank))).collect();
        job.is_started = true;
    }
    job
}

/// A job of which these ranks are below a combiner and have said HELLO.
fn below(number: u16, ranks: std::ops::Range<u16>) -> OpenJob {
    let known = job(number, ranks.end, true);
    let has = |rank: &u16| ranks.contains(rank);
    OpenJob {
        secrets: known.secrets.into_iter().filter(|(rank, _)| has(rank)).collect(),
        bindings: known.bindings.into_iter().filter(|(rank, _)| has(rank)).collect(),
        uplink: Some(Binding { ifindex: 3, ..binding(255) }),
        ..job(number, 0, true)
    }
}

fn jobs(jobs: impl IntoIterator<Item = OpenJob>) -> BTreeMap<u16, OpenJob> {
    jobs.into_iter().map(|job| (job.spec.number, job)).collect()
}
