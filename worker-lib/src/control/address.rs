//! Where the aggregator is.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

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
    if let Ok(address) = given.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    if let Ok(ip) = given.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, CONTROL_PORT)]);
    }
    let wrong = |why: String| Error::Address { given: given.to_owned(), why };
    let (host, port) = match given.split_once(':') {
        None => (given, CONTROL_PORT),
        Some((host, port)) => match port.parse() {
            Ok(port) if port > 0 => (host, port),
            _ => return Err(wrong(format!("{port:?} is no port, 1 to 65535 are"))),
        },
    };
    if host.is_empty() {
        return Err(wrong("there is no host in it".to_owned()));
    }
    let unknown = |why: String| Error::UnknownHost { host: host.to_owned(), why };
    let found = (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    let mut found: Vec<SocketAddr> = found.collect();
    // The data plane is IPv4; where a name has both, the control plane is most likely reached by
    // the same.
    found.sort_by_key(SocketAddr::is_ipv6);
    found.dedup();
    if found.is_empty() { Err(unknown("the name has no address".to_owned())) } else { Ok(found) }
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
            ("localhost", "127.0.0.1:48865"),
            ("localhost:7", "127.0.0.1:7"),
        ] {
            assert_eq!(resolve(given).unwrap()[0].to_string(), expected, "{given}");
        }
    }

    #[test]
    fn refused() {
        for given in ["", ":1", "localhost:", "localhost:0", "localhost:65536", "localhost:x"] {
            assert!(matches!(resolve(given), Err(Error::Address { .. })), "{given}");
        }
        for given in ["no.such.host.invalid", "a b"] {
            assert!(matches!(resolve(given), Err(Error::UnknownHost { .. })), "{given}");
        }
    }
}
