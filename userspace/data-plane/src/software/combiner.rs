//! The software data plane of a combiner: a socket for the ranks below, and one towards the parent
//! for each of them and for each job's RESULTs to all (rule 27.2).

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use quinn_udp::RecvMeta;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::bpf_types::job::{ABORTED, Binding, VACANT};
use switchml_protocol::bpf_types::maps::{MAX_JOBS, MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::node::{Served, Target};
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::{self, admission::Members};
use switchml_protocol::wire::ports::{port_for_all, rank_port};
use switchml_protocol::{MAX_LANES, MAX_RANKS};
use switchml_userspace_core::data_plane::{
    DataPlane, Error, EventSink, Fanout, JobSpec, Limits, ServesJobs,
};
use switchml_userspace_core::memory_cells::MemoryCells;
use switchml_userspace_core::memory_tables::answer;

use super::outbox::{Directory, Outbox, Sender};
use super::port::{Inbox, Port};
use super::{Counters, Sockets, origin};
use crate::worker_thread::{Stop, WorkerThread};
use switchml_userspace_core::drop_rate::DropRate;

/// Most readable ports that one call of epoll returns.
const READY: usize = 64;
/// Do not wait.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The software data plane of a combiner. It stops when dropped.
pub struct SoftwareCombiner {
    shared: Arc<Shared>,
    drop_rate: DropRate,
    /// The ports towards the parent that each job uses. Two jobs may share a port.
    jobs: Mutex<BTreeMap<u16, Vec<Arc<Port>>>>,
    _thread: WorkerThread,
}

struct Shared {
    address: Option<IpAddr>,
    /// The port for the ranks below.
    data: Arc<Port>,
    /// The ports towards the parent, by number.
    uplinks: RwLock<BTreeMap<u16, Arc<Port>>>,
    /// Tells which ports are readable.
    readable: OwnedFd,
    memory: MemoryCells,
    counters: Counters,
    sockets: Sockets,
    begin: Instant,
}

impl SoftwareCombiner {
    /// Serves UDP `port` (0 for any) of every address, or of `address` alone, and the ports towards
    /// the parent that belong to it, with `cells` cells.
    ///
    /// # Errors
    ///
    /// When the port cannot be opened, or a thread cannot be started.
    pub fn start(
        address: Option<IpAddr>,
        port: u16,
        cells: u32,
        events: EventSink,
    ) -> io::Result<Self> {
        let data = Arc::new(Port::bind(address, port)?);
        let readable = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let shared = Arc::new(Shared {
            address,
            memory: MemoryCells::new(cells, data.number()),
            data,
            uplinks: RwLock::default(),
            readable,
            counters: Counters::new(),
            sockets: Sockets::new(events),
            begin: Instant::now(),
        });
        shared.watch(&shared.data)?;
        let thread = WorkerThread::spawn("data-plane", {
            let shared = Arc::clone(&shared);
            move |stop| shared.run(stop)
        })?;
        let drop_rate = DropRate::default();
        Ok(Self { shared, drop_rate, jobs: Mutex::default(), _thread: thread })
    }

    /// The same data plane, which loses this share of the packets, for tests.
    pub fn with_drop_rate(self, drop_rate: DropRate) -> Self {
        self.shared.sockets.set_drop_rate(drop_rate);
        Self { drop_rate, ..self }
    }

    fn jobs(&self) -> MutexGuard<'_, BTreeMap<u16, Vec<Arc<Port>>>> {
        // A panic leaves the table intact: each change is atomic.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a job use a port towards its parent.
    fn use_port(&self, job: u16, number: u16) -> Result<(), Error> {
        let mut jobs = self.jobs();
        let ports = jobs.entry(job).or_default();
        if ports.iter().any(|port| port.number() == number) {
            return Ok(());
        }
        let refused = |error: io::Error| Error::Refused {
            what: format!("open UDP port {number} towards the parent for job {job}"),
            why: match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "it is in use; stop what uses it, or start this combiner with another \
                     --data-port: it uses the 1536 ports after that"
                        .to_owned()
                }
                _ => error.to_string(),
            },
        };
        ports.push(self.shared.uplink(number).map_err(refused)?);
        Ok(())
    }
}

impl ServesJobs for SoftwareCombiner {
    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        self.shared.memory.tables.open(job);
        let base = self.shared.data.number();
        self.use_port(job.number, port_for_all(base, job.number))
    }

    fn admit(&self, job: u16, rank: u16, secret: u32) -> Result<(), Error> {
        self.use_port(job, rank_port(self.shared.data.number(), job, rank))?;
        self.shared.memory.tables.admit(job, rank, secret);
        Ok(())
    }

    fn start(&self, job: u16, ways: &[(u16, Way)]) -> Result<(), Error> {
        self.shared.memory.tables.start(job, ways);
        Ok(())
    }

    fn abort(&self, job: u16) -> Result<(), Error> {
        self.shared.memory.tables.set_state(job, ABORTED);
        Ok(())
    }

    fn close(&self, job: u16) -> Result<(), Error> {
        self.shared.memory.tables.set_state(job, VACANT);
        self.jobs().remove(&job);
        self.shared.forget_unused();
        Ok(())
    }

    fn binding(&self, job: u16, rank: u16) -> Result<Option<Binding>, Error> {
        Ok(self.shared.memory.tables.home(job, rank))
    }
}

