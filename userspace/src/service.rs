//! The control plane's gRPC service: requests to the [`ControlPlane`], which decides, and answers
//! from it.

mod daemon_io;
mod endings;
pub(crate) mod event_stream;
mod health;
mod slots;
pub(crate) mod status;
pub(crate) mod strangers;
mod too_long;
pub(crate) mod turns;
pub(crate) mod watch;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use switchml_control as control;
use switchml_control::aggregator_server::{Aggregator, AggregatorServer};
use switchml_host::{interfaces, neighbours, way};
use switchml_protocol::VERSION;
use switchml_protocol::bpf_types::times::{BUCKETS, SUM, Times};
use switchml_protocol::outcome::Outcome;
use switchml_userspace_core::control_plane::{ControlPlane, PING_INTERVAL, RequestError};
use switchml_userspace_core::data_plane::{self, DataPlane, PortStatus};
use switchml_userspace_core::jobs::{JobTable, Joiner, MemberError, Origin, Quotas, StreamId};
use switchml_userspace_core::lateness::Lateness;
use switchml_userspace_core::stragglers::Stragglers;
use switchml_userspace_core::throughput::Throughputs;
use switchml_userspace_core::version;
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::guard::Guard;
use crate::incoming::{Peer, incoming};
use crate::mailbox::{Receiver, Sender, mailbox};
use crate::refusals::Reason;
use crate::standstill::{Allowed, Standstill};
use crate::tokens::TokenKeys;
use crate::traces::{RankTrace, Traces};
use crate::web;
use daemon_io::DaemonIo;
use endings::Endings;
pub use event_stream::EventStream;
use status::{internal, join_refused, request_failed, token_refused};
use turns::{CHANGE, LOOK, lock, turn, turn_within};

/// Most concurrent requests on one connection: a rank has its stream and one more, and a few ranks
/// may share a connection.
const MAX_REQUESTS: u32 = 100;
/// Pings wait so long for an answer: the connection itself knows when that is too long.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// Longest message that is read, in bytes: several times the longest report of calls.
const MAX_MESSAGE_LEN: usize = 256 << 10;
/// What a client is told that joins without the secret of an aggregator in a rank's process.
const STRANGER: &str = "a rank's own aggregator admits ranks only with the secret that the ranks \
                        of its job exchange where they meet";
/// Longest time for streams to tell their ranks that the daemon stops.
const GRACE: Duration = Duration::from_millis(500);

/// The service. Clones share one state.
#[derive(Clone)]
pub struct Service {
    state: Arc<Mutex<State>>,
    data_plane: Arc<dyn DataPlane>,
    guard: Arc<Guard>,
}

struct State {
    control_plane: ControlPlane<Sender>,
    io: DaemonIo,
    stragglers: Stragglers,
    lateness: Lateness,
    throughputs: Throughputs,
    endings: Endings,
    traces: Traces,
}

impl State {
    /// Notes which jobs have ended.
    fn note_endings(&mut self, now: Instant) {
        self.endings.look(self.control_plane.table(), now);
    }
}

impl Service {
    /// A service without jobs.
    pub fn new(table: JobTable, data_plane: Arc<dyn DataPlane>, guard: Guard) -> Self {
        let hosts = Arc::clone(&guard.hosts);
        let state = Arc::new_cyclic(|state| {
            let (data_plane, state) = (Arc::clone(&data_plane), Weak::clone(state));
            let io = DaemonIo { data_plane, hosts, cause: None, state };
            let control_plane = ControlPlane::new(table);
            Mutex::new(State {
                control_plane,
                io,
                stragglers: Stragglers::default(),
                lateness: Lateness::default(),
                throughputs: Throughputs::default(),
                endings: Endings::default(),
                traces: Traces::default(),
            })
        });
        Self { state, data_plane, guard: Arc::new(guard) }
    }

    /// Takes over the jobs that an earlier daemon left in the data plane, before anything is
    /// served.
    pub fn restore(&self) -> Result<(), data_plane::Error> {
        if let Some(saved) = self.data_plane.saved()? {
            let State { control_plane, io, .. } = &mut *self.lock();
            control_plane.restore(io, saved);
        }
        Ok(())
    }

