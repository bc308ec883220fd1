//! Counts messages that are too long: they are refused before the service sees them.

use std::sync::Arc;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use tonic::Code;
use tonic::service::Routes;

use crate::guard::Guard;
use crate::incoming::Peer;
use crate::refusals::Reason;

/// The routes of gRPC, with a count of messages that are too long.
pub fn counted(routes: Routes, guard: Arc<Guard>) -> Routes {
    let count = move |request: Request, next: Next| {
        let guard = Arc::clone(&guard);
        async move { count(request, next, &guard).await }
    };
    routes.into_axum_router().layer(from_fn(count)).into()
}

async fn count(request: Request, next: Next, guard: &Guard) -> Response {
    let peer = request.extensions().get::<Peer>().and_then(|peer| peer.addresses.remote_addr());
    let what = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let response = next.run(request).await;
    let status = response.headers().get("grpc-status");
    let is_too_long =
        status.is_some_and(|status| Code::from_bytes(status.as_bytes()) == Code::OutOfRange);
    if let Some(peer) = peer.filter(|_| is_too_long) {
        let peer = peer.ip().to_canonical();
        guard.refusals.refuse(Reason::TooLong, peer, what, "its message is too long");
    }
    response
}
