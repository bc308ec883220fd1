//! A control plane over the software data plane, on loopback, and ranks made by hand.

pub mod program;
pub mod slow;
pub mod status_only;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::join_event::Event;
use switchml_control::{Assigned, JoinEvent, JoinRequest, ReadyRequest};
use switchml_data_plane::software::Software;
use switchml_protocol::wire::header::{HEADER_LEN, Header, Kind, Op, decode, flags};
use switchml_protocol::{U16, U32, VERSION};
use switchml_userspace::events;
use switchml_userspace::guard::Guard;
use switchml_userspace::service::Service;
use switchml_userspace_core::data_plane::{DataPlane, Limits};
use switchml_userspace_core::jobs::JobTable;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::transport::Channel;
use zerocopy::IntoBytes;

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// An address where nobody listens, with a port that no socket gets by chance.
pub const NOBODY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 1);
/// How long to listen for packets that must not come.
pub const SILENCE: Duration = Duration::from_millis(100);

pub struct Daemon {
    pub control: SocketAddr,
    pub service: Service,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Daemon {
    pub async fn start(slots: u32) -> Self {
        Self::start_with(slots, |limits| limits).await
    }

    /// A daemon whose control plane sees changed limits of the data plane.
    pub async fn start_with(slots: u32, limits: impl FnOnce(Limits) -> Limits) -> Self {
        let (events, receiver) = events::channel();
        tokio::spawn(events::log(receiver));
        let data_plane = Arc::new(Software::start(None, 0, slots, events).expect("a socket"));
        Self::over(data_plane, limits).await
    }

    /// A daemon over this data plane.
    pub async fn over(
        data_plane: Arc<dyn DataPlane>,
        limits: impl FnOnce(Limits) -> Limits,
    ) -> Self {
        let limits = limits(data_plane.limits());
        Self::serve(data_plane, limits, None).await
    }

    /// A daemon over this data plane, whose packets come to another address than the control
    /// plane's, if one is given.
    pub async fn serve(
        data_plane: Arc<dyn DataPlane>,
        limits: Limits,
        address: Option<IpAddr>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let control = listener.local_addr().expect("bound");
        let table = JobTable::new(limits, address, StdRng::seed_from_u64(7));
        let service = Service::new(table, Arc::clone(&data_plane), Guard::default());
        let (stop, stopped) = oneshot::channel();
        let serves = service.clone();
        let serving = tokio::spawn(async move {
            serves.serve(listener, async { drop(stopped.await) }).await.expect("served");
            data_plane.stop();
        });
        Self { control, service, stop: Some(stop), serving }
    }

    /// Stops as SIGTERM does, and waits until that is done.
    pub async fn stop(mut self) {
        self.stop.take().expect("not stopped yet").send(()).expect("serving");
        tokio::time::timeout(PATIENCE, self.serving)
            .await
            .expect("stops in time")
            .expect("no panic");
    }

    pub async fn client(&self) -> AggregatorClient<Channel> {
        AggregatorClient::connect(format!("http://{}", self.control)).await.expect("connected")
    }

    pub async fn join(&self, name: &str, rank: u32, world_size: u32) -> Rank {
        Rank::join(self.control, name, rank, world_size).await
    }

    /// Joins all ranks, and takes them through HELLO to Started.
    pub async fn start_job(&self, name: &str, world_size: u32) -> Vec<(Rank, Path)> {
        let mut ranks = Vec::new();
        for rank in 0..world_size {
            ranks.push(self.join(name, rank, world_size).await);
        }
        let mut members = Vec::new();
        for mut rank in ranks {
            let path = Path::new(rank.assigned().await, rank.rank as u16);
            path.hello();
            rank.ready(&path.assigned, 352).await.expect("ready");
            members.push((rank, path));
        }
        for (rank, _) in &mut members {
            assert!(matches!(rank.next().await, Event::Started(started) if started.lanes == 352));
        }
        members
    }

    pub async fn counter(&self, name: &str) -> u64 {
        let counters = self
            .client()
            .await
            .status(switchml_control::StatusRequest {})
            .await
            .unwrap()
            .into_inner()
            .counters;
        counters.iter().find(|counter| counter.name == name).expect("such a counter").packets
    }
}

/// A Join without a job, of this version of the protocol.
pub fn join_request() -> JoinRequest {
    JoinRequest { protocol_version: VERSION.into(), ..JoinRequest::default() }
}

/// A rank's control connection.
pub struct Rank {
    pub rank: u32,
    pub client: AggregatorClient<Channel>,
    pub events: Streaming<JoinEvent>,
}

impl Rank {
    pub async fn join(control: SocketAddr, name: &str, rank: u32, world_size: u32) -> Self {
        let mut client =
            AggregatorClient::connect(format!("http://{control}")).await.expect("connected");
        let request = JoinRequest { job_name: name.to_owned(), rank, world_size, ..join_request() };
        let events = client.join(request).await.expect("joined").into_inner();
        Self { rank, client, events }
    }

    pub async fn next(&mut self) -> Event {
        let event =
            tokio::time::timeout(PATIENCE, self.events.message()).await.expect("an event in time");
        event.expect("no error").expect("the stream goes on").event.expect("an event")
    }

