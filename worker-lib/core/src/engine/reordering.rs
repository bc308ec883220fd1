//! How much later than expected a result may come before its chunk counts as lost: RACK's
//! reordering window (RFC 8985, 6.2; rule 12.7), which grows where resends turn out to be needless.
//!
//! Several processors of a switch may serve the ranks' superpackets of the same chunks at once.
//! Each may then complete some of the chunks, and results overtake each other by the time that one
//! processor is held up. A chunk that was sent again needlessly is answered twice, like a duplicate
//! SACK of TCP.

/// The window is measured in parts of the smoothed round trip: this many make one round trip.
const PARTS: u64 = 4;
/// Recoveries without a needless resend until the window is one part again.
const RECOVERIES: u32 = 16;

/// See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct Reordering {
    /// The least window, in ns.
    floor: u64,
    /// The window in parts of the round trip.
    parts: u64,
    /// Recoveries that are left until the window is one part again.
    recoveries: u32,
    /// A round trip widens the window once: not again before this time.
    taught_until: u64,
    /// A round trip counts as one recovery: no other before this time.
    recovered_until: u64,
    /// By slot, the round of the last chunk whose resend may have been needless.
    resent: Box<[Option<u32>]>,
}

impl Reordering {
    /// The reordering window of an engine with `slots` slots.
    pub fn new(floor: u64, slots: u16) -> Self {
        Self {
            floor,
            parts: 1,
            recoveries: 0,
            taught_until: 0,
            recovered_until: 0,
            resent: vec![None; slots.max(1).into()].into(),
        }
    }

    /// The window, in ns, for this smoothed round trip.
    pub fn window(&self, smoothed: Option<u64>) -> u64 {
        self.floor.max(smoothed.unwrap_or(0) / PARTS * self.parts)
    }

    /// Notes that chunks count as lost because others overtook them.
    pub fn recover(&mut self, now: u64, smoothed: Option<u64>) {
        if now < self.recovered_until || self.parts == 1 {
            return;
        }
        self.recovered_until = now + smoothed.unwrap_or(0);
        self.recoveries -= 1;
        if self.recoveries == 0 {
            self.parts = 1;
        }
    }

    /// Notes the result of a chunk that was sent again after others overtook it.
    pub fn completed(&mut self, slot: u16, round: u32) {
        if let Some(resent) = self.resent.get_mut(usize::from(slot)) {
            *resent = Some(round);
        }
    }

    /// Notes another result of a complete chunk.
    pub fn answered_again(&mut self, now: u64, slot: u16, round: u32, smoothed: Option<u64>) {
        let Some(resent) = self.resent.get_mut(usize::from(slot)) else { return };
        if resent.take_if(|resent| *resent == round).is_none() {
            return;
        }
        self.recoveries = RECOVERIES;
        if now >= self.taught_until {
            self.taught_until = now + smoothed.unwrap_or(0);
            self.parts = PARTS.min(self.parts + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR: u64 = 20;
    const RTT: Option<u64> = Some(400);

    /// A chunk in slot 3 that is answered twice.
    fn needless(reordering: &mut Reordering, now: u64) {
        reordering.completed(3, 7);
        reordering.answered_again(now, 3, 7, RTT);
    }

    #[test]
    fn needless_resends_widen_it_up_to_a_round_trip() {
        let mut reordering = Reordering::new(FLOOR, 8);
        assert_eq!(reordering.window(None), FLOOR);
        let windows = [0, 400, 800, 1200, 1600].map(|now| {
            needless(&mut reordering, now);
            reordering.window(RTT)
        });
        assert_eq!(windows, [200, 300, 400, 400, 400]);
    }

    #[test]
    fn a_round_trip_teaches_once() {
        let mut reordering = Reordering::new(FLOOR, 8);
        (0..400).for_each(|now| needless(&mut reordering, now));
        assert_eq!(reordering.window(RTT), 200);
    }

    #[test]
    fn other_answers_teach_nothing() {
        let mut reordering = Reordering::new(FLOOR, 8);
        reordering.completed(3, 7);
        reordering.answered_again(0, 4, 7, RTT);
        reordering.answered_again(0, 3, 8, RTT);
        reordering.answered_again(0, 9, 7, RTT);
        assert_eq!(reordering.window(RTT), 100);
        reordering.answered_again(0, 3, 7, RTT);
        assert_eq!(reordering.window(RTT), 200);
        reordering.answered_again(1000, 3, 7, RTT);
        assert_eq!(reordering.window(RTT), 200, "a third answer is one that the network doubled");
    }

    #[test]
    fn losses_alone_narrow_it_again() {
        let mut reordering = Reordering::new(FLOOR, 8);
        (0..4).for_each(|step| needless(&mut reordering, step * 400));
        // Many in each of 15 round trips.
        (2000..8000).for_each(|now| reordering.recover(now, RTT));
        assert_eq!(reordering.window(RTT), 400);
        reordering.recover(8000, RTT);
        assert_eq!(reordering.window(RTT), 100);
    }
}
