//! The control plane's gRPC service: a thin layer over the [`JobTable`], which decides, and the
//! [`DataPlane`], which does.

mod status;

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use switchml_control as control;
use switchml_control::aggregator_server::{Aggregator, AggregatorServer};
use switchml_control::join_event::Event;
use switchml_protocol::outcome::Outcome;
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::Stream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tracing::{error, warn};

use crate::data_plane::{self, DataPlane, Saved};
use crate::incoming::{Peer, Pulse, incoming};
use crate::mailbox::{Receiver, Sender, mailbox};
use crate::throttle::Throttle;
use status::{internal, join_refused, member_refused};
use switchml_userspace_core::jobs::{
    Effect, GATHERING, JobTable, Joiner, MemberError, MemberId, StreamId, Threads,
};

/// How often the daemon pings a connection, and how long it waits for an answer: a host that dies
/// without a word is noticed within the sum of the two. Long enough that a process starved of its
/// CPU is not taken for dead.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// Requests under way on one connection: a rank has its stream and one more, and a few ranks may
/// share a connection.
const MAX_REQUESTS: u32 = 100;
/// Longest message that is read, in bytes: several times the longest report of calls.
const MAX_MESSAGE_LEN: usize = 256 << 10;
/// How often the data plane's ports are looked at.
const PORTS_INTERVAL: Duration = Duration::from_millis(500);
/// How long ranks may take to come back after a restart: several of their attempts.
const RESUME_GRACE: Duration = Duration::from_secs(5);
/// How long streams may take to tell their ranks that the daemon stops.
const GRACE: Duration = Duration::from_millis(500);

/// The control plane. Clones share one state.
#[derive(Clone)]
pub struct ControlPlane {
    core: Arc<Mutex<Core>>,
    data_plane: Arc<dyn DataPlane>,
}

struct Core {
    table: JobTable,
    streams: HashMap<StreamId, Sender>,
    data_plane: Arc<dyn DataPlane>,
    /// Requests of nobody's, which anybody can send.
    refusals: Throttle,
    /// The core itself, for what it has to do later.
    myself: Weak<Mutex<Core>>,
}

impl ControlPlane {
    /// A control plane without jobs.
    pub fn new(table: JobTable, data_plane: Arc<dyn DataPlane>) -> Self {
        let core = Arc::new_cyclic(|myself| {
            let (data_plane, myself) = (Arc::clone(&data_plane), Weak::clone(myself));
            Mutex::new(Core {
                table,
                streams: HashMap::new(),
                data_plane,
                refusals: Throttle::default(),
                myself,
            })
        });
        Self { core, data_plane }
    }

    /// Takes back what an earlier daemon left in the data plane, before anything is served.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to tell.
    pub fn restore(&self) -> Result<(), data_plane::Error> {
        if let Some(Saved { jobs, epochs }) = self.data_plane.saved()? {
            let mut core = self.lock();
            let effects = core.table.restore(jobs, epochs);
            core.perform(effects);
        }
        Ok(())
    }

