//! A combiner's parent: connections to it, and whether it can be one.

use std::error::Error as _;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::client::{self, ConnectError, Connection, root_cause};
use switchml_control::tls::{ClientTls, TlsError};
use switchml_control::{StatusReply, StatusRequest};
use switchml_protocol::VERSION;
use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::control_plane::{PING_INTERVAL, PING_TIMEOUT};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

/// Longest wait for a connection, and for the answer to a first question.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most combiners on the way to the root that are checked.
const MAX_DEPTH: usize = 16;

/// The parent's control plane: its addresses, and the TLS settings to reach it.
#[derive(Clone, Debug)]
pub struct Parent {
    addresses: Arc<[SocketAddr]>,
    way: Arc<Way>,
}

/// The name of an aggregator's host, as it was given, and the TLS settings that identify it.
#[derive(Debug, Default)]
struct Way {
    host: String,
    tls: ClientTls,
}

/// Why an aggregator cannot be the parent.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ParentError {
    #[error(
        "no aggregator answers at the parent's address {parent} ({why}); start it first, or give \
         the address where it runs with --parent"
    )]
    Unreachable { parent: String, why: String },
    #[error("no TLS connection to the parent at {parent}: {why}")]
    Tls { parent: String, why: TlsError },
    #[error(
        "--parent {0} is this aggregator itself; give the address of the root, or of a combiner \
         nearer to it"
    )]
    Itself(String),
    #[error(
        "--parent {parent} leads back here, by {by}: combiners in a circle; give one of them a \
         --parent that leads to the root, or none"
    )]
    Circle { parent: String, by: String },
    #[error(
        "the aggregator at {parent} has version {theirs}, this one {ours}; run the same version on \
         all hosts"
    )]
    Version { parent: String, theirs: String, ours: String },
    #[error(
        "the aggregator at {parent} does not accept partial sums: its data plane is {data_plane}; \
         start it with --data-plane xdp or software, or connect ranks to it directly"
    )]
    NoPartialSums { parent: String, data_plane: String },
}

impl fmt::Display for Parent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.addresses.iter().map(SocketAddr::to_string).collect();
        formatter.write_str(&addresses.join(" or "))
    }
}

impl Parent {
    /// The aggregator at the first of these addresses that answers, without TLS.
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses: addresses.into(), way: Arc::default() }
    }

    /// The parent with TLS, where `host` is the name that was given.
    pub fn by_tls(self, host: String, tls: ClientTls) -> Self {
        Self { way: Arc::new(Way { host, tls }), ..self }
    }

    /// Checks that the parent answers, and can be the parent of this daemon, which listens at
    /// `here`. The result has the address that answered.
    pub async fn check(self, here: SocketAddr) -> Result<Self, ParentError> {
        let parent = self.to_string();
        let unreachable = |why| ParentError::Unreachable { parent: parent.clone(), why };
        let no_answer = |error| match error {
            ConnectError::Tls(why) => ParentError::Tls { parent: parent.clone(), why },
            ConnectError::Unreachable(why) => unreachable(why),
        };
        let mut found = Err("no address".to_owned());
        for address in self.addresses.iter() {
            found = probe(*address).await.map(|own| (*address, own));
            if found.is_ok() {
                break;
            }
        }
        let (address, own) = found.map_err(&unreachable)?;
        if is_same(own, address, here) {
            return Err(ParentError::Itself(address.to_string()));
        }
        let status = ask(address, &self.way).await.map_err(no_answer)?;
        let parent = address.to_string();
        let text = |release, protocol| format!("{release} (protocol {protocol})");
        let theirs = text(status.version.as_str(), status.protocol_version);
        let ours = text(env!("CARGO_PKG_VERSION"), VERSION.into());
        if theirs != ours {
            return Err(ParentError::Version { parent, theirs, ours });
        }
        let has = Capabilities::from_bits_truncate(status.capabilities);
        if !has.contains(Capabilities::PARTIAL_SUMS) {
            let data_plane = status.data_plane;
            return Err(ParentError::NoPartialSums { parent, data_plane });
        }
        check_way(parent, status, here, &self.way).await?;
        Ok(Self { addresses: [address].into(), way: self.way })
    }

    /// A connection to it.
    ///
    /// # Errors
    ///
    /// UNAVAILABLE.
    pub async fn connect(&self) -> Result<AggregatorClient<Channel>, Status> {
        let mut whys = Vec::new();
        for address in self.addresses.iter() {
            match connect(*address, &self.way).await {
                Ok(connection) => return Ok(AggregatorClient::new(connection.channel)),
                Err(why) => whys.push(why.to_string()),
            }
        }
        let whys = whys.join("; ");
        Err(Status::unavailable(format!("its parent at {self} does not answer ({whys})")))
    }
}

