//! Says HELLO again while calls go on: a restarted combiner does not know where the rank lives
//! (rule 27.19).

use std::time::Duration;

use switchml_protocol::wire::auth::Key;
use switchml_protocol::wire::header::{Header, Kind};
use switchml_protocol::{U16, U32, VERSION};
use zerocopy::{FromBytes, FromZeros};

use crate::engine::Identity;
use crate::packet::has_right_tag;

/// Pauses between unanswered HELLOs: doubled from the first up to the last.
const FIRST_PAUSE: u64 = Duration::from_millis(10).as_nanos() as u64;
const LAST_PAUSE: u64 = Duration::from_millis(500).as_nanos() as u64;

/// See the [module's documentation](self). Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Greeting {
    hello: Header,
    key: Key,
    /// When the next HELLO is due.
    due: u64,
    pause: u64,
}

impl Greeting {
    /// The first HELLO is due at once.
    pub fn new(now: u64, identity: &Identity, secret: u32) -> Self {
        let hello = Header {
            version: VERSION,
            kind: Kind::Hello as u8,
            job: U16::new(identity.job),
            epoch: U32::new(identity.epoch),
            rank: U16::new(identity.rank),
            flags: identity.flags(),
            aux: U32::new(secret),
            ..Header::new_zeroed()
        };
        Self { hello, key: identity.keys.own, due: now, pause: FIRST_PAUSE }
    }

    /// The next HELLO, if it is time. It has no payload.
    pub fn next(&mut self, now: u64) -> Option<Header> {
        if now < self.due {
            return None;
        }
        self.due = now.saturating_add(self.pause);
        self.pause = (2 * self.pause).min(LAST_PAUSE);
        Some(self.hello)
    }

    /// When the next HELLO is due.
    pub const fn due(&self) -> u64 {
        self.due
    }

    /// Whether a datagram is the answer to a HELLO.
    pub fn is_answer(&self, datagram: &[u8]) -> bool {
        Header::ref_from_prefix(datagram).is_ok_and(|(answer, _)| {
            Header { flags: self.hello.flags, ..*answer } == self.hello
                && has_right_tag(&self.key, answer, datagram)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::Keys;
    use switchml_protocol::wire::header::flags;
    use zerocopy::IntoBytes;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn hellos_follow_each_other_at_growing_pauses_until_one_is_answered() {
        let identity = Identity { job: 3, epoch: 9, rank: 5, ranks: 8, keys: Keys::NONE };
        let mut greeting = Greeting::new(7, &identity, 77);
        let hello = greeting.next(7).expect("due at once");
        assert_eq!((hello.job.get(), hello.epoch.get(), hello.rank.get()), (3, 9, 5));
        assert_eq!((hello.aux.get(), hello.lanes.get()), (77, 0));
        let mut now = 7;
        for pause in [10, 20, 40, 80, 160, 320, 500, 500] {
            assert_eq!(greeting.due(), now + pause * MS);
            assert_eq!(greeting.next(greeting.due() - 1), None);
            now = greeting.due();
            assert_eq!(greeting.next(now), Some(hello));
        }
        let marked = Header { flags: flags::CE, ..hello };
        assert!(greeting.is_answer(hello.as_bytes()) && greeting.is_answer(marked.as_bytes()));
        let of_another = Header { rank: U16::new(6), ..hello };
        assert!(!greeting.is_answer(of_another.as_bytes()));
        assert!(!greeting.is_answer(&hello.as_bytes()[1..]));
    }
}
