//! Sockets that hear both kinds of IP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};
use tracing::warn;

/// A socket to be bound to this address, and the address. By `[::]` it hears IPv4 too, whatever the
/// system's default is; where the kernel has no IPv6, that becomes `0.0.0.0`.
///
/// # Errors
///
/// When the system refuses the socket.
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

/// Binds it to the address. One that this host does not have yet, as at boot, is heard as soon as
/// it has it.
///
/// # Errors
///
/// When the system refuses.
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

/// Whether the kernel knows no such kind of address.
fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

fn is_any_v6(address: IpAddr) -> bool {
    address.is_ipv6() && address.is_unspecified()
}

/// An address as a socket of IPv6 or of IPv4 takes it: the former maps IPv4 (RFC 4291).
pub fn as_seen_by(is_v6: bool, address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if is_v6 => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        other => other,
    }
}
