//! The HTTP interface for operators, at the control plane's port: a page that follows the jobs, the
//! same data as JSON, metrics, and probes. All of it is read-only.

mod metrics;
mod process;
#[cfg(feature = "daemon")]
mod reference;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use switchml_control::aggregator_server::Aggregator;
use switchml_control::{ListJobsRequest, StatusRequest};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::view::View;
use process::Process;
#[cfg(feature = "daemon")]
pub use reference::list_of_metrics;

/// The policy for the page: it may load only its own files, because names of jobs may contain
/// anything.
const POLICY: &str = "default-src 'none'; connect-src 'self'; img-src data:; script-src 'self'; \
                      style-src 'self'";
const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The routes of gRPC, and the routes of these pages.
pub(crate) fn beside<A: Aggregator>(grpc: Routes, service: Arc<A>) -> Routes {
    let pages = Router::new()
        .route("/", get(file(HTML, include_str!("web/page.html"))))
        .route("/page.js", get(file(SCRIPT, include_str!("web/page.js"))))
        .route("/page.css", get(file(STYLE, include_str!("web/page.css"))))
        .route("/status.json", get(status::<A>))
        .route("/metrics", get(metrics::<A>))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready::<A>))
        .with_state(service);
    // gRPC clients take this answer for an unknown service.
    let nothing = async || StatusCode::NOT_FOUND;
    grpc.into_axum_router().merge(pages).fallback(nothing).into()
}

/// A file of the page.
fn file(kind: &'static str, text: &'static str) -> impl IntoResponse + Clone {
    ([(header::CONTENT_TYPE, kind), (header::CONTENT_SECURITY_POLICY, POLICY)], text)
}

async fn look<A: Aggregator>(service: &A) -> Result<View, Unseen> {
    let status = service.status(Request::new(StatusRequest {})).await?.into_inner();
    let jobs = service.list_jobs(Request::new(ListJobsRequest {})).await;
    Ok(View::new(status, jobs.map(Response::into_inner).map_err(|why| why.message().to_owned())))
}

/// The data plane did not answer.
struct Unseen(String);

impl From<Status> for Unseen {
    fn from(status: Status) -> Self {
        Self(status.message().to_owned())
    }
}

impl IntoResponse for Unseen {
    fn into_response(self) -> axum::response::Response {
        unavailable(&self.0).into_response()
    }
}

fn unavailable(why: &str) -> impl IntoResponse {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

async fn status<A: Aggregator>(service: State<Arc<A>>) -> Result<impl IntoResponse, Unseen> {
    let text = serde_json::to_string(&look(&**service).await?);
    Ok(([(header::CONTENT_TYPE, JSON)], text.expect("it has no maps")))
}

/// Metrics in the requested format.
async fn metrics<A: Aggregator>(
    service: State<Arc<A>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Unseen> {
    let view = look(&**service).await?;
    let process = Process::look(Duration::from_secs_f64(view.uptime_seconds));
    let accepted = headers.get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok());
    let (kind, text) = match accepted {
        Some(kinds) if kinds.contains("application/openmetrics-text") => {
            (OPENMETRICS, metrics::openmetrics(&view, &process))
        }
        _ => (PROMETHEUS, metrics::prometheus(&view, &process)),
    };
    Ok(([(header::CONTENT_TYPE, kind)], text))
}

/// Whether ranks can join and have their packets served.
async fn ready<A: Aggregator>(service: State<Arc<A>>) -> Result<impl IntoResponse, Unseen> {
    let faults = faults(&**service).await?;
    if faults.is_empty() { Ok("ready\n") } else { Err(Unseen(faults.join("\n"))) }
}

/// The faults that prevent that.
async fn faults<A: Aggregator>(service: &A) -> Result<Vec<String>, Unseen> {
    let view = look(service).await?;
    let mut faults: Vec<_> =
        view.faults().map(|(port, fault)| format!("{port}: {fault}")).collect();
    faults.extend(view.jobs_unknown);
    Ok(faults)
}

/// The readiness for gRPC probes.
pub(crate) async fn is_ready<A: Aggregator>(service: &A) -> bool {
    faults(service).await.is_ok_and(|faults| faults.is_empty())
}
