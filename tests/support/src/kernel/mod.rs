//! The loaded programs and their maps.
//!
//! A test acts on both programs, for XDP and for tc, each with its own maps. Both must do the same,
//! except for the differences that [`crate::kernel::tc`] lists.

pub mod program;
pub mod table;
pub mod tc;

use aya::maps::{Array, ArrayOfMaps, DevMap, DevMapHash, HashMap, Map, MapData, RingBuf};
use aya::programs::tc::{SchedClassifierLink, qdisc_add_clsact};
use aya::programs::xdp::XdpLink;
use aya::programs::{
    ProgramFd, SchedClassifier, TcAttachType, TestRun, TestRunOptions, Xdp, XdpMode,
};
use aya::{Ebpf, EbpfLoader};
use aya_obj::generated::{bpf_devmap_val, bpf_map_type::BPF_MAP_TYPE_DEVMAP};
use std::os::fd::RawFd;
use switchml_data_plane::xdp::verifier::check;
use switchml_protocol::bpf_types::fanout::{MAX_PLACES, Receivers, direct};
use switchml_protocol::bpf_types::job::{Binding, JobEntry, MemberEntry, OPEN};
use switchml_protocol::bpf_types::maps::{Endpoint, Event};
use switchml_protocol::bpf_types::uplink::Uplink;
use switchml_protocol::combiner::cell::LockedCell;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::root::slot::LockedSlot;
use switchml_protocol::wire::auth::Key;
use switchml_protocol::wire::ip::Ip;
use switchml_protocol::{MAX_RANKS, U16};
use zerocopy::{FromBytes, transmute};

use crate::frame::{
    AGGREGATOR_IP, AGGREGATOR_MAC, AGGREGATOR_PORT, EPOCH, EVERYONE, GROUP_IP, GROUP_PORT, IFINDEX,
    JOB, ip, key, mac, port, secret,
};
pub use crate::kernel::program::{POOL, Run};
use crate::kernel::program::{Slots, totals};
use crate::kernel::tc::TcProgram;

/// The tests' job has these slots of the pool.
pub const FIRST_SLOT: u32 = 10;
pub const SLOTS: u32 = 8;

/// A root's programs.
const ROOT: [&str; 2] = ["switchml", "switchml_bundle"];

type JobBytes = [u8; size_of::<JobEntry>()];
type MemberBytes = [u8; size_of::<MemberEntry>()];
type ReceiversBytes = [u8; size_of::<Receivers>()];
type EndpointBytes = [u8; size_of::<Endpoint>()];

/// The programs for XDP and for tc, loaded into the kernel, each with its own maps.
pub struct Kernel {
    object: Ebpf,
    /// Name of the program.
    xdp: &'static str,
    /// The program that copies pass when XDP sends them.
    copy: ProgramFd,
    slots: Slots,
    tc: TcProgram,
}

/// The programs' constants.
#[derive(Default)]
struct Constants {
    /// Packets of which 32 random bits are below this are lost.
    lose_below: u64,
    /// Whether messages of RoCEv2 are taken.
    roce: bool,
}

impl Kernel {
    /// The program with the aggregator's address, and no job.
    pub fn of_root() -> Self {
        Self::load(switchml_data_plane::xdp_object())
    }

    /// The program with the aggregator's address, which also takes messages of RoCEv2.
    pub fn with_roce() -> Self {
        Self::load_with_roce(switchml_data_plane::xdp_object())
    }

    /// Such a program from an object file.
    pub fn load_with_roce(object: &[u8]) -> Self {
        Self::of_role(object, ROOT, 1, Constants { lose_below: 0, roce: true })
    }

    /// The program from an object file, with the aggregator's address and no job.
    pub fn load(object: &[u8]) -> Self {
        Self::of_role(object, ROOT, 1, Constants::default())
    }

    /// The program that loses packets of which 32 random bits are below `lose_below`.
    pub fn that_loses(lose_below: u64) -> Self {
        let constants = Constants { lose_below, roce: false };
        Self::of_role(switchml_data_plane::xdp_object(), ROOT, 1, constants)
    }

    /// A combiner of `cells` cells, with the aggregator's address.
    pub fn combiner(cells: u32) -> Self {
        Self::load_combiner(switchml_data_plane::xdp_object(), cells)
    }

