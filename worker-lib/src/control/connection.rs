//! A connection to the aggregator, and what may come of a request.

use std::{error::Error as _, future::Future, net::SocketAddr, time::Duration};

use switchml_worker_core::session::CONNECT;
use tokio::runtime::Runtime;
use tonic::{
    Response, Status,
    transport::{Channel, Endpoint},
};

use super::Error;

/// An idle connection is probed this often, so that a dead host is noticed between collectives too.
const PROBE: Duration = Duration::from_secs(5);
/// A probe without an answer for so long is the end. Generous: a machine that computes may starve
/// this thread.
const PROBE_ANSWER: Duration = Duration::from_secs(10);

/// A runtime for the calling thread alone.
pub(super) fn runtime() -> Result<Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::System { why: error.to_string() })
}

/// Connects to the first of the addresses that answers. Returns that address too.
pub(super) async fn connect(
    addresses: &[SocketAddr],
    timeout: Duration,
) -> Result<(String, Channel), Error> {
    let mut failed = None;
    for address in addresses {
        let address = address.to_string();
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Error::Address { given: address.clone(), why: root_cause(&error) })?
            .connect_timeout(timeout.min(CONNECT))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PROBE)
            .keep_alive_timeout(PROBE_ANSWER)
            .keep_alive_while_idle(true);
        match endpoint.connect().await {
            Ok(channel) => return Ok((address, channel)),
            Err(error) => failed = Some(Error::Unreachable { address, why: root_cause(&error) }),
        }
    }
    Err(failed.unwrap_or_else(|| Error::Address {
        given: String::new(),
        why: "no address given".to_owned(),
    }))
}

/// The answer to a call, if it comes in time.
pub(super) async fn within<T>(
    timeout: Duration,
    address: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(from_status(address, &status)),
        Err(_) => Err(Error::Lost {
            address: address.to_owned(),
            why: format!("no answer for {} s", timeout.as_secs_f64()),
        }),
    }
}

fn from_status(address: &str, status: &Status) -> Error {
    let address = address.to_owned();
    match failure_of(status) {
        None => Error::Refused { address, why: status.message().to_owned() },
        Some(why) => Error::Lost { address, why },
    }
}

/// A status that the aggregator sent is its word; one with a source was made here, of a failure
/// underneath, which this is.
pub(super) fn failure_of(status: &Status) -> Option<String> {
    status.source().map(root_cause)
}

/// The innermost error: the outer ones only say "transport error".
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
