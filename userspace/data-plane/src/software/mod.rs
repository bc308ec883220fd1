//! The data plane in user space: a thread that serves UDP sockets. Needs no privilege, and runs the
//! same state machines as the XDP program; for laptops, tests, and hosts without XDP. This module
//! is for a root, [`combiner`] for a combiner.

pub mod combiner;
pub mod in_process;
mod outbox;
mod port;
mod queues;
mod roce;
mod times;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use quinn_udp::{EcnCodepoint, RecvMeta};
use switchml_protocol::bpf_types::fanout::Way;
use switchml_protocol::bpf_types::job::{ABORTED, Binding, VACANT};
use switchml_protocol::bpf_types::maps::{Event, MAX_JOBS, MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::bpf_types::times::Times;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::node::Medium;
use switchml_protocol::node::ingress::Origin;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::root::{self, admission::Members};
use switchml_protocol::{MAX_LANES, MAX_RANKS, U16};
use switchml_userspace_core::data_plane::{
    DataPlane, Error, EventSink, Fanout, JobSpec, Limits, ServesJobs,
};
use switchml_userspace_core::memory_tables::{MemoryTables, answer};
use switchml_userspace_core::oldest_round::{Alike, Progress};

use self::times::RoundTimes;
use super::worker_thread::{Stop, WorkerThread};
use in_process::InProcessRank;
use outbox::{Destination, Directory, Outbox, Sender};
use port::{Inbox, Port};
use queues::Queues;
use roce::RocePort;
use switchml_userspace_core::drop_rate::DropRate;

/// The software data plane. It stops when dropped.
pub struct Software {
    shared: Arc<Shared>,
    slots: u32,
    drop_rate: DropRate,
    _thread: WorkerThread,
    roce_thread: Option<WorkerThread>,
}

struct Shared {
    port: Arc<Port>,
    /// Set if ranks are served by RoCEv2, too.
    roce: OnceLock<RocePort>,
    tables: MemoryTables,
    in_process: Queues,
    counters: Counters,
    times: RoundTimes,
    sockets: Sockets,
}

/// Sockets, to a node. If the channel to the operators has no room, only the counters count a
/// packet.
struct Sockets {
    events: EventSink,
    /// The threshold of the [`DropRate`].
    lose_below: AtomicU64,
}

impl Sockets {
    fn new(events: EventSink) -> Self {
        Self { events, lose_below: AtomicU64::new(0) }
    }

    fn set_drop_rate(&self, rate: DropRate) {
        self.lose_below.store(rate.threshold(), Ordering::Relaxed);
    }
}

impl Medium for Sockets {
    fn loses(&self) -> bool {
        let below = self.lose_below.load(Ordering::Relaxed);
        below != 0 && u64::from(rand::random::<u32>()) < below
    }

    fn report(&self, event: Event) {
        (self.events)(event);
    }
}

/// Counts of packets, by outcome.
struct Counters([AtomicU64; Outcome::COUNT]);

impl Counters {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn count(&self, outcome: Outcome, packets: u64) {
        self.0[outcome as usize].fetch_add(packets, Ordering::Relaxed);
    }

    fn read(&self) -> [u64; Outcome::COUNT] {
        std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed))
    }
}

impl Software {
    /// Serves UDP `port` (0 for any) of every address, or of `address` alone, with at most
    /// `slots` slots.
    ///
    /// # Errors
    ///
    /// When the port cannot be opened, or a thread cannot be started.
    pub fn start(
        address: Option<IpAddr>,
        port: u16,
        slots: u32,
        events: EventSink,
    ) -> io::Result<Self> {
        let port = Arc::new(Port::bind(address, port)?);
        let (tables, counters) = (MemoryTables::new(), Counters::new());
        let times = RoundTimes::new();
        let (in_process, sockets) = (Queues::default(), Sockets::new(events));
        let roce = OnceLock::new();
        let shared = Arc::new(Shared { port, roce, tables, in_process, counters, times, sockets });
        let thread = WorkerThread::spawn("data-plane", {
            let shared = Arc::clone(&shared);
            move |stop| shared.run(stop)
        })?;
        let drop_rate = DropRate::default();
        Ok(Self { shared, slots, drop_rate, _thread: thread, roce_thread: None })
    }

    /// The same data plane, which also serves ranks with RDMA NICs (section 37 of
    /// `docs/spec`), at every address or at `address` alone.
    ///
    /// # Errors
    ///
    /// When RoCEv2's port cannot be opened, or a thread cannot be started.
    pub fn with_roce(self, address: Option<IpAddr>) -> io::Result<Self> {
        // Rule 37.2.
        let queue_pair = self.shared.port.number().into();
        let port = RocePort::bind(address, queue_pair)?;
        let thread = WorkerThread::spawn("data-plane-roce", {
            let shared = Arc::clone(&self.shared);
            move |stop| shared.run_roce(shared.roce.get_or_init(|| port), stop)
        })?;
        Ok(Self { roce_thread: Some(thread), ..self })
    }