    /// A combiner from an object file.
    pub fn load_combiner(object: &[u8], cells: u32) -> Self {
        Self::combiner_of(object, cells, 0)
    }

    /// A combiner that loses packets, as [`Self::that_loses`] does.
    pub fn combiner_that_loses(cells: u32, lose_below: u64) -> Self {
        Self::combiner_of(switchml_data_plane::xdp_object(), cells, lose_below)
    }

    fn combiner_of(object: &[u8], cells: u32, lose_below: u64) -> Self {
        let programs = ["switchml_combiner", "switchml_combiner_bundle"];
        let constants = Constants { lose_below, roce: false };
        let mut kernel = Self::of_role(object, programs, cells, constants);
        kernel.add_local(AGGREGATOR_MAC, AGGREGATOR_IP, 0);
        for map in kernel.maps_mut("AVERAGE") {
            let mut average: Array<_, u32> = map.try_into().unwrap();
            average.set(0, switchml_protocol::combiner::hold_time::FIRST, 0).unwrap();
        }
        kernel
    }

    fn of_role(
        object: &[u8],
        [xdp, tc]: [&'static str; 2],
        cells: u32,
        constants: Constants,
    ) -> Self {
        let Constants { lose_below, roce } = constants;
        let tc = TcProgram::of_role(object, tc, cells, lose_below);
        let roce = u32::from(roce);
        let mut object = EbpfLoader::new()
            .map_max_entries("CELLS", cells)
            .override_global("LOSE_BELOW", &lose_below, true)
            .override_global("ROCE", &roce, true)
            .load(object)
            .expect("the maps are created");
        let program: &mut Xdp = object.program_mut(xdp).expect("program").try_into().unwrap();
        check(|| program.load()).expect("the verifier takes the program");
        let copy: &mut Xdp =
            object.program_mut("switchml_copy").expect("program").try_into().unwrap();
        check(|| copy.load()).expect("the verifier takes the program");
        let copy = copy.fd().unwrap().try_clone().unwrap();
        let slots = Slots::make(&mut object);
        let mut kernel = Self { object, xdp, copy, slots, tc };
        kernel.add_port(IFINDEX);
        kernel.add_local(AGGREGATOR_MAC, AGGREGATOR_IP, AGGREGATOR_PORT);
        kernel
    }

    /// The program with a job of `ranks` ranks that have all said HELLO.
    pub fn with_job(ranks: u32) -> Self {
        let mut kernel = Self::of_root();
        kernel.open_job(ranks);
        kernel
    }

    /// Adds a job of `ranks` ranks that have all said HELLO.
    pub fn open_job(&mut self, ranks: u32) {
        self.set_job(JOB, &job(ranks));
        for rank in 0..ranks as u16 {
            self.set_member(JOB, rank, &member(rank));
        }
        self.set_group(JOB, &[IFINDEX]);
    }

    /// Adds such a job whose packets have tags.
    pub fn open_tagged_job(&mut self, ranks: u32) {
        self.open_job(ranks);
        self.set_job(JOB, &JobEntry { key: Key::from_bytes(key(EVERYONE)), ..job(ranks) });
        for rank in 0..ranks as u16 {
            self.set_member(JOB, rank, &tagged_member(rank));
        }
    }

    /// Runs both programs on a frame. Returns the result in XDP.
    #[track_caller]
    pub fn run(&self, frame: &[u8]) -> Run {
        let run = self.run_xdp(frame);
        self.tc.expect(frame, &run);
        run
    }

    /// Runs the program for XDP alone.
    pub fn run_xdp(&self, frame: &[u8]) -> Run {
        self.test_xdp(frame, None)
    }

    /// Runs the program for XDP alone on a frame that comes in through an interface of the calling
    /// thread's namespace, to whose driver it is attached.
    pub fn run_xdp_at(&self, frame: &[u8], ifindex: u32) -> Run {
        // `struct xdp_md` of linux/bpf.h: data, data_end, data_meta, ingress_ifindex,
        // rx_queue_index, egress_ifindex.
        let context = [0, frame.len() as u32, 0, ifindex, 0, 0].map(u32::to_ne_bytes).concat();
        self.test_xdp(frame, Some(&context))
    }

    fn test_xdp(&self, frame: &[u8], ctx_in: Option<&[u8]>) -> Run {
        let mut out = vec![0; frame.len() + 256];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in,
            ..TestRunOptions::default()
        };
        let result = self.program().test_run(options).expect("the test run");
        out.truncate(result.data_size_out as usize);
        Run { verdict: result.return_value, frame: out, time: result.duration }
    }

