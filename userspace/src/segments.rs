//! TCP's segments on ways whose MTU nobody knows.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Socket, Type};

/// Bytes of a TCP segment that every network for IPv6 carries: the least MTU of 1280 minus the
/// headers.
const SAFE: u32 = 1220;
/// Connections that may wait to be accepted.
pub const BACKLOG: i32 = 1024;

/// Has both ends of all connections to this socket, which is to listen, send segments that arrive
/// everywhere. If a switch on the way has a smaller MTU than the hosts, and its ICMP messages do
/// not come through, larger ones would get lost. Small ones cost little: messages are few and
/// short.
///
/// # Errors
/// Those of the system.
pub fn bound(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_mss(SAFE)
}

/// Listens at a TCP address, with segments that are [bound](bound).
///
/// # Errors
/// Those of the system.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    bound(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    /// The headers of IPv4 and TCP without options take 40 bytes, and loopback carries 65,536.
    #[test]
    fn both_ends_send_small_segments() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        here.write_all(b"a").unwrap();
        there.read_exact(&mut [0]).unwrap();
        for end in [here, there] {
            let segment = Socket::from(end).tcp_mss().unwrap();
            assert!((500..=SAFE).contains(&segment), "{segment}");
        }
    }
}