    /// Serves the connections of `listener` until `stop` is ready; then aborts all jobs, telling
    /// their ranks.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let (service, watch) = (self.clone(), self.watch());
        let guard = Arc::clone(&self.guard);
        serve(service, listener, guard, stop, watch, || {
            let State { control_plane, io, .. } = &mut *self.lock();
            control_plane.shut_down(io);
        })
        .await
    }

    /// Returns if requests are served, or wait for a switch.
    pub async fn check(&self) {
        turns::served_or_waiting(&self.state, &*self.data_plane).await;
    }

    /// Whether a job has started, and not ended.
    pub(crate) fn has_running_jobs(&self) -> bool {
        self.lock().control_plane.table().running().next().is_some()
    }

    /// Replaces the tenants' quotas, and the keys of tokens if ranks need tokens.
    pub async fn reload(&self, quotas: Quotas, keys: Option<TokenKeys>) {
        turn(&self.state).await.control_plane.set_quotas(quotas);
        if let Some((tokens, keys)) = self.guard.tokens.as_ref().zip(keys) {
            tokens.replace(keys);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Rules 22.16 and 36.20: the tenant of this token, if ranks need tokens; otherwise an empty
    /// name.
    fn tenant(&self, token: &str, job: &str, peer: IpAddr) -> Result<String, Status> {
        if let Some(secret) = self.guard.secret {
            return match token.parse() == Ok(secret) {
                true => Ok(String::new()),
                false => {
                    self.guard.refusals.refuse(Reason::ForgedToken, peer, "Join", STRANGER);
                    Err(Status::unauthenticated(STRANGER))
                }
            };
        }
        let Some(keys) = &self.guard.tokens else { return Ok(String::new()) };
        keys.verify(token, job).map_err(|error| {
            self.guard.refusals.refuse(error.reason(), peer, "Join", &error);
            token_refused(&error)
        })
    }

    /// The interface by which frames from this address come in, if it is known, and its bits per
    /// second, or 0.
    fn link_to(&self, peer: IpAddr) -> Option<(String, u64)> {
        let interface = way::interface_towards(peer)?;
        let speed = interfaces::link_speed(&interface).unwrap_or_default();
        Some((interface, speed))
    }

    /// The job table's part of a status.
    fn of_jobs(&self, state: &mut State) -> control::StatusReply {
        let State { control_plane, endings, .. } = state;
        let table = control_plane.table();
        let tally = table.tally();
        let ended = tally.ended().map(|(ending, help, jobs)| control::Ending {
            ending: ending.to_owned(),
            help: help.to_owned(),
            jobs,
        });
        let tenants = table.used().map(|(name, used)| control::Tenant {
            name: name.to_owned(),
            jobs: used.jobs,
            ranks: used.ranks,
            slots: used.slots,
        });
        control::StatusReply {
            slots_total: self.data_plane.limits().slots(),
            slots_free: table.free_slots(),
            round_trips: Some(times(table.round_trips())),
            jobs_started: tally.started,
            jobs_ended: ended.collect(),
            tenants: tenants.collect(),
            ended_lately: endings.of(table, Instant::now()),
            ..self.guard.status()
        }
    }

    /// The event stream of a rank, for one connection.
    fn stream(
        &self,
        events: Receiver,
        id: StreamId,
        (peer, standstill_ms): (Peer, u64),
        trace: RankTrace,
    ) -> EventStream {
        let standstill = standstill_of(&peer, standstill_ms);
        let (is_over, service) = (false, self.clone());
        EventStream { events, id, peer, standstill, is_over, trace, service }
    }

    /// Makes a member's request. Logs now and then requests that may not come from a member.
    async fn request<T, E: Into<RequestError>>(
        &self,
        name: &str,
        peer: IpAddr,
        request: impl FnOnce(&mut ControlPlane<Sender>, &mut DaemonIo) -> Result<T, E>,
    ) -> Result<T, Status> {
        let State { control_plane, io, .. } =
            &mut *turn_within(CHANGE, &self.state, &*self.data_plane).await?;
        request(control_plane, &mut io.caused_from(Some(peer))).map_err(|error| {
            let error = error.into();
            if matches!(error, RequestError::Member(MemberError::NoMember { .. })) {
                self.guard.refusals.refuse(Reason::NoMember, peer, name, &error);
            }
            request_failed(error)
        })
    }
}

/// Serves the connections of `listener` until `stop` is ready; then calls `shut_down`, and gives
/// streams time to send their last events. `beside` runs meanwhile.
pub(crate) async fn serve(
    service: impl Aggregator,
    listener: TcpListener,
    guard: Arc<Guard>,
    stop: impl Future<Output = ()>,
    beside: impl Future<Output = ()>,
    shut_down: impl FnOnce(),
) -> Result<(), tonic::transport::Error> {
    let incoming = incoming(listener, Arc::clone(&guard));
    let service = Arc::new(service);
    let grpc = AggregatorServer::from_arc(Arc::clone(&service));
    let routes = Routes::new(grpc.max_decoding_message_size(MAX_MESSAGE_LEN))
        .add_service(health::probes(Arc::clone(&service)));
    let server = Server::builder()
        .accept_http1(true)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PATIENCE))
        .max_concurrent_streams(MAX_REQUESTS)
        .add_routes(strangers::bounded(
            web::beside(too_long::counted(routes, Arc::clone(&guard)), service),
            guard,
        ));
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let serving = server.serve_with_incoming_shutdown(incoming, async {
        // The sender is dropped only together with this future.
        let _ = stopped.await;
    });
    tokio::pin!(serving);
    tokio::select! {
        result = &mut serving => return result,
        () = beside => unreachable!("it goes on for ever"),
        () = stop => {}
    }
    shut_down();
    let _ = stopping.send(());
    // A client that keeps its connection open does not hold up the daemon.
    tokio::time::timeout(GRACE, serving).await.unwrap_or(Ok(()))
}

