//! How much of a burst of packets the path loses, and how fast it carries the rest: what a job has
//! of this rank, however fast its other ranks are.

use std::fmt;
use std::time::{Duration, Instant};

use switchml_worker::interface::Interface;
use switchml_worker::{Communicator, ReduceOp};

use super::fix::{Fix, HERE};
use crate::Failure;

/// Values of a burst: 1 MiB, more than a slow link lets through at once after a pause.
const VALUES: i32 = 1 << 18;
/// Most bursts, of which the fastest counts, and how long they may take together.
const MOST: usize = 5;
const LONG: Duration = Duration::from_secs(2);
/// Fewest losses that say something, and the packets of which one may be lost.
const FEWEST: u64 = 5;
const RARE: u64 = 100;
/// Bits per second of a link that carries all that a rank with one thread sends.
const FAST: f64 = 4e9;
/// The part of its link that a path should carry.
const PART: f64 = 0.25;

/// The outcome of bursts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Packets sent, resends among them.
    pub sent: u64,
    /// Packets or their results that were lost.
    pub lost: u64,
    /// Bits of values per second, each way.
    pub rate: f64,
}

/// A path that is worse than its link.
#[derive(Clone, Debug, PartialEq)]
pub struct Poor {
    /// This host's interface.
    pub interface: String,
    /// Bits per second of its link, if the driver tells.
    pub speed: Option<f64>,
    /// What was measured.
    pub burst: Burst,
}

// Rates are never NaN.
impl Eq for Poor {}

impl Burst {
    /// Adds up values over one rank, and checks the sums.
    pub fn send(communicator: &Communicator) -> Result<Self, Failure> {
        let values: Vec<i32> = (1..=VALUES).collect();
        let before = communicator.stats().engine;
        let (begin, mut best) = (Instant::now(), 0.0_f64);
        for _ in 0..MOST {
            let mut sum = values.clone();
            let called = Instant::now();
            communicator.all_reduce(&mut sum, ReduceOp::Sum).map_err(Failure::Collective)?;
            let bits = 8.0 * size_of_val(&sum[..]) as f64;
            best = best.max(bits / called.elapsed().as_secs_f64());
            if sum != values {
                let what = "the sum over one rank is not what that rank gave";
                return Err(Failure::Wrong(what.to_owned()));
            }
            if begin.elapsed() >= LONG {
                break;
            }
        }
        let after = communicator.stats().engine;
        let sent = (after.chunks + after.resent()) - (before.chunks + before.resent());
        Ok(Self { sent, lost: after.lost().saturating_sub(before.lost()), rate: best })
    }

    /// Whether the path is worse than this interface's link.
    pub fn judge(self, interface: &Interface) -> Option<Poor> {
        let Interface { name, speed, .. } = interface;
        let expected = speed.map_or(0.0, |speed| speed.min(FAST) * PART);
        let is_poor = self.loses() || self.rate < expected;
        is_poor.then(|| Poor { interface: name.clone(), speed: *speed, burst: self })
    }

    fn loses(self) -> bool {
        self.lost >= FEWEST && self.lost * RARE >= self.sent
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, lost, rate } = self;
        write!(f, "{lost} of {sent} packets were lost; {:.1} Mb/s each way", rate / 1e6)
    }
}

impl fmt::Display for Poor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, speed, burst } = self;
        let Burst { sent, lost, rate } = burst;
        if burst.loses() {
            let percent = 100.0 * *lost as f64 / *sent as f64;
            return write!(f, "packets are lost: {percent:.1} % of those by {interface} here");
        }
        let speed = speed.unwrap_or_default() / 1e6;
        write!(f, "slow path: it carries {:.1} Mb/s, {interface} here {speed:.0}", rate / 1e6)
    }
}

impl Poor {
    /// Shows the counters of what may lose or slow packets.
    pub fn fix(&self) -> Fix {
        let interface = &self.interface;
        let command = match self.burst.loses() {
            true => format!(
                "ip -s -s link show {interface}; ethtool -S {interface} | grep -iE \
                 'err|drop|crc|miss'"
            ),
            false => format!("ethtool {interface}; tc -s qdisc show dev {interface}"),
        };
        Fix { host: HERE.to_owned(), command }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lost: u64, rate: f64, speed: Option<f64>) -> Option<String> {
        let interface = Interface { name: "eth0".to_owned(), mac: None, mtu: 1500, speed };
        Burst { sent: 1000, lost, rate }.judge(&interface).map(|poor| poor.to_string())
    }

    #[test]
    fn a_path_is_poor_that_loses_one_packet_of_100_or_has_a_quarter_of_its_link() {
        let fast = Some(1e9);
        assert_eq!(judged(9, 9e8, fast), None);
        let lossy = "packets are lost: 5.0 % of those by eth0 here";
        assert_eq!(judged(50, 9e8, fast).as_deref(), Some(lossy));
        let slow = "slow path: it carries 20.0 Mb/s, eth0 here 1000";
        assert_eq!(judged(0, 20e6, fast).as_deref(), Some(slow));
        assert_eq!(judged(0, 251e6, fast), None);
        // One thread does not fill it.
        assert_eq!(judged(0, 1.1e9, Some(100e9)), None);
        assert_eq!(judged(0, 20e6, None), None, "a virtual interface has no speed");
    }
}
