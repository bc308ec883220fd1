//! The data plane in XDP: loads the program, attaches it, and reaches it through its maps.

mod attach;
pub mod interfaces;
mod maps;

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{MapData, MapError, RingBuf};
use aya::programs::links::FdLink;
use switchml_protocol::MAX_LANES;
use switchml_protocol::job::{ABORTED, Job, Member, OPEN, Place, VACANT};
use switchml_protocol::maps::Event;
use switchml_protocol::outcome::Outcome;
use zerocopy::FromBytes;

use super::worker_thread::{Stop, WorkerThread};
use super::{DataPlane, Error, EventSender, Fanout, JobSpec, Limits};
pub use attach::StartError;
use interfaces::Interface;
use maps::Maps;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// In the network stack, with any driver.
    Generic,
}

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of the interfaces.
    pub interfaces: Vec<String>,
    /// Where the program runs.
    pub mode: Mode,
    /// Address to serve, if not those of the interfaces and of their bridges.
    pub address: Option<Ipv4Addr>,
    /// UDP port to serve.
    pub port: u16,
    /// Slots in the pool.
    pub slots: u32,
}

/// The XDP data plane. The program is detached when it is dropped, or the process ends.
pub struct XdpDataPlane {
    config: Config,
    addresses: Vec<Ipv4Addr>,
    maps: Mutex<Maps>,
    _events: WorkerThread,
    _links: Vec<FdLink>,
    _object: Ebpf,
}

impl XdpDataPlane {
    /// Loads the program and attaches it to all interfaces.
    ///
    /// # Errors
    ///
    /// [`StartError`]; nothing stays attached.
    pub fn start(config: Config, events: EventSender) -> Result<Self, StartError> {
        let all = interfaces::list()?;
        let ports = attach::find(&config.interfaces, &all)?;
        let addresses = addresses_to_serve(&config, &ports)?;
        let mut object = attach::load(config.slots)?;
        let refused = |error: MapError| StartError::Load(error.to_string());
        let (mut maps, ring) = Maps::take(&mut object).map_err(refused)?;
        maps.set_local(&addresses, config.port).map_err(refused)?;
        let links =
            ports.iter().map(|port| attach::attach(&mut object, port, config.mode)).collect::<Result<Vec<_>, _>>()?;
        let events = WorkerThread::spawn("events", move |stop| forward(ring, &events, stop))
            .map_err(|error| StartError::Load(format!("cannot start a thread for events: {error}")))?;
        Ok(Self { config, addresses, maps: Mutex::new(maps), _events: events, _links: links, _object: object })
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        // Each method is a system call or a few; a panic between them leaves nothing that the next could trip over.
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served(&self) -> String {
        self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl DataPlane for XdpDataPlane {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn attachment(&self) -> String {
        let mode = match self.config.mode {
            Mode::Native => "native",
            Mode::Generic => "generic",
        };
        let ports = self.config.interfaces.join(", ");
        let kernel = rustix::system::uname();
        let kernel = kernel.release().to_string_lossy();
        format!("{mode} XDP on {ports} (Linux {kernel}), serving {} port {}", self.served(), self.config.port)
    }

    fn limits(&self) -> Limits {
        Limits {
            slots: self.config.slots,
            max_lanes: MAX_LANES as u16,
            port: self.config.port,
            fanout: Fanout::Multicast,
            durable: false,
        }
    }

    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        if !self.addresses.contains(&job.address) {
            return Err(Error::NotServed { address: job.address, served: self.served() });
        }
        let mut maps = self.maps();
        let refused = refused(job.number, "open");
        // The program must never see an open job with anything of another job: it is vacant until all is in place.
        for (rank, &secret) in (0..).zip(&job.secrets) {
            let member = Member { secret, ..Member::default() };
            maps.set_member(job.number, rank, member).map_err(&refused)?;
        }
        maps.set_job(job.number, job.entry(VACANT)).map_err(&refused)?;
        maps.set_job(job.number, job.entry(OPEN)).map_err(&refused)
    }

    fn start(&self, job: u16) -> Result<(), Error> {
        let mut maps = self.maps();
        let refused = refused(job, "start");
        let ranks = maps.job(job).map_err(&refused)?.ranks as u16;
        let members = (0..ranks).map(|rank| maps.member(job, rank)).collect::<Result<Vec<_>, _>>().map_err(&refused)?;
        // Several ranks may live behind one port, which gets one frame for them all.
        let ports: BTreeSet<u32> = members.iter().map(|member| member.place.ifindex).collect();
        maps.set_group(job, &ports.into_iter().collect::<Vec<_>>()).map_err(&refused)
    }

    fn abort(&self, job: u16) -> Result<(), Error> {
        set_state(&mut self.maps(), job, ABORTED).map_err(refused(job, "abort"))
    }

    fn close(&self, job: u16) -> Result<(), Error> {
        set_state(&mut self.maps(), job, VACANT).map_err(refused(job, "close"))
    }

    fn place(&self, job: u16, rank: u16) -> Result<Option<Place>, Error> {
        let maps = self.maps();
        let read = || Ok((maps.job(job)?, maps.member(job, rank)?));
        let (job, member) = match read() {
            Err(MapError::OutOfBounds { .. }) => return Ok(None),
            read => read.map_err(refused(job, "ask for the ranks of"))?,
        };
        let known = job.state != VACANT && u32::from(rank) < job.ranks && member.epoch == job.epoch;
        Ok(known.then_some(member.place))
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], Error> {
        let why = |error: MapError| Error::Refused { what: "read the counters".to_owned(), why: error.to_string() };
        self.maps().counters().map_err(why)
    }
}

/// Changes the state of a job that is not vacant; everything else in its entry stays as it is.
fn set_state(maps: &mut Maps, number: u16, state: u32) -> Result<(), MapError> {
    let job = maps.job(number)?;
    if job.state == VACANT { Ok(()) } else { maps.set_job(number, Job { state, ..job }) }
}

fn refused(job: u16, verb: &'static str) -> impl Fn(MapError) -> Error {
    move |error| Error::Refused { what: format!("{verb} job {job}"), why: error.to_string() }
}

/// Those of the interfaces and of the bridges that they are ports of, unless one is configured.
fn addresses_to_serve(config: &Config, ports: &[Interface]) -> Result<Vec<Ipv4Addr>, StartError> {
    if let Some(address) = config.address {
        return Ok(vec![address]);
    }
    let indices: Vec<_> = ports.iter().flat_map(|port| [Some(port.index), port.master]).flatten().collect();
    let addresses = interfaces::addresses(&indices)?;
    if addresses.is_empty() { Err(StartError::NoAddress) } else { Ok(addresses) }
}

/// Hands the program's events on, until the thread is told to stop.
fn forward(mut ring: RingBuf<MapData>, events: &EventSender, stop: &Stop) -> io::Result<()> {
    while stop.wait_readable(&ring)? {
        while let Some(item) = ring.next() {
            if let Ok((event, _)) = Event::read_from_prefix(&item) {
                // Without room in the channel the counters alone tell of it.
                let _ = events.try_send(event);
            }
        }
    }
    Ok(())
}
