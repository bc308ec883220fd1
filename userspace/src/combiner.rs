//! A combiner's gRPC service: passes requests and events to the [`Proxy`], which decides, and its
//! requests on to the parent, by a connection for each rank.

mod io;
pub mod parent;
mod stream;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use switchml_control as control;
use switchml_control::JoinEvent;
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::aggregator_server::Aggregator;
use switchml_control::join_event::Event;
use switchml_userspace_core::data_plane::DataPlane;
use switchml_userspace_core::jobs::{MemberId, StreamId};
use switchml_userspace_core::proxy::{self, Ends, Proxy, Refused};
use tokio::net::TcpListener;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::guard::Guard;
use crate::mailbox::{Sender, mailbox};
use crate::service::turns::{self, CHANGE, lock, turn, turn_within};
use crate::service::watch::follow_ports;
use crate::service::{self, addresses, of_data_plane, seen_by, standstill};
use io::ProxyIo;
use parent::{Parent, relayed};
use stream::BelowStream;

/// The service. Clones share one state.
#[derive(Clone)]
pub struct CombinerService {
    state: Arc<Mutex<State>>,
    data_plane: Arc<dyn DataPlane>,
    parent: Parent,
    guard: Arc<Guard>,
}

struct State {
    proxy: Proxy,
    io: ProxyIo,
}

/// The connection to the parent of a stream from below.
struct Link {
    client: AggregatorClient<Channel>,
    /// The task that receives the parent's events.
    listener: tokio::task::AbortHandle,
}

impl CombinerService {
    /// A service without ranks.
    pub fn new(proxy: Proxy, data_plane: Arc<dyn DataPlane>, parent: Parent, guard: Guard) -> Self {
        let state = Arc::new_cyclic(|state| {
            let io = ProxyIo {
                data_plane: Arc::clone(&data_plane),
                state: Weak::clone(state),
                streams: BTreeMap::new(),
                links: BTreeMap::new(),
            };
            Mutex::new(State { proxy, io })
        });
        Self { state, data_plane, parent, guard: Arc::new(guard) }
    }

    /// Serves the connections of `listener` until `stop` is ready; then ends all jobs below,
    /// telling their ranks and the parent.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let beside = follow_ports(&self.data_plane, drop);
        let guard = Arc::clone(&self.guard);
        service::serve(self.clone(), listener, guard, stop, beside, || {
            let State { proxy, io } = &mut *lock(&self.state);
            let effects = proxy.shut_down();
            proxy::perform(proxy, io, None, effects);
        })
        .await
    }

    /// Returns if requests are served, or wait for a switch.
    pub async fn check(&self) {
        turns::served_or_waiting(&self.state, &*self.data_plane).await;
    }

    /// The state, for a rank's request.
    async fn turn(&self) -> Result<MutexGuard<'_, State>, Status> {
        turn_within(CHANGE, &self.state, &*self.data_plane).await
    }

    /// Adds a stream from below, whose end is noticed from now on. Also returns the request for the
    /// parent.
    async fn add<T, R>(
        &self,
        request: Request<T>,
        allowed_ms: u64,
        ask: impl FnOnce(&mut Proxy, T, Ends) -> Result<(StreamId, R), Refused>,
    ) -> Result<(BelowStream, R), Status> {
        let (peer, local) = addresses(&request)?;
        let standstill = standstill(&request, allowed_ms)?;
        let (sender, events) = mailbox();
        let State { proxy, io } = &mut *self.turn().await?;
        let (id, question) =
            ask(proxy, request.into_inner(), Ends { peer, local }).map_err(refused)?;
        io.streams.insert(id, sender);
        Ok((BelowStream { events, id, standstill, service: self.clone() }, question))
    }

    /// The parent has opened a stream for one from below.
    async fn link(
        &self,
        id: StreamId,
        client: AggregatorClient<Channel>,
        news: Streaming<JoinEvent>,
    ) {
        let listener = tokio::spawn(listen(self.clone(), id, news)).abort_handle();
        turn(&self.state).await.io.links.insert(id, Link { client, listener });
    }

    /// Prepares the numbers of a job that is about to be opened, in the background. An error is not
    /// reported here: opening fails in the same way.
    async fn prepare(&self, assigned: &control::Assigned) {
        let further = assigned.further_shards.iter().map(|shard| shard.job);
        let numbers = std::iter::once(assigned.job).chain(further).map(u16::try_from);
        let Ok(numbers) = numbers.collect::<Result<Vec<_>, _>>() else { return };
        if !self.data_plane.is_prepared(&numbers) {
            let data_plane = Arc::clone(&self.data_plane);
            let _ = tokio::task::spawn_blocking(move || data_plane.prepare(&numbers)).await;
        }
    }

    /// A connection to the parent for a member's requests: the connection of its stream, if it has
    /// one.
    async fn client_of(&self, id: MemberId) -> Result<AggregatorClient<Channel>, Status> {
        let known = {
            let state = self.turn().await?;
            let stream = state.proxy.stream_of(id);
            stream.and_then(|stream| state.io.links.get(&stream)).map(|link| link.client.clone())
        };
        match known {
            Some(client) => Ok(client),
            None => self.parent.connect().await,
        }
    }
}

