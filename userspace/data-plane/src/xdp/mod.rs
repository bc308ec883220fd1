//! The data plane in the kernel, in XDP and at tc ingress: loads the programs, attaches them, and
//! reaches them through their maps.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `hook` | the hook that takes an interface's frames |
//! | `attach` | loading and attaching, and what may stand in the way |
//! | `halt` | stops a start in progress |
//! | `refusals` | what helps when a driver refuses native XDP |
//! | `attachment` | what holds a program at an interface |
//! | `ingress` | programs at tc ingress, on kernels with and without links there |
//! | `tags` | VLAN tags that interfaces would hide |
//! | `loopback` | ranks on the aggregator's own host |
//! | `maps` | the program's maps |
//! | `shards` | the maps of each shard |
//! | `ports` | the interfaces that the program is attached to |
//! | `pins` | maps and links in the BPF file system, where they outlive this process |
//! | `uplinks` | the ways from a combiner's jobs to their parents |
//! | `trace` | lines about single packets |
//! | [`verifier`] | the check of a program, which a signal ends early |
//! | `journal` | what the control plane keeps in the BPF file system |

mod attach;
mod attachment;
mod halt;
mod hook;
mod ingress;
mod journal;
mod loopback;
mod maps;
mod pins;
mod ports;
mod refusals;
mod shards;
mod tags;
mod trace;
mod uplinks;
pub mod verifier;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{MapData, MapError, RingBuf};
use switchml_protocol::bpf_types::fanout::{self, MAX_PLACES, Receivers};
use switchml_protocol::bpf_types::job::{ABORTED, Binding, JobEntry, OPEN, VACANT};
use switchml_protocol::bpf_types::maps::{Event, MAX_JOBS, MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::bpf_types::times::Times;
use switchml_protocol::bpf_types::uplink::Uplink;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root;
use switchml_protocol::{MAX_LANES, MAX_RANKS, U16};
use switchml_userspace_core::data_plane::{
    DataPlane, Error, EventSink, Fanout, JobSpec, Limits, LostPort, PortStatus, Saved, ServesJobs,
    Way,
};
use switchml_userspace_core::jobs;
use switchml_userspace_core::oldest_round::{Alike, Progress};
use tracing::{error, info, warn};
use zerocopy::FromBytes;

use super::port::local::Local;
use super::port::{alike, uplink};
use super::worker_thread::{Stop, WorkerThread};
use switchml_userspace_core::drop_rate::DropRate;

use attach::Choice;
pub use attach::StartError;
pub use halt::Halt;
pub use hook::Mode;
use journal::{Journal, Settings};
use maps::{Maps, XdpPorts};
pub use pins::PinError;
use pins::Pins;
use ports::Ports;
use shards::Shards;
use switchml_host::interfaces::{self, Interface};
use switchml_host::way;
use uplinks::Uplinks;

/// The settings of the data plane.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of the interfaces.
    pub interfaces: Vec<String>,
    /// The hooks that take frames.
    pub mode: Mode,
    /// Address to serve, if not those of the interfaces and their bridges.
    pub address: Option<IpAddr>,
    /// UDP port to serve.
    pub port: u16,
    /// Most slots of all jobs together.
    pub slots: u32,
    /// How RESULTs to all reach the ranks.
    pub fanout: Fanout,
    /// Number of a combiner's cells; `None` for a root.
    pub cells: Option<u32>,
    /// Whether to take ranks by RoCEv2, too. Native XDP alone does.
    pub roce: bool,
    /// Whether to log the outcome of each packet.
    pub trace: bool,
    /// Packets to lose, for tests.
    pub drop_rate: DropRate,
    /// Folder in the BPF file system where the data plane is kept.
    pub pin_dir: PathBuf,
}

impl Config {
    /// The served ports. Port 0 stands for those at which a combiner's parent answers.
    fn served_ports(&self) -> Vec<u16> {
        [self.port].into_iter().chain(self.cells.map(|_| 0)).collect()
    }
}

/// The XDP data plane. It stays, and goes on, until it is stopped.
pub struct XdpDataPlane {
    config: Config,
    /// Names of the interfaces that it serves now.
    interfaces: Mutex<Vec<String>>,
    local: Mutex<Local>,
    /// Whether an earlier daemon made the data plane.
    is_adopted: bool,
    pins: Pins,
    maps: Mutex<Maps>,
    shards: Shards,
    journal: Mutex<Journal>,
    /// The parents of a combiner's jobs.
    parents: Mutex<BTreeMap<u16, SocketAddr>>,
    ports: Mutex<Ports>,
    _events: WorkerThread,
    _trace: Option<WorkerThread>,
}

