//! Traces, as a collector gets them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use rustix::process::{Pid, Signal, kill_process};
use switchml_control::ListJobsRequest;
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::join_event::Event;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::common::program::{IN_SOFTWARE, Program, aggregator};
use crate::common::{PATIENCE, Path, Rank};

/// The spans that have come.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        self.0.lock().expect("no panic").extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn start(collector: SocketAddr) -> Program {
    let mut command = aggregator(&IN_SOFTWARE);
    command.args(["--otlp-endpoint", &format!("http://{collector}")]);
    let (daemon, mut log) = Program::start(&mut command);
    // Spans are not logged.
    std::thread::spawn(move || assert!(log.all(|line| !line.contains("INFO assigned"))));
    daemon
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    format!("{:?}", found.unwrap_or_else(|| panic!("no {key} in {span:?}")).value)
}

/// Spans end when the daemon hears that their rank is gone.
async fn until_there_is_no_job(control: SocketAddr) {
    let mut client =
        AggregatorClient::connect(format!("http://{control}")).await.expect("connected");
    let end = Instant::now() + PATIENCE;
    while !client.list_jobs(ListJobsRequest {}).await.expect("a list").into_inner().jobs.is_empty()
    {
        assert!(Instant::now() < end, "a job is there still");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_spans_of_jobs_and_ranks() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let collector = Collector::default();
    let service = TraceServiceServer::new(collector.clone());
    let incoming = TcpListenerStream::new(listener);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let mut daemon = start(address);
    let control = daemon.control;

    let mut ranks = Vec::new();
    for rank in 0..2 {
        ranks.push(Rank::join(control, "train", rank, 2).await);
    }
    let mut paths = Vec::new();
    for rank in &mut ranks {
        let path = Path::new(rank.assigned().await, rank.rank as u16);
        path.hello();
        rank.ready(&path.assigned, 352).await.expect("ready");
        paths.push(path);
    }
    for rank in &mut ranks {
        assert!(matches!(rank.next().await, Event::Started(_)));
    }
    // Rank 1 dies.
    drop(ranks.pop());
    assert!(matches!(ranks[0].next().await, Event::Aborted(_)));
    drop(ranks);
    until_there_is_no_job(control).await;
    // Another job with the same name, which lacks a rank.
    drop(Rank::join(control, "train", 0, 3).await);
    until_there_is_no_job(control).await;

    tokio::task::block_in_place(|| {
        kill_process(Pid::from_child(&daemon.process), Signal::TERM).expect("signalled");
        assert!(daemon.process.wait().expect("ended").success());
    });
    let mut spans = collector.0.lock().expect("no panic").clone();
    spans.sort_by_key(|span| span.start_time_unix_nano);
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    let (first, second) = (&names[..5], &names[5..]);
    assert!(
        ["job", "join", "join", "run", "run"] == first && ["job", "join"] == second,
        "{names:?}"
    );

    let job = &spans[0];
    assert!(attribute(job, "job.name").contains("\"train\""), "{job:?}");
    let status = job.status.as_ref().expect("a status");
    assert_eq!(status.code, StatusCode::Error as i32);
    assert!(status.message.contains("rank 1 "), "{status:?}");
    for span in &spans[1..5] {
        assert_eq!((&span.trace_id, &span.parent_span_id), (&job.trace_id, &job.span_id));
        assert!(job.start_time_unix_nano <= span.start_time_unix_nano, "{span:?}");
        assert!(job.end_time_unix_nano >= span.end_time_unix_nano, "{span:?}");
    }
    let joins_end = spans[1..3].iter().map(|span| span.end_time_unix_nano).min();
    assert!(joins_end <= Some(spans[3].start_time_unix_nano));
    assert_ne!(spans[5].trace_id, job.trace_id);
}
