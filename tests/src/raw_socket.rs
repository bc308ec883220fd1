//! Frames as they are on the wire: packet sockets (packet(7)).
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

use crate::Namespace;

/// Every protocol, and frames that the host sends itself too.
pub const ALL: u16 = libc::ETH_P_ALL as u16;
/// IPv4 that comes in.
pub const IPV4: u16 = libc::ETH_P_IP as u16;
/// IPv6 that comes in.
pub const IPV6: u16 = libc::ETH_P_IPV6 as u16;

/// A packet socket on an interface of a namespace.
pub struct RawSocket(File);

impl RawSocket {
    /// A socket on `eth0` that receives frames of this EtherType.
    pub fn open(namespace: &Namespace, protocol: u16) -> Self {
        Self::open_on(namespace, "eth0", protocol)
    }

    /// A socket on another interface.
    pub fn open_on(namespace: &Namespace, interface: &'static str, protocol: u16) -> Self {
        Self(namespace.run(move || open(interface, protocol)).expect("a packet socket"))
    }

    /// Sends a frame as it is.
    pub fn send(&self, frame: &[u8]) {
        loop {
            match (&self.0).write(frame) {
                Ok(_) => return,
                // The device's queue is full.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    std::thread::yield_now()
                }
                Err(error) => panic!("a frame of {} bytes: {error}", frame.len()),
            }
        }
    }

    /// The next frame; `None` after 50 ms without one.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let len = loop {
            match (&self.0).read(buffer) {
                Ok(len) => break len,
                // A read with a timeout is not restarted after a signal.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return None;
                }
                Err(error) => panic!("{error}"),
            }
        };
        Some(&buffer[..len])
    }
}

fn open(interface: &str, protocol: u16) -> io::Result<File> {
    let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))?;
    let index: i32 = index.trim().parse().map_err(io::Error::other)?;
    // SAFETY: no pointer is passed.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened the descriptor for us.
    let socket = unsafe { File::from_raw_fd(fd) };
    // SAFETY: all zeros are a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is one of that length, and outlives the call.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let timeout = Duration::from_millis(50);
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(timeout),
    )?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20)?;
    Ok(socket)
}
