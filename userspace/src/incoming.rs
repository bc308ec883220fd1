//! Accepts connections to the control plane, by TLS if that is configured. Closes connections whose
//! client sends no request in time, and pauses when the process runs out of files.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustls::{CertificateError, Error as TlsError};
use switchml_control::signs::{Pulse, watch_host};
use switchml_userspace_core::control_plane::{PING_INTERVAL, PING_TIMEOUT};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::either::Either;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tracing::warn;

use crate::exposure;
use crate::guard::Guard;
use crate::hosts::Seat;
use crate::refusals::Reason;
use crate::standstill::{Allowed, Standstill};
use crate::throttle::Throttle;
use crate::tls::ServerTls;

/// Length in bytes of an HTTP/2 client's connection preface (RFC 9113, 3.4).
const PREFACE_LEN: usize = 24;
/// How long a client may take for the preface, and before it for the TLS handshake. A client sends
/// the preface with its first request; this leaves room for a few lost packets.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may read nothing while data waits for it.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to accept no connection after the kernel ran out of files or memory. Connections wait
/// in the kernel's queue meanwhile.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Limits in bytes and time for reading from a client that was refused: if its data stayed unread,
/// closing would reset the connection, and the client would not learn why.
const LAST_WORDS: u64 = 1 << 16;
const FAREWELL: Duration = Duration::from_secs(1);

/// The connections of a listener. It is closed when they are dropped.
pub fn incoming(
    listener: TcpListener,
    guard: Arc<Guard>,
) -> ReceiverStream<io::Result<Connection>> {
    let (sender, connections) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut complaints = Throttle::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let from = peer.ip().to_canonical();
                    let Some(seat) = seat(&guard, from) else { continue };
                    let (guard, sender) = (Arc::clone(&guard), sender.clone());
                    // Each handshake has its own task, so that none waits for another.
                    tokio::spawn(async move {
                        if let Ok(connection) = open(stream, seat, from, guard).await {
                            let _ = sender.send(Ok(connection)).await;
                        }
                    });
                }
                Err(error) if is_of_the_peer(&error) => {}
                Err(error) => {
                    if complaints.pass(Instant::now()).is_some() {
                        warn!(
                            "cannot accept connections: {error}; raise the limit of open files \
                             (ulimit -n)"
                        );
                    }
                    sleep(BACK_OFF).await;
                }
            }
        }
    });
    ReceiverStream::new(connections)
}

/// A seat for a connection from this host, if it does not have too many.
fn seat(guard: &Guard, from: IpAddr) -> Option<Seat> {
    let seat = guard.hosts.connect(from);
    let refused =
        |why| guard.refusals.refuse(Reason::TooManyConnections, from, "a connection", why);
    seat.map_err(refused).ok()
}

/// Makes a connection of a stream from `peer`.
async fn open(
    stream: TcpStream,
    seat: Seat,
    peer: IpAddr,
    guard: Arc<Guard>,
) -> io::Result<Connection> {
    stream.set_nodelay(true)?;
    // Rule 23.6: of a host that died, the kernel learns in time.
    watch_host(&stream, PING_INTERVAL, PING_TIMEOUT)?;
    let addresses = stream.connect_info();
    // The daemon has checked the addresses that existed when it started.
    let local = stream.local_addr()?.ip().to_canonical();
    if guard.is_open() && !exposure::is_private(local) {
        let why =
            format!("without TLS or job tokens, the public address {local} accepts no connections");
        guard.refusals.refuse(Reason::PublicAddress, peer, "a connection", why);
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let stream = match &guard.tls {
        None => Either::Left(stream),
        Some(tls) => Either::Right(Box::new(secure(stream, tls, peer, &guard).await?)),
    };
    let (pulse, allowed) = <(Pulse, Allowed)>::default();
    Ok(Connection {
        stream,
        guard,
        answers_pings: false,
        is_lost: false,
        _seat: seat,
        addresses,
        standstill: Standstill::new(pulse.clone(), allowed.clone()),
        pulse,
        allowed,
        ends: Arc::default(),
        missing: Some((PREFACE_LEN, Box::pin(sleep(PREFACE_TIMEOUT)))),
        unread: None,
    })
}

/// Goes through the handshake of TLS, or refuses the client.
async fn secure(
    stream: TcpStream,
    tls: &ServerTls,
    peer: IpAddr,
    guard: &Guard,
) -> io::Result<TlsStream<TcpStream>> {
    let handshake = TlsAcceptor::from(tls.config()).accept(stream).into_fallible();
    let Ok(done) = timeout(PREFACE_TIMEOUT, handshake).await else {
        guard.refusals.count(Reason::Handshake);
        return Err(io::ErrorKind::TimedOut.into());
    };
    match done {
        Ok(stream) => Ok(stream),
        Err((error, mut stream)) => {
            let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>());
            match cause.map(judge) {
                Some((reason, why)) => {
                    guard.refusals.refuse(reason, peer, "a connection", why);
                }
                // The connection was closed, as by a port scan or a probe.
                None => guard.refusals.count(Reason::Handshake),
            }
            let farewell = async {
                stream.shutdown().await?;
                tokio::io::copy(&mut stream.take(LAST_WORDS), &mut tokio::io::sink()).await
            };
            let _ = timeout(FAREWELL, farewell).await;
            Err(error)
        }
    }
}

