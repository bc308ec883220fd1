//! The address of an aggregator.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Why an aggregator cannot be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum AddressError {
    #[error(
        "aggregator address {given:?}: {why}; give host, host:port, an IP address or [IPv6]:port"
    )]
    Wrong { given: String, why: String },
    #[error(
        "aggregator {host:?}: {why}; give the name or the IP address of the host where \
         switchml-aggregator runs"
    )]
    UnknownHost { host: String, why: String },
}

/// A link-local address does not name the interface to use, and values go to it, too.
const LINK_LOCAL: &str = "link-local addresses are not supported";

/// Socket addresses of an aggregator's control plane, given as `host`, `host:port`, an IP address,
/// or an IP address with a port (IPv6 in brackets). The port is `default_port` unless given. Asks
/// the system's resolver, and blocks until it answers.
///
/// # Errors
///
/// [`AddressError::Wrong`] when the text is none of these, [`AddressError::UnknownHost`] when the
/// name has no address.
pub fn resolve(given: &str, default_port: u16) -> Result<Vec<SocketAddr>, AddressError> {
    let wrong = |why: String| AddressError::Wrong { given: given.to_owned(), why };
    if let Some(address) = parse(given, default_port) {
        return match address {
            _ if address.port() == 0 => Err(wrong(no_port("0"))),
            _ if is_link_local(&address) => Err(wrong(LINK_LOCAL.to_owned())),
            _ => Ok(vec![canonical(address)]),
        };
    }
    if given.matches(':').count() > 1 {
        // With a zone it can be no other.
        let why = if given.contains('%') { LINK_LOCAL } else { "it is not an IPv6 address" };
        return Err(wrong(why.to_owned()));
    }
    let (host, port) = match given.split_once(':') {
        None => (given, default_port),
        Some((host, port)) => match port.parse() {
            Ok(port) if port > 0 => (host, port),
            _ => return Err(wrong(no_port(port))),
        },
    };
    if host.is_empty() {
        return Err(wrong("it has no host".to_owned()));
    }
    let unknown = |why: String| AddressError::UnknownHost { host: host.to_owned(), why };
    let found = (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    let found = found.filter(|address| !is_link_local(address));
    let mut found: Vec<SocketAddr> = found.map(canonical).collect();
    // All ranks of a job must choose the same kind of IP, and only IPv4 has multicast.
    found.sort_by_key(SocketAddr::is_ipv6);
    found.dedup();
    if found.is_empty() { Err(unknown("the name has no address".to_owned())) } else { Ok(found) }
}

fn no_port(port: &str) -> String {
    format!("{port:?} is not a port from 1 to 65535")
}

/// An address of IPv4 inside one of IPv6 is one of IPv4: packets go there by IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The host in such an address: a name, or an IP address without brackets.
pub fn host(given: &str) -> String {
    match parse(given, 0) {
        Some(address) => address.ip().to_string(),
        None => given.split(':').next().unwrap_or_default().to_owned(),
    }
}

/// An IP address, maybe with a port.
fn parse(given: &str, default_port: u16) -> Option<SocketAddr> {
    let bare = given.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(given);
    let ip = || bare.parse().map(|ip: IpAddr| SocketAddr::new(ip, default_port));
    given.parse().or_else(|_| ip()).ok()
}

fn is_link_local(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(address) if address.ip().is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_hosts() {
        for (given, expected) in [
            ("10.0.0.1", "10.0.0.1:48865"),
            ("10.0.0.1:7", "10.0.0.1:7"),
            ("::1", "[::1]:48865"),
            ("[::1]", "[::1]:48865"),
            ("[::1]:7", "[::1]:7"),
            ("fd00::1", "[fd00::1]:48865"),
            ("::ffff:10.0.0.1", "10.0.0.1:48865"),
            ("[::ffff:10.0.0.1]:7", "10.0.0.1:7"),
            ("localhost", "127.0.0.1:48865"),
            ("localhost:7", "127.0.0.1:7"),
        ] {
            assert_eq!(resolve(given, 48865).unwrap()[0].to_string(), expected, "{given}");
        }
    }

    #[test]
    fn the_host_alone() {
        for (given, expected) in [
            ("10.0.0.1:7", "10.0.0.1"),
            ("[fd00::1]:7", "fd00::1"),
            ("fd00::1", "fd00::1"),
            ("switch:7", "switch"),
            ("switch", "switch"),
        ] {
            assert_eq!(host(given), expected);
        }
    }

    #[test]
    fn refused() {
        for given in ["", ":1", "localhost:", "localhost:0", "localhost:65536", "localhost:x"]
            .into_iter()
            .chain(["10.0.0.1:0", "[fd00::1]:0", "fd00::g", "[fd00::1]:65536", "[fd00::1"])
        {
            assert!(matches!(resolve(given, 1), Err(AddressError::Wrong { .. })), "{given}");
        }
        for given in ["no.such.host.invalid", "a b"] {
            assert!(matches!(resolve(given, 1), Err(AddressError::UnknownHost { .. })), "{given}");
        }
        for given in ["fe80::1", "fe80::1%eth0", "[fe80::1%2]:48865", "[fe80::1%eth0]:48865"] {
            let expected = AddressError::Wrong { given: given.into(), why: LINK_LOCAL.into() };
            assert_eq!(resolve(given, 1), Err(expected));
        }
    }
}