    /// Whether the stream ends normally.
    pub async fn ended(&mut self) -> bool {
        let end =
            tokio::time::timeout(PATIENCE, self.events.message()).await.expect("an end in time");
        end.expect("no error").is_none()
    }

    pub async fn assigned(&mut self) -> Assigned {
        loop {
            match self.next().await {
                Event::Waiting(_) => {}
                Event::Assigned(assigned) => return assigned,
                other => panic!("{other:?} before Assigned"),
            }
        }
    }

    pub async fn ready(&mut self, assigned: &Assigned, lanes: u32) -> Result<(), tonic::Status> {
        let member = Some(assigned.member(self.rank));
        let request = ReadyRequest { member, lanes, needs_copies: false, ..Default::default() };
        self.client.ready(request).await.map(drop)
    }
}

/// A rank's data path.
pub struct Path {
    pub assigned: Assigned,
    pub rank: u16,
    pub socket: UdpSocket,
    pub aggregator: SocketAddr,
}

/// An answer from the aggregator.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub header: Header,
    pub kind: Kind,
    pub lanes: Vec<u32>,
}

impl Path {
    /// The path of a rank on loopback.
    pub fn new(assigned: Assigned, rank: u16) -> Self {
        Self::bind(assigned, rank, Ipv4Addr::LOCALHOST)
    }

    pub fn bind(assigned: Assigned, rank: u16, local: Ipv4Addr) -> Self {
        let address: Ipv4Addr = assigned.data_address.parse().expect("an address");
        let aggregator = (address, assigned.data_port as u16).into();
        let socket = UdpSocket::bind((local, 0)).expect("a socket");
        Self { assigned, rank, socket, aggregator }
    }

    /// A header of this rank, SUM of i32, without values for a payload yet.
    pub fn header(&self, kind: Kind) -> Header {
        Header {
            version: VERSION,
            kind: kind as u8,
            job: U16::new(self.assigned.job as u16),
            epoch: U32::new(self.assigned.epoch),
            rank: U16::new(self.rank),
            slot: U16::new(0),
            round: U32::new(0),
            op: Op::Sum as u8,
            flags: 0,
            lanes: U16::new(0),
            fingerprint: U32::new(0xF00D),
            check: U32::new(0),
            aux: U32::new(0xA0_0000 + u32::from(self.rank)),
        }
    }

    pub fn send(&self, mut header: Header, lanes: &[u32]) {
        header.lanes = U16::new(lanes.len() as u16);
        self.send_bytes(&packet(&header, lanes));
    }

    pub fn send_bytes(&self, bytes: &[u8]) {
        assert_eq!(self.socket.send_to(bytes, self.aggregator).expect("sent"), bytes.len());
    }

    /// Says HELLO, and hears it come back.
    pub fn hello(&self) {
        let mut header = self.header(Kind::Hello);
        header.aux = U32::new(self.assigned.hello_secret);
        self.send(header, &[7; 64]);
        let answer = self.receive();
        assert_eq!((answer.kind, answer.lanes), (Kind::Hello, vec![7; 64]));
        assert_eq!(answer.header.aux.get(), self.assigned.hello_secret);
    }

    pub fn contribute(&self, slot: u16, round: u32, lanes: &[u32]) {
        let mut header = self.header(Kind::Contribution);
        header.slot = U16::new(slot);
        header.round = U32::new(round);
        header.lanes = U16::new(lanes.len() as u16);
        self.send(checked(header, lanes), lanes);
    }

    pub fn receive(&self) -> Answer {
        self.receive_within(PATIENCE).expect("an answer")
    }

    /// The next answer; `None` if none comes in time.
    pub fn receive_within(&self, timeout: Duration) -> Option<Answer> {
        receive_on(&self.socket, self.aggregator, timeout)
    }
}

/// The header with the check word of these lanes, for a SUM of i32.
pub fn checked(mut header: Header, lanes: &[u32]) -> Header {
    header.flags |= flags::CHECKED;
    header.check =
        U32::new(header.check_of(lanes.iter().fold(0, |sum, lane| sum.wrapping_add(*lane)), 1));
    header
}

/// The next answer on a socket, which must come from the address that contributions are sent to.
/// `None` if none comes in time.
pub fn receive_on(socket: &UdpSocket, aggregator: SocketAddr, timeout: Duration) -> Option<Answer> {
    socket.set_read_timeout(Some(timeout)).expect("a timeout");
    let mut buffer = [0; 4096];
    let (len, from) = match socket.recv_from(&mut buffer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
        received => received.expect("received"),
    };
    assert_eq!(from, aggregator);
    let (header, kind, _, lanes) = decode(&buffer[..len]).expect("a packet of the protocol");
    Some(Answer { header: *header, kind, lanes: lanes.iter().map(|lane| lane.get()).collect() })
}

pub fn packet(header: &Header, lanes: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + 4 * lanes.len());
    bytes.extend_from_slice(header.as_bytes());
    lanes.iter().for_each(|lane| bytes.extend_from_slice(&lane.to_be_bytes()));
    bytes
}
