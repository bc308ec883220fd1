//! The combiners between a rank and this daemon.

use std::net::IpAddr;

use switchml_control::Combiner;

/// The path of a rank's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The other end of the daemon's connection.
    pub peer: IpAddr,
    /// The combiners on the path, beginning with the rank's own.
    pub via: Vec<Combiner>,
}

impl Origin {
    /// The path of a rank without combiners.
    pub const fn direct(peer: IpAddr) -> Self {
        Self { peer, via: Vec::new() }
    }
}

/// A rank's combiners, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rack {
    /// The rank's own combiner.
    pub name: String,
    /// The combiner that is connected to this daemon.
    pub last: String,
}

impl Rack {
    pub fn new(via: &[Combiner]) -> Self {
        let name = |combiner: Option<&Combiner>| combiner.map(in_words).unwrap_or_default();
        Self { name: name(via.first()), last: name(via.last()) }
    }
}

/// A combiner, for people: `tor1 at 10.0.1.254`.
pub(crate) fn in_words(combiner: &Combiner) -> String {
    let Combiner { name, address, .. } = combiner;
    super::one_line(&format!("{name} at {address}"))
}

/// The address of a rank whose requests come this way. Without combiners it is the connection's.
pub(super) fn peer_of(via: &[Combiner], peer: IpAddr) -> IpAddr {
    via.first().and_then(|own| own.peer.parse().ok()).unwrap_or(peer)
}
