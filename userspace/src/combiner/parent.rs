//! A combiner's parent: connections to it, and whether it can be one.

use std::error::Error as _;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::{StatusReply, StatusRequest};
use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::control_plane::{PING_INTERVAL, PING_TIMEOUT};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a connection, and for the answer to a first question.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most combiners on the way to the root that are looked at.
const MAX_DEPTH: usize = 16;

/// Where the parent's control plane is.
#[derive(Clone, Debug)]
pub struct Parent(Arc<[SocketAddr]>);

/// Why an aggregator cannot be the parent.
#[derive(Debug, thiserror::Error)]
pub enum ParentError {
    /// Nobody answers.
    #[error(
        "no aggregator answers at the parent's address {parent} ({why}); start it first, or give \
         the address where it runs with --parent"
    )]
    Unreachable {
        /// Where it was looked for.
        parent: String,
        /// What the system said.
        why: String,
    },
    /// It is this daemon.
    #[error(
        "--parent {0} is this aggregator itself; give the address of the root, or of a combiner \
         nearer to it"
    )]
    Itself(String),
    /// Its way to the root leads here.
    #[error(
        "--parent {parent} leads back here, by {by}: combiners in a circle; give one of them a \
         --parent that leads to the root, or none"
    )]
    Circle {
        /// The parent.
        parent: String,
        /// Where the last of the others is.
        by: String,
    },
    /// It is of another version.
    #[error(
        "the aggregator at {parent} has version {theirs}, this one {ours}; run the same version on \
         all hosts"
    )]
    Version {
        /// The parent.
        parent: String,
        /// Its version.
        theirs: String,
        /// This one's.
        ours: &'static str,
    },
    /// Its data plane takes no partial sums.
    #[error(
        "the aggregator at {parent} takes no partial sums: its data plane is {data_plane}; start \
         that with --data-plane xdp or software, or connect ranks to it directly"
    )]
    NoPartialSums {
        /// The parent.
        parent: String,
        /// What it has.
        data_plane: String,
    },
}

impl fmt::Display for Parent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.0.iter().map(SocketAddr::to_string).collect();
        formatter.write_str(&addresses.join(" or "))
    }
}

impl Parent {
    /// The one at the first of these addresses that answers.
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        Self(addresses.into())
    }

    /// Makes sure that it is there, and can be the parent of this daemon, which listens at `here`.
    /// Goes on with the address that answered.
    ///
    /// # Errors
    ///
    /// [`ParentError`].
    pub async fn check(self, here: SocketAddr) -> Result<Self, ParentError> {
        let parent = self.to_string();
        let unreachable = |why| ParentError::Unreachable { parent: parent.clone(), why };
        let mut found = Err("no address".to_owned());
        for address in self.0.iter() {
            found = probe(*address).await.map(|own| (*address, own));
            if found.is_ok() {
                break;
            }
        }
        let (address, own) = found.map_err(&unreachable)?;
        let parent = address.to_string();
        if is_same(own, address, here) {
            return Err(ParentError::Itself(parent));
        }
        let status = ask(address).await.map_err(&unreachable)?;
        let ours = env!("CARGO_PKG_VERSION");
        if status.version != ours {
            return Err(ParentError::Version { parent, theirs: status.version, ours });
        }
        let has = Capabilities::from_bits_truncate(status.capabilities);
        if !has.contains(Capabilities::PARTIAL_SUMS) {
            let data_plane = status.data_plane;
            return Err(ParentError::NoPartialSums { parent, data_plane });
        }
        check_way(parent, status, here).await?;
        Ok(Self::new(vec![address]))
    }

    /// A connection to it.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE.
    pub async fn connect(&self) -> Result<AggregatorClient<Channel>, Status> {
        let mut whys = Vec::new();
        for address in self.0.iter() {
            match connect(*address).await {
                Ok(client) => return Ok(client),
                Err(why) => whys.push(why),
            }
        }
        let whys = whys.join("; ");
        Err(Status::unavailable(format!("its parent at {self} does not answer ({whys})")))
    }
}

/// Whether the way from a parent to the root leads past this daemon, which listens at `here`.
async fn check_way(
    parent: String,
    mut status: StatusReply,
    here: SocketAddr,
) -> Result<(), ParentError> {
    let mut by = parent.clone();
    for _ in 0..MAX_DEPTH {
        let Ok(next) = status.parent.parse::<SocketAddr>() else { return Ok(()) };
        // One that is away now says it when somebody joins.
        let Ok(own) = probe(next).await else { return Ok(()) };
        if is_same(own, next, here) {
            return Err(ParentError::Circle { parent, by });
        }
        let Ok(above) = ask(next).await else { return Ok(()) };
        (status, by) = (above, next.to_string());
    }
    Err(ParentError::Circle { parent, by })
}

/// Whether a connection from `own` to `other` leads to this daemon, which listens at `here`.
fn is_same(own: SocketAddr, other: SocketAddr, here: SocketAddr) -> bool {
    let is_heard = here.ip().is_unspecified() || here.ip() == other.ip();
    own.ip() == other.ip() && other.port() == here.port() && is_heard
}

/// This end's address of a connection to there.
async fn probe(address: SocketAddr) -> Result<SocketAddr, String> {
    let stream = timeout(PATIENCE, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| format!("no answer for {} s", PATIENCE.as_secs()))?;
    let stream = stream.map_err(|error| error.to_string())?;
    stream.local_addr().map_err(|error| error.to_string())
}

async fn ask(address: SocketAddr) -> Result<StatusReply, String> {
    let mut client = connect(address).await?;
    let answer = timeout(PATIENCE, client.status(StatusRequest {})).await;
    let answer = answer.map_err(|_| format!("no answer for {} s", PATIENCE.as_secs()))?;
    answer.map(tonic::Response::into_inner).map_err(|status| reason(&status))
}

async fn connect(address: SocketAddr) -> Result<AggregatorClient<Channel>, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|error| root_cause(&error))?;
    let endpoint = endpoint
        .connect_timeout(PATIENCE)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let channel = endpoint.connect().await.map_err(|error| root_cause(&error))?;
    Ok(AggregatorClient::new(channel))
}

/// A parent's refusal, as it goes on to below; UNAVAILABLE if there was no answer.
pub fn relayed(parent: &Parent, status: Status) -> Status {
    match status.source() {
        None => Status::new(status.code(), status.message()),
        Some(_) => {
            let why = reason(&status);
            Status::unavailable(format!("its parent at {parent} does not answer ({why})"))
        }
    }
}

/// What a failed request says: a failure underneath it, or the parent's own words.
pub fn reason(status: &Status) -> String {
    status.source().map_or_else(|| status.message().to_owned(), root_cause)
}

/// The innermost error: the outer ones only say "transport error".
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