    /// Serves the connections of `listener` until `stop` is ready; then aborts all jobs, telling
    /// their ranks.
    ///
    /// # Errors
    ///
    /// When the listener fails.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let server = Server::builder()
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .max_concurrent_streams(MAX_REQUESTS)
            .add_service(
                AggregatorServer::new(self.clone()).max_decoding_message_size(MAX_MESSAGE_LEN),
            );
        let (stopping, stopped) = tokio::sync::oneshot::channel();
        let serving = server.serve_with_incoming_shutdown(incoming(listener), async {
            // The sender is dropped only together with this future.
            let _ = stopped.await;
        });
        tokio::pin!(serving);
        tokio::select! {
            result = &mut serving => return result,
            () = self.watch() => unreachable!("it goes on for ever"),
            () = stop => {}
        }
        self.lock().shut_down();
        let _ = stopping.send(());
        // A client that keeps its connection open does not hold up the daemon.
        tokio::time::timeout(GRACE, serving).await.unwrap_or(Ok(()))
    }

    /// Ends jobs whose ranks did not come back after a restart, or cannot be reached any more.
    async fn watch(&self) {
        let mut grace = Some(Instant::now() + RESUME_GRACE);
        let mut ticks = tokio::time::interval(PORTS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let lost = self.data_plane.lost_ports();
            let mut core = self.lock();
            for port in lost {
                let effects = core.table.lose_port(port.index, &port.what);
                core.perform(effects);
            }
            if grace.take_if(|end| Instant::now() >= *end).is_some() {
                let effects = core.table.expire();
                core.perform(effects);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }
}

/// A panic in a handler must not take the other jobs down; the table's methods change it at their
/// very end.
fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            if let Err((job, error)) = self.perform_one(effect) {
                error!("job {job}: {error}");
                // What is left of the effects is news of a job that has failed.
                let instead = self.table.fail(job, &format!("the aggregator failed: {error}"));
                return self.perform(instead);
            }
        }
    }

    /// Fails with the number of a job that cannot go on.
    fn perform_one(&mut self, effect: Effect) -> Result<(), (u16, data_plane::Error)> {
        match effect {
            Effect::KeepEpochs(job, epochs) => {
                self.data_plane.keep_epochs(&epochs).map_err(|error| (job, error))?
            }
            Effect::Open(spec) => {
                self.data_plane.open(&spec).map_err(|error| (spec.number, error))?
            }
            Effect::Start(job) => self.data_plane.start(job).map_err(|error| (job, error))?,
            Effect::Abort(job) => log_failure(job, self.data_plane.abort(job)),
            Effect::Close(job) => log_failure(job, self.data_plane.close(job)),
            // Without it the job goes on, and ends if the daemon should die.
            Effect::Save(job) => log_failure(job.number, self.data_plane.save(&job)),
            Effect::Tell(session, event) => self.tell(session, event),
            Effect::End(session) => drop(self.streams.remove(&session)),
            Effect::Gather(job, epoch) => self.conclude_later(job, epoch),
        }
        Ok(())
    }

    fn tell(&self, session: StreamId, event: Event) {
        if let Some(stream) = self.streams.get(&session) {
            stream.send(event);
        }
    }

    fn conclude_later(&self, job: u16, epoch: u32) {
        let core = Weak::clone(&self.myself);
        tokio::spawn(async move {
            tokio::time::sleep(GATHERING).await;
            if let Some(core) = core.upgrade() {
                let mut core = lock(&core);
                let effects = core.table.conclude(job, epoch);
                core.perform(effects);
            }
        });
    }

    /// The stream of a new session.
    fn open_stream(
        &mut self,
        session: StreamId,
        pulse: Pulse,
        control_plane: ControlPlane,
    ) -> EventStream {
        let (sender, events) = mailbox();
        self.streams.insert(session, sender);
        EventStream { events, session, pulse, control_plane }
    }

    /// Logs what no member may have sent, now and then.
    fn check<T>(
        &mut self,
        request: &str,
        peer: IpAddr,
        result: Result<T, MemberError>,
    ) -> Result<T, Status> {
        if let Err(refused @ MemberError::NoMember { .. }) = &result
            && let Some(times) = self.refusals.pass(std::time::Instant::now())
        {
            warn!(
                "{request} from {peer} refused: {refused} ({times} refused since this was last said)"
            );
        }
        result.map_err(member_refused)
    }

    /// A stream has ended, after its connection has been silent for so long.
    fn disconnect(&mut self, session: StreamId, silence: Duration) {
        self.streams.remove(&session);
        let effects = if silence < PING_TIMEOUT {
            self.table.disconnect(session)
        } else {
            self.table.fall_silent(session, silence)
        };
        self.perform(effects);
    }

    fn shut_down(&mut self) {
        let effects = self.table.shut_down();
        self.perform(effects);
    }
}

/// What fails here leaves nobody to tell.
fn log_failure(job: u16, result: Result<(), data_plane::Error>) {
    if let Err(error) = result {
        error!("job {job}: {error}");
    }
}

/// What a rank hears; its end tells the job table that the rank is gone.
pub struct EventStream {
    events: Receiver,
    session: StreamId,
    pulse: Pulse,
    control_plane: ControlPlane,
}

impl Stream for EventStream {
    type Item = Result<control::JoinEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = Pin::new(&mut self.events).poll_next(context);
        event.map(|event| event.map(|event| Ok(control::JoinEvent { event: Some(event) })))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.control_plane.lock().disconnect(self.session, self.pulse.silence());
    }
}

#[tonic::async_trait]
impl Aggregator for ControlPlane {
    type JoinStream = EventStream;
    type ResumeStream = EventStream;

    async fn join(
        &self,
        request: Request<control::JoinRequest>,
    ) -> Result<Response<EventStream>, Status> {
        let (peer, local) = addresses(&request)?;
        let pulse = pulse(&request)?;
        let control::JoinRequest { job_name, rank, world_size, data_threads, host } =
            request.into_inner();
        let local = match local {
            IpAddr::V4(local) => Some(local),
            IpAddr::V6(_) => None,
        };
        let threads = Threads { most: data_threads, host };
        let joiner = Joiner { name: job_name, rank, world_size, peer, local, threads };
        let mut core = self.lock();
        let (session, effects) = core.table.join(&joiner).map_err(join_refused)?;
        let stream = core.open_stream(session, pulse, self.clone());
        core.perform(effects);
        Ok(Response::new(stream))
    }