impl XdpDataPlane {
    /// Loads the program and attaches it to all interfaces. Takes over the data plane of a daemon
    /// that died, with its jobs, and replaces its program between one packet and the next.
    ///
    /// # Errors
    ///
    /// [`StartError`]. A new data plane is removed again; one that existed before goes on, unless
    /// the start was halted.
    pub fn start(config: Config, events: EventSink, halt: Arc<Halt>) -> Result<Self, StartError> {
        attach::check_kernel(&rustix::system::uname().release().to_string_lossy())?;
        let realtime = std::fs::read_to_string("/sys/kernel/realtime").ok();
        attach::check_preemption(realtime.as_deref())?;
        let all = interfaces::list()?;
        let (interfaces, missing) = attach::find(&config.interfaces, &all)?;
        let local = Local::new(config.address, &interfaces, &all, &interfaces::addresses()?);
        warn_of_duplicates(&[], &local.duplicates);
        match local.addresses.is_empty() {
            true => warn!(
                "waiting for an address: neither the interfaces nor their bridge have one yet; \
                 give another one with --data-address"
            ),
            false => info!("serving {local}"),
        }
        let pins = Pins::lock(&config.pin_dir)?;
        let is_adopted = pins.is_occupied();
        let started = load(&pins, &config, halt).and_then(|loaded| {
            let Loaded { mut ports, mut maps, shards, ring, journal, trace } = loaded;
            maps.set_local(&local, &config.served_ports()).map_err(map_error)?;
            let earlier = journal.ports().map_err(map_error)?;
            ports.attach_to(&interfaces, missing, &earlier, &pins)?;
            let events = WorkerThread::spawn("events", move |stop| forward(ring, &events, stop))
                .map_err(|error| {
                    StartError::Load(format!("cannot start a thread for events: {error}"))
                })?;
            Ok((maps.into(), shards, journal.into(), ports.into(), events, trace))
        });
        match started {
            Ok((maps, shards, journal, ports, events, trace)) => Ok(Self {
                interfaces: config.interfaces.clone().into(),
                config,
                local: local.into(),
                is_adopted,
                pins,
                maps,
                shards,
                journal,
                parents: Mutex::default(),
                ports,
                _events: events,
                _trace: trace,
            }),
            Err(error) => {
                if !is_adopted || matches!(error, StartError::Halted) {
                    // The error says why there is no data plane; `detach` removes the parts that
                    // cannot be removed here.
                    let _ = remove(&pins);
                }
                Err(error)
            }
        }
    }

    // A panic in a method leaves a consistent state: each method is one system call or a few.

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interfaces(&self) -> MutexGuard<'_, Vec<String>> {
        self.interfaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parents(&self) -> MutexGuard<'_, BTreeMap<u16, SocketAddr>> {
        self.parents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the uplink of a combiner's job, without any ranks below.
    fn open_uplink(&self, job: &JobSpec, parent: SocketAddr, cells: u32) -> Result<(), Error> {
        let served = self.interfaces().clone();
        let way = uplink::find(parent, &served, &self.local(), job.address)
            .map_err(|why| Error::Refused { what: format!("open job {}", job.number), why })?;
        let port = U16::new(self.config.port);
        let uplink = way.put_into(Uplink { epoch: job.epoch, port, cells, ..Uplink::NONE });
        self.maps().set_uplink(job.number, uplink).map_err(refused(job.number, "open"))?;
        self.parents().insert(job.number, parent);
        Ok(())
    }

