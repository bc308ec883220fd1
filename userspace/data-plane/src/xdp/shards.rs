//! The maps that each shard has in the kernel: memory for its slots, and the ports of its job.
//!
//! Both are entries of a map of maps. Setting an entry takes the kernel tens of milliseconds,
//! because it waits for all programs that may use the old entry; threads that do so at the same
//! time wait together. So a shard's maps are made once, in any thread, and kept for its next job.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{Array, ArrayOfMaps, DevMap, InnerMap, Map, MapData, MapError};
use aya::programs::ProgramFd;
use aya_obj::generated::{
    bpf_devmap_val,
    bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_DEVMAP},
};
use switchml_protocol::bpf_types::fanout::{MAX_PLACES, Receivers};
use switchml_protocol::bpf_types::job::{JobEntry, OPEN};
use switchml_protocol::bpf_types::maps::SLOTS_PER_SHARD;
use switchml_protocol::root::slot::LockedSlot;
use switchml_userspace_core::oldest_round::{
    Alike, Newest, Progress, all_unfinished, newest, progress,
};
use zerocopy::transmute;

type Slots = Array<MapData, [u8; size_of::<LockedSlot>()]>;
type Group = DevMap<MapData>;

/// All shards.
pub struct Shards {
    slots: MapData,
    groups: MapData,
    /// Whether shards need slots: a combiner's do not.
    have_slots: bool,
    /// The shards for which this process has made maps.
    known: Mutex<HashMap<u16, Arc<Mutex<Shard>>>>,
}

/// The maps that this process has made for a shard, and keeps.
#[derive(Default)]
struct Shard {
    slots: Option<Slots>,
    group: Option<Group>,
    /// Number of the group's places that have a port.
    places: u32,
}

impl Shards {
    /// Takes the maps of maps out of a loaded object.
    ///
    /// # Errors
    ///
    /// When one is missing or of another type.
    pub fn take(object: &mut Ebpf, have_slots: bool) -> Result<Self, MapError> {
        let mut take = |name: &str| match object.take_map(name) {
            Some(Map::ArrayOfMaps(map)) => Ok(map),
            _ => Err(MapError::InvalidName { name: name.to_owned() }),
        };
        let (slots, groups) = (take("SLOTS")?, take("GROUPS")?);
        Ok(Self { slots, groups, have_slots, known: Mutex::default() })
    }

