//! Whether this process stood still: it was stopped, or its host suspended.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::lock::lock;

/// The time between two looks. A look costs some microseconds.
const LOOK: Duration = Duration::from_secs(1);
/// How long it is remembered that the process stood still: what follows from it comes soon.
const MEMORY: Duration = Duration::from_secs(30);

/// A clock that notices when nobody looks at it.
#[derive(Default)]
pub(super) struct Clock(Mutex<State>);

#[derive(Default)]
struct State {
    looked: Option<Instant>,
    /// The last look that was late, and the time since the one before.
    late: Option<(Instant, Duration)>,
}

impl State {
    fn look(&mut self, now: Instant) {
        self.late = self.pause(now).map(|pause| (now, pause)).or(self.late);
        self.looked = Some(now);
    }

    /// The time since the last look, if that is too long.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let pause = now.saturating_duration_since(self.looked?);
        (pause >= 2 * LOOK).then_some(pause)
    }

    fn stood_still(&self, now: Instant) -> Option<Duration> {
        let known = self.late.filter(|(at, _)| now.saturating_duration_since(*at) < MEMORY);
        self.pause(now).or(known.map(|(_, pause)| pause))
    }
}

impl Clock {
    /// Looks, again and again.
    pub async fn run(&self) {
        loop {
            let now = Instant::now();
            lock(&self.0).look(now);
            sleep_until(now + LOOK).await;
        }
    }

    /// For how long this process stood still, or a second less, if it just did.
    pub fn stood_still(&self) -> Option<Duration> {
        lock(&self.0).stood_still(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_look_is_a_standstill_also_before_it_is_made() {
        let (mut state, begin) = (State::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(state.stood_still(at(0)), None);
        state.look(at(0));
        state.look(at(1));
        assert_eq!(state.stood_still(at(2)), None);
        assert_eq!(state.stood_still(at(12)), Some(Duration::from_secs(11)));
        state.look(at(12));
        state.look(at(13));
        assert_eq!(state.stood_still(at(14)), Some(Duration::from_secs(11)));
        (14..50).for_each(|second| state.look(at(second)));
        assert_eq!(state.stood_still(at(50)), None);
    }
}
