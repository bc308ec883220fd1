//! 128 bytes by which ranks find each other, and by which a job is known. One process makes them
//! and listens; the program hands them round, as it does with NCCL's.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::str::{self, FromStr};
use std::sync::{Mutex, PoisonError};

use switchml_userspace::segments;

use crate::error::Error;
use crate::own_address::address_for_others;

/// Bytes of a unique id, as many as NCCL's has.
const LEN: usize = 128;
/// What its text begins with; the number is the version.
const HEAD: &str = "switchml-id-1 ";

/// The ids that this process has made, and not used yet.
static MADE: Mutex<Option<HashMap<UniqueId, TcpListener>>> = Mutex::new(None);

/// Says where the ranks of one job meet: 128 bytes, which one process makes and hands to the others
/// by means of its own, such as MPI's broadcast; for
/// [`Builder::unique_id`](crate::Builder::unique_id).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; LEN]);

impl UniqueId {
    /// Makes one. This process must be a rank of the job: the others meet here.
    ///
    /// # Errors
    /// [`Error::NoPeer`] if this host has no address, or the system refuses a socket.
    pub fn new() -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::NoPeer {
            why: format!("this process cannot listen for them: {error}"),
        };
        let listener = segments::listen((address(), 0).into()).map_err(failed)?;
        let place = listener.local_addr().map_err(failed)?;
        let mut bytes = [0; LEN];
        // An address takes 47 bytes at most.
        let text = format!("{HEAD}{place} {:016x}", rand::random::<u64>());
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        let id = Self(bytes);
        made().get_or_insert_default().insert(id, listener);
        Ok(id)
    }

    /// The bytes, for the other ranks.
    pub fn to_bytes(self) -> [u8; LEN] {
        self.0
    }

    /// The id of these bytes, which [`Self::to_bytes`] gave on another rank.
    ///
    /// # Errors
    /// [`Error::Setting`] for other bytes.
    pub fn from_bytes(bytes: [u8; LEN]) -> Result<Self, Error> {
        let id = Self(bytes);
        match id.read() {
            Some(_) => Ok(id),
            None => Err(Error::Setting {
                name: "unique id",
                given: "not one that another rank has made".to_owned(),
                allowed: "give all ranks the 128 bytes that one of them made",
            }),
        }
    }

    /// Where the ranks meet.
    pub(crate) fn place(&self) -> SocketAddr {
        let nowhere = SocketAddr::from(([0; 4], 0));
        self.read().map_or(nowhere, |(place, _)| place)
    }

    /// The listener at that place, if this process has made the id.
    pub(super) fn take_listener(&self) -> Option<TcpListener> {
        made().as_mut()?.remove(self)
    }

    /// The name of a job whose ranks all know this id.
    pub(crate) fn job(&self) -> String {
        self.read().map_or_else(String::new, |(place, random)| format!("{place}-{random}"))
    }

    fn read(&self) -> Option<(SocketAddr, &str)> {
        let text = str::from_utf8(&self.0).ok()?.trim_end_matches('\0');
        let (place, random) = text.strip_prefix(HEAD)?.split_once(' ')?;
        Some((SocketAddr::from_str(place).ok()?, random))
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", str::from_utf8(&self.0).unwrap_or_default().trim_end_matches('\0'))
    }
}

fn made() -> std::sync::MutexGuard<'static, Option<HashMap<UniqueId, TcpListener>>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address by which other hosts reach this one: that of the default route, or else of any
/// interface.
fn address() -> IpAddr {
    let by_default_route = || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        // An address of no host (RFC 5737). Sends nothing: it only looks up the route.
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    };
    let found = by_default_route().ok().map(|address| address.ip());
    found.or_else(address_for_others).unwrap_or(IpAddr::from([127, 0, 0, 1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_made_it_has_its_listener() {
        let id = UniqueId::new().unwrap();
        let same = UniqueId::from_bytes(id.to_bytes()).unwrap();
        assert_eq!(same, id);
        let listener = same.take_listener().unwrap();
        assert_eq!(listener.local_addr().unwrap(), id.place());
        assert!(id.take_listener().is_none(), "it is good for one job");
        assert_ne!(UniqueId::new().unwrap(), id);
    }

    #[test]
    fn other_bytes_are_none() {
        for text in ["", "switchml-id-1 10.0.0.1 7", "switchml-id-2 10.0.0.1:7 7", "\u{fffd}"] {
            let mut bytes = [0; LEN];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            let error = UniqueId::from_bytes(bytes).unwrap_err();
            assert!(error.to_string().contains("the 128 bytes that one of them made"), "{error}");
        }
        assert!(UniqueId::from_bytes([0xFF; LEN]).is_err());
    }
}
