//! The program's maps, with keys and values of their types.

use std::io;
use std::path::Path;

use aya::Ebpf;
use aya::maps::{
    self, Array, DevMapHash, MapData, MapError, MapInfo, PerCpuArray, PerCpuHashMap, RingBuf,
};
use aya::programs::ProgramFd;
use aya_obj::generated::bpf_devmap_val;
use switchml_protocol::bpf_types::fanout::Receivers;
use switchml_protocol::bpf_types::job::{JobEntry, MemberEntry};
use switchml_protocol::bpf_types::maps::{Endpoint, MAX_PORTS, MAX_SHARDS};
use switchml_protocol::bpf_types::times::{BUCKETS, Times};
use switchml_protocol::bpf_types::uplink::Uplink;
use switchml_protocol::combiner::cell::LockedCell;
use switchml_protocol::combiner::hold_time;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::ip::Ip;
use switchml_protocol::{MAX_RANKS, U16};
use zerocopy::transmute;

use super::uplinks::Uplinks;
use crate::port::local::{Local, Mac};

type JobBytes = [u8; size_of::<JobEntry>()];
type MemberBytes = [u8; size_of::<MemberEntry>()];
type ReceiversBytes = [u8; size_of::<Receivers>()];
type UplinkBytes = [u8; size_of::<Uplink>()];
type EndpointBytes = [u8; size_of::<Endpoint>()];

/// The program's maps.
pub const NAMES: [&str; 15] = [
    "LOCAL",
    "JOBS",
    "MEMBERS",
    "SLOTS",
    "RECEIVERS",
    "GROUPS",
    "PORTS",
    "TURNS",
    "UNSENT",
    "UPLINKS",
    "CELLS",
    "AVERAGE",
    "COUNTERS",
    "TIMES",
    "EVENTS",
];

/// The first map in `folder` that differs from this build's map with `cells` cells, if there is
/// one.
///
/// # Errors
///
/// When a map is missing, or the kernel refuses.
pub fn misfit(folder: &Path, cells: Option<u32>) -> Result<Option<&'static str>, MapError> {
    let expected = [
        ("JOBS", size_of::<JobEntry>(), MAX_SHARDS),
        ("MEMBERS", size_of::<MemberEntry>(), MAX_SHARDS * MAX_RANKS),
        ("SLOTS", size_of::<u32>(), MAX_SHARDS),
        ("RECEIVERS", size_of::<Receivers>(), MAX_SHARDS),
        ("GROUPS", size_of::<u32>(), MAX_SHARDS),
        ("PORTS", size_of::<bpf_devmap_val>(), MAX_PORTS),
        ("UNSENT", size_of::<u64>(), MAX_PORTS),
        ("UPLINKS", size_of::<Uplink>(), MAX_SHARDS),
        ("CELLS", size_of::<LockedCell>(), cells.unwrap_or(1) as usize),
        ("COUNTERS", size_of::<u64>(), Outcome::COUNT),
        ("TIMES", size_of::<u64>(), BUCKETS + 1),
    ];
    for (name, size, entries) in expected {
        let map = MapInfo::from_pin(folder.join(name))?;
        if (map.value_size() as usize, map.max_entries() as usize) != (size, entries) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The maps of the loaded program.
pub struct Maps {
    jobs: Array<MapData, JobBytes>,
    members: Array<MapData, MemberBytes>,
    local: maps::HashMap<MapData, EndpointBytes, u8>,
    receivers: Array<MapData, ReceiversBytes>,
    uplinks: Array<MapData, UplinkBytes>,
    average: Array<MapData, u32>,
    counters: PerCpuArray<MapData, u64>,
    times: PerCpuArray<MapData, u64>,
}

impl Maps {
    /// Takes the maps, and the ring buffer of events, out of a loaded object.
    ///
    /// # Errors
    ///
    /// When one is missing or of another type.
    pub fn take(object: &mut Ebpf) -> Result<(Self, RingBuf<MapData>), MapError> {
        let mut map = |name: &str| {
            object.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })
        };
        let maps = Self {
            jobs: map("JOBS")?.try_into()?,
            members: map("MEMBERS")?.try_into()?,
            local: map("LOCAL")?.try_into()?,
            receivers: map("RECEIVERS")?.try_into()?,
            uplinks: map("UPLINKS")?.try_into()?,
            average: map("AVERAGE")?.try_into()?,
            counters: map("COUNTERS")?.try_into()?,
            times: map("TIMES")?.try_into()?,
        };
        Ok((maps, map("EVENTS")?.try_into()?))
    }

    /// Has the program serve exactly these MACs and addresses at these ports, and drop all frames
    /// that claim to come from the addresses. Port 0 stands for the other ports, at which a
    /// combiner serves its parent.
    pub fn set_local(&mut self, local: &Local, ports: &[u16]) -> Result<(), MapError> {
        let endpoints = local.addresses.iter().flat_map(|address| {
            let ip = Ip::from(*address);
            let at = move |mac: &Mac| {
                let mac = *mac;
                ports.iter().map(move |port| Endpoint::served(mac, ip, U16::new(*port)))
            };
            local.macs.iter().flat_map(at).chain([Endpoint::own(ip)])
        });
        let wanted: Vec<EndpointBytes> = endpoints.map(|endpoint| transmute!(endpoint)).collect();
        for key in &wanted {
            self.local.insert(key, 1, 0)?;
        }
        let present = self.local.keys().collect::<Result<Vec<_>, _>>()?;
        present
            .iter()
            .filter(|key| !wanted.contains(key))
            .try_for_each(|key| self.local.remove(key))
    }

    /// The job's entry.
    pub fn job(&self, number: u16) -> Result<JobEntry, MapError> {
        Ok(transmute!(self.jobs.get(&u32::from(number), 0)?))
    }

    /// Replaces the job's entry.
    pub fn set_job(&mut self, number: u16, job: JobEntry) -> Result<(), MapError> {
        let bytes: JobBytes = transmute!(job);
        self.jobs.set(u32::from(number), bytes, 0)
    }

    /// A rank's entry.
    pub fn member(&self, job: u16, rank: u16) -> Result<MemberEntry, MapError> {
        Ok(transmute!(self.members.get(&member_index(job, rank), 0)?))
    }

    /// Sets the destinations of the job's RESULTs to all.
    pub fn set_receivers(&mut self, job: u16, receivers: Receivers) -> Result<(), MapError> {
        let bytes: ReceiversBytes = transmute!(receivers);
        self.receivers.set(job.into(), bytes, 0)
    }

    /// Has the cells' patience begin where it begins.
    pub fn begin_patience(&mut self) -> Result<(), MapError> {
        self.average.set(0, hold_time::FIRST, 0)
    }

    /// Packets by outcome, of all CPUs together.
    pub fn counters(&self) -> Result<[u64; Outcome::COUNT], MapError> {
        totals(&self.counters)
    }

    /// How long rounds took, summed over all CPUs.
    pub fn times(&self) -> Result<Times, MapError> {
        totals(&self.times)
    }
}

