//! Sockets that hear both kinds of IP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};
use tracing::warn;

/// A socket to be bound to this address, and the address. With `[::]` it receives IPv4, too,
/// whatever the system's default is; if the kernel has no IPv6, the address becomes `0.0.0.0`.
pub fn socket(address: SocketAddr, kind: Type) -> io::Result<(Socket, SocketAddr)> {
    match Socket::new(Domain::for_address(address), kind, None) {
        Ok(socket) => {
            if address.is_ipv6() {
                socket.set_only_v6(!address.ip().is_unspecified())?;
            }
            Ok((socket, address))
        }
        Err(error) if is_missing(&error) && is_any_v6(address.ip()) => {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            Ok((Socket::new(Domain::IPV4, kind, None)?, any))
        }
        Err(error) => Err(error),
    }
}

/// Binds the socket to the address. If this host does not have the address yet, as at boot, the
/// socket works as soon as it does.
pub fn bind(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    match socket.bind(&address.into()) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
        bound => return bound,
    }
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    socket.bind(&address.into())?;
    warn!("waiting for address {}, which this host does not have yet", address.ip());
    Ok(())
}

/// Whether the kernel does not know this kind of address.
fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

fn is_any_v6(address: IpAddr) -> bool {
    address.is_ipv6() && address.is_unspecified()
}

/// An address in the form for an IPv6 or an IPv4 socket: IPv6 sockets map IPv4 addresses (RFC
/// 4291).
pub fn as_seen_by(is_v6: bool, address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if is_v6 => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        other => other,
    }
}
