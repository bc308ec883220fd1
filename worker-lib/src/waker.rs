//! Wakes a thread that waits for packets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Wakes threads that wait, any number of times; clones wake the same threads. Each clone knows by
/// itself which wake-ups it has heard, so that no waiter takes those of another one: while a driver
/// waits, the way to its next aggregator is opened by another thread.
pub(crate) struct Waker {
    inner: Arc<Inner>,
    /// The wake-ups up to this clone's last wait.
    heard: AtomicU64,
}

struct Inner {
    events: Arc<Events>,
    /// The number of wake-ups.
    wakes: AtomicU64,
    waiters: Mutex<Vec<Waiter>>,
}

/// A thread that waits.
struct Waiter {
    event: Arc<OwnedFd>,
    is_told: bool,
}

impl Clone for Waker {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), heard: AtomicU64::new(0) }
    }
}

impl Waker {
    /// Wakes threads that take one of these events while they wait.
    pub fn new(events: &Arc<Events>) -> Self {
        let (wakes, waiters) = Default::default();
        let inner = Arc::new(Inner { events: Arc::clone(events), wakes, waiters });
        Self { inner, heard: AtomicU64::new(0) }
    }

    /// Wakes the threads, or keeps them from their next wait.
    pub fn wake(&self) {
        self.inner.wakes.fetch_add(1, Ordering::SeqCst);
        let mut waiters = lock(&self.inner.waiters);
        for waiter in waiters.iter_mut().filter(|waiter| !waiter.is_told) {
            waiter.is_told = true;
            // One number fits.
            let _ = rustix::io::write(&waiter.event, &1u64.to_ne_bytes());
        }
    }

    /// Waits by `poll`, which returns soon once the descriptor is readable, unless there was a
    /// wake-up since this clone's last wait.
    ///
    /// # Errors
    /// Those of `poll`, or when the system refuses a file.
    pub fn wait(&self, poll: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        let Inner { events, wakes, waiters } = &*self.inner;
        let before = wakes.load(Ordering::SeqCst);
        if self.heard.swap(before, Ordering::SeqCst) != before {
            return Ok(());
        }
        let event = events.take()?;
        lock(waiters).push(Waiter { event: Arc::clone(&event), is_told: false });
        // A wake-up that found no waiter before that has counted.
        let outcome = match wakes.load(Ordering::SeqCst) == before {
            true => poll(event.as_fd()),
            false => Ok(()),
        };
        let mut waiting = lock(waiters);
        let place = waiting.iter().position(|waiter| Arc::ptr_eq(&waiter.event, &event));
        let is_told = place.is_some_and(|place| waiting.swap_remove(place).is_told);
        // Nobody writes to the event from here on.
        drop(waiting);
        self.heard.store(wakes.load(Ordering::SeqCst), Ordering::SeqCst);
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