    /// Updates the uplinks to the parents from the kernel's present routes and MACs.
    fn follow_parents(&self) {
        // Jobs open and close while the kernel is asked.
        let parents = self.parents().clone();
        for (number, parent) in parents {
            let find = || {
                let job = self.maps().job(number).map_err(|error| error.to_string())?;
                let served = self.interfaces().clone();
                uplink::find(parent, &served, &self.local(), job.address.into())
            };
            if let Err(why) = uplinks::follow(&self.maps, number, find) {
                warn!("job {number} keeps its way to the parent: {why}");
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = root::CAPABILITIES;
        // Ranks need not test multicast where it makes no difference.
        capabilities.set(Capabilities::GROUP_HELLOS, self.config.fanout == Fanout::Auto);
        capabilities.set(Capabilities::ROCE, self.config.roce);
        capabilities
    }

    fn served(&self) -> String {
        let local = self.local();
        let addresses: Vec<_> = local.addresses.iter().map(ToString::to_string).collect();
        if addresses.is_empty() { "no address yet".to_owned() } else { addresses.join(", ") }
    }

    /// Serves the interfaces' present MACs and addresses, which change while a daemon runs.
    fn follow_interfaces(&self) -> Result<(), StartError> {
        let all = interfaces::list()?;
        let served = self.interfaces().clone();
        let is_port = |interface: &&Interface| interface.is_among(&served);
        let ports: Vec<_> = all.iter().filter(is_port).cloned().collect();
        let now = Local::new(self.config.address, &ports, &all, &interfaces::addresses()?);
        let mut local = self.local();
        warn_of_duplicates(&local.duplicates, &now.duplicates);
        local.duplicates.clone_from(&now.duplicates);
        // Without a new address, keep the old ones.
        if *local != now && !now.addresses.is_empty() {
            self.maps().set_local(&now, &self.config.served_ports()).map_err(map_error)?;
            match local.addresses.is_empty() {
                true => info!("serving {now}"),
                false => info!("serving {now}, no longer {local}"),
            }
            *local = now;
        }
        Ok(())
    }
}

impl ServesJobs for XdpDataPlane {
    fn link(&self, interface: u32) -> Option<(String, u64)> {
        self.ports().link(interface)
    }

    fn is_prepared(&self, numbers: &[u16]) -> bool {
        self.shards.are_made(numbers)
    }

    fn prepare(&self, numbers: &[u16]) -> Result<(), Error> {
        self.shards.make(numbers).map_err(|error| Error::Refused {
            what: format!("make maps for {numbers:?}"),
            why: error.to_string(),
        })
    }

    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        let is_served = self.local().addresses.contains(&job.address);
        if !is_served {
            return Err(Error::NotServed { address: job.address, served: self.served() });
        }
        let refused = refused(job.number, "open");
        let ranks = match (job.parent, self.config.cells) {
            // The ranks below are admitted one by one.
            (Some(parent), Some(cells)) => {
                self.open_uplink(job, parent, cells)?;
                0
            }
            _ => {
                self.shards.make(&[job.number]).map_err(&refused)?;
                job.secrets.len()
            }
        };
        let mut maps = self.maps();
        // The program must never see an open job with anything of another job: it is vacant until
        // all is in place.
        for (rank, member) in (0..).zip(job.members().take(ranks)) {
            maps.set_member(job.number, rank, member).map_err(&refused)?;
        }
        maps.set_job(job.number, job.entry(VACANT)).map_err(&refused)?;
        maps.set_job(job.number, job.entry(OPEN)).map_err(&refused)
    }

    fn admit(&self, job: u16, rank: u16, secret: u32) -> Result<(), Error> {
        uplinks::admit(&mut *self.maps(), job, rank, secret)
            .map_err(refused(job, "admit a rank to"))
    }

    fn start(&self, job: u16, ways: &[(u16, fanout::Way)]) -> Result<(), Error> {
        let copy = self.ports().copy();
        let mut maps = self.maps();
        let refused = refused(job, "start");
        let entry = maps.job(job).map_err(&refused)?;
        let live = |&(rank, way): &(u16, fanout::Way)| {
            let place = maps.member(job, way.home(rank))?.binding;
            let is_deaf = loopback::is_behind(&place) || !place.can_be_in_group();
            let is_by_group = way == fanout::Way::Group;
            Ok((rank, place, if is_by_group && is_deaf { fanout::Way::Copy } else { way }))
        };
        let members = ways.iter().map(live).collect::<Result<Vec<_>, _>>().map_err(&refused)?;
        let places: Vec<_> = members.iter().map(|&(rank, place, _)| (rank, place)).collect();
        if let Some(why) = alike::difference(&places) {
            return Err(Error::Refused { what: format!("start job {job}"), why });
        }
        let receivers = Receivers::new(&entry, job, members).ok_or_else(|| too_many_places(job))?;
        let set = self.shards.set_ports(job, &receivers, copy.as_ref());
        if set.is_err() && is_any_gone(&places)? {
            // [`DataPlane::lost_ports`] is about to tell of it, which ends the job, and names the
            // ranks there.
            return Ok(());
        }
        set.map_err(&refused)?;
        maps.set_receivers(job, receivers).map_err(&refused)
    }

    fn abort(&self, job: u16) -> Result<(), Error> {
        set_state(&mut self.maps(), job, ABORTED).map_err(refused(job, "abort"))
    }

    fn close(&self, job: u16) -> Result<(), Error> {
        self.journal().forget(job).map_err(refused(job, "forget"))?;
        set_state(&mut self.maps(), job, VACANT).map_err(refused(job, "close"))?;
        if self.config.cells.is_some() {
            self.parents().remove(&job);
            self.maps().set_uplink(job, Uplink::NONE).map_err(refused(job, "close"))?;
        }
        Ok(())
    }

    fn binding(&self, job: u16, rank: u16) -> Result<Option<Binding>, Error> {
        let maps = self.maps();
        let read = || Ok((maps.job(job)?, maps.member(job, rank)?));
        let (job, member) = match read() {
            Err(MapError::OutOfBounds { .. }) => return Ok(None),
            read => read.map_err(refused(job, "ask for the ranks of"))?,
        };
        let is_member = job.state != VACANT && u32::from(rank) < job.ranks;
        Ok(member.home(job.epoch).filter(|_| is_member))
    }

    fn save(&self, job: &jobs::Job) -> Result<(), Error> {
        self.journal().save(job).map_err(refused(job.number, "save"))
    }

    fn keep_epochs(&self, epochs: &jobs::Epochs) -> Result<(), Error> {
        let why = |error: MapError| Error::Refused {
            what: "note an epoch".to_owned(),
            why: error.to_string(),
        };
        self.journal().keep_epochs(epochs).map_err(why)
    }
}

impl DataPlane for XdpDataPlane {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn cells(&self) -> u32 {
        self.config.cells.unwrap_or_default()
    }

