//! Round-trip time estimate: RFC 6298, in nanoseconds.

/// Bounds of the retransmission timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttLimits {
    /// Timeout before there is a sample, in ns; and the most that packets in flight add to it.
    pub initial: u64,
    /// Time that each packet in flight adds to the timeout, in ns: its time on the slowest link
    /// that is supported. A round trip measured with little in flight, by a HELLO or a small
    /// tensor, says nothing about the queue that a whole window causes.
    pub packet: u64,
    /// Floor of the timeout, in ns. Microseconds rather than RFC 6298's second: the path is one
    /// switch long.
    pub floor: u64,
    /// Ceiling of the timeout, back-off included, in ns: the calm pace at which a rank asks while a
    /// peer is late.
    pub ceiling: u64,
}

/// Round-trip time estimate and retransmission timeout (RTO).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rtt {
    limits: RttLimits,
    smoothed: Option<u64>,
    variation: u64,
    minimum: u64,
    sampled_at: u64,
}

impl Rtt {
    /// An estimator without samples.
    pub fn new(limits: RttLimits) -> Self {
        Self { limits, smoothed: None, variation: 0, minimum: u64::MAX, sampled_at: 0 }
    }

    /// Takes the time between `sent_at` and `now` as a sample, unless there was one since
    /// `sent_at`: RFC 6298's gains assume about one sample per round trip.
    ///
    /// The caller leaves out packets that were sent twice (Karn's rule), and those that waited for
    /// a late peer.
    pub fn sample(&mut self, sent_at: u64, now: u64) {
        let rtt = now.saturating_sub(sent_at);
        self.minimum = self.minimum.min(rtt);
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.variation = rtt / 2;
            self.sampled_at = now;
            return;
        };
        if sent_at < self.sampled_at {
            return;
        }
        // RFC 6298, 2.3: RTTVAR by 1/4, then SRTT by 1/8.
        self.variation = self.variation - self.variation / 4 + smoothed.abs_diff(rtt) / 4;
        self.smoothed = Some(smoothed - smoothed / 8 + rtt / 8);
        self.sampled_at = now;
    }

    /// Smoothed round-trip time in ns, if there is a sample.
    pub fn smoothed(&self) -> Option<u64> {
        self.smoothed
    }

    /// Shortest round trip seen, in ns; 0 before there is a sample.
    pub fn minimum(&self) -> u64 {
        self.smoothed.map_or(0, |_| self.minimum)
    }

    /// Rule 12.5: the timeout with so many packets under way, after `expiries` expiries in a row
    /// without progress, in ns: SRTT + 4 RTTVAR within the limits, and the packets' time on a slow
    /// link, doubled each time.
    pub fn timeout(&self, outstanding: u32, expiries: u32) -> u64 {
        let base = self.smoothed.map_or(self.limits.initial, |smoothed| {
            let queue =
                self.limits.packet.saturating_mul(outstanding.into()).min(self.limits.initial);
            (smoothed + 4 * self.variation).max(self.limits.floor) + queue
        });
        base.saturating_mul(1 << expiries.min(16)).min(self.limits.ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RttLimits =
        RttLimits { initial: 10_000, packet: 30, floor: 200, ceiling: 100_000 };

    #[test]
    fn first_sample_gives_three_times_itself() {
        let mut rtt = Rtt::new(LIMITS);
        assert_eq!(rtt.timeout(0, 0), 10_000);
        rtt.sample(1_000, 1_400);
        // RFC 6298, 2.2: SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR.
        assert_eq!((rtt.smoothed(), rtt.timeout(0, 0)), (Some(400), 1_200));
    }

    #[test]
    fn later_samples_move_by_an_eighth_and_a_quarter() {
        let mut rtt = Rtt::new(LIMITS);
        rtt.sample(0, 800);
        rtt.sample(800, 800 + 1_600);
        // RTTVAR = 3/4 * 400 + 1/4 * |800 - 1600| = 500; SRTT = 7/8 * 800 + 1/8 * 1600 = 900.
        assert_eq!((rtt.smoothed(), rtt.timeout(0, 0)), (Some(900), 900 + 4 * 500));
    }

    #[test]
    fn one_sample_a_round_trip() {
        let mut rtt = Rtt::new(LIMITS);
        rtt.sample(0, 800);
        rtt.sample(700, 5_000);
        assert_eq!(rtt.smoothed(), Some(800), "sent before the last sample was taken");
        rtt.sample(700, 900);
        assert_eq!(rtt.minimum(), 200, "the minimum counts them all");
    }

    #[test]
    fn backs_off_up_to_the_ceiling_and_never_below_the_floor() {
        let mut rtt = Rtt::new(LIMITS);
        rtt.sample(0, 10);
        assert_eq!([0, 1, 2, 3].map(|expiries| rtt.timeout(0, expiries)), [200, 400, 800, 1_600]);
        assert_eq!(rtt.timeout(0, 9), 100_000);
        assert_eq!(rtt.timeout(0, u32::MAX), 100_000);
    }

    #[test]
    fn a_window_may_take_its_time_on_a_slow_link() {
        let mut rtt = Rtt::new(LIMITS);
        assert_eq!(rtt.timeout(100, 0), 10_000, "reckoned with already");
        rtt.sample(0, 10);
        assert_eq!([1, 100].map(|outstanding| rtt.timeout(outstanding, 0)), [230, 3_200]);
        assert_eq!(rtt.timeout(100, 1), 6_400);
        assert_eq!([1_000, u32::MAX].map(|outstanding| rtt.timeout(outstanding, 0)), [10_200; 2]);
    }
}