    /// The same data plane, which loses this share of the packets, for tests.
    pub fn with_drop_rate(self, drop_rate: DropRate) -> Self {
        self.shared.sockets.set_drop_rate(drop_rate);
        Self { drop_rate, ..self }
    }

    /// A rank in this process, known by this address, where nobody else receives. `wake` is called
    /// on any thread when packets come for the rank after there were none.
    pub fn rank_in_process(
        &self,
        address: SocketAddr,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> InProcessRank {
        InProcessRank::new(Arc::clone(&self.shared), address, Box::new(wake))
    }

    fn has_roce(&self) -> bool {
        self.roce_thread.is_some()
    }

    fn capabilities(&self) -> Capabilities {
        let roce = if self.has_roce() { Capabilities::ROCE } else { Capabilities::empty() };
        root::CAPABILITIES | roce
    }

    /// The jobs and slots that it serves.
    pub fn tables(&self) -> &MemoryTables {
        &self.shared.tables
    }
}

impl fmt::Debug for Software {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Software").field("port", &self.shared.port.number()).finish_non_exhaustive()
    }
}

impl ServesJobs for Software {
    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        self.shared.tables.open(job);
        Ok(())
    }

    fn start(&self, job: u16, ways: &[(u16, Way)]) -> Result<(), Error> {
        self.shared.tables.start(job, ways);
        Ok(())
    }

    fn abort(&self, job: u16) -> Result<(), Error> {
        self.shared.tables.set_state(job, ABORTED);
        Ok(())
    }

    fn close(&self, job: u16) -> Result<(), Error> {
        self.shared.tables.set_state(job, VACANT);
        Ok(())
    }

    fn binding(&self, job: u16, rank: u16) -> Result<Option<Binding>, Error> {
        Ok(self.shared.tables.home(job, rank))
    }
}

impl DataPlane for Software {
    fn name(&self) -> &'static str {
        "software"
    }

    fn attachment(&self) -> String {
        let roce = if self.has_roce() { ", and RoCEv2" } else { "" };
        let note = self.drop_rate.note();
        format!("UDP socket, port {}{roce}{note}", self.shared.port.number())
    }

    fn limits(&self) -> Limits {
        Limits {
            shards: (self.slots / SLOTS_PER_SHARD as u32).min(MAX_SHARDS as u32) as u16,
            slots_per_shard: SLOTS_PER_SHARD as u32,
            max_lanes: MAX_LANES as u16,
            max_ranks: MAX_RANKS as u16,
            max_jobs: MAX_JOBS as u16,
            capabilities: self.capabilities(),
            // RDMA devices leave out UDP's checksum, which sockets want over IPv6.
            ipv4_only: Capabilities::ROCE,
            port: self.shared.port.number(),
            fanout: Fanout::Unicast,
            durable: false,
        }
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], Error> {
        Ok(self.shared.counters.read())
    }

    fn times(&self) -> Result<Option<Times>, Error> {
        Ok(Some(self.shared.times.read()))
    }

    fn progress(&self, shard: u16) -> Result<Option<Progress>, Error> {
        Ok(self.shared.tables.progress(shard))
    }

    fn unfinished(&self, shard: u16) -> Result<Option<Vec<Alike>>, Error> {
        Ok(Some(self.shared.tables.unfinished(shard)))
    }
}

impl Shared {
    /// Serves packets until the thread is told to stop.
    fn run(&self, stop: &Stop) -> io::Result<()> {
        let mut inbox = Inbox::default();
        let mut outbox = Outbox::new(Arc::clone(&self.port));
        while stop.wait_readable(&self.port)? {
            self.port.receive(&mut inbox, |buffer, meta| {
                self.serve_buffer(buffer, meta, &mut outbox);
            })?;
            self.send(&mut outbox);
        }
        Ok(())
    }

    /// Serves messages of RoCEv2 until the thread is told to stop.
    fn run_roce(&self, roce: &RocePort, stop: &Stop) -> io::Result<()> {
        let mut inbox = Inbox::default();
        let mut outbox = Outbox::new(Arc::clone(&self.port));
        while stop.wait_readable(roce)? {
            roce.receive(&mut inbox, |message, meta| match message {
                Ok((queue_pair, packet)) => {
                    let mut origin = origin(meta);
                    origin.binding = origin.binding.at_queue_pair(queue_pair);
                    let place = Destination::from(&origin.binding);
                    let sender = Sender { place, to: meta.dst_ip };
                    self.serve_packet(packet, &origin, sender, &mut outbox);
                }
                Err(outcome) => self.counters.count(outcome, 1),
            })?;
            self.send(&mut outbox);
        }
        Ok(())
    }

