//! Accepts connections to the control plane. Closes those that do not speak HTTP/2 at once, and
//! pauses when the process runs out of files.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tracing::warn;

use crate::throttle::Throttle;

/// What a client of HTTP/2 says first (RFC 9113, 3.4), in bytes.
const PREFACE_LEN: usize = 24;
/// How long a client may take for that. It says it together with its first request; this leaves
/// room for a few lost packets.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to let nobody in when the kernel has no more files or memory for it. Connections wait
/// in its queue meanwhile.
const BACK_OFF: Duration = Duration::from_millis(100);

/// The connections of a listener. It is closed when they are dropped.
pub fn incoming(listener: TcpListener) -> ReceiverStream<io::Result<Connection>> {
    let (sender, connections) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut complaints = Throttle::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let Ok(connection) = Connection::new(stream) else { continue };
                    if sender.send(Ok(connection)).await.is_err() {
                        return;
                    }
                }
                Err(error) if is_of_the_peer(&error) => {}
                Err(error) => {
                    if complaints.pass(Instant::now()).is_some() {
                        warn!(
                            "cannot let anybody join: {error}; raise the limit of open files \
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

/// Whether the connection broke before it was accepted.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// What requests know of the connection that they came by.
#[derive(Clone)]
pub struct Peer {
    /// Both ends.
    pub addresses: TcpConnectInfo,
    /// Its signs of life.
    pub pulse: Pulse,
}

/// When a connection last gave a sign of life: anything that was read from it, its end included. So
/// one that ends because nothing came is told from one that was closed.
#[derive(Clone)]
pub struct Pulse(Arc<Mutex<Instant>>);

impl Default for Pulse {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Pulse {
    fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long ago that was.
    pub fn silence(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// A connection that breaks unless the client's preface comes in time.
pub struct Connection {
    stream: TcpStream,
    pulse: Pulse,
    /// Bytes of the preface that are missing, and until when they may.
    missing: Option<(usize, Pin<Box<Sleep>>)>,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            pulse: Pulse::default(),
            missing: Some((PREFACE_LEN, Box::pin(sleep(PREFACE_TIMEOUT)))),
        })
    }
}

impl AsyncRead for Connection {
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
        let Some((missing, deadline)) = &mut self.missing else { return read };
        if read.is_pending() {
            ready!(deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        *missing = missing.saturating_sub(buffer.filled().len() - before);
        if *missing == 0 {
            self.missing = None;
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
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer { addresses: self.stream.connect_info(), pulse: self.pulse.clone() }
    }
}