#[tonic::async_trait]
impl Aggregator for Service {
    type JoinStream = EventStream;
    type ResumeStream = EventStream;

    async fn join(
        &self,
        request: Request<control::JoinRequest>,
    ) -> Result<Response<EventStream>, Status> {
        let (peer, local) = addresses(&request)?;
        self.guard.admit_join(peer)?;
        let connection = connection(&request)?.clone();
        let request = request.into_inner();
        let standstill_ms = standstill_ms(&request.via, request.standstill_ms);
        let tenant = self.tenant(&request.token, &request.job_name, peer)?;
        version::check(&request, peer)
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
        let own = self.link_to(peer);
        let joiner = Joiner::new(request, tenant, (peer, local), own, Instant::now());
        let (sender, events) = mailbox();
        let State { control_plane, io, traces, .. } =
            &mut *turn_within(CHANGE, &self.state, &*self.data_plane).await?;
        let io = &mut io.caused_from(Some(peer));
        let id = control_plane.join(io, &joiner, sender).map_err(|error| {
            self.guard.refusals.refuse(status::reason(&error), peer, "Join", &error);
            join_refused(error)
        })?;
        let trace = traces.join(&joiner.name, joiner.world_size, joiner.rank, &peer.to_string());
        if !control_plane.table().is_waiting(&joiner.name) {
            traces.assigned(&joiner.name);
        }
        Ok(Response::new(self.stream(events, id, (connection, standstill_ms), trace)))
    }

    async fn resume(
        &self,
        request: Request<control::ResumeRequest>,
    ) -> Result<Response<EventStream>, Status> {
        let (peer, _) = addresses(&request)?;
        let connection = connection(&request)?.clone();
        let control::ResumeRequest { member, via, standstill_ms: asked } = request.into_inner();
        let standstill_ms = standstill_ms(&via, asked);
        let member = member.unwrap_or_default();
        let (sender, events) = mailbox();
        let id = self
            .request("Resume", peer, |control_plane, io| {
                control_plane.resume(io, member, Origin { peer, via }, sender)
            })
            .await?;
        let watched = (connection, standstill_ms);
        Ok(Response::new(self.stream(events, id, watched, RankTrace::default())))
    }