impl DataPlane for SoftwareCombiner {
    fn name(&self) -> &'static str {
        "software"
    }

    fn attachment(&self) -> String {
        let note = self.drop_rate.note();
        format!("UDP socket, port {}, and those behind it{note}", self.shared.data.number())
    }

    fn limits(&self) -> Limits {
        Limits {
            shards: MAX_SHARDS as u16,
            slots_per_shard: SLOTS_PER_SHARD as u32,
            max_lanes: MAX_LANES as u16,
            max_ranks: MAX_RANKS as u16,
            max_jobs: MAX_JOBS as u16,
            capabilities: root::CAPABILITIES.difference(Capabilities::EMPTY_CONTRIBUTIONS),
            ipv4_only: Capabilities::empty(),
            port: self.shared.data.number(),
            fanout: Fanout::Unicast,
            durable: false,
        }
    }

    fn cells(&self) -> u32 {
        self.shared.memory.cells()
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], Error> {
        Ok(self.shared.counters.read())
    }
}

impl Shared {
    /// Serves packets until the thread is told to stop.
    fn run(&self, stop: &Stop) -> io::Result<()> {
        let mut inbox = Inbox::default();
        let mut outbox = Outbox::new(Arc::clone(&self.data));
        let mut ready = Vec::with_capacity(READY);
        while stop.wait_readable(&self.readable)? {
            ready.clear();
            epoll::wait(&self.readable, spare_capacity(&mut ready), Some(&AT_ONCE))?;
            for event in &ready {
                let number = event.data.u64() as u16;
                if let Some(port) = self.port(number) {
                    port.receive(&mut inbox, |buffer, meta| {
                        self.serve(buffer, meta, number, &mut outbox);
                    })?;
                }
            }
            outbox.flush(self.directory());
            self.counters.count(Outcome::SendFailed, outbox.take_failed());
        }
        Ok(())
    }

    /// Serves the datagrams of one buffer, which came to this port from the same sender.
    fn serve(&self, buffer: &mut [u8], meta: &RecvMeta, at: u16, outbox: &mut Outbox) {
        let origin = origin(meta);
        if buffer.is_empty() {
            self.counters.count(Outcome::Truncated, 1);
        }
        // The time wraps around, as the protocol allows.
        let now = self.begin.elapsed().as_micros() as u32;
        for datagram in buffer.chunks_mut(meta.stride.max(1)) {
            let (Served { outcome, target }, ahead) =
                self.memory.serve(&self.sockets, datagram, &origin, (at, now));
            self.counters.count(outcome, 1);
            let from = match target {
                Target::Parent { from_port, .. } => from_port,
                _ => self.data.number(),
            };
            let Some(port) = self.port(from) else { continue };
            for packet in ahead.as_deref().into_iter().chain(answer(datagram)) {
                outbox.push(self.directory(), &port, target, Sender::of(meta), packet);
            }
        }
    }

    fn directory(&self) -> Directory<'_> {
        Directory { tables: &self.memory.tables, in_process: None, roce: None }
    }

    /// The port with this number, if it is open.
    fn port(&self, number: u16) -> Option<Arc<Port>> {
        if number == self.data.number() {
            return Some(Arc::clone(&self.data));
        }
        self.uplinks.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// A port towards the parent, which is bound if it was not.
    fn uplink(&self, number: u16) -> io::Result<Arc<Port>> {
        let mut uplinks = self.uplinks.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(port) = uplinks.get(&number) {
            return Ok(Arc::clone(port));
        }
        let port = Arc::new(Port::bind(self.address, number)?);
        self.watch(&port)?;
        uplinks.insert(number, Arc::clone(&port));
        Ok(port)
    }

    /// Closes the ports that no job uses.
    fn forget_unused(&self) {
        let mut uplinks = self.uplinks.write().unwrap_or_else(PoisonError::into_inner);
        // A packet may be on its way by one: it goes the next time.
        uplinks.retain(|_, port| Arc::strong_count(port) > 1);
    }

    fn watch(&self, port: &Port) -> io::Result<()> {
        let data = epoll::EventData::new_u64(port.number().into());
        Ok(epoll::add(&self.readable, port, data, epoll::EventFlags::IN)?)
    }
}
