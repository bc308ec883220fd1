//! Connections that memberships share: HTTP/2 carries the streams of many.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use switchml_control::client::Connection;
use switchml_control::tls::ClientTls;
use tokio::sync::OnceCell;

use super::{Access, Error, connection};
use crate::lock::lock;

/// Most memberships of a connection. Each has its stream of events and two requests at most, and
/// servers take at least 100 at once (RFC 9113, 6.5.2).
const MOST: usize = 32;

/// The connections of a process.
#[derive(Default)]
pub(super) struct Lines(Mutex<Vec<(Place, Weak<Line>)>>);

/// Where a connection goes to, and how.
#[derive(Clone, PartialEq, Eq)]
struct Place {
    host: String,
    addresses: Vec<SocketAddr>,
    tls: ClientTls,
}

/// A connection, as long as a membership has it.
#[derive(Default)]
pub(super) struct Line {
    /// The address that answered, and the connection there; made by the first membership.
    made: OnceCell<Result<(String, Connection), Error>>,
    /// Whether a membership has lost its stream there, or could not connect.
    is_broken: AtomicBool,
}

impl Lines {
    /// A connection that works, as far as is known, to the first of the aggregator's addresses that
    /// answers.
    ///
    /// # Errors
    ///
    /// Those of [`connection::connect`].
    pub async fn connect(
        &self,
        access: &Access,
        addresses: &[SocketAddr],
        timeout: Duration,
    ) -> Result<Arc<Line>, Error> {
        let line = self.line(access, addresses);
        let make = || connection::connect(access, addresses, timeout);
        match line.made.get_or_init(make).await {
            Ok(_) => Ok(line),
            Err(error) => {
                line.give_up();
                Err(error.clone())
            }
        }
    }

    fn line(&self, access: &Access, addresses: &[SocketAddr]) -> Arc<Line> {
        let (addresses, tls) = (addresses.to_vec(), access.tls.clone());
        let place = Place { host: switchml_control::host(&access.address), addresses, tls };
        let mut lines = lock(&self.0);
        lines.retain(|(_, line)| line.strong_count() > 0);
        let has_room = |(known, line): &(Place, Weak<Line>)| {
            let line = line.upgrade().filter(|_| *known == place)?;
            // This one counts, too.
            let is_full = Arc::strong_count(&line) > MOST;
            (!is_full && !line.is_broken.load(Ordering::Relaxed)).then_some(line)
        };
        lines.iter().find_map(has_room).unwrap_or_else(|| {
            let line = Arc::new(Line::default());
            lines.push((place, Arc::downgrade(&line)));
            line
        })
    }
}

impl Line {
    /// The address that answered, and the connection there.
    pub fn get(&self) -> Option<&(String, Connection)> {
        self.made.get()?.as_ref().ok()
    }

    /// No other membership is to use it.
    pub fn give_up(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_share_a_line_until_it_is_full_or_broken() {
        let lines = Lines::default();
        let access = |address: &str| Access { address: address.to_owned(), ..Access::default() };
        let place = ["10.0.0.1:1".parse().unwrap()];
        let line = || lines.line(&access("a"), &place);
        let first: Vec<_> = (0..MOST).map(|_| line()).collect();
        assert!(first.iter().all(|line| Arc::ptr_eq(line, &first[0])));
        let next = line();
        assert!(!Arc::ptr_eq(&next, &first[0]));
        assert!(Arc::ptr_eq(&next, &line()));
        assert!(!Arc::ptr_eq(&next, &lines.line(&access("b"), &place)), "another host's name");
        next.give_up();
        let last = line();
        assert!(!Arc::ptr_eq(&next, &last));
        drop((first, next, last));
        line();
        assert_eq!(lock(&lines.0).len(), 1);
    }
}