    async fn ready(
        &self,
        request: Request<control::ReadyRequest>,
    ) -> Result<Response<control::ReadyReply>, Status> {
        let (peer, _) = addresses(&request)?;
        let control::ReadyRequest { member, lanes, needs_copies, share, taker } =
            request.into_inner();
        let member = member.unwrap_or_default();
        self.request("Ready", peer, |control_plane, io| {
            if let Some(share) = share {
                control_plane.report_share(member, share)?;
            }
            if let Some(taker) = taker {
                control_plane.read_along(member, taker)?;
            }
            control_plane.ready(io, member, lanes, needs_copies)
        })
        .await?;
        Ok(Response::new(control::ReadyReply {}))
    }

    async fn leave(
        &self,
        request: Request<control::LeaveRequest>,
    ) -> Result<Response<control::LeaveReply>, Status> {
        let (peer, _) = addresses(&request)?;
        let request = request.into_inner();
        let member = request.member.unwrap_or_default();
        self.request("Leave", peer, |control_plane, io| {
            if let Some(report) = &request.round_trips {
                control_plane.report_round_trips(member, report)?;
            }
            match request.lost.as_str() {
                "" if request.lost_aggregator => control_plane.be_lost(io, member, &request.error),
                "" => control_plane.leave(io, member, &request.error, &request.ranks),
                how => control_plane.lose(io, member, how, &request.lost_combiner),
            }
        })
        .await?;
        Ok(Response::new(control::LeaveReply {}))
    }

    async fn report_calls(
        &self,
        request: Request<control::ReportCallsRequest>,
    ) -> Result<Response<control::ReportCallsReply>, Status> {
        let (peer, _) = addresses(&request)?;
        let control::ReportCallsRequest { member, calls, named } = request.into_inner();
        self.request("ReportCalls", peer, |control_plane, io| {
            control_plane.report_calls(io, member.unwrap_or_default(), calls, &named)
        })
        .await?;
        Ok(Response::new(control::ReportCallsReply {}))
    }

    async fn report_no_multicast(
        &self,
        request: Request<control::ReportNoMulticastRequest>,
    ) -> Result<Response<control::ReportNoMulticastReply>, Status> {
        let (peer, _) = addresses(&request)?;
        let member = request.into_inner().member.unwrap_or_default();
        self.request("ReportNoMulticast", peer, |control_plane, io| {
            control_plane.report_no_multicast(io, member)
        })
        .await?;
        Ok(Response::new(control::ReportNoMulticastReply {}))
    }

    async fn report_round_trips(
        &self,
        request: Request<control::ReportRoundTripsRequest>,
    ) -> Result<Response<control::ReportRoundTripsReply>, Status> {
        let (peer, _) = addresses(&request)?;
        let control::ReportRoundTripsRequest { member, round_trips, path } = request.into_inner();
        let member = member.unwrap_or_default();
        self.request("ReportRoundTrips", peer, |control_plane, _| {
            if let Some(path) = path {
                control_plane.report_path(member, path)?;
            }
            // A call that takes long has round trips when it ends.
            match (round_trips, path) {
                (None, Some(_)) => Ok(()),
                (times, _) => control_plane.report_round_trips(member, &times.unwrap_or_default()),
            }
        })
        .await?;
        Ok(Response::new(control::ReportRoundTripsReply {}))
    }

    async fn list_jobs(
        &self,
        _request: Request<control::ListJobsRequest>,
    ) -> Result<Response<control::ListJobsReply>, Status> {
        Ok(Response::new(control::ListJobsReply { jobs: self.jobs().await? }))
    }

    async fn status(
        &self,
        _request: Request<control::StatusRequest>,
    ) -> Result<Response<control::StatusReply>, Status> {
        let own = self.of_jobs(&mut *turn_within(LOOK, &self.state, &*self.data_plane).await?);
        let data_plane = Arc::clone(&self.data_plane);
        let find = move || of_data_plane(&*data_plane, own);
        let whole = turns::look(&*self.data_plane, find).await?;
        Ok(Response::new(whole.map_err(internal)?))
    }

    async fn slots(
        &self,
        request: Request<control::SlotsRequest>,
    ) -> Result<Response<control::SlotsReply>, Status> {
        self.slots_of(&request.into_inner().job).await.map(Response::new)
    }