    /// The program itself.
    pub fn program(&self) -> &Xdp {
        self.object.program(self.xdp).unwrap().try_into().unwrap()
    }

    /// The program for tc alone.
    pub fn tc(&self) -> &TcProgram {
        &self.tc
    }

    /// Attaches the program in the driver of an interface of the calling thread's namespace.
    pub fn attach_xdp(&mut self, index: u32) -> XdpLink {
        self.add_port(index);
        let program: &mut Xdp = self.object.program_mut("switchml").unwrap().try_into().unwrap();
        let id = program.attach_to_if_index(index, XdpMode::Driver).expect("attach in the driver");
        program.take_link(id).unwrap()
    }

    /// Attaches the tc program of the same object, over the same maps, at tc ingress of an
    /// interface of the calling thread's namespace.
    pub fn attach_tc(&mut self, interface: &str) -> SchedClassifierLink {
        let program: &mut SchedClassifier =
            self.object.program_mut("switchml_bundle").unwrap().try_into().unwrap();
        if program.fd().is_err() {
            check(|| program.load()).expect("the verifier takes the program");
        }
        // Before Linux 6.6 a filter holds the program, which needs a qdisc.
        let _ = qdisc_add_clsact(interface);
        let id = program.attach(interface, TcAttachType::Ingress).expect("attach at tc ingress");
        program.take_link(id).unwrap()
    }

    /// Makes the program serve a MAC, address and port, and keep others from sending from the
    /// address.
    pub fn add_local(&mut self, mac: [u8; 6], ip: impl Into<Ip>, port: u16) {
        let ip = ip.into();
        for map in self.maps_mut("LOCAL") {
            let mut local: HashMap<_, EndpointBytes, u8> = map.try_into().unwrap();
            for key in [Endpoint::served(mac, ip, U16::new(port)), Endpoint::own(ip)] {
                let key: EndpointBytes = transmute!(key);
                local.insert(key, 1, 0).unwrap();
            }
        }
    }

    pub fn set_job(&mut self, number: u16, job: &JobEntry) {
        for map in self.maps_mut("JOBS") {
            let mut jobs: Array<_, JobBytes> = map.try_into().unwrap();
            let bytes: JobBytes = transmute!(*job);
            jobs.set(u32::from(number), bytes, 0).unwrap();
        }
    }

    pub fn set_member(&mut self, job: u16, rank: u16, member: &MemberEntry) {
        for map in self.maps_mut("MEMBERS") {
            let mut members: Array<_, MemberBytes> = map.try_into().unwrap();
            let bytes: MemberBytes = transmute!(*member);
            members.set(u32::from(job) * MAX_RANKS as u32 + u32::from(rank), bytes, 0).unwrap();
        }
    }

    pub fn member(&self, job: u16, rank: u16) -> MemberEntry {
        let members: Array<_, MemberBytes> = self.map("MEMBERS").try_into().unwrap();
        transmute!(members.get(&(u32::from(job) * MAX_RANKS as u32 + u32::from(rank)), 0).unwrap())
    }

    /// Answers may leave by this interface of the calling thread's namespace.
    pub fn add_port(&mut self, interface: u32) {
        let map = self.object.map_mut("PORTS").expect("PORTS");
        let mut ports: DevMapHash<_> = map.try_into().unwrap();
        ports.insert(interface, interface, Some(&self.copy), 0).expect("the interface exists");
    }

    /// Sends the job's RESULTs to the tests' group, by these interfaces.
    pub fn set_group(&mut self, job: u16, interfaces: &[u32]) {
        let members: Vec<_> =
            interfaces.iter().map(|ifindex| Binding { ifindex: *ifindex, ..binding(0) }).collect();
        let entry = self::job(interfaces.len() as u32);
        let receivers = Receivers::new(&entry, job, direct(&members, &Ranks::ALL));
        self.set_receivers(job, receivers.expect("few ports"));
    }