/// The reason of a failed handshake, in words.
fn judge(error: &TlsError) -> (Reason, String) {
    match error {
        TlsError::InvalidMessage(_) => (Reason::NoTls, "it does not use TLS".to_owned()),
        TlsError::NoCertificatesPresented => {
            (Reason::NoClientCertificate, "it has no client certificate".to_owned())
        }
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer) => (
            Reason::WrongClientCertificate,
            "its client certificate is not signed by a CA of --tls-client-ca".to_owned(),
        ),
        TlsError::InvalidCertificate(CertificateError::Revoked) => (
            Reason::WrongClientCertificate,
            "its client certificate was revoked, says --tls-client-crl".to_owned(),
        ),
        TlsError::InvalidCertificate(CertificateError::UnknownRevocationStatus) => (
            Reason::WrongClientCertificate,
            "--tls-client-crl has no list of the CA that has signed its client certificate"
                .to_owned(),
        ),
        TlsError::InvalidCertificate(why) => {
            (Reason::WrongClientCertificate, format!("its client certificate is not valid: {why}"))
        }
        TlsError::AlertReceived(alert) => {
            (Reason::Handshake, format!("it does not accept this certificate ({alert:?})"))
        }
        error => (Reason::Handshake, format!("TLS failed: {error}")),
    }
}

/// Whether a connection broke because its host acknowledges nothing.
fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable)
}

/// Whether the connection broke before it was accepted.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The connection of a request, as the request sees it.
#[derive(Clone)]
pub struct Peer {
    /// The addresses of both ends.
    pub addresses: TcpConnectInfo,
    /// The connection's signs of life.
    pub pulse: Pulse,
    /// How long there may be none.
    pub allowed: Allowed,
    /// Whether the connection should be closed.
    ends: Arc<AtomicBool>,
}

impl Peer {
    /// The address of the client, if this is a TCP connection.
    pub fn ip(&self) -> Option<IpAddr> {
        self.addresses.remote_addr().map(|peer| peer.ip().to_canonical())
    }

    /// Closes the connection at the next read. Returns whether that is new.
    pub fn hang_up(&self) -> bool {
        !self.ends.swap(true, Ordering::Relaxed)
    }
}

/// A connection that breaks unless the client's preface comes in time, and when the client stops
/// reading.
pub struct Connection {
    stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    guard: Arc<Guard>,
    _seat: Seat,
    addresses: TcpConnectInfo,
    pulse: Pulse,
    allowed: Allowed,
    standstill: Standstill,
    ends: Arc<AtomicBool>,
    /// Bytes of the preface that are missing, and the deadline for them.
    missing: Option<(usize, Pin<Box<Sleep>>)>,
    /// The deadline for the client to read something, while it reads nothing. HTTP/1 has no pings,
    /// so only this ends a connection whose client sends requests and does not read.
    unread: Option<Pin<Box<Sleep>>>,
    /// Whether the connection uses HTTP/2, which has pings.
    answers_pings: bool,
    /// Whether the kernel broke the connection, because its client's host acknowledges nothing or
    /// its client reads nothing.
    is_lost: bool,
}

impl Drop for Connection {
    /// Counts connections that end because the client fell silent.
    fn drop(&mut self) {
        let is_silent = match &self.missing {
            Some((_, deadline)) => deadline.is_elapsed(),
            None => self.answers_pings && self.pulse.silence() >= PING_TIMEOUT,
        };
        let is_unread = self.unread.as_ref().is_some_and(|deadline| deadline.is_elapsed());
        let is_counted = self.ends.load(Ordering::Relaxed);
        if (is_silent || is_unread || self.is_lost) && !is_counted {
            self.guard.refusals.count(Reason::Silent);
        }
    }
}

impl Connection {
    /// The result of a write, or an error if the client has read nothing for too long.
    fn unless_unread<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(written) = written {
            self.is_lost |= written.as_ref().is_err_and(is_silence);
            self.unread = None;
            return Poll::Ready(written);
        }
        let deadline = self.unread.get_or_insert_with(|| Box::pin(sleep(UNREAD_TIMEOUT)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ends.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        // What the kernel finds out about a host that is gone is no sign of it.
        match &read {
            Poll::Ready(Err(error)) if is_silence(error) => self.is_lost = true,
            Poll::Ready(_) => self.pulse.beat(),
            Poll::Pending => {}
        }
        let this = &mut *self;
        // Only HTTP/2 has pings, which are to be answered.
        if read.is_pending() && this.answers_pings && this.standstill.is_over(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let Some((missing, deadline)) = &mut this.missing else { return read };
        if read.is_pending() {
            ready!(deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let came = &buffer.filled()[before..];
        this.answers_pings |= *missing == PREFACE_LEN && came.starts_with(b"PRI");
        *missing = missing.saturating_sub(came.len());
        if *missing == 0 {
            this.missing = None;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.unless_unread(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.unless_unread(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.unless_unread(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let Self { addresses, pulse, allowed, ends, .. } = self;
        let (pulse, allowed) = (pulse.clone(), allowed.clone());
        Peer { addresses: addresses.clone(), pulse, allowed, ends: Arc::clone(ends) }
    }
}
