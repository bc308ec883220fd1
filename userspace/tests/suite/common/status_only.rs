//! An aggregator that says how it is, and does nothing else.

use std::net::SocketAddr;

use switchml_control as control;
use switchml_control::JoinEvent;
use switchml_control::aggregator_server::{Aggregator, AggregatorServer};
use tokio::net::TcpListener;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Serves this status to everybody, until the test ends.
pub async fn start(status: control::StatusReply) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let server = Server::builder().add_service(AggregatorServer::new(StatusOnly(status)));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

struct StatusOnly(control::StatusReply);

type Events = ReceiverStream<Result<JoinEvent, Status>>;
type Answer<T> = Result<Response<T>, Status>;

fn refused<T>() -> Answer<T> {
    Err(Status::unimplemented("it says how it is, and does nothing else"))
}

#[tonic::async_trait]
impl Aggregator for StatusOnly {
    type JoinStream = Events;
    type ResumeStream = Events;

    async fn status(&self, _: Request<control::StatusRequest>) -> Answer<control::StatusReply> {
        Ok(Response::new(self.0.clone()))
    }

    async fn join(&self, _: Request<control::JoinRequest>) -> Answer<Events> {
        refused()
    }

    async fn resume(&self, _: Request<control::ResumeRequest>) -> Answer<Events> {
        refused()
    }

    async fn ready(&self, _: Request<control::ReadyRequest>) -> Answer<control::ReadyReply> {
        refused()
    }

    async fn leave(&self, _: Request<control::LeaveRequest>) -> Answer<control::LeaveReply> {
        refused()
    }

    async fn report_calls(
        &self,
        _: Request<control::ReportCallsRequest>,
    ) -> Answer<control::ReportCallsReply> {
        refused()
    }

    async fn report_no_multicast(
        &self,
        _: Request<control::ReportNoMulticastRequest>,
    ) -> Answer<control::ReportNoMulticastReply> {
        refused()
    }

    async fn report_round_trips(
        &self,
        _: Request<control::ReportRoundTripsRequest>,
    ) -> Answer<control::ReportRoundTripsReply> {
        refused()
    }

    async fn list_jobs(
        &self,
        _: Request<control::ListJobsRequest>,
    ) -> Answer<control::ListJobsReply> {
        refused()
    }

    async fn slots(&self, _: Request<control::SlotsRequest>) -> Answer<control::SlotsReply> {
        refused()
    }

    async fn examine(&self, _: Request<control::ExamineRequest>) -> Answer<control::ExamineReply> {
        refused()
    }
}
