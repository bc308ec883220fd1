//! Addresses by which other ranks reach this host.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use switchml_host::interfaces::addresses;

use crate::control;
use crate::error::Error;
use crate::interface::unspecified;

/// The address of a host, given as `host`, `host:port` or an IP address.
///
/// # Errors
/// [`Error::Control`] if there is no such host.
pub fn resolve(given: &str) -> Result<SocketAddr, Error> {
    let found = control::resolve(given)?;
    // There is at least one address, or `resolve` had failed.
    Ok(found[0])
}

/// The address of this host from which packets to `target` come, which was given like this.
///
/// # Errors
/// [`Error::NoPeer`] if no way leads there.
pub fn own_address(given: &str, target: SocketAddr) -> Result<IpAddr, Error> {
    let find = || {
        let socket = UdpSocket::bind(unspecified(target))?;
        // Sends nothing: it only looks up the route.
        socket.connect(target)?;
        Ok(socket.local_addr()?.ip())
    };
    let found = find().map_err(|error: std::io::Error| Error::NoPeer {
        why: format!("no way to {}: {error}", target.ip()),
    })?;
    // On Debian a host's own name is 127.0.1.1 there, and something else for others.
    let is_own_name = found.is_loopback()
        && switchml_control::host(given) != "localhost"
        && switchml_control::host(given).parse::<IpAddr>().is_err();
    let outside = if is_own_name { address_for_others() } else { None };
    Ok(outside.unwrap_or(found))
}

/// An address of this host that is not loopback's.
pub fn address_for_others() -> Option<IpAddr> {
    let mut own = addresses().ok()?.into_iter().map(|address| address.ip);
    own.find(|address| address.is_ipv4() && !address.is_loopback())
}
