//! The options of this host's service, by which commands find it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use switchml_protocol::CONTROL_PORT;

/// Where the packages' service has its options.
pub const FILE: &str = "/etc/switchml/aggregator.toml";

/// How the service of a host is reached on that host.
#[derive(Debug, PartialEq, Eq)]
pub struct Service {
    /// Its control plane.
    pub control: SocketAddr,
    /// File with its certificate, if its control plane uses TLS.
    pub certificate: Option<PathBuf>,
}

impl Service {
    /// The service with the options in [`FILE`]. Without that file it is a daemon with the default
    /// address.
    ///
    /// # Errors
    ///
    /// Why the file cannot be used.
    pub fn of_this_host() -> anyhow::Result<Self> {
        if !Path::new(FILE).exists() {
            let control = SocketAddr::from((Ipv4Addr::LOCALHOST, CONTROL_PORT));
            return Ok(Self { control, certificate: None });
        }
        let arguments = ["switchml-aggregator", "--config", FILE];
        let (cli, _) = super::parse_from(arguments).map_err(|error| {
            let why = switchml_cli::one_line(&error);
            anyhow!("{why}; mend the file, or say with --connect where the aggregator is")
        })?;
        let control = reached_at(cli.options.control);
        Ok(Self { control, certificate: cli.options.security.tls_cert })
    }
}

/// The address at which a host reaches its own listener.
fn reached_at(listener: SocketAddr) -> SocketAddr {
    match listener.ip().is_unspecified() {
        // [::] takes IPv4, too, which more hosts have.
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), listener.port()),
        false => listener,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_at_all_addresses_is_reached_by_loopback() {
        for (listener, at) in [
            ("[::]:48865", "127.0.0.1:48865"),
            ("0.0.0.0:1234", "127.0.0.1:1234"),
            ("10.0.0.254:48865", "10.0.0.254:48865"),
            ("[fd00::1]:48865", "[fd00::1]:48865"),
        ] {
            let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
            assert_eq!(reached_at(address(listener)), address(at));
        }
    }
}