/// Receives the parent's events on a stream.
async fn listen(service: CombinerService, id: StreamId, mut news: Streaming<JoinEvent>) {
    loop {
        let heard = news.message().await;
        if let Ok(Some(JoinEvent { event: Some(Event::Assigned(assigned)) })) = &heard {
            service.prepare(assigned).await;
        }
        let State { proxy, io } = &mut *turn(&service.state).await;
        let effects = match heard {
            Ok(Some(JoinEvent { event: Some(event) })) => proxy.hear(id, event),
            Ok(Some(JoinEvent { event: None })) => {
                proxy.fail(id, "its parent sent an event of an unknown kind; their versions differ")
            }
            Ok(None) => {
                io.links.remove(&id);
                let effects = proxy.lose_parent(id, None);
                return proxy::perform(proxy, io, None, effects);
            }
            Err(status) => {
                io.links.remove(&id);
                let effects = proxy.lose_parent(id, Some(&parent::reason(&status)));
                return proxy::perform(proxy, io, None, effects);
            }
        };
        proxy::perform(proxy, io, Some(id), effects);
    }
}

fn refused(error: Refused) -> Status {
    match error {
        Refused::Circle(_) | Refused::LinkLocal(_) | Refused::Version(_) => {
            Status::failed_precondition(error.to_string())
        }
        Refused::NoMember(_) => Status::not_found(error.to_string()),
    }
}

#[tonic::async_trait]
impl Aggregator for CombinerService {
    type JoinStream = BelowStream;
    type ResumeStream = BelowStream;

    async fn join(
        &self,
        request: Request<control::JoinRequest>,
    ) -> Result<Response<BelowStream>, Status> {
        self.guard.admit_join(addresses(&request)?.0)?;
        let control::JoinRequest { via, standstill_ms, .. } = request.get_ref();
        let allowed_ms = service::standstill_ms(via, *standstill_ms);
        let (stream, question) = self.add(request, allowed_ms, Proxy::join).await?;
        let mut client = self.parent.connect().await?;
        let news = client.join(question).await.map_err(|error| relayed(&self.parent, error))?;
        self.link(stream.id, client, news.into_inner()).await;
        Ok(Response::new(stream))
    }

    async fn resume(
        &self,
        request: Request<control::ResumeRequest>,
    ) -> Result<Response<BelowStream>, Status> {
        let control::ResumeRequest { via, standstill_ms, .. } = request.get_ref();
        let allowed_ms = service::standstill_ms(via, *standstill_ms);
        let (stream, question) = self.add(request, allowed_ms, Proxy::resume).await?;
        let mut client = self.parent.connect().await?;
        let news = client.resume(question).await.map_err(|error| relayed(&self.parent, error))?;
        self.link(stream.id, client, news.into_inner()).await;
        Ok(Response::new(stream))
    }

