//! Connections to an aggregator, by TLS or without.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::signs::{Pulse, watch_host};
use crate::tls::{ClientTls, TlsError};

/// The first byte of an alert of TLS (RFC 8446, 5.1). HTTP/2 begins with the length of a short
/// frame instead.
const TLS_ALERT: u8 = 21;

/// After such a silence the server's host is asked whether it is there, and without any answer for
/// so long the connection breaks.
const HOST_SILENCE: Duration = Duration::from_secs(5);
const HOST_PATIENCE: Duration = Duration::from_secs(10);

/// A connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The channel that requests are sent over.
    pub channel: Channel,
    /// When the server last said something.
    pub pulse: Pulse,
    fault: Fault,
}

impl Connection {
    /// Why requests fail, if it is for TLS: a server judges a client's certificate only after the
    /// client takes the connection for open.
    pub fn fault(&self) -> Option<&TlsError> {
        self.fault.get()
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ConnectError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Unreachable(String),
}

type Fault = Arc<OnceLock<TlsError>>;

/// Connects to an address that `host` was resolved to, with the timeouts that `configure` sets.
pub async fn connect(
    address: SocketAddr,
    host: &str,
    tls: &ClientTls,
    configure: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<Connection, ConnectError> {
    let connector = tls.config()?.map(TlsConnector::from);
    // A server that a fingerprint identifies needs no name.
    let name = if tls.ca.is_some() { host } else { "" };
    let name = match name {
        "" => ServerName::from(address.ip()),
        name => ServerName::try_from(name.to_owned())
            .map_err(|_| TlsError::Other(format!("no certificate can be for {name:?}")))?,
    };
    let fault = Fault::default();
    let pulse = Pulse::default();
    let settings = (tls.clone(), host.to_owned(), Arc::clone(&fault), pulse.clone());
    let open = service_fn(move |_| {
        let (connector, name, settings) = (connector.clone(), name.clone(), settings.clone());
        async move { open(address, connector, name, settings).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|error| ConnectError::Unreachable(root_cause(&error)))?;
    match configure(endpoint).connect_with_connector(open).await {
        Ok(channel) => Ok(Connection { channel, pulse, fault }),
        Err(error) => Err(match fault.get() {
            Some(fault) => fault.clone().into(),
            None => ConnectError::Unreachable(root_cause(&error)),
        }),
    }
}

async fn open(
    address: SocketAddr,
    connector: Option<TlsConnector>,
    name: ServerName<'static>,
    (tls, host, fault, pulse): (ClientTls, String, Fault, Pulse),
) -> io::Result<Watched> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    watch_host(&stream, HOST_SILENCE, HOST_PATIENCE)?;
    let stream = match connector {
        None => Either::Left(stream),
        Some(connector) => match connector.connect(name, stream).await {
            Ok(stream) => Either::Right(Box::new(stream)),
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::UnexpectedEof => {
                        Some(TlsError::Other("it closed the connection".to_owned()))
                    }
                    _ => tls.explain(&error, &host),
                };
                why.map(|why| fault.set(why));
                return Err(error);
            }
        },
    };
    Ok(Watched { stream, tls, host, fault, pulse, has_heard: false })
}

/// A stream that notes why the server refuses it.
struct Watched {
    stream: Either<TcpStream, Box<tokio_rustls::client::TlsStream<TcpStream>>>,
    tls: ClientTls,
    host: String,
    fault: Fault,
    pulse: Pulse,
    /// Whether any bytes arrived.
    has_heard: bool,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.pulse.beat();
        }
        match &read {
            Poll::Ready(Err(error)) => {
                self.tls.explain(error, &self.host).map(|why| self.fault.set(why));
            }
            Poll::Ready(Ok(())) if !self.has_heard => {
                self.has_heard = true;
                let is_plain = matches!(self.stream, Either::Left(_));
                if is_plain && buffer.filled().get(before) == Some(&TLS_ALERT) {
                    let _ = self.fault.set(TlsError::Required);
                }
            }
            _ => {}
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The innermost error: the outer ones only say "transport error".
pub fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
