//! The program loaded by libbpf, which the product does not use: a second loader proves that the
//! object is valid, and that the results do not depend on how aya reads it.

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{Map, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramInput};
use libbpf_rs::{RingBuffer, RingBufferBuilder};
use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use switchml_protocol::MAX_RANKS;
use switchml_protocol::bpf_types::fanout::{MAX_PLACES, Receivers, direct};
use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry};
use switchml_protocol::bpf_types::maps::{Event, SLOTS_PER_SHARD};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::root::slot::LockedSlot;
use switchml_rack::Mode;
use zerocopy::{FromBytes, IntoBytes};

use switchml_test_support::frame::{AGGREGATOR_IP, AGGREGATOR_PORT, IFINDEX, v6};
use switchml_test_support::kernel::tc::as_in_xdp;
use switchml_test_support::kernel::{POOL, Run, binding, job};

/// Size of `struct bpf_devmap_val`: an interface's index and a program's descriptor.
const DEVMAP_VALUE: u32 = 8;

/// An interface, and no program.
fn devmap_value(interface: u32) -> Vec<u8> {
    [interface.to_ne_bytes(), (-1i32).to_ne_bytes()].concat()
}

/// A program in the kernel, with its own maps.
pub struct Libbpf {
    object: Object,
    /// The pool, as many together as a shard has.
    slots: Vec<MapHandle>,
    mode: Mode,
    events: RingBuffer<'static>,
    /// The events received so far.
    received: Rc<RefCell<Vec<Event>>>,
}

