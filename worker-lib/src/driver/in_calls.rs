//! How long calls have been in flight.

use std::time::Duration;

/// See the [module's documentation](self). Times are the data path's, in ns.
#[derive(Debug, Default)]
pub(crate) struct InCalls {
    since: Option<u64>,
    before: u64,
}

impl InCalls {
    /// A call is in flight from now on.
    pub fn begin(&mut self, now: u64) {
        self.since.get_or_insert(now);
    }

    /// No call is in flight any more.
    pub fn end(&mut self, now: u64) {
        self.before = self.until(now);
        self.since = None;
    }

    /// The sum of all times until now.
    pub fn total(&self, now: u64) -> Duration {
        Duration::from_nanos(self.until(now))
    }

    fn until(&self, now: u64) -> u64 {
        self.before + self.since.map_or(0, |since| now.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_overlap_count_once_and_pauses_do_not() {
        let mut time = InCalls::default();
        time.begin(100);
        time.begin(150);
        assert_eq!(time.total(170), Duration::from_nanos(70));
        time.end(180);
        assert_eq!(time.total(900), Duration::from_nanos(80));
        time.begin(1000);
        assert_eq!(time.total(1001), Duration::from_nanos(81));
    }
}
