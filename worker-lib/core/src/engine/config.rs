//! The configuration of an engine, and the product's own choice of timers.

use std::time::Duration;

use super::answer::Identity;
use super::rtt::RttLimits;
use super::window::WindowLimits;
use crate::packet::packet_len;
use switchml_protocol::capabilities::Capabilities;

/// Bytes of packets outstanding at the start: two superpackets, which any switch port buffers.
const INITIAL_WINDOW: usize = 128 << 10;
/// Bytes of packets that may wait on their way without holding up the window's growth.
const WAITING: usize = 192 << 10;
/// The windows at several aggregators together, in windows of one alone. Each still has room for
/// superpackets.
const WINDOWS: f64 = 3.0;
/// Floor of the retransmission timeout: the delay that a busy host may add.
const TIMEOUT_FLOOR: Duration = Duration::from_micros(500);
/// Ceiling of the retransmission timeout: the pace at which a rank asks whether a late peer has
/// come.
pub const TIMEOUT_CEILING: Duration = Duration::from_millis(100);
/// Retransmission timeout before there is a round-trip time.
const TIMEOUT_INITIAL: Duration = Duration::from_millis(10);
/// The slowest link that the timer reckons with, in bits per second: a tenth of the slowest that
/// training is run on.
const SLOWEST_LINK: u64 = 100_000_000;
/// Default of the time for which the aggregator may give no answer: by then, every lost answer was
/// asked for many times.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Default of the time to wait for other ranks: the same as in torch.
pub const TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Floor of the reordering window.
const REORDERING: Duration = Duration::from_micros(200);

/// Time limits of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest wait for an answer of the aggregator.
    pub deadline: Duration,
    /// Longest wait for other ranks, while the aggregator says who is missing and the control plane
    /// that they are present.
    pub timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { deadline: DEADLINE, timeout: TIMEOUT }
    }
}

/// The configuration of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The session and this rank's place in it.
    pub identity: Identity,
    /// Number of slots S of the job, at least 1.
    pub slots: u16,
    /// Capabilities of the data plane. Without [`Capabilities::CHECKED_MAXIMA`], RESULTs of a MAX
    /// are accepted without a check word: the caller proves them in another way.
    pub capabilities: Capabilities,
    /// Bounds of the window.
    pub window: WindowLimits,
    /// Bounds of the retransmission timeout.
    pub rtt: RttLimits,
    /// Floor of the reordering window, in ns.
    pub reordering: u64,
    /// Time without an answer from the aggregator, in ns, after which
    /// [`Engine::on_timer`](super::Engine::on_timer) fails.
    pub deadline: u64,
    /// Time without a result, in ns, after which it fails although the aggregator answers, which
    /// waits for other ranks.
    pub timeout: u64,
}

impl Config {
    /// The product's windows and timers, with an aggregator that can do everything, for chunks of
    /// up to `lanes` lanes and a rank that can receive `room` of them at once. The window takes up
    /// half of the slots at most, so that a lost chunk's slot is not waited for.
    pub fn new(identity: Identity, slots: u16, lanes: u16, room: u32, limits: Limits) -> Self {
        let chunks = |bytes: usize| (bytes / packet_len(lanes.into())) as u32;
        Self {
            identity,
            slots,
            capabilities: Capabilities::all(),
            window: WindowLimits {
                initial: chunks(INITIAL_WINDOW),
                maximum: room.min(u32::from(slots) / 2),
                waiting: chunks(WAITING),
            },
            rtt: RttLimits {
                initial: nanoseconds(TIMEOUT_INITIAL),
                packet: packet_len(lanes.into()) as u64 * 8 * 1_000_000_000 / SLOWEST_LINK,
                floor: nanoseconds(TIMEOUT_FLOOR),
                ceiling: nanoseconds(TIMEOUT_CEILING),
            },
            reordering: nanoseconds(REORDERING),
            deadline: nanoseconds(limits.deadline),
            timeout: nanoseconds(limits.timeout),
        }
    }

    /// The configuration for one of several aggregators, which takes this share of large calls, 0
    /// to 1.
    ///
    /// The packets of all wait in the queue of the rank's own link. Who has more of them there gets
    /// more of the link, so windows in proportion to shares have all aggregators finish at the same
    /// time. Together they are as large as [`WINDOWS`] of one aggregator alone: larger ones would
    /// only make that queue longer.
    pub fn for_share(self, share: f64) -> Self {
        let scale = (WINDOWS * share).min(1.0);
        Self { window: self.window.scaled(scale), ..self }
    }
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Keys;

    /// Windows in proportion to shares, three of one aggregator alone together.
    #[test]
    fn several_aggregators_share_the_windows() {
        let identity = Identity { job: 1, epoch: 1, rank: 0, ranks: 4, keys: Keys::NONE };
        let alone = Config::new(identity, 512, 352, u32::MAX, Limits::default());
        assert_eq!(alone.window.maximum, 256);
        let of = |share: f64| alone.for_share(share).window.maximum;
        assert_eq!([0.3, 0.3, 0.1, 0.1, 0.1, 0.1].map(of), [230, 230, 76, 76, 76, 76]);
        assert_eq!([0.5, 1.0].map(of), [256, 256]);
        assert_eq!(of(1.0 / 8.0), 96);
    }
}
