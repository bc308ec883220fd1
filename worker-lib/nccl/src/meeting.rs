//! How two ends find each other: a port, and a handle with its address and a secret that keeps
//! other programs out.

use crate::abi::{HANDLE_BYTES, INVALID_ARGUMENT, REMOTE_ERROR, SYSTEM_ERROR};
use crate::log::Failure;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

const SECRET_BYTES: usize = 16;
/// Most callers that have yet to show the secret. Beyond that the oldest ones are dropped: a rank
/// shows it at once.
const CALLERS: usize = 64;
/// A peer counts as dead after this long without a sign of life.
const SILENCE: Duration = Duration::from_secs(20);

type Secret = [u8; SECRET_BYTES];

/// Connections in progress, by secret. NCCL calls again with only the handle; a pointer in the
/// handle could be chosen by a peer.
static ON_THEIR_WAY: LazyLock<Mutex<HashMap<Secret, Socket>>> = LazyLock::new(Mutex::default);

/// The contents of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    address: SocketAddr,
    secret: Secret,
}

impl Handle {
    /// Bytes 0..16 address, 16 whether it is IPv4, 17..19 port, 19..35 secret.
    pub fn write(&self, bytes: &mut [u8; HANDLE_BYTES]) {
        bytes.fill(0);
        let (octets, is_v4) = match self.address.ip() {
            IpAddr::V4(address) => (address.to_ipv6_mapped().octets(), 1),
            IpAddr::V6(address) => (address.octets(), 0),
        };
        bytes[..16].copy_from_slice(&octets);
        bytes[16] = is_v4;
        bytes[17..19].copy_from_slice(&self.address.port().to_be_bytes());
        bytes[19..35].copy_from_slice(&self.secret);
    }

    pub fn read(bytes: &[u8; HANDLE_BYTES]) -> Result<Self, Failure> {
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[..16]);
        let v6 = Ipv6Addr::from(octets);
        let ip = match bytes[16] {
            0 => IpAddr::V6(v6),
            _ => IpAddr::V4(v6.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED)),
        };
        let port = u16::from_be_bytes([bytes[17], bytes[18]]);
        if port == 0 || ip.is_unspecified() {
            return Err(Failure::new(INVALID_ARGUMENT, "a handle that this plugin has not made"));
        }
        let mut secret = [0; SECRET_BYTES];
        secret.copy_from_slice(&bytes[19..35]);
        Ok(Self { address: SocketAddr::new(ip, port), secret })
    }
}

/// An open port.
pub struct Port {
    listener: TcpListener,
    secret: Secret,
    callers: Vec<Caller>,
}

/// A caller that has not shown the whole secret yet.
struct Caller {
    stream: TcpStream,
    shown: Vec<u8>,
}

impl Port {
    pub fn open(address: IpAddr) -> Result<(Self, Handle), Failure> {
        let opened = || -> io::Result<_> {
            let listener = TcpListener::bind((address, 0))?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = opened().map_err(|error| {
            Failure::new(SYSTEM_ERROR, format!("cannot listen at {address}: {error}"))
        })?;
        let secret = rand::random();
        Ok((Self { listener, secret, callers: Vec::new() }, Handle { address, secret }))
    }

    /// The connection of the caller that knows the secret, once there is one.
    pub fn accept(&mut self) -> Result<Option<TcpStream>, Failure> {
        let failed = |error: io::Error| {
            Failure::new(SYSTEM_ERROR, format!("cannot take a connection: {error}"))
        };
        for _ in 0..CALLERS {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    prepare(&SockRef::from(&stream)).map_err(failed)?;
                    self.callers.push(Caller { stream, shown: Vec::new() });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if is_callers_fault(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let mut known = None;
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.shows(&self.secret) {
                None => self.callers.push(caller),
                Some(true) if known.is_none() => known = Some(caller.stream),
                Some(_) => {}
            }
        }
        let excess = self.callers.len().saturating_sub(CALLERS);
        self.callers.drain(..excess);
        Ok(known)
    }
}

fn is_callers_fault(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted)
}

impl Caller {
    /// Whether the caller is the expected one; `None` until that is known.
    fn shows(&mut self, secret: &Secret) -> Option<bool> {
        let mut rest = [0; SECRET_BYTES];
        let rest = &mut rest[self.shown.len()..];
        match self.stream.read(rest) {
            Ok(0) => return Some(false),
            Ok(read) => self.shown.extend_from_slice(&rest[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(_) => return Some(false),
        }
        (self.shown.len() == SECRET_BYTES).then(|| self.shown == secret)
    }
}

/// Continues to connect to a handle; `None` until it is connected.
pub fn connect(handle: &Handle) -> Result<Option<TcpStream>, Failure> {
    let failed = |error: io::Error| {
        let code = if error.kind() == ErrorKind::OutOfMemory { SYSTEM_ERROR } else { REMOTE_ERROR };
        Failure::new(code, format!("cannot connect to {}: {error}", handle.address))
    };
    let mut on_their_way = ON_THEIR_WAY.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = match on_their_way.remove(&handle.secret) {
        Some(socket) => socket,
        None => call(handle.address).map_err(failed)?,
    };
    if let Some(error) = socket.take_error().map_err(failed)? {
        return Err(failed(error));
    }
    if let Err(error) = socket.peer_addr() {
        if error.kind() != ErrorKind::NotConnected {
            return Err(failed(error));
        }
        on_their_way.insert(handle.secret, socket);
        return Ok(None);
    }
    let mut stream = TcpStream::from(socket);
    // A new connection always has room for its first bytes.
    stream.write_all(&handle.secret).map_err(failed)?;
    Ok(Some(stream))
}

fn call(address: SocketAddr) -> io::Result<Socket> {
    const IN_PROGRESS: i32 = 115;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    prepare(&socket)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(IN_PROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(SILENCE))?;
    let often = Duration::from_secs(5);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(often).with_interval(often))
}

#[cfg(test)]
mod tests {
    use super::Handle;
    use crate::abi::HANDLE_BYTES;

    #[test]
    fn a_handle_reads_as_it_was_written() {
        for address in ["10.1.2.3:4711", "[fd00::7]:1"] {
            let handle = Handle { address: address.parse().unwrap(), secret: [7; 16] };
            let mut bytes = [0xff; HANDLE_BYTES];
            handle.write(&mut bytes);
            assert_eq!(Handle::read(&bytes).ok(), Some(handle));
        }
        assert!(Handle::read(&[0; HANDLE_BYTES]).is_err());
    }
}