    fn attachment(&self) -> String {
        let ports = self.ports().describe();
        let kernel = rustix::system::uname();
        let kernel = kernel.release().to_string_lossy();
        let Config { port, roce, drop_rate, .. } = self.config;
        let roce = if roce { ", and RoCEv2" } else { "" };
        let (served, note) = (self.served(), drop_rate.note());
        format!("{ports} (Linux {kernel}), serving {served} port {port}{roce}{note}")
    }

    fn limits(&self) -> Limits {
        Limits {
            shards: (self.config.slots / SLOTS_PER_SHARD as u32).min(MAX_SHARDS as u32) as u16,
            slots_per_shard: SLOTS_PER_SHARD as u32,
            max_lanes: MAX_LANES as u16,
            max_ranks: MAX_RANKS as u16,
            max_jobs: MAX_JOBS as u16,
            capabilities: self.capabilities(),
            ipv4_only: Capabilities::empty(),
            port: self.config.port,
            fanout: self.config.fanout,
            durable: true,
        }
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], Error> {
        let why = |error: MapError| Error::Refused {
            what: "read the counters".to_owned(),
            why: error.to_string(),
        };
        self.maps().counters().map_err(why)
    }

    fn times(&self) -> Result<Option<Times>, Error> {
        let why = |error: MapError| Error::Refused {
            what: "read how long rounds took".to_owned(),
            why: error.to_string(),
        };
        // A combiner has no rounds.
        Ok(if self.config.cells.is_some() { None } else { Some(self.maps().times().map_err(why)?) })
    }

    fn progress(&self, shard: u16) -> Result<Option<Progress>, Error> {
        let job = self.maps().job(shard);
        let found = job.and_then(|job| self.shards.progress(shard, &job));
        found.map_err(refused(shard, "look at the slots of"))
    }

    fn unfinished(&self, shard: u16) -> Result<Option<Vec<Alike>>, Error> {
        let job = self.maps().job(shard);
        let found = job.and_then(|job| self.shards.unfinished(shard, &job));
        found.map_err(refused(shard, "look at the slots of"))
    }

