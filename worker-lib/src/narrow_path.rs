//! Warns of a path that works, but not as well as it could.

use std::fmt;
use std::net::SocketAddrV4;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_worker_core::packet::{ip_packet_len, packet_len};

use crate::interface::Interface;

/// A path that carries less than both of its ends take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Narrow {
    /// The other end.
    pub aggregator: SocketAddrV4,
    /// Lanes of the largest packet that passes.
    pub lanes: u16,
}

impl fmt::Display for Narrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { aggregator, lanes } = self;
        let lanes = usize::from(*lanes);
        let [passes, vanishes] =
            [lanes, lanes + LANES_PER_BLOCK].map(|lanes| ip_packet_len(packet_len(lanes)));
        write!(
            f,
            "IP packets of {passes} bytes pass the way to {} and back, those of {vanishes} vanish",
            aggregator.ip()
        )?;
        if let Some(Interface { name, mtu: Some(mtu), .. }) = Interface::towards(*aggregator) {
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
        let narrow = Narrow { aggregator: "127.0.0.1:48864".parse().unwrap(), lanes: 352 };
        // 20 bytes of IP, 8 of UDP, 32 of header, 4 a lane.
        let expected = "IP packets of 1468 bytes pass the way to 127.0.0.1 and back, those of 1596 \
                        vanish although lo takes ";
        assert!(narrow.to_string().starts_with(expected), "{narrow}");
    }
}
