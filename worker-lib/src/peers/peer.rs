//! What a rank tells the others of its own aggregator.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use switchml_userspace::secret::Secret;

/// A rank's own aggregator, as the other ranks of its job know it. As text, it is the address, a
/// slash, and the secret: `10.0.0.1:5000/00112233445566778899aabbccddeeff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Peer {
    /// Where ranks join.
    pub address: SocketAddr,
    /// What they join with; `None` if it admits all.
    pub(crate) secret: Option<Secret>,
}

/// A text that is no [`Peer`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a rank's own aggregator, as IP:PORT/SECRET")]
pub struct NotAPeer(String);

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self { address, secret: None }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.secret.map_or(Ok(()), |secret| write!(f, "/{secret}"))
    }
}

impl FromStr for Peer {
    type Err = NotAPeer;

    fn from_str(text: &str) -> Result<Self, NotAPeer> {
        let wrong = || NotAPeer(text.to_owned());
        let (address, secret) = match text.split_once('/') {
            Some((address, secret)) => (address, Some(secret.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        Ok(Self { address: address.parse().map_err(|_| wrong())?, secret })
    }
}

impl From<Peer> for String {
    fn from(peer: Peer) -> Self {
        peer.to_string()
    }
}

impl TryFrom<String> for Peer {
    type Error = NotAPeer;

    fn try_from(text: String) -> Result<Self, NotAPeer> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_text() {
        let secret = "00112233445566778899aabbccddeeff";
        for text in ["10.0.0.1:5000", "[fd00::1]:5000"] {
            let peer: Peer = text.parse().unwrap();
            assert_eq!((peer.secret, peer.to_string()), (None, text.to_owned()));
            let text = format!("{text}/{secret}");
            let peer: Peer = text.parse().unwrap();
            assert_eq!(peer.secret.map(|known| known.to_string()).as_deref(), Some(secret));
            assert_eq!(serde_json::to_value(peer).unwrap(), serde_json::json!(text));
            assert_eq!(serde_json::from_str::<Peer>(&format!("{text:?}")).unwrap(), peer);
        }
        for wrong in ["", "10.0.0.1", "10.0.0.1:5000/", "10.0.0.1:5000/x", "host:5000"] {
            assert_eq!(wrong.parse::<Peer>(), Err(NotAPeer(wrong.to_owned())));
        }
    }
}
