//! A connection to the aggregator, and the failures of a request.

use std::{error::Error as _, future::Future, net::SocketAddr, time::Duration};

use switchml_control::client::{self, ConnectError, Connection, root_cause};
use switchml_worker_core::session::CONNECT;
use tokio::runtime::Runtime;
use tonic::{Response, Status};

use super::{Access, Error};
use crate::files;

/// An idle connection is probed this often, so that a dead host is noticed between collectives too.
const PROBE: Duration = Duration::from_secs(5);
/// A probe without an answer for so long is the end. Generous: a machine that computes may starve
/// this thread.
const PROBE_ANSWER: Duration = Duration::from_secs(10);
/// Rule 36.18: the process of another rank may stand still as long as its host does not, and the
/// kernel asks the host. Ranks agree on who is dead by their aggregators.
const OF_PEER: Duration = Duration::from_secs(24 * 3600);

/// A runtime that uses only the calling thread.
pub(super) fn runtime() -> Result<Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::System { why: files::explained(&error) })
}

/// Connects to the first of an aggregator's addresses that answers. Returns that address too.
pub(super) async fn connect(
    access: &Access,
    addresses: &[SocketAddr],
    timeout: Duration,
) -> Result<(String, Connection), Error> {
    let host = switchml_control::host(&access.address);
    let answer = if access.peer.is_some() { OF_PEER } else { PROBE_ANSWER };
    let mut failed = Vec::new();
    for &address in addresses {
        let connection = client::connect(address, &host, &access.tls, |endpoint| {
            endpoint
                .connect_timeout(timeout.min(CONNECT))
                .http2_keep_alive_interval(PROBE)
                .keep_alive_timeout(answer)
                .keep_alive_while_idle(true)
        });
        match (connection.await, address.to_string()) {
            (Ok(connection), address) => return Ok((address, connection)),
            // An aggregator answers there, so the other addresses need not be tried.
            (Err(ConnectError::Tls(why)), address) => return Err(Error::Tls { address, why }),
            (Err(ConnectError::Unreachable(why)), address) => {
                failed.push((address, files::explained_text(why)));
            }
        }
    }
    if failed.is_empty() {
        let why = "no address given".to_owned();
        return Err(Error::Address { given: String::new(), why });
    }
    let (addresses, mut whys): (Vec<_>, Vec<_>) = failed.into_iter().unzip();
    whys.dedup();
    Err(Error::Unreachable { address: addresses.join(" or "), why: whys.join("; ") })
}

/// The answer to a call, if it comes in time.
pub(super) async fn within<T>(
    timeout: Duration,
    (address, connection): &(String, Connection),
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(match connection.fault() {
            Some(why) => Error::Tls { address: address.clone(), why: why.clone() },
            None => from_status(address, &status),
        }),
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

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn all_addresses_that_were_tried_are_in_the_one_line() {
        // No program listens at port 1, and no socket gets it by chance.
        let addresses = [(Ipv4Addr::LOCALHOST, 1).into(), (Ipv6Addr::LOCALHOST, 1).into()];
        let error = runtime()
            .unwrap()
            .block_on(connect(&Access::default(), &addresses, CONNECT))
            .err()
            .unwrap();
        let [first, second] = addresses;
        let why = "Connection refused (os error 111)".to_owned();
        assert_eq!(error, Error::Unreachable { address: format!("{first} or {second}"), why });
    }
}
