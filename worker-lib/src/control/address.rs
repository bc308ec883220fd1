//! Where the aggregator is.

use std::net::SocketAddr;

use switchml_control::AddressError;
use switchml_protocol::CONTROL_PORT;

use super::Error;

/// Socket addresses of an aggregator's control plane, given as `host`, `host:port`, an IP address,
/// or one with a port (IPv6 in brackets). The port is [`CONTROL_PORT`] unless given. Asks the
/// system's resolver, and blocks as long as that does.
///
/// # Errors
///
/// [`Error::Address`] when it is none of these, [`Error::UnknownHost`] when the name has no
/// address.
pub fn resolve(given: &str) -> Result<Vec<SocketAddr>, Error> {
    switchml_control::resolve(given, CONTROL_PORT).map_err(|error| match error {
        AddressError::Wrong { given, why } => Error::Address { given, why },
        AddressError::UnknownHost { host, why } => Error::UnknownHost { host, why },
    })
}