/// Checks that the way from the parent to the root does not lead through this daemon, which listens
/// at `here`.
async fn check_way(
    parent: String,
    mut status: StatusReply,
    here: SocketAddr,
    way: &Way,
) -> Result<(), ParentError> {
    let mut by = parent.clone();
    for _ in 0..MAX_DEPTH {
        let Ok(next) = status.parent.parse::<SocketAddr>() else { return Ok(()) };
        // If a combiner is away now, ranks that join will be told.
        let Ok(own) = probe(next).await else { return Ok(()) };
        if is_same(own, next, here) {
            return Err(ParentError::Circle { parent, by });
        }
        let Ok(above) = ask(next, way).await else { return Ok(()) };
        (status, by) = (above, next.to_string());
    }
    Err(ParentError::Circle { parent, by })
}

/// Whether a connection from `own` to `other` leads to this daemon, which listens at `here`.
fn is_same(own: SocketAddr, other: SocketAddr, here: SocketAddr) -> bool {
    let is_heard = here.ip().is_unspecified() || here.ip() == other.ip();
    own.ip() == other.ip() && other.port() == here.port() && is_heard
}

/// This end's address of a connection to `address`.
async fn probe(address: SocketAddr) -> Result<SocketAddr, String> {
    let stream = timeout(PATIENCE, TcpStream::connect(address)).await;
    let stream = stream.map_err(|_| format!("no answer for {} s", PATIENCE.as_secs()))?;
    let stream = stream.map_err(|error| error.to_string())?;
    stream.local_addr().map_err(|error| error.to_string())
}

async fn ask(address: SocketAddr, way: &Way) -> Result<StatusReply, ConnectError> {
    let connection = connect(address, way).await?;
    let mut client = AggregatorClient::new(connection.channel.clone());
    let unreachable = ConnectError::Unreachable;
    let answer = timeout(PATIENCE, client.status(StatusRequest {})).await;
    let answer =
        answer.map_err(|_| unreachable(format!("no answer for {} s", PATIENCE.as_secs())))?;
    answer.map(tonic::Response::into_inner).map_err(|status| match connection.fault() {
        Some(fault) => ConnectError::Tls(fault.clone()),
        None => unreachable(reason(&status)),
    })
}

async fn connect(address: SocketAddr, way: &Way) -> Result<Connection, ConnectError> {
    let connection = client::connect(address, &way.host, &way.tls, |endpoint| {
        endpoint
            .connect_timeout(PATIENCE)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
    });
    connection.await
}

/// A parent's refusal, to be passed on to below; UNAVAILABLE if there was no answer.
pub fn relayed(parent: &Parent, status: Status) -> Status {
    match status.source() {
        None => Status::new(status.code(), status.message()),
        Some(_) => {
            let why = reason(&status);
            Status::unavailable(format!("its parent at {parent} does not answer ({why})"))
        }
    }
}

/// The reason of a failed request: an underlying failure, or the parent's message.
pub fn reason(status: &Status) -> String {
    status.source().map_or_else(|| status.message().to_owned(), root_cause)
}
