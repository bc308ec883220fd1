//! Limits log lines that strangers can cause: one at a time, with the number of those left out.

use std::time::{Duration, Instant};

/// Shortest time from one line to the next.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets one line a second through.
#[derive(Debug, Default)]
pub struct Throttle {
    /// When the last line was allowed.
    last: Option<Instant>,
    held_back: u64,
}

impl Throttle {
    /// Something happened that is worth a line. How often it has since the last one, if it is time
    /// for the next.
    pub fn pass(&mut self, now: Instant) -> Option<u64> {
        self.held_back += 1;
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_second_with_how_many_there_were() {
        let mut throttle = Throttle::default();
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(throttle.pass(at(0)), Some(1));
        assert_eq!([at(1), at(500), at(999)].map(|now| throttle.pass(now)), [None; 3]);
        assert_eq!(throttle.pass(at(1000)), Some(4));
        assert_eq!(throttle.pass(at(1999)), None);
        assert_eq!(throttle.pass(at(9000)), Some(2));
    }
}
