//! The data plane in user space: a thread that serves a UDP socket. Needs no privilege, and runs
//! the same slot state machine as the XDP program; for laptops, tests, and hosts where nothing else
//! works.

mod outbox;

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, UdpSocketState};
use switchml_protocol::aggregator;
use switchml_protocol::header::Header;
use switchml_protocol::job::{ABORTED, Binding, VACANT};
use switchml_protocol::maps::{MAX_JOBS, MAX_SHARDS, SLOTS_PER_SHARD};
use switchml_protocol::outcome::{Action, Outcome};
use switchml_protocol::shell::Origin;
use switchml_protocol::{MAX_LANES, MAX_RANKS, U16};
use switchml_userspace_core::data_plane::{
    DataPlane, Error, EventSink, Fanout, JobSpec, Limits, ServesJobs,
};
use switchml_userspace_core::memory_tables::{MemoryTables, answer};
use zerocopy::FromBytes;

use super::worker_thread::{Stop, WorkerThread};
use outbox::{Outbox, Receiver};

/// What the kernel may merge into one buffer: the longest UDP datagram.
const BUFFER_LEN: usize = 65_535;
/// Socket buffers to ask for, in bytes; the kernel gives what `net.core.rmem_max` and `wmem_max`
/// allow.
const SOCKET_BUFFER: usize = 8 << 20;

/// The software data plane. It stops when dropped.
pub struct Software {
    shared: Arc<Shared>,
    port: u16,
    slots: u32,
    _thread: WorkerThread,
}

struct Shared {
    socket: UdpSocket,
    state: UdpSocketState,
    tables: MemoryTables,
    counters: [AtomicU64; Outcome::COUNT],
    events: EventSink,
}

impl Software {
    /// Serves UDP `port` (0 for any) of every IPv4 address, or of `address` alone, with at most
    /// `slots` slots.
    ///
    /// # Errors
    ///
    /// When the port cannot be had, or a thread cannot be started.
    pub fn start(
        address: Option<Ipv4Addr>,
        port: u16,
        slots: u32,
        events: EventSink,
    ) -> io::Result<Self> {
        let socket = UdpSocket::bind((address.unwrap_or(Ipv4Addr::UNSPECIFIED), port))?;
        let port = socket.local_addr()?.port();
        let state = UdpSocketState::new((&socket).into())?;
        state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER)?;
        state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER)?;
        let counters = std::array::from_fn(|_| AtomicU64::new(0));
        let shared =
            Arc::new(Shared { socket, state, tables: MemoryTables::new(), counters, events });
        let thread = WorkerThread::spawn("data-plane", {
            let shared = Arc::clone(&shared);
            move |stop| shared.run(stop)
        })?;
        Ok(Self { shared, port, slots, _thread: thread })
    }

    /// The jobs and slots that it serves.
    pub fn tables(&self) -> &MemoryTables {
        &self.shared.tables
    }
}

impl ServesJobs for Software {
    fn open(&self, job: &JobSpec) -> Result<(), Error> {
        self.shared.tables.open(job);
        Ok(())
    }

    fn start(&self, _job: u16, _by_group: u64) -> Result<(), Error> {
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
        Ok(self.shared.tables.binding(job, rank))
    }
}

impl DataPlane for Software {
    fn name(&self) -> &'static str {
        "software"
    }

    fn attachment(&self) -> String {
        format!("UDP socket, port {}", self.port)
    }

    fn limits(&self) -> Limits {
        Limits {
            shards: (self.slots / SLOTS_PER_SHARD as u32).min(MAX_SHARDS as u32) as u16,
            slots_per_shard: SLOTS_PER_SHARD as u32,
            max_lanes: MAX_LANES as u16,
            max_ranks: MAX_RANKS as u16,
            max_jobs: MAX_JOBS as u16,
            capabilities: aggregator::CAPABILITIES,
            port: self.port,
            fanout: Fanout::Unicast,
            durable: false,
        }
    }

    fn counters(&self) -> Result<[u64; Outcome::COUNT], Error> {
        Ok(std::array::from_fn(|i| self.shared.counters[i].load(Ordering::Relaxed)))
    }
}

impl Shared {
    /// Serves packets until the thread is told to stop.
    fn run(&self, stop: &Stop) -> io::Result<()> {
        let mut memory = vec![0; BATCH_SIZE * BUFFER_LEN];
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut outbox = Outbox::new(&self.socket, &self.state, &self.tables);
        while stop.wait_readable(&self.socket)? {
            let mut buffers: Vec<_> = memory.chunks_mut(BUFFER_LEN).map(IoSliceMut::new).collect();
            let received = match self.state.recv((&self.socket).into(), &mut buffers, &mut metas) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                result => result?,
            };
            for (buffer, meta) in buffers.iter_mut().zip(&metas).take(received) {
                self.serve_buffer(&mut buffer[..meta.len], meta, &mut outbox);
            }
            outbox.flush();
            self.count(Outcome::SendFailed, outbox.take_failed());
        }
        Ok(())
    }

    /// Serves the datagrams of one buffer, which came from the same sender.
    fn serve_buffer(&self, buffer: &mut [u8], meta: &RecvMeta, outbox: &mut Outbox<'_>) {
        let SocketAddr::V4(from) = meta.addr else { return };
        let binding = Binding {
            ifindex: 0,
            ip: from.ip().octets(),
            mac: [0; 6],
            port: U16::new(from.port()),
        };
        let origin = Origin { binding, congested: meta.ecn == Some(EcnCodepoint::Ce) };
        let to = match meta.dst_ip {
            Some(IpAddr::V4(address)) => Some(address),
            _ => None,
        };
        if buffer.is_empty() {
            self.count(Outcome::Truncated, 1);
        }
        for datagram in buffer.chunks_mut(meta.stride.max(1)) {
            let report = |event| {
                // Without room in the channel the counters alone tell of it.
                (self.events)(event);
            };
            let outcome = self.tables.serve(datagram, &origin, report);
            self.count(outcome, 1);
            let receiver = match outcome.action() {
                Action::Reply => Receiver::Sender { address: meta.addr, from: to },
                Action::Broadcast => Receiver::Job(job_of(datagram)),
                Action::Drop | Action::Pass => continue,
            };
            if let Some(answer) = answer(datagram) {
                outbox.push(receiver, answer);
            }
        }
    }

    fn count(&self, outcome: Outcome, packets: u64) {
        self.counters[outcome as usize].fetch_add(packets, Ordering::Relaxed);
    }
}

fn job_of(datagram: &[u8]) -> u16 {
    Header::ref_from_prefix(datagram).map_or(0, |(header, _)| header.job.get())
}