    fn saved(&self) -> Result<Option<Saved>, Error> {
        let why = |error: MapError| Error::Refused {
            what: "read what was saved".to_owned(),
            why: error.to_string(),
        };
        let epochs = self.journal().epochs().map_err(why)?;
        if self.config.cells.is_some() {
            // A combiner's ranks come back and open their jobs again.
            (0..MAX_SHARDS as u16).try_for_each(|number| self.close(number))?;
            return Ok(None);
        }
        let Some(epochs) = epochs.filter(|_| self.is_adopted) else { return Ok(None) };
        let mut jobs: Vec<jobs::Job> = Vec::new();
        for number in 0..MAX_JOBS as u16 {
            let entry = self.maps().job(number).map_err(why)?;
            let saved = self.journal().job(number).map_err(why)?;
            let is_whole = |job: &jobs::Job| (job.number, job.epoch) == (number, entry.epoch);
            jobs.extend(saved.filter(|job| entry.state != VACANT && is_whole(job)));
        }
        let kept: BTreeSet<_> = jobs.iter().flat_map(|job| job.shards.iter().copied()).collect();
        for number in (0..MAX_SHARDS as u16).filter(|number| !kept.contains(number)) {
            // The job had not started, or was about to be closed.
            self.close(number)?;
        }
        Ok(Some(Saved { jobs, epochs }))
    }

    fn ports(&self) -> Vec<PortStatus> {
        let mut ports = self.ports().status();
        if self.local().addresses.is_empty() {
            let why = "neither it nor its bridge has an address yet";
            for port in &mut ports {
                port.problem.get_or_insert_with(|| why.to_owned());
            }
        }
        ports
    }

    fn way_from(&self, peer: IpAddr) -> Option<Way> {
        let macs = self.local().macs.iter().copied().collect();
        Some(Way { interface: way::interface_towards(peer), macs })
    }

    fn serve_interfaces(&self, names: &[String]) -> Result<(), Error> {
        check_interfaces(names).map_err(|error| Error::Refused {
            what: "serve these interfaces".to_owned(),
            why: error.to_string(),
        })?;
        self.ports().set_names(names, &self.pins);
        *self.interfaces() = names.to_vec();
        Ok(())
    }

    fn lost_ports(&self) -> Vec<LostPort> {
        if let Err(error) = self.follow_interfaces() {
            warn!("cannot tell which addresses and MACs to serve: {error}");
        }
        self.follow_parents();
        let mut ports = self.ports();
        let lost = ports.lost(&self.pins);
        if let Err(error) = self.journal().keep_ports(ports.attached()) {
            warn!("the next aggregator cannot tell which interfaces were served: {error}");
        }
        lost
    }