impl Uplinks for Maps {
    fn uplink(&self, job: u16) -> Result<Uplink, MapError> {
        Ok(transmute!(self.uplinks.get(&u32::from(job), 0)?))
    }

    fn set_uplink(&mut self, job: u16, uplink: Uplink) -> Result<(), MapError> {
        let bytes: UplinkBytes = transmute!(uplink);
        self.uplinks.set(job.into(), bytes, 0)
    }

    fn set_member(&mut self, job: u16, rank: u16, member: MemberEntry) -> Result<(), MapError> {
        let bytes: MemberBytes = transmute!(member);
        self.members.set(member_index(job, rank), bytes, 0)
    }
}

/// Counters of all CPUs together.
fn totals<const N: usize>(counters: &PerCpuArray<MapData, u64>) -> Result<[u64; N], MapError> {
    let mut totals = [0; N];
    for (index, total) in (0..).zip(&mut totals) {
        *total = counters.get(&index, 0)?.iter().sum();
    }
    Ok(totals)
}

/// Ports of the XDP program, whose answers leave by them.
pub struct XdpPorts {
    ports: DevMapHash<MapData>,
    unsent: PerCpuHashMap<MapData, u32, u64>,
}

impl XdpPorts {
    /// Takes them out of a loaded object.
    ///
    /// # Errors
    ///
    /// When they are missing.
    pub fn take(object: &mut Ebpf) -> Result<Self, MapError> {
        let mut map = |name: &str| {
            object.take_map(name).ok_or_else(|| MapError::InvalidName { name: name.to_owned() })
        };
        Ok(Self { ports: map("PORTS")?.try_into()?, unsent: map("UNSENT")?.try_into()? })
    }

    /// Frames that the kernel could not send by this interface.
    pub fn unsent(&self, interface: u32) -> u64 {
        // There is no entry before the first.
        self.unsent.get(&interface, 0).map_or(0, |counts| counts.iter().sum())
    }

    /// Has answers leave by this interface of the calling thread's network namespace, and pass
    /// `copy`.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn add(&mut self, interface: u32, copy: &ProgramFd) -> Result<(), MapError> {
        self.ports
            .insert(interface, interface, Some(copy), 0)
            .map_err(|error| MapError::IoError(io::Error::other(error)))
    }
}

fn member_index(job: u16, rank: u16) -> u32 {
    u32::from(job) * MAX_RANKS as u32 + u32::from(rank)
}