impl Libbpf {
    /// The program of that mode with the aggregator's address, and no job.
    pub fn new(mode: Mode) -> Self {
        let object = ObjectBuilder::default()
            .open_memory(switchml_data_plane::xdp_object())
            .expect("libbpf parses it");
        let object =
            object.load().expect("libbpf creates the maps, and the verifier takes the program");
        let received = Rc::new(RefCell::new(Vec::new()));
        let events = {
            let map = map(&object, "EVENTS");
            let sink = Rc::clone(&received);
            let mut ring = RingBufferBuilder::new();
            ring.add(&map, move |bytes| {
                sink.borrow_mut().push(Event::read_from_bytes(bytes).expect("an event's size"));
                0
            })
            .expect("EVENTS is a ring buffer");
            ring.build().expect("the ring buffer is mapped")
        };
        let slots =
            (0..POOL / SLOTS_PER_SHARD as u32).map(|index| make_slots(&object, index)).collect();
        let this = Self { object, slots, mode, events, received };
        let [high, low] = AGGREGATOR_PORT.to_be_bytes();
        let [a, b, c, d] = AGGREGATOR_IP;
        // The IPv4 address mapped into IPv6; and the IPv6 address.
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d];
        for ip in [mapped, v6(AGGREGATOR_IP)] {
            this.update("LOCAL", &[&ip[..], &[high, low, 2, 0, 0, 0, 0, 0xFE]].concat(), &[1]);
            this.update("LOCAL", &[&ip[..], &[0; 8]].concat(), &[1]);
        }
        this.update("PORTS", &IFINDEX.to_ne_bytes(), &devmap_value(IFINDEX));
        this
    }

    /// Names of the object's maps, sorted. libbpf puts the object's name before that of constants.
    pub fn map_names(&self) -> Vec<String> {
        let names = self.object.maps().map(|map| map.name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names
            .map(|name| if name.ends_with(".rodata") { ".rodata".to_owned() } else { name })
            .collect();
        names.sort();
        names
    }

    /// Runs the program on a frame; the verdict is what it would be in XDP.
    pub fn run(&mut self, frame: &[u8]) -> Run {
        let mut out = vec![0; frame.len() + 256];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..ProgramInput::default()
        };
        let (name, as_in_xdp): (_, fn(u32) -> u32) = match self.mode {
            Mode::Auto => ("switchml_bundle", as_in_xdp),
            _ => ("switchml", |verdict| verdict),
        };
        let program =
            self.object.progs_mut().find(|program| program.name() == name).expect("the program");
        let output = program.test_run(input).expect("the test run");
        Run {
            verdict: as_in_xdp(output.return_value),
            frame: output.data.expect("a frame").to_vec(),
            time: output.duration,
        }
    }

    pub fn set_job(&self, number: u16, job: &JobEntry) {
        self.update("JOBS", &u32::from(number).to_ne_bytes(), job.as_bytes());
    }

    pub fn set_member(&self, job: u16, rank: u16, member: &MemberEntry) {
        self.update("MEMBERS", &member_index(job, rank), member.as_bytes());
    }

    pub fn member(&self, job: u16, rank: u16) -> MemberEntry {
        let mut member = MemberEntry::default();
        self.read("MEMBERS", &member_index(job, rank), member.as_mut_bytes());
        member
    }

    /// Has the job's RESULTs sent to this interface.
    pub fn set_group(&self, number: u16, interface: u32) {
        let options = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as u64,
            ..Default::default()
        };
        let (name, key) = (Some("group"), size_of::<u32>() as u32);
        let group = MapHandle::create(
            MapType::Devmap,
            name,
            key,
            DEVMAP_VALUE,
            MAX_PLACES as u32,
            &options,
        )
        .expect("a DEVMAP");
        let value = devmap_value(interface);
        group.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY).expect("the interface exists");
        self.update(
            "GROUPS",
            &u32::from(number).to_ne_bytes(),
            &group.as_fd().as_raw_fd().to_ne_bytes(),
        );
        let members = [Binding { ifindex: interface, ..binding(0) }];
        let receivers = Receivers::new(&job(1), number, direct(&members, &Ranks::ALL));
        self.set_receivers(number, &receivers.unwrap());
    }

    /// Leaves the job's RESULTs with nowhere to go.
    pub fn remove_group(&self, number: u16) {
        // An absent entry is fine.
        let _ = map(&self.object, "GROUPS").delete(&u32::from(number).to_ne_bytes());
        self.set_receivers(number, &Receivers::new(&job(0), number, []).unwrap());
    }

    fn set_receivers(&self, number: u16, receivers: &Receivers) {
        self.update("RECEIVERS", &u32::from(number).to_ne_bytes(), receivers.as_bytes());
    }

    /// Element `index` of the pool.
    pub fn slot(&self, index: u32) -> LockedSlot {
        let mut slot = LockedSlot::default();
        let found = self.slots[index as usize / SLOTS_PER_SHARD].lookup_into(
            &(index % SLOTS_PER_SHARD as u32).to_ne_bytes(),
            slot.as_mut_bytes(),
            MapFlags::ANY,
        );
        assert!(found.expect("a slot's size"), "no slot {index}");
        slot
    }

    pub fn set_slot(&self, index: u32, slot: &LockedSlot) {
        self.slots[index as usize / SLOTS_PER_SHARD]
            .update(&(index % SLOTS_PER_SHARD as u32).to_ne_bytes(), slot.as_bytes(), MapFlags::ANY)
            .expect("a slot's size");
    }

    /// Packets by outcome, all CPUs together.
    pub fn counters(&self) -> [u64; Outcome::COUNT] {
        let map = map(&self.object, "COUNTERS");
        std::array::from_fn(|index| {
            let cpus = map
                .lookup_percpu(&(index as u32).to_ne_bytes(), MapFlags::ANY)
                .unwrap()
                .expect("a counter");
            cpus.iter()
                .map(|cpu| u64::from_ne_bytes(cpu.as_slice().try_into().expect("8 bytes")))
                .sum()
        })
    }

    /// The events since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.events.consume().expect("the ring buffer");
        self.received.take()
    }

    fn update(&self, name: &str, key: &[u8], value: &[u8]) {
        map(&self.object, name)
            .update(key, value, MapFlags::ANY)
            .expect("key and value are of the map's sizes");
    }

    fn read(&self, name: &str, key: &[u8], value: &mut [u8]) {
        let found = map(&self.object, name).lookup_into(key, value, MapFlags::ANY);
        assert!(found.expect("key and value are of the map's sizes"), "{name} has no such entry");
    }
}

fn map<'a>(object: &'a Object, name: &str) -> Map<'a> {
    object.maps().find(|map| map.name() == name).unwrap_or_else(|| panic!("no map {name}"))
}

/// Gives the program slots of its pool.
fn make_slots(object: &Object, index: u32) -> MapHandle {
    let options =
        bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as u64, ..Default::default() };
    let (key, value) = (size_of::<u32>() as u32, size_of::<LockedSlot>() as u32);
    let slots = MapHandle::create(
        MapType::Array,
        Some("slots"),
        key,
        value,
        SLOTS_PER_SHARD as u32,
        &options,
    );
    let slots = slots.expect("an array");
    let fd = slots.as_fd().as_raw_fd().to_ne_bytes();
    map(object, "SLOTS")
        .update(&index.to_ne_bytes(), &fd, MapFlags::ANY)
        .expect("slots of the table's kind");
    slots
}

fn member_index(job: u16, rank: u16) -> [u8; 4] {
    (u32::from(job) * MAX_RANKS as u32 + u32::from(rank)).to_ne_bytes()
}
