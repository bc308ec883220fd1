//! A bound on events in a minute.

use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// Number of events in the current minute, which begins with its first event.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    begun: Instant,
    times: u32,
}

impl Rate {
    /// No events in the minute from now.
    pub fn new(now: Instant) -> Self {
        Self { begun: now, times: 0 }
    }

    /// Whether one more event is within `most` in a minute. If so, it is counted.
    pub fn pass(&mut self, now: Instant, most: u32) -> bool {
        if self.is_over(now) {
            *self = Self::new(now);
        }
        let passes = self.times < most;
        self.times += u32::from(passes);
        passes
    }

    /// Whether the minute is over, so that nothing is left to remember.
    pub fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.begun) >= MINUTE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_often_in_a_minute_and_then_again() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut rate = Rate::new(begin);
        let passed = [0, 1, 2, 59, 60, 61, 62].map(|seconds| rate.pass(at(seconds), 2));
        assert_eq!(passed, [true, true, false, false, true, true, false]);
        assert!(!rate.is_over(at(119)) && rate.is_over(at(120)));
        assert!(!Rate::new(begin).pass(begin, 0));
    }
}
