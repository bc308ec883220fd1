//! Offers the core to other threads.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Less time than a switch to another thread and back takes; more than the difference between the
/// clocks, and more than an offer takes that no thread accepts.
const SWITCH: Duration = Duration::from_nanos(800);

/// What a thread knows about its core since it last slept.
#[derive(Default)]
pub(crate) struct Core {
    /// A moment, and the CPU time of the thread until then.
    known: Option<(Instant, Duration)>,
}

impl Core {
    /// Lets other threads have the core; returns whether there were any. Reading the thread's clock
    /// takes a system call, so it is read only if the offer took long: then other threads ran, or
    /// an interrupt did.
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

/// CPU time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