    /// Serves the datagrams of one buffer, which came from the same sender.
    fn serve_buffer(&self, buffer: &mut [u8], meta: &RecvMeta, outbox: &mut Outbox) {
        let (origin, sender) = (origin(meta), Sender::of(meta));
        if buffer.is_empty() {
            self.counters.count(Outcome::Truncated, 1);
        }
        for datagram in buffer.chunks_mut(meta.stride.max(1)) {
            self.serve_packet(datagram, &origin, sender, outbox);
        }
    }

    fn serve_packet(
        &self,
        packet: &mut [u8],
        origin: &Origin,
        sender: Sender,
        outbox: &mut Outbox,
    ) {
        let served = self.tables.serve(&self.sockets, packet, origin);
        self.counters.count(served.outcome, 1);
        self.times.note(served.outcome, packet);
        if let Some(answer) = answer(packet) {
            outbox.push(self.directory(), &self.port, served.target, sender, answer);
        }
    }

    /// Sends what the outbox has collected.
    fn send(&self, outbox: &mut Outbox) {
        outbox.flush(self.directory());
        self.counters.count(Outcome::SendFailed, outbox.take_failed());
    }

    fn directory(&self) -> Directory<'_> {
        Directory {
            tables: &self.tables,
            in_process: Some(&self.in_process),
            roce: self.roce.get(),
        }
    }
}

/// Where the datagrams of a buffer come from, as far as a socket tells (rule 24.2).
fn origin(meta: &RecvMeta) -> Origin {
    let binding = Binding {
        ifindex: 0,
        ip: meta.addr.ip().into(),
        mac: [0; 6],
        port: U16::new(meta.addr.port()),
        ..Binding::default()
    };
    Origin { binding, congested: meta.ecn == Some(EcnCodepoint::Ce) }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::time::Duration;

    use quinn_udp::{Transmit, UdpSocketState};
    use switchml_protocol::wire::auth::Key;
    use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, flags};
    use switchml_protocol::{U32, VERSION};
    use zerocopy::{FromBytes, FromZeros, IntoBytes};

    use super::*;

    /// A data plane with job 7 in epoch 9, whose one rank has the secret 5.
    pub(super) fn with_a_job(address: IpAddr) -> Software {
        let slots = SLOTS_PER_SHARD as u32;
        let software = Software::start(None, 0, slots, Box::new(drop)).expect("started");
        let job = JobSpec {
            number: 7,
            epoch: 9,
            secrets: vec![5],
            keys: Vec::new(),
            key: Key::NONE,
            slots: 0..slots,
            address,
            group: (Ipv4Addr::UNSPECIFIED, 0),
            parent: None,
        };
        software.open(&job).expect("opened");
        software
    }

    /// What the rank says.
    pub(super) fn hello() -> Header {
        Header {
            version: VERSION,
            kind: Kind::Hello as u8,
            job: U16::new(7),
            epoch: U32::new(9),
            aux: U32::new(5),
            ..Header::new_zeroed()
        }
    }

    /// Rule 5.5, for superpackets over both kinds of IP: HELLOs come back with the mark.
    #[test]
    fn every_packet_of_a_marked_superpacket_is_marked() {
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let software = with_a_job(address);
            let hello = hello();
            let rank = UdpSocket::bind((address, 0)).expect("bound");
            let transmit = Transmit {
                destination: (address, software.shared.port.number()).into(),
                ecn: Some(EcnCodepoint::Ce),
                contents: &hello.as_bytes().repeat(3),
                segment_size: Some(HEADER_LEN),
                src_ip: None,
            };
            let state = UdpSocketState::new((&rank).into()).expect("a socket");
            state.try_send((&rank).into(), &transmit).expect("sent");
            rank.set_nonblocking(false).expect("a socket that waits");
            rank.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
            let mut marked = 0;
            while marked < 3 {
                let mut answers = [0; 3 * HEADER_LEN];
                let length = rank.recv(&mut answers).expect("an answer");
                for answer in answers[..length].chunks(HEADER_LEN) {
                    let (header, _) = Header::ref_from_prefix(answer).expect("a header");
                    assert_eq!(header.flags, flags::CE, "{address}");
                    marked += 1;
                }
            }
        }
    }
}