    async fn ready(
        &self,
        request: Request<control::ReadyRequest>,
    ) -> Result<Response<control::ReadyReply>, Status> {
        let request = request.into_inner();
        let id = request.member.unwrap_or_default();
        let taker = request.taker.and_then(|taker| taker.try_into().ok());
        self.turn().await?.proxy.ready(id, request.needs_copies, taker);
        let mut client = self.client_of(id).await?;
        client.ready(request).await.map_err(|error| relayed(&self.parent, error))
    }

    async fn leave(
        &self,
        request: Request<control::LeaveRequest>,
    ) -> Result<Response<control::LeaveReply>, Status> {
        let request = request.into_inner();
        let id = request.member.unwrap_or_default();
        let mut client = self.client_of(id).await?;
        self.turn().await?.proxy.leave(id);
        client.leave(request).await.map_err(|error| relayed(&self.parent, error))
    }

    async fn report_calls(
        &self,
        request: Request<control::ReportCallsRequest>,
    ) -> Result<Response<control::ReportCallsReply>, Status> {
        let request = request.into_inner();
        let mut client = self.client_of(request.member.unwrap_or_default()).await?;
        client.report_calls(request).await.map_err(|error| relayed(&self.parent, error))
    }

    async fn report_no_multicast(
        &self,
        request: Request<control::ReportNoMulticastRequest>,
    ) -> Result<Response<control::ReportNoMulticastReply>, Status> {
        let id = request.into_inner().member.unwrap_or_default();
        let State { proxy, io } = &mut *self.turn().await?;
        let effects = proxy.report_no_multicast(id).map_err(refused)?;
        proxy::perform(proxy, io, None, effects);
        Ok(Response::new(control::ReportNoMulticastReply {}))
    }

    async fn report_round_trips(
        &self,
        request: Request<control::ReportRoundTripsRequest>,
    ) -> Result<Response<control::ReportRoundTripsReply>, Status> {
        let request = request.into_inner();
        let mut client = self.client_of(request.member.unwrap_or_default()).await?;
        client.report_round_trips(request).await.map_err(|error| relayed(&self.parent, error))
    }

    async fn list_jobs(
        &self,
        request: Request<control::ListJobsRequest>,
    ) -> Result<Response<control::ListJobsReply>, Status> {
        let mut client = self.parent.connect().await?;
        let list = client.list_jobs(request.into_inner()).await;
        let mut list = list.map_err(|error| relayed(&self.parent, error))?.into_inner();
        self.turn().await?.proxy.describe(&mut list.jobs);
        Ok(Response::new(list))
    }

    async fn status(
        &self,
        _request: Request<control::StatusRequest>,
    ) -> Result<Response<control::StatusReply>, Status> {
        let own = control::StatusReply {
            parent: self.parent.to_string(),
            cells: self.data_plane.cells(),
            ..self.guard.status()
        };
        let data_plane = Arc::clone(&self.data_plane);
        let find = move || of_data_plane(&*data_plane, own);
        let status = turns::look(&*self.data_plane, find).await?;
        Ok(Response::new(status.map_err(service::status::internal)?))
    }

    async fn slots(
        &self,
        request: Request<control::SlotsRequest>,
    ) -> Result<Response<control::SlotsReply>, Status> {
        let mut client = self.parent.connect().await?;
        let slots = client.slots(request.into_inner()).await;
        slots.map_err(|error| relayed(&self.parent, error))
    }

    async fn examine(
        &self,
        request: Request<control::ExamineRequest>,
    ) -> Result<Response<control::ExamineReply>, Status> {
        let (peer, _): (IpAddr, _) = addresses(&request)?;
        let member = request.into_inner().member.unwrap_or_default();
        let shard = self.turn().await?.proxy.shard_of(member);
        let binding = self.data_plane.binding(shard.map_err(refused)?, member.rank as u16);
        let hello_seen = binding.map_err(service::status::internal)?.is_some();
        Ok(Response::new(seen_by(&*self.data_plane, peer, hello_seen)))
    }
}

/// The mailboxes of the ranks below.
type Streams = BTreeMap<StreamId, Sender>;
