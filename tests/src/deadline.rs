//! The end of a wait.

use std::time::{Duration, Instant};

/// A point in time, or never if `timeout` exceeds what the clock can represent.
#[derive(Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    pub fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// The time until then; [`Duration::MAX`] if that is never.
    pub fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }
}
/// Looks again and again until something is so; if it is not in this time, panics with a message.
#[macro_export]
macro_rules! wait_until {
    ($patience:expr, $is_so:expr, $($message:tt)+) => {{
        let begin = std::time::Instant::now();
        while !$is_so {
            assert!(begin.elapsed() < $patience, $($message)+);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }};
}
