//! Rule 23.6: how long a process at the other end of a connection may say nothing while its host
//! does.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use switchml_control::signs::Pulse;
use switchml_userspace_core::control_plane::{PING_INTERVAL, PING_TIMEOUT};
use tokio::time::{Instant, Sleep, sleep};

/// Longest time that any rank may ask for: for ever, to people.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The time that is allowed, in milliseconds: that of an answer to a ping, or more.
#[derive(Clone)]
pub struct Allowed(Arc<AtomicU64>);

impl Default for Allowed {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(PING_TIMEOUT.as_millis() as u64)))
    }
}

impl Allowed {
    /// As a rank asks for; 0 is the time of an answer to a ping.
    pub fn of_rank(milliseconds: u64) -> Self {
        if milliseconds == 0 { Self::default() } else { Self(Arc::new(milliseconds.into())) }
    }

    /// Allows at least as much as another one.
    pub fn raise(&self, other: &Self) {
        self.0.fetch_max(other.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The time since the process last said something: it need not before the next ping.
    fn get(&self) -> Duration {
        PING_INTERVAL + Duration::from_millis(self.0.load(Ordering::Relaxed)).min(LONGEST)
    }
}

/// Waits until a process has said nothing for too long.
pub struct Standstill {
    pulse: Pulse,
    allowed: Allowed,
    /// When to look next.
    look: Pin<Box<Sleep>>,
}

impl Standstill {
    /// Allows the process of this pulse so much.
    pub fn new(pulse: Pulse, allowed: Allowed) -> Self {
        let look = Box::pin(sleep(allowed.get()));
        Self { pulse, allowed, look }
    }

    /// How long the process has said nothing.
    pub fn silence(&self) -> Duration {
        self.pulse.silence()
    }

    /// Whether that is too long. Otherwise the task is woken when it may be.
    pub fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        while self.look.as_mut().poll(context) == Poll::Ready(()) {
            let (silence, allowed) = (self.silence(), self.allowed.get());
            if silence >= allowed {
                return true;
            }
            self.look.as_mut().reset(Instant::now() + (allowed - silence));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn it_ends_once_nothing_was_said_for_so_long() {
        let (pulse, allowed) = (Pulse::default(), Allowed::of_rank(20));
        let mut standstill = Standstill::new(pulse.clone(), allowed.clone());
        allowed.raise(&Allowed::of_rank(50));
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            pulse.beat();
        }
        let over = poll_fn(|context| match standstill.is_over(context) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        over.await;
        assert!(standstill.silence() >= PING_INTERVAL + Duration::from_millis(50));
    }
}
