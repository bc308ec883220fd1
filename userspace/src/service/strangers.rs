//! Keeps clients that are no ranks from slowing ranks down: their requests are served one at a
//! time, and their number is limited for each host. A client that cancels too many requests is cut
//! off.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use switchml_control::aggregator_server::SERVICE_NAME;
use tokio::sync::Semaphore;
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::guard::Guard;
use crate::hosts::{MOST_RESETS, TooMuch};
use crate::incoming::Peer;
use crate::refusals::Reason;

/// Methods that ranks call. All except Join carry a member's secret.
const OF_RANKS: [&str; 8] = [
    "Join",
    "Resume",
    "Ready",
    "Leave",
    "ReportCalls",
    "ReportNoMulticast",
    "ReportRoundTrips",
    "Examine",
];
/// Probes that ask whether the daemon lives do not wait for other requests.
const PROBES: [&str; 2] = ["/healthz", "/grpc.health.v1.Health/Check"];

/// The routes with these limits.
pub fn bounded(routes: Routes, guard: Arc<Guard>) -> Routes {
    let turns = Arc::new(Semaphore::new(1));
    let serve = move |request: Request, next: Next| {
        let (guard, turns) = (Arc::clone(&guard), Arc::clone(&turns));
        async move { serve(request, next, guard, &turns).await }
    };
    routes.into_axum_router().layer(from_fn(serve)).into()
}

async fn serve(request: Request, next: Next, guard: Arc<Guard>, turns: &Semaphore) -> Response {
    let peer = request.extensions().get::<Peer>().cloned();
    let Some((peer, from)) = peer.and_then(|peer| peer.ip().map(|from| (peer, from))) else {
        return next.run(request).await;
    };
    let mut unanswered =
        Unanswered { guard: Arc::clone(&guard), peer: peer.clone(), from, waits: true };
    // Set if the request's body is cut off: then nobody waits for the answer.
    let is_cut = Arc::new(AtomicBool::new(false));
    let request = request.map(|body| watched(body, Arc::clone(&is_cut)));
    let response = if let Some(method) = method_of_rank(request.uri().path()) {
        let response = next.run(request).await;
        let status = response.headers().get(Status::GRPC_STATUS);
        if status.is_some_and(|status| is_strangers(method, Code::from_bytes(status.as_bytes()))) {
            let _ = ask(&guard, &peer, from);
        }
        response
    } else {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        match ask(&guard, &peer, from) {
            Err(why) if is_grpc => Status::resource_exhausted(why.to_string()).into_http(),
            Err(why) => (StatusCode::TOO_MANY_REQUESTS, format!("{why}\n")).into_response(),
            Ok(()) if PROBES.contains(&request.uri().path()) => next.run(request).await,
            Ok(()) => {
                // So ranks have the other threads.
                let _turn = turns.acquire().await;
                next.run(request).await
            }
        }
    };
    unanswered.waits = is_cut.load(Ordering::Relaxed);
    response
}

/// The body, which sets `is_cut` if it is cut off.
fn watched(body: Body, is_cut: Arc<AtomicBool>) -> Body {
    Body::new(body.map_err(move |error| {
        is_cut.store(true, Ordering::Relaxed);
        error
    }))
}

/// The method of [`OF_RANKS`] that is called.
fn method_of_rank(path: &str) -> Option<&'static str> {
    let method = path.strip_prefix('/')?.strip_prefix(SERVICE_NAME)?.strip_prefix('/')?;
    OF_RANKS.into_iter().find(|known| *known == method)
}

/// Whether a failed call may have come from a stranger. Joins have another limit; only joins beyond
/// it count here.
fn is_strangers(method: &str, code: Code) -> bool {
    method != "Join" || code == Code::ResourceExhausted
}

/// Counts a stranger's request. Beyond the limit, the request is refused and the connection closed.
fn ask(guard: &Guard, peer: &Peer, from: IpAddr) -> Result<(), TooMuch> {
    guard.hosts.ask(from, Instant::now()).inspect_err(|why| {
        if peer.hang_up() {
            guard.refusals.refuse(Reason::TooManyRequests, from, "a connection", why);
        }
    })
}

/// A request of `peer`'s was cancelled. A client that cancels too often has its connection closed.
pub(crate) fn taken_back(guard: &Guard, peer: &Peer, from: IpAddr) {
    if !guard.hosts.reset(from, Instant::now()) && peer.hang_up() {
        let why =
            format!("more than {MOST_RESETS} requests were cancelled from there within a minute");
        guard.refusals.refuse(Reason::TooManyResets, from, "a connection", why);
    }
}

/// A request; if this is dropped before there is an answer, the client has cancelled it.
struct Unanswered {
    guard: Arc<Guard>,
    peer: Peer,
    from: IpAddr,
    waits: bool,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if self.waits {
            taken_back(&self.guard, &self.peer, self.from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_call_is_told_from_all_else() {
        for path in ["Join", "Resume", "Ready", "Leave", "Examine"] {
            assert_eq!(method_of_rank(&format!("/switchml.v1.Aggregator/{path}")), Some(path));
        }
        for path in ["/", "/Join", "/metrics", "/healthz", "/other.Service/Join"] {
            assert_eq!(method_of_rank(path), None, "{path}");
        }
        for path in ["Status", "ListJobs", "Nothing"] {
            assert_eq!(method_of_rank(&format!("/switchml.v1.Aggregator/{path}")), None, "{path}");
        }
    }
}
