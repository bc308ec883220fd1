//! Where the aggregator is, and how it is reached.

use std::net::SocketAddr;

use switchml_control::AddressError;
use switchml_control::tls::ClientTls;
use switchml_protocol::CONTROL_PORT;

use super::Error;

/// Where an aggregator is, and what it is known by. Text is its address, without TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Its address, see [`resolve`].
    pub address: String,
    /// For connections by TLS.
    pub tls: ClientTls,
}

impl<T: AsRef<str> + ?Sized> From<&T> for Access {
    fn from(address: &T) -> Self {
        Self { address: address.as_ref().to_owned(), ..Self::default() }
    }
}

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
