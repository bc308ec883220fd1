//! The aggregator's address, and how to reach it.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use switchml_control::AddressError;
use switchml_control::tls::ClientTls;
use switchml_protocol::CONTROL_PORT;

use super::Error;
use crate::interface::Interface;

/// Where an aggregator is, and how it is verified. Conversion from text gives an address without
/// TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The aggregator's address, see [`resolve`].
    pub address: String,
    /// Settings of TLS.
    pub tls: ClientTls,
    /// The token that lets ranks join, where the aggregator asks for one.
    pub token: Option<Token>,
    /// How much it takes of calls, in proportion to the job's other aggregators; 0 has the ranks
    /// compute that.
    pub weight: u32,
    /// The rank whose process it is in, if ranks bring their own.
    pub peer: Option<u16>,
}

/// A job token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// The token itself.
    Text(String),
    /// A file that it is in, which is read when a rank joins.
    File(PathBuf),
}

impl Access {
    /// The aggregators that this stands for: one at each address of a name that has several of
    /// IPv4, such as that of a headless service of Kubernetes. With TLS, certificates name one host
    /// each; and a weight is one aggregator's.
    pub fn each(self) -> Vec<Self> {
        if self.tls != ClientTls::default() || self.weight > 0 {
            return vec![self];
        }
        // Whoever joins reports what is wrong with it.
        let found = resolve(&self.address).unwrap_or_default();
        let several: Vec<_> = found.into_iter().filter(SocketAddr::is_ipv4).collect();
        // Some systems resolve a host's own name to the addresses of all its interfaces.
        let is_own_name = several.iter().all(|address| Interface::has(address.ip()));
        if several.len() < 2 || is_own_name {
            return vec![self];
        }
        let at = |address: SocketAddr| Self { address: address.to_string(), ..self.clone() };
        several.into_iter().map(at).collect()
    }

    /// The job token; empty without one.
    pub(super) fn token(&self) -> Result<String, Error> {
        match &self.token {
            None => Ok(String::new()),
            Some(Token::Text(token)) => Ok(token.trim().to_owned()),
            Some(Token::File(file)) => match fs::read_to_string(file) {
                Ok(token) => Ok(token.trim().to_owned()),
                Err(error) => Err(Error::TokenFile { file: file.clone(), why: error.to_string() }),
            },
        }
    }
}

impl<T: AsRef<str> + ?Sized> From<&T> for Access {
    fn from(address: &T) -> Self {
        Self { address: address.as_ref().to_owned(), ..Self::default() }
    }
}

/// Socket addresses of an aggregator's control plane, given as `host`, `host:port`, an IP address,
/// or an IP address with a port (IPv6 in brackets). The port is [`CONTROL_PORT`] unless given. Asks
/// the system's resolver, and blocks as long as the resolver does.
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