    /// Whether these shards have all maps that a job needs.
    pub fn are_made(&self, numbers: &[u16]) -> bool {
        let known = lock(&self.known);
        // A locked shard is being made.
        let is_whole = |shard: MutexGuard<'_, Shard>| {
            shard.group.is_some() && (shard.slots.is_some() || !self.have_slots)
        };
        let is_made = |number: &u16| {
            known.get(number).and_then(|shard| shard.try_lock().ok()).is_some_and(is_whole)
        };
        numbers.iter().all(is_made)
    }

    /// Makes the missing maps of these shards.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn make(&self, numbers: &[u16]) -> Result<(), MapError> {
        numbers.iter().try_for_each(|number| self.make_one(*number))
    }

    fn make_one(&self, number: u16) -> Result<(), MapError> {
        let shard = self.shard(number);
        let shard = &mut *lock(&shard);
        if self.have_slots && shard.slots.is_none() {
            let slots = new_map(
                BPF_MAP_TYPE_ARRAY as u32,
                size_of::<LockedSlot>(),
                SLOTS_PER_SHARD,
                "slots",
            )?;
            let slots: Slots = slots.try_into()?;
            entries(&self.slots)?.set(number.into(), &slots, 0)?;
            shard.slots = Some(slots);
        }
        if shard.group.is_none() {
            let group = new_group()?;
            entries(&self.groups)?.set(number.into(), &group, 0)?;
            shard.group = Some(group);
        }
        Ok(())
    }

    /// Has RESULTs to all leave by the ports of these receivers, in the calling thread's network
    /// namespace. Program `copy` runs on those sent by XDP.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn set_ports(
        &self,
        number: u16,
        receivers: &Receivers,
        copy: Option<&ProgramFd>,
    ) -> Result<(), MapError> {
        let shard = self.shard(number);
        let shard = &mut *lock(&shard);
        let Some(group) = &mut shard.group else {
            // An earlier daemon's group may be in use. The new one replaces it atomically.
            let mut group = new_group()?;
            shard.places = fill(&mut group, 0, receivers, copy)?;
            entries(&self.groups)?.set(number.into(), &group, 0)?;
            shard.group = Some(group);
            return Ok(());
        };
        // If the kernel refuses some, any place may be set; the next call clears them all.
        let before = std::mem::replace(&mut shard.places, MAX_PLACES as u32);
        shard.places = fill(group, before, receivers, copy)?;
        Ok(())
    }

    /// The progress of an open shard, whose job entry is `job`.
    ///
    /// Slots are read while the program may write to them: a single result may be wrong. It is
    /// right if the next call finds the same.
    pub fn progress(&self, number: u16, job: &JobEntry) -> Result<Option<Progress>, MapError> {
        if job.state != OPEN {
            return Ok(None);
        }
        self.with_slots(number, |slots| progress(job.slots, |slot| look(slots, job, slot)))
    }

    /// The slots with unfinished rounds of a shard whose job entry is `job`; none if it is not
    /// open. As with [`Self::progress`], a slot that the program writes to may be shown wrong.
    pub fn unfinished(&self, number: u16, job: &JobEntry) -> Result<Option<Vec<Alike>>, MapError> {
        if job.state != OPEN {
            return Ok(Some(Vec::new()));
        }
        self.with_slots(number, |slots| all_unfinished(job.slots, |slot| look(slots, job, slot)))
    }

    /// Reads a shard's slots; `None` if the kernel does not show them, as without CAP_SYS_ADMIN
    /// those that an earlier daemon made.
    fn with_slots<T>(
        &self,
        number: u16,
        read: impl FnOnce(&Slots) -> Result<T, MapError>,
    ) -> Result<Option<T>, MapError> {
        let shard = self.shard(number);
        let shard = lock(&shard);
        if let Some(slots) = &shard.slots {
            return read(slots).map(Some);
        }
        match entries(&self.slots)?.get(&number.into(), 0) {
            Ok(slots) => read(&slots).map(Some),
            Err(_) => Ok(None),
        }
    }

    fn shard(&self, number: u16) -> Arc<Mutex<Shard>> {
        Arc::clone(lock(&self.known).entry(number).or_default())
    }
}

/// The newest round of one of a job's slots.
fn look(slots: &Slots, job: &JobEntry, slot: u32) -> Result<Option<Newest>, MapError> {
    let locked: LockedSlot = transmute!(slots.get(&slot, 0)?);
    Ok(newest(job, &locked.slot))
}

/// The entries of a map of maps, for one thread.
fn entries<V: InnerMap>(map: &MapData) -> Result<ArrayOfMaps<MapData, V>, MapError> {
    let descriptor = map.fd().as_fd().try_clone_to_owned().map_err(MapError::IoError)?;
    Map::from_map_data(MapData::from_fd(descriptor)?)?.try_into()
}

fn new_map(kind: u32, value: usize, entries: usize, name: &str) -> Result<Map, MapError> {
    let (key, value) = (size_of::<u32>() as u32, value as u32);
    let definition = aya_obj::Map::new_from_params(kind, key, value, entries as u32, 0);
    Map::from_map_data(MapData::create(definition, name, None)?)
}

fn new_group() -> Result<Group, MapError> {
    let (kind, value) = (BPF_MAP_TYPE_DEVMAP as u32, size_of::<bpf_devmap_val>());
    new_map(kind, value, MAX_PLACES, "group")?.try_into()
}

/// Sets the ports of all places in a group, of which the first `before` had one. Returns the new
/// number.
fn fill(
    group: &mut Group,
    before: u32,
    receivers: &Receivers,
    copy: Option<&ProgramFd>,
) -> Result<u32, MapError> {
    let mut places = 0;
    // The error's type cannot be named outside of aya.
    let failed = |error| MapError::IoError(io::Error::other(error));
    for place in receivers.used() {
        group.set(places, place.ifindex, copy, 0).map_err(|error| failed(error.to_string()))?;
        places += 1;
    }
    for place in places..before {
        // Interface 0 removes the entry.
        group.set(place, 0, None, 0).map_err(|error| failed(error.to_string()))?;
    }
    Ok(places)
}

/// A panic leaves nothing that the next could trip over.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
