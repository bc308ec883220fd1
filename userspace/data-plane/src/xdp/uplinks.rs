//! The ways from a combiner's jobs to their parents, in the program's maps: ranks are admitted to
//! them while the kernel is asked for the way.

use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::MapError;
use switchml_protocol::MAX_RANKS;
use switchml_protocol::bpf_types::job::MemberEntry;
use switchml_protocol::bpf_types::uplink::Uplink;

use crate::port::uplink::WayUp;

/// The maps that hold a combiner's uplinks, and the ranks below.
pub trait Uplinks {
    /// A job's way up.
    fn uplink(&self, job: u16) -> Result<Uplink, MapError>;

    /// Replaces a job's way up.
    fn set_uplink(&mut self, job: u16, uplink: Uplink) -> Result<(), MapError>;

    /// Replaces a rank's entry.
    fn set_member(&mut self, job: u16, rank: u16, member: MemberEntry) -> Result<(), MapError>;
}

/// Takes packets of a rank below, which has this secret.
pub fn admit(maps: &mut impl Uplinks, job: u16, rank: u16, secret: u32) -> Result<(), MapError> {
    let mut uplink = maps.uplink(job)?;
    if uplink.below.contains(rank) || usize::from(rank) >= MAX_RANKS {
        return Ok(());
    }
    uplink.below.insert(rank);
    maps.set_member(job, rank, MemberEntry { secret, ..MemberEntry::default() })?;
    maps.set_uplink(job, uplink)
}

/// Has the job's packets go up by the way that `find` returns. That takes long, so the maps are
/// free meanwhile: ranks may be admitted, and the job may end.
pub fn follow(
    maps: &Mutex<impl Uplinks>,
    job: u16,
    find: impl FnOnce() -> Result<WayUp, String>,
) -> Result<(), String> {
    let read = |error: MapError| error.to_string();
    let epoch = lock(maps).uplink(job).map_err(read)?.epoch;
    let way = find()?;
    let mut maps = lock(maps);
    let before = maps.uplink(job).map_err(read)?;
    let now = way.put_into(before.clone());
    // Another job may have the number by now.
    if before.epoch != epoch || now == before {
        return Ok(());
    }
    maps.set_uplink(job, now).map_err(read)
}

/// A panic elsewhere leaves the maps whole: each change is one system call.
fn lock<T>(maps: &Mutex<T>) -> MutexGuard<'_, T> {
    maps.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use switchml_protocol::bpf_types::job::Binding;
    use switchml_protocol::wire::ip::Ip;

    use super::*;

    const JOB: u16 = 3;

    #[derive(Default)]
    struct Memory {
        uplinks: BTreeMap<u16, Uplink>,
        members: BTreeMap<(u16, u16), MemberEntry>,
    }

    impl Uplinks for Memory {
        fn uplink(&self, job: u16) -> Result<Uplink, MapError> {
            Ok(self.uplinks.get(&job).cloned().unwrap_or(Uplink::NONE))
        }

        fn set_uplink(&mut self, job: u16, uplink: Uplink) -> Result<(), MapError> {
            self.uplinks.insert(job, uplink);
            Ok(())
        }

        fn set_member(&mut self, job: u16, rank: u16, member: MemberEntry) -> Result<(), MapError> {
            self.members.insert((job, rank), member);
            Ok(())
        }
    }

    fn way(last: u8) -> WayUp {
        let parent = Binding { mac: [2, 0, 0, 0, 0, last], ifindex: 7, ..Binding::default() };
        WayUp { mac: [2, 0, 0, 0, 1, last], address: Ip([last; 16]), parent }
    }

    fn opened(epoch: u32) -> Uplink {
        way(1).put_into(Uplink { epoch, cells: 512, ..Uplink::NONE })
    }

    #[test]
    fn a_rank_that_is_admitted_while_the_way_is_looked_for_stays_admitted() {
        let maps = Mutex::new(Memory::default());
        lock(&maps).set_uplink(JOB, opened(9)).expect("set");
        follow(&maps, JOB, || {
            admit(&mut *lock(&maps), JOB, 5, 0xABCD).expect("admitted");
            Ok(way(2))
        })
        .expect("followed");
        let uplink = lock(&maps).uplink(JOB).expect("read");
        assert!(uplink.below.contains(5), "its HELLOs are refused");
        assert_eq!((uplink.epoch, uplink.cells), (9, 512));
        assert_eq!((uplink.mac, uplink.address, uplink.parent), {
            let WayUp { mac, address, parent } = way(2);
            (mac, address, parent)
        });
        assert_eq!(lock(&maps).members[&(JOB, 5)].secret, 0xABCD);
    }

    #[test]
    fn a_job_that_takes_the_number_while_the_way_is_looked_for_keeps_its_own_way() {
        for next in [Uplink::NONE, opened(10)] {
            let maps = Mutex::new(Memory::default());
            lock(&maps).set_uplink(JOB, opened(9)).expect("set");
            follow(&maps, JOB, || {
                lock(&maps).set_uplink(JOB, next.clone()).expect("set");
                Ok(way(2))
            })
            .expect("followed");
            assert_eq!(lock(&maps).uplink(JOB).expect("read"), next);
        }
    }
}
