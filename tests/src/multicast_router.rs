//! Multicast routes of a router, which only a program with a raw socket can add.
#![allow(unsafe_code)]

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// Constants of linux/mroute.h.
const MRT_INIT: libc::c_int = 200;
const MRT_ADD_VIF: libc::c_int = 202;
const MRT_ADD_MFC: libc::c_int = 204;
const VIFF_USE_IFINDEX: u8 = 8;
const MAXVIFS: usize = 32;

/// The number of jobs, from the first on, whose groups are forwarded.
const JOBS: u8 = 32;

/// `struct vifctl`
#[repr(C)]
struct Vif {
    number: u16,
    flags: u8,
    threshold: u8,
    rate_limit: u32,
    ifindex: i32,
    remote: u32,
}

/// `struct mfcctl`
#[repr(C)]
struct Route {
    origin: [u8; 4],
    group: [u8; 4],
    parent: u16,
    thresholds: [u8; MAXVIFS],
    counters: [u32; 4],
}

/// Forwards packets of `source` to the groups of jobs, from the interface `from` to all of `to`, in
/// the calling thread's namespace, until the returned descriptor is closed.
pub fn forward(source: Ipv4Addr, from: &str, to: Vec<String>) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_IGMP) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened above, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    set(&socket, MRT_INIT, &1)?;
    let mut thresholds = [0; MAXVIFS];
    for (number, name) in [from].into_iter().chain(to.iter().map(String::as_str)).enumerate() {
        let ifindex = rustix::net::netdevice::name_to_index(&socket, name)? as i32;
        let flags = VIFF_USE_IFINDEX;
        let number = number as u16;
        set(
            &socket,
            MRT_ADD_VIF,
            &Vif { number, flags, threshold: 1, rate_limit: 0, ifindex, remote: 0 },
        )?;
        thresholds[usize::from(number)] = u8::from(number > 0);
    }
    for job in 0..JOBS {
        let group = [239, 255, 0, job];
        let origin = source.octets();
        let route = Route { origin, group, parent: 0, thresholds, counters: [0; 4] };
        set(&socket, MRT_ADD_MFC, &route)?;
    }
    Ok(socket)
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads a T, in the layout that it has for the option.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            option,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
