//! The control plane's gRPC service: a thin layer over the [`JobTable`], which decides, and the [`DataPlane`], which
//! does.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use switchml_control as control;
use switchml_control::aggregator_server::{Aggregator, AggregatorServer};
use switchml_control::join_event::Event;
use switchml_protocol::outcome::Outcome;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::{Request, Response, Status};
use tracing::error;

use crate::data_plane::{self, DataPlane};
use crate::jobs::{Effect, JobTable, Joiner, MemberId, Session};

/// How often the daemon pings a connection, and how long it waits for an answer: a host that dies without a word is
/// noticed within the sum of the two. Long enough that a process starved of its CPU is not taken for dead.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(4);
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
    streams: HashMap<Session, mpsc::UnboundedSender<control::JoinEvent>>,
    data_plane: Arc<dyn DataPlane>,
}

impl ControlPlane {
    /// A control plane without jobs.
    pub fn new(table: JobTable, data_plane: Arc<dyn DataPlane>) -> Self {
        let core = Core { table, streams: HashMap::new(), data_plane: Arc::clone(&data_plane) };
        Self { core: Arc::new(Mutex::new(core)), data_plane }
    }

    /// Serves the connections of `listener` until `stop` is ready; then aborts all jobs, telling their ranks.
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
            .add_service(AggregatorServer::new(self.clone()));
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let (stopping, stopped) = tokio::sync::oneshot::channel();
        let serving = server.serve_with_incoming_shutdown(incoming, async {
            // The sender is dropped only together with this future.
            let _ = stopped.await;
        });
        tokio::pin!(serving);
        tokio::select! {
            result = &mut serving => return result,
            () = stop => {}
        }
        self.lock().shut_down();
        let _ = stopping.send(());
        // A client that keeps its connection open does not hold up the daemon.
        tokio::time::timeout(GRACE, serving).await.unwrap_or(Ok(()))
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic in a handler must not take the other jobs down; the table's methods change it at their very end.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            Effect::Open(spec) => self.data_plane.open(&spec).map_err(|error| (spec.number, error))?,
            Effect::Start(job) => self.data_plane.start(job).map_err(|error| (job, error))?,
            Effect::Abort(job) => log_failure(job, self.data_plane.abort(job)),
            Effect::Close(job) => log_failure(job, self.data_plane.close(job)),
            Effect::Tell(session, event) => self.tell(session, event),
            Effect::End(session) => drop(self.streams.remove(&session)),
        }
        Ok(())
    }

    fn tell(&self, session: Session, event: Event) {
        if let Some(stream) = self.streams.get(&session) {
            // Fails when the stream has just ended, which is about to be noticed.
            let _ = stream.send(control::JoinEvent { event: Some(event) });
        }
    }

    fn disconnect(&mut self, session: Session) {
        self.streams.remove(&session);
        let effects = self.table.disconnect(session);
        self.perform(effects);
    }

    fn shut_down(&mut self) {
        let effects = self.table.shut_down();
        self.perform(effects);
    }
}

/// An aborted or ended job has nobody left to tell.
fn log_failure(job: u16, result: Result<(), data_plane::Error>) {
    if let Err(error) = result {
        error!("job {job}: {error}");
    }
}

/// What a rank hears; its end tells the job table that the rank is gone.
pub struct EventStream {
    events: mpsc::UnboundedReceiver<control::JoinEvent>,
    session: Session,
    control_plane: ControlPlane,
}

impl Stream for EventStream {
    type Item = Result<control::JoinEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_recv(context).map(|event| event.map(Ok))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.control_plane.lock().disconnect(self.session);
    }
}

#[tonic::async_trait]
impl Aggregator for ControlPlane {
    type JoinStream = EventStream;

    async fn join(&self, request: Request<control::JoinRequest>) -> Result<Response<EventStream>, Status> {
        let (peer, local) = addresses(&request)?;
        let control::JoinRequest { job_name, rank, world_size } = request.into_inner();
        let local = match local {
            IpAddr::V4(local) => Some(local),
            IpAddr::V6(_) => None,
        };
        let joiner = Joiner { name: job_name, rank, world_size, peer, local };
        let mut core = self.lock();
        let (session, effects) = core.table.join(&joiner)?;
        let (sender, events) = mpsc::unbounded_channel();
        core.streams.insert(session, sender);
        core.perform(effects);
        Ok(Response::new(EventStream { events, session, control_plane: self.clone() }))
    }

    async fn ready(&self, request: Request<control::ReadyRequest>) -> Result<Response<control::ReadyReply>, Status> {
        let control::ReadyRequest { job, epoch, rank, lanes } = request.into_inner();
        let mut core = self.lock();
        let place = match (u16::try_from(job), u16::try_from(rank)) {
            (Ok(job), Ok(rank)) => core.data_plane.place(job, rank).map_err(internal)?,
            _ => None,
        };
        let effects = core.table.ready(MemberId { job, epoch, rank }, lanes, place)?;
        core.perform(effects);
        Ok(Response::new(control::ReadyReply {}))
    }

    async fn leave(&self, request: Request<control::LeaveRequest>) -> Result<Response<control::LeaveReply>, Status> {
        let control::LeaveRequest { job, epoch, rank, error } = request.into_inner();
        let mut core = self.lock();
        let effects = core.table.leave(MemberId { job, epoch, rank }, &error)?;
        core.perform(effects);
        Ok(Response::new(control::LeaveReply {}))
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
        let counters = Outcome::ALL.iter().zip(counters).map(|(outcome, packets)| control::Counter {
            name: outcome.name().to_owned(),
            help: outcome.help().to_owned(),
            packets,
        });
        let core = self.lock();
        Ok(Response::new(control::StatusReply {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data_plane: self.data_plane.name().to_owned(),
            attachment: self.data_plane.attachment(),
            slots_total: core.table.pool().size(),
            slots_free: core.table.pool().free(),
            counters: counters.collect(),
        }))
    }
}

fn internal(error: data_plane::Error) -> Status {
    Status::internal(error.to_string())
}

/// Both ends of the connection that a request came by: the peer's, and ours.
fn addresses<T>(request: &Request<T>) -> Result<(IpAddr, IpAddr), Status> {
    let info = request.extensions().get::<TcpConnectInfo>();
    let both = info.and_then(|info| Some((info.remote_addr()?, info.local_addr()?)));
    let (peer, local) = both.ok_or_else(|| Status::internal("the connection is not a TCP connection"))?;
    // An IPv4 connection to an IPv6 socket has addresses that are IPv4 in disguise.
    Ok((peer.ip().to_canonical(), local.ip().to_canonical()))
}
