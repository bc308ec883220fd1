//! Offers the core to other threads.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Less than a switch to another thread and back takes; more than the difference between the
/// clocks.
const SWITCH: Duration = Duration::from_nanos(800);

/// Lets others have the core; whether there were any.
pub(crate) fn yield_core() -> bool {
    let (begin, own) = (Instant::now(), thread_time());
    std::thread::yield_now();
    let own = thread_time().saturating_sub(own);
    begin.elapsed().saturating_sub(own) > SWITCH
}

/// Time that this thread has run.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
