//! Warns of a path that works, but worse than it could.

use std::fmt;
use std::net::SocketAddr;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_worker_core::packet::{ip_packet_len, packet_len};

use crate::interface::Interface;

/// A path that carries less than both of its ends take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Narrow {
    /// The aggregator at the other end.
    pub aggregator: SocketAddr,
    /// Lanes of the largest packet that passes.
    pub lanes: u16,
    /// Bytes of each packet's tag; 0 without.
    pub tag_len: usize,
}

impl fmt::Display for Narrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { aggregator, lanes, tag_len } = self;
        let lanes = usize::from(*lanes);
        let [passes, vanishes] = [lanes, lanes + LANES_PER_BLOCK]
            .map(|lanes| ip_packet_len(packet_len(lanes) + tag_len, aggregator.is_ipv6()));
        write!(
            f,
            "IP packets of {passes} bytes pass the way to {} and back, those of {vanishes} vanish",
            aggregator.ip()
        )?;
        if let Some(Interface { name, mtu, .. }) = Interface::towards(*aggregator) {
            write!(f, " although {name} takes {mtu}")?;
        }
        write!(
            f,
            ": something on the way has a smaller MTU. It works with the smaller ones; set the \
             same MTU everywhere to use larger ones"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_ip_packets() {
        // 20 bytes of IP or 40, 8 of UDP, 32 of header, 4 a lane.
        for (aggregator, ip, passes, vanishes) in
            [("127.0.0.1:48864", "127.0.0.1", 1468, 1596), ("[::1]:48864", "::1", 1488, 1616)]
        {
            let narrow = Narrow { aggregator: aggregator.parse().unwrap(), lanes: 352, tag_len: 0 };
            let expected = format!(
                "IP packets of {passes} bytes pass the way to {ip} and back, those of {vanishes} \
                 vanish although lo takes "
            );
            assert!(narrow.to_string().starts_with(&expected), "{narrow}");
        }
    }
}
