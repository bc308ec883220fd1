//! Wakes a thread that waits for packets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};

use crate::data_threads::Turns;
use crate::lock::lock;

/// Events for threads that wait. A thread has one only as long as it waits, so a process needs few
/// of them.
#[derive(Default)]
pub(crate) struct Events(Mutex<Vec<Arc<OwnedFd>>>);

impl Events {
    /// Makes sure that so many threads can wait.
    ///
    /// # Errors
    /// When the system refuses a file.
    pub fn keep(&self, threads: usize) -> io::Result<()> {
        let mut free = lock(&self.0);
        while free.len() < threads {
            free.push(event()?);
        }
        Ok(())
    }

    fn take(&self) -> io::Result<Arc<OwnedFd>> {
        lock(&self.0).pop().map_or_else(event, Ok)
    }

    fn give_back(&self, event: Arc<OwnedFd>) {
        lock(&self.0).push(event);
    }
}

fn event() -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
}

/// Wakes the thread that waits, any number of times; clones wake the same thread.
#[derive(Clone)]
pub(crate) struct Waker(Arc<Inner>);

struct Inner {
    events: Arc<Events>,
    /// Whether there was a wake-up since the last wait.
    is_woken: AtomicBool,
    waiter: Mutex<Option<Waiter>>,
}

/// The thread that waits.
struct Waiter {
    event: Arc<OwnedFd>,
    is_told: bool,
}

impl Waker {
    /// Wakes a thread that takes one of these events while it waits.
    pub fn new(events: &Arc<Events>) -> Self {
        let (is_woken, waiter) = Default::default();
        Self(Arc::new(Inner { events: Arc::clone(events), is_woken, waiter }))
    }

    /// Wakes the thread, or keeps it from its next wait.
    pub fn wake(&self) {
        self.0.is_woken.store(true, Ordering::SeqCst);
        if let Some(waiter) = &mut *lock(&self.0.waiter)
            && !waiter.is_told
        {
            waiter.is_told = true;
            // One number fits.
            let _ = rustix::io::write(&waiter.event, &1u64.to_ne_bytes());
        }
    }

    /// Waits by `poll`, which returns soon once the descriptor is readable, unless there was a
    /// wake-up since the last wait.
    ///
    /// # Errors
    /// Those of `poll`, or when the system refuses a file.
    pub fn wait(&self, poll: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        let Inner { events, is_woken, waiter } = &*self.0;
        if is_woken.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let event = events.take()?;
        *lock(waiter) = Some(Waiter { event: Arc::clone(&event), is_told: false });
        // Who looked for a waiter before that has left a mark.
        let outcome = match is_woken.load(Ordering::SeqCst) {
            true => Ok(()),
            false => poll(event.as_fd()),
        };
        // Nobody writes to the event from here on.
        let is_told = lock(waiter).take().is_some_and(|waiter| waiter.is_told);
        is_woken.store(false, Ordering::SeqCst);
        if is_told {
            let _ = rustix::io::read(&event, &mut [0; 8]);
        }
        events.give_back(event);
        outcome
    }
}

/// What wakes a driver's threads: the one that drives, which waits for packets, and a data thread,
/// which drives if nobody else does.
#[derive(Clone)]
pub(crate) struct Wakers {
    pub driving: Waker,
    pub turns: Turns,
}

impl Wakers {
    pub fn wake(&self) {
        self.driving.wake();
        self.turns.ask();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn wait(waker: &Waker) -> bool {
        let mut has_waited = false;
        let wait = |event: BorrowedFd<'_>| {
            has_waited = true;
            poll(&mut [PollFd::new(&event, PollFlags::IN)], None)?;
            Ok(())
        };
        waker.wait(wait).unwrap();
        has_waited
    }

    #[test]
    fn a_wake_up_ends_one_wait_and_one_event_serves_all_wakers() {
        let events = Arc::new(Events::default());
        let wakers = [(); 3].map(|()| Waker::new(&events));
        for waker in &wakers {
            waker.wake();
            waker.wake();
            assert!(!wait(waker), "it was woken before");
            let other = waker.clone();
            let thread = thread::spawn(move || {
                thread::sleep(Duration::from_millis(10));
                other.wake();
            });
            wait(waker);
            thread.join().unwrap();
        }
        assert_eq!(lock(&events.0).len(), 1);
    }
}