    fn stop(&self) {
        // While the ports are locked, nothing attaches again what is removed here.
        let mut ports = self.ports();
        tags::hide_again(&self.pins, None);
        if let Err(error) = unpin(&self.pins) {
            error!(
                "not all of the data plane is gone: {error}; `switchml-aggregator detach` removes \
                 it"
            );
        }
        ports.detach();
    }
}

/// Checks whether a data plane can be started on interfaces with these names. Warns of interfaces
/// that do not exist yet.
///
/// # Errors
///
/// [`StartError`].
pub fn check_interfaces(names: &[String]) -> Result<(), StartError> {
    attach::find(names, &interfaces::list()?).map(drop)
}

/// Removes the data plane that a killed daemon has left in `folder`. Returns whether there was one.
///
/// # Errors
///
/// [`PinError::InUse`] while a daemon runs with it; otherwise when the system refuses.
pub fn detach(folder: &Path) -> Result<bool, PinError> {
    if !folder.exists() {
        return Ok(false);
    }
    remove(&Pins::lock(folder)?)?;
    Ok(true)
}

/// Removes all pins, and waits until that has taken effect. This process must hold none of the
/// pinned objects.
fn remove(pins: &Pins) -> Result<(), PinError> {
    let links = pins.linked().unwrap_or_default().into_iter().filter_map(|index| pins.link(index));
    let programs: Vec<_> = links.filter_map(|link| Some(link.info().ok()?.program_id())).collect();
    tags::hide_again(pins, None);
    unpin(pins)?;
    ports::wait_until_detached(&programs);
    Ok(())
}

/// Removes everything that outlives a daemon: filters first, because their owner is the folder's
/// number.
fn unpin(pins: &Pins) -> Result<(), PinError> {
    let failed = |error: switchml_host::netlink::NetlinkError| PinError::System {
        what: "remove the filters of",
        path: pins.folder().to_owned(),
        why: error.to_string(),
    };
    ingress::remove_filters(pins.number()?).map_err(failed)?;
    pins.remove()
}

/// The loaded parts of a data plane that is not attached yet.
struct Loaded {
    ports: Ports,
    maps: Maps,
    shards: Shards,
    ring: RingBuf<MapData>,
    journal: Journal,
    trace: Option<WorkerThread>,
}

/// Makes the maps, or takes over existing ones.
fn load(pins: &Pins, config: &Config, halt: Arc<Halt>) -> Result<Loaded, StartError> {
    let &Config { mode, port, cells, roce, trace, drop_rate, .. } = config;
    let choice = Choice { trace, drop_rate };
    let settings = Settings::new(mode, port, cells, roce);
    let journal = |folder: PathBuf| folder.join("JOURNAL");
    if pins.is_occupied() {
        check(pins, config, &settings)?;
    }
    let mut object = if pins.is_occupied() {
        attach::open(&pins.maps(), &settings, choice, halt)?
    } else {
        let staging = pins.stage()?;
        let object = attach::open(&staging, &settings, choice, halt)?;
        Journal::create(&journal(staging), settings).map_err(map_error)?;
        pins.publish()?;
        object
    };
    let journal = Journal::open(&journal(pins.maps())).map_err(map_error)?;
    let (mut maps, ring) = Maps::take(&mut object.ebpf).map_err(map_error)?;
    let shards = Shards::take(&mut object.ebpf, cells.is_none()).map_err(map_error)?;
    maps.begin_patience().map_err(map_error)?;
    let xdp_ports = XdpPorts::take(&mut object.ebpf).map_err(map_error)?;
    let trace = trace.then(|| trace::follow(&mut object.ebpf)).transpose()?;
    let ports = Ports::new(object, xdp_ports, mode);
    Ok(Loaded { ports, maps, shards, ring, journal, trace })
}

/// Checks whether this daemon can go on with the data plane that another has left.
fn check(pins: &Pins, config: &Config, settings: &Settings) -> Result<(), StartError> {
    let other =
        |difference: String| StartError::Other { folder: config.pin_dir.clone(), difference };
    let found = Journal::open(&pins.maps().join("JOURNAL")).and_then(|journal| journal.settings());
    let found = found
        .ok()
        .flatten()
        .ok_or_else(|| other("a journal that this version cannot read".to_owned()))?;
    if let Some(difference) = found.difference(settings) {
        return Err(other(difference));
    }
    match maps::misfit(&pins.maps(), config.cells) {
        Ok(None) => Ok(()),
        Ok(Some(name)) => Err(other(format!("a map {name} that is not this version's"))),
        Err(error) => Err(other(format!("maps that cannot be used ({error})"))),
    }
}

/// Says which addresses other hosts have, too, that did not before.
fn warn_of_duplicates(before: &[IpAddr], now: &[IpAddr]) {
    for address in now.iter().filter(|address| !before.contains(address)) {
        warn!(
            "{address} is not served: another host has it, too (dadfailed in `ip address`); remove \
             it on one of them, and add it here again"
        );
    }
}

fn map_error(error: MapError) -> StartError {
    StartError::Load(error.to_string())
}

/// Changes the state of a job that is not vacant; everything else in its entry stays as it is.
fn set_state(maps: &mut Maps, number: u16, state: u32) -> Result<(), MapError> {
    let job = maps.job(number)?;
    if job.state == VACANT { Ok(()) } else { maps.set_job(number, JobEntry { state, ..job }) }
}

fn refused(job: u16, verb: &'static str) -> impl Fn(MapError) -> Error {
    move |error| Error::Refused { what: format!("{verb} job {job}"), why: error.to_string() }
}

/// Whether one of these places is at an interface that exists no more.
fn is_any_gone(places: &[(u16, Binding)]) -> Result<bool, Error> {
    let interfaces = interfaces::list().map_err(|error| Error::Refused {
        what: "look for the ranks' interfaces".to_owned(),
        why: error.to_string(),
    })?;
    let is_gone = |place: &Binding| interfaces.iter().all(|one| one.index != place.ifindex);
    Ok(places.iter().any(|(_, place)| is_gone(place)))
}

fn too_many_places(job: u16) -> Error {
    Error::Refused {
        what: format!("start job {job}"),
        why: format!(
            "each result would have to be sent more than {MAX_PLACES} times; have the ranks get \
             them by multicast, or put combiners between them and this aggregator"
        ),
    }
}

/// Hands the program's events on, until the thread is told to stop.
fn forward(mut ring: RingBuf<MapData>, events: &EventSink, stop: &Stop) -> io::Result<()> {
    while stop.wait_readable(&ring)? {
        while let Some(item) = ring.next() {
            if let Ok((event, _)) = Event::read_from_prefix(&item) {
                events(event);
            }
        }
    }
    Ok(())
}