    async fn examine(
        &self,
        request: Request<control::ExamineRequest>,
    ) -> Result<Response<control::ExamineReply>, Status> {
        let (peer, _) = addresses(&request)?;
        let member = request.into_inner().member.unwrap_or_default();
        let hello_seen = self
            .request("Examine", peer, |control_plane, io| control_plane.has_said_hello(io, member))
            .await?;
        Ok(Response::new(seen_by(&*self.data_plane, peer, hello_seen)))
    }
}

/// The data plane's view of the path to a rank on `peer`.
pub(crate) fn seen_by(
    data_plane: &dyn DataPlane,
    peer: IpAddr,
    hello_seen: bool,
) -> control::ExamineReply {
    let way = data_plane.way_from(peer);
    let (interface, macs) = way.map(|way| (way.interface, way.macs)).unwrap_or_default();
    control::ExamineReply {
        hello_seen,
        interface: interface.unwrap_or_default(),
        macs: macs.into_iter().map(neighbours::mac_text).collect(),
    }
}

/// Completes a status with the data plane's part.
pub(crate) fn of_data_plane(
    data_plane: &dyn DataPlane,
    status: control::StatusReply,
) -> Result<control::StatusReply, data_plane::Error> {
    let counters = Outcome::ALL.iter().zip(data_plane.counters()?);
    let counters = counters.map(|(outcome, packets)| control::Counter {
        name: outcome.name().to_owned(),
        help: outcome.help().to_owned(),
        packets,
    });
    Ok(control::StatusReply {
        host: host_name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_version: VERSION.into(),
        data_plane: data_plane.name().to_owned(),
        attachment: data_plane.attachment(),
        counters: counters.collect(),
        ports: data_plane.ports().into_iter().map(port).collect(),
        capabilities: data_plane.limits().capabilities.bits(),
        round_times: data_plane.times()?.as_ref().map(times),
        ..status
    })
}

/// This host's name, to be shown on other hosts.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn times(times: &Times) -> control::Times {
    control::Times { counts: times[..BUCKETS].to_vec(), sum: times[SUM] }
}

fn port(port: PortStatus) -> control::Port {
    control::Port {
        name: port.name,
        hook: port.hook.to_owned(),
        problem: port.problem.unwrap_or_default(),
        mtu: port.mtu,
        foreign_program: port.foreign.map_or(0, |program| program.id),
        foreign_is_generic: port.foreign.is_some_and(|program| program.is_generic),
        program_before: port.before.unwrap_or_default(),
        drops_answers: port.drops_answers,
        link_speed: port.link_speed.unwrap_or_default(),
        received_bytes: port.received_bytes,
        sent_bytes: port.sent_bytes,
        receive_drops: port.receive_drops,
        send_drops: port.send_drops,
        xdp_drops: port.xdp_drops,
    }
}

fn connection<T>(request: &Request<T>) -> Result<&Peer, Status> {
    request.extensions().get().ok_or_else(|| Status::internal("the connection is unknown"))
}

/// What waits until the process at the other end of a request's connection has said nothing for too
/// long.
pub(crate) fn standstill<T>(request: &Request<T>, allowed_ms: u64) -> Result<Standstill, Status> {
    connection(request).map(|peer| standstill_of(peer, allowed_ms))
}

fn standstill_of(peer: &Peer, allowed_ms: u64) -> Standstill {
    let allowed = Allowed::of_rank(allowed_ms);
    peer.allowed.raise(&allowed);
    Standstill::new(peer.pulse.clone(), allowed)
}

/// How long the process at the other end may stand still: what a rank asks for, unless that end is
/// a combiner, which sees to its ranks itself.
pub(crate) fn standstill_ms(via: &[control::Combiner], asked: u64) -> u64 {
    if via.is_empty() { asked } else { 0 }
}

/// The addresses of both ends of a request's connection: the peer's, and ours.
pub(crate) fn addresses<T>(request: &Request<T>) -> Result<(IpAddr, IpAddr), Status> {
    let info = &connection(request)?.addresses;
    let both = info.remote_addr().zip(info.local_addr());
    let (peer, local) =
        both.ok_or_else(|| Status::internal("the connection is not a TCP connection"))?;
    // An IPv4 connection to an IPv6 socket has addresses that are IPv4 in disguise.
    Ok((peer.ip().to_canonical(), local.ip().to_canonical()))
}