    async fn resume(
        &self,
        request: Request<control::ResumeRequest>,
    ) -> Result<Response<EventStream>, Status> {
        let (peer, _) = addresses(&request)?;
        let pulse = pulse(&request)?;
        let control::ResumeRequest { job, epoch, rank, control_secret } = request.into_inner();
        let id = MemberId { job, epoch, rank, secret: control_secret };
        let mut core = self.lock();
        let resumed = core.table.resume(id, peer);
        let (session, effects) = core.check("Resume", peer, resumed)?;
        let stream = core.open_stream(session, pulse, self.clone());
        core.perform(effects);
        Ok(Response::new(stream))
    }

    async fn ready(
        &self,
        request: Request<control::ReadyRequest>,
    ) -> Result<Response<control::ReadyReply>, Status> {
        let (peer, _) = addresses(&request)?;
        let control::ReadyRequest { job, epoch, rank, lanes, control_secret } =
            request.into_inner();
        let id = MemberId { job, epoch, rank, secret: control_secret };
        let mut core = self.lock();
        let shards = core.table.shards(id).map(<[u16]>::to_vec);
        let mut bindings = Vec::new();
        for shard in core.check("Ready", peer, shards)? {
            // A member's rank fits.
            bindings.extend(core.data_plane.binding(shard, rank as u16).map_err(internal)?);
        }
        let effects = core.table.ready(id, lanes, bindings).map_err(member_refused)?;
        core.perform(effects);
        Ok(Response::new(control::ReadyReply {}))
    }

    async fn leave(
        &self,
        request: Request<control::LeaveRequest>,
    ) -> Result<Response<control::LeaveReply>, Status> {
        let (peer, _) = addresses(&request)?;
        let control::LeaveRequest { job, epoch, rank, error, ranks, control_secret } =
            request.into_inner();
        let id = MemberId { job, epoch, rank, secret: control_secret };
        let mut core = self.lock();
        let left = core.table.leave(id, &error, &ranks);
        let effects = core.check("Leave", peer, left)?;
        core.perform(effects);
        Ok(Response::new(control::LeaveReply {}))
    }

    async fn report_calls(
        &self,
        request: Request<control::ReportCallsRequest>,
    ) -> Result<Response<control::ReportCallsReply>, Status> {
        let (peer, _) = addresses(&request)?;
        let control::ReportCallsRequest { job, epoch, rank, calls, named, control_secret } =
            request.into_inner();
        let id = MemberId { job, epoch, rank, secret: control_secret };
        let mut core = self.lock();
        let reported = core.table.report_calls(id, calls, &named);
        let effects = core.check("ReportCalls", peer, reported)?;
        core.perform(effects);
        Ok(Response::new(control::ReportCallsReply {}))
    }

    async fn list_jobs(
        &self,
        _request: Request<control::ListJobsRequest>,
    ) -> Result<Response<control::ListJobsReply>, Status> {
        Ok(Response::new(control::ListJobsReply { jobs: self.lock().table.list() }))
    }

    async fn status(
        &self,
        _request: Request<control::StatusRequest>,
    ) -> Result<Response<control::StatusReply>, Status> {
        let counters = self.data_plane.counters().map_err(internal)?;
        let counters =
            Outcome::ALL.iter().zip(counters).map(|(outcome, packets)| control::Counter {
                name: outcome.name().to_owned(),
                help: outcome.help().to_owned(),
                packets,
            });
        let core = self.lock();
        Ok(Response::new(control::StatusReply {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data_plane: self.data_plane.name().to_owned(),
            attachment: self.data_plane.attachment(),
            slots_total: self.data_plane.limits().slots(),
            slots_free: core.table.free_slots(),
            counters: counters.collect(),
        }))
    }
}

fn connection<T>(request: &Request<T>) -> Result<&Peer, Status> {
    request.extensions().get().ok_or_else(|| Status::internal("the connection is unknown"))
}

/// The signs of life of the connection that a request came by.
fn pulse<T>(request: &Request<T>) -> Result<Pulse, Status> {
    connection(request).map(|connection| connection.pulse.clone())
}

/// Both ends of the connection that a request came by: the peer's, and ours.
fn addresses<T>(request: &Request<T>) -> Result<(IpAddr, IpAddr), Status> {
    let info = &connection(request)?.addresses;
    let both = info.remote_addr().zip(info.local_addr());
    let (peer, local) =
        both.ok_or_else(|| Status::internal("the connection is not a TCP connection"))?;
    // An IPv4 connection to an IPv6 socket has addresses that are IPv4 in disguise.
    Ok((peer.ip().to_canonical(), local.ip().to_canonical()))
}