    /// Sets where the job's RESULTs go, through interfaces of the calling thread's namespace.
    pub fn set_receivers(&mut self, job: u16, receivers: Receivers) {
        let (key, value) = (size_of::<u32>() as u32, size_of::<bpf_devmap_val>() as u32);
        let definition = aya_obj::Map::new_from_params(
            BPF_MAP_TYPE_DEVMAP as u32,
            key,
            value,
            MAX_PLACES as u32,
            0,
        );
        let data = MapData::create(definition, "group", None).expect("a DEVMAP");
        let mut group: DevMap<MapData> = Map::from_map_data(data).unwrap().try_into().unwrap();
        for (key, place) in (0..).zip(receivers.used()) {
            group.set(key, place.ifindex, Some(&self.copy), 0).expect("the interface exists");
        }
        for map in self.maps_mut("GROUPS") {
            let mut groups: ArrayOfMaps<_, DevMap<MapData>> = map.try_into().unwrap();
            groups.set(u32::from(job), &group, 0).expect("the group is one of the job's kind");
        }
        let bytes: ReceiversBytes = transmute!(receivers);
        for map in self.maps_mut("RECEIVERS") {
            let mut receivers: Array<_, ReceiversBytes> = map.try_into().unwrap();
            receivers.set(u32::from(job), bytes, 0).unwrap();
        }
    }

    /// A combiner's way up.
    pub fn set_uplink(&mut self, job: u16, uplink: &Uplink) {
        for map in self.maps_mut("UPLINKS") {
            let mut uplinks: Array<_, [u8; size_of::<Uplink>()]> = map.try_into().unwrap();
            let bytes: [u8; size_of::<Uplink>()] = transmute!(uplink.clone());
            uplinks.set(u32::from(job), bytes, 0).unwrap();
        }
    }

    /// A combiner's cell, in XDP.
    pub fn cell(&self, index: u32) -> LockedCell {
        let cells: Array<_, [u8; size_of::<LockedCell>()]> = self.map("CELLS").try_into().unwrap();
        transmute!(cells.get(&index, 0).unwrap())
    }

    /// Element `index` of the pool.
    pub fn slot(&self, index: u32) -> LockedSlot {
        self.slots.get(index)
    }

    pub fn set_slot(&mut self, index: u32, slot: &LockedSlot) {
        self.slots.set(index, slot);
        self.tc.slots.set(index, slot);
    }

    /// Packets by outcome, all CPUs together.
    pub fn counters(&self) -> [u64; Outcome::COUNT] {
        totals(self.map("COUNTERS"))
    }

    /// The events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        let mut ring: RingBuf<_> = self.map_mut("EVENTS").try_into().unwrap();
        let mut events = Vec::new();
        while let Some(item) = ring.next() {
            events.push(Event::read_from_bytes(&item).expect("an event's size"));
        }
        events
    }

    /// Descriptor of the pool's first slots.
    pub fn slots_fd(&self) -> RawFd {
        self.slots.fd()
    }

    fn map(&self, name: &str) -> &Map {
        self.object.map(name).unwrap_or_else(|| panic!("no map {name}"))
    }

    fn map_mut(&mut self, name: &str) -> &mut Map {
        self.object.map_mut(name).unwrap_or_else(|| panic!("no map {name}"))
    }

    /// The map of this name of each program.
    fn maps_mut(&mut self, name: &str) -> [&mut Map; 2] {
        [&mut self.object, &mut self.tc.object]
            .map(|object| object.map_mut(name).unwrap_or_else(|| panic!("no map {name}")))
    }
}

/// The tests' job.
pub fn job(ranks: u32) -> JobEntry {
    JobEntry {
        state: OPEN,
        epoch: EPOCH,
        ranks,
        first_slot: FIRST_SLOT,
        slots: SLOTS,
        address: AGGREGATOR_IP.into(),
        group: GROUP_IP,
        group_port: U16::new(GROUP_PORT),
        reserved: [0; 6],
        key: Key::NONE,
    }
}

/// A member of it that has said HELLO.
pub fn member(rank: u16) -> MemberEntry {
    MemberEntry { secret: secret(rank), epoch: EPOCH, binding: binding(rank), key: Key::NONE }
}

/// A member of a job whose packets have tags.
pub fn tagged_member(rank: u16) -> MemberEntry {
    MemberEntry { key: Key::from_bytes(key(rank)), ..member(rank) }
}

/// The place of a rank.
pub fn binding(rank: u16) -> Binding {
    let (ip, mac, port) = (ip(rank).into(), mac(rank), U16::new(port(rank)));
    Binding { ifindex: IFINDEX, ip, mac, port, ..Binding::default() }
}
