//! What the loaded programs share: the result of a test run, the pool of slots, and counters.

use aya::Ebpf;
use aya::maps::{Array, ArrayOfMaps, Map, MapData, PerCpuArray};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_ARRAY;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;
use switchml_protocol::bpf_types::maps::SLOTS_PER_SHARD;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::slot::LockedSlot;
use zerocopy::{FromBytes, IntoBytes};

/// Slots of the pool.
pub const POOL: u32 = 1024;

type SlotBytes = [u8; size_of::<LockedSlot>()];

/// The result of a program on a packet.
pub struct Run {
    /// The program's return value.
    pub verdict: u32,
    /// The frame after the program.
    pub frame: Vec<u8>,
    /// The program's run time, by the kernel's clock.
    pub time: Duration,
}

/// Packets by outcome, all CPUs together.
pub fn totals(map: &Map) -> [u64; Outcome::COUNT] {
    let counters: PerCpuArray<_, u64> = map.try_into().unwrap();
    std::array::from_fn(|index| counters.get(&(index as u32), 0).unwrap().iter().sum())
}

/// A program's pool: as many slots together as a shard has, and their descriptor.
pub struct Slots(Vec<(Array<MapData, SlotBytes>, OwnedFd)>);

impl Slots {
    /// Gives a program a pool.
    pub fn make(object: &mut Ebpf) -> Self {
        let mut table: ArrayOfMaps<_, Array<MapData, SlotBytes>> =
            object.map_mut("SLOTS").expect("SLOTS").try_into().unwrap();
        let (key, value) = (size_of::<u32>() as u32, size_of::<LockedSlot>() as u32);
        let make = |index| {
            let kind = BPF_MAP_TYPE_ARRAY as u32;
            let definition =
                aya_obj::Map::new_from_params(kind, key, value, SLOTS_PER_SHARD as u32, 0);
            let data = MapData::create(definition, "slots", None).expect("an array");
            let fd = data.fd().as_fd().try_clone_to_owned().unwrap();
            let slots: Array<MapData, SlotBytes> =
                Map::from_map_data(data).unwrap().try_into().unwrap();
            table.set(index, &slots, 0).expect("the slots are of the table's kind");
            (slots, fd)
        };
        Self((0..POOL / SLOTS_PER_SHARD as u32).map(make).collect())
    }

    /// Descriptor of the first slots.
    pub fn fd(&self) -> RawFd {
        self.0[0].1.as_raw_fd()
    }

    /// Element `index` of the pool.
    pub fn get(&self, index: u32) -> LockedSlot {
        let (slots, _) = &self.0[index as usize / SLOTS_PER_SHARD];
        LockedSlot::read_from_bytes(&slots.get(&(index % SLOTS_PER_SHARD as u32), 0).unwrap())
            .unwrap()
    }

    pub fn set(&mut self, index: u32, slot: &LockedSlot) {
        let (slots, _) = &mut self.0[index as usize / SLOTS_PER_SHARD];
        slots
            .set(index % SLOTS_PER_SHARD as u32, SlotBytes::try_from(slot.as_bytes()).unwrap(), 0)
            .unwrap();
    }
}
