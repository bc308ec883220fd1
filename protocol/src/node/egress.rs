//! Where the copies of a served packet go. Every medium asks [`route`], and makes frames or
//! datagrams of what it says.

use crate::bpf_types::job::Binding;
use crate::node::Target;
use crate::root::admission::Members;
use crate::wire::ip::Ip;

/// The way of one copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Hop {
    /// The place that it goes to.
    pub to: Binding,
    /// The address of this node that it comes from; unspecified where any will do.
    pub from: Ip,
}

/// The copies of a served packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// There are none.
    None,
    /// One goes back to where the packet came from, from the address that the packet was sent to.
    Back,
    /// One goes the way that [`route`] has written.
    One,
    /// One goes to each place of the job, from the address that [`route`] has written. A place gets
    /// a DONE instead of its copy if [`Done::is_for`](crate::root::done::Done::is_for) its ranks
    /// (rule 9.4).
    Each,
}

/// The copies of a packet of this job and rank, which came in by the interface `ifindex` and has
/// been served. `None` if the job, its parent, or the rank's home is not known (any more).
///
/// It writes into the caller's `hop`, because the stack of BPF has no room for another one.
#[inline(always)]
pub fn route<T: Members>(
    tables: &T,
    target: Target,
    (job, rank): (u16, u16),
    ifindex: u32,
    hop: &mut Hop,
) -> Option<Copies> {
    match target {
        Target::Nobody | Target::Host => return Some(Copies::None),
        Target::Sender => return Some(Copies::Back),
        Target::Parent { job, .. } => (hop.to, hop.from) = tables.parent(job)?,
        Target::Rank => {
            hop.to = tables.home(job, rank)?;
            hop.from = tables.job(job)?.address;
        }
        Target::SendersGroup => {
            let job = tables.job(job)?;
            hop.to = job.group_at(ifindex);
            hop.from = job.address;
        }
        Target::All => {
            hop.from = tables.job(job)?.address;
            return Some(Copies::Each);
        }
    }
    Some(Copies::One)
}
