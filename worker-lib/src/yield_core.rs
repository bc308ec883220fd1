//! Offers the core to other threads.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Less than a switch to another thread and back takes; more than the difference between the
/// clocks, and than an offer that nobody takes.
const SWITCH: Duration = Duration::from_nanos(800);

/// What a thread knows of its core since it last slept.
#[derive(Default)]
pub(crate) struct Core {
    /// Some moment, and the time that the thread had run by then.
    known: Option<(Instant, Duration)>,
}

impl Core {
    /// Lets others have the core; whether there were any. The thread's clock takes a system call,
    /// so it is asked only if the offer took long: then others ran, or an interrupt did.
    pub fn offer(&mut self) -> bool {
        let begin = Instant::now();
        std::thread::yield_now();
        let end = Instant::now();
        if end - begin <= SWITCH {
            return false;
        }
        let own = thread_time();
        let before = self.known.replace((end, own));
        before.is_some_and(|(then, own_then)| {
            (end - then).saturating_sub(own.saturating_sub(own_then)) > SWITCH
        })
    }
}

/// Time that this thread has run.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
