//! What the control thread has heard, for the others to read and wait for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use switchml_control as control;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::times::{BUCKETS, SUM, Times};

use super::{Assigned, Error};

/// Told once that the session has ended.
pub(super) type OnEnd = Box<dyn FnOnce(Error) + Send>;

/// Asked for the calls in flight, by number, up to one.
pub(super) type CallsInFlight = Arc<dyn Fn(u64) -> Vec<(u64, String)> + Send + Sync>;

/// Asked for the round trips since it was last asked.
pub(super) type TakeRoundTrips = Arc<dyn Fn() -> Times + Send + Sync>;

#[derive(Default)]
pub(super) struct Heard {
    pub assigned: Option<Assigned>,
    pub started: Option<u16>,
    /// The control plane has nothing to say on the failure of the data path.
    pub has_no_reason: bool,
    ended: Option<Error>,
    on_end: Option<OnEnd>,
    pub calls_in_flight: Option<CallsInFlight>,
    round_trips: Option<TakeRoundTrips>,
    departed: Ranks,
}

#[derive(Default)]
pub(super) struct Board {
    heard: Mutex<Heard>,
    changed: Condvar,
    /// Whether ranks have left in good order.
    have_departed: AtomicBool,
    /// How often the data path was asked to say HELLO again.
    pub hellos: AtomicU64,
    /// The connection is broken, and may come back.
    pub unwatched: AtomicBool,
}

impl Board {
    /// Notes something, and wakes whoever waits for it.
    pub fn note(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Notes the end of the session. The first reason counts: what follows are its consequences.
    pub fn end(&self, why: Error) {
        let mut heard = self.lock();
        if heard.ended.is_some() {
            return;
        }
        heard.ended = Some(why.clone());
        let on_end = heard.on_end.take();
        drop(heard);
        self.changed.notify_all();
        if let Some(on_end) = on_end {
            on_end(why);
        }
    }

    /// The ranks that have left in good order.
    pub fn departed(&self) -> Ranks {
        // Asked in each turn of the data path.
        if self.have_departed.load(Ordering::Acquire) { self.lock().departed } else { Ranks::NONE }
    }

    pub fn set_departed(&self, ranks: Ranks) {
        if !ranks.is_empty() {
            self.lock().departed = ranks;
            self.have_departed.store(true, Ordering::Release);
        }
    }

    pub fn ended(&self) -> Option<Error> {
        self.lock().ended.clone()
    }

    /// Calls `on_end` when the session ends; at once if it has.
    pub fn on_end(&self, on_end: OnEnd) {
        let mut heard = self.lock();
        match heard.ended.clone() {
            None => heard.on_end = Some(on_end),
            Some(why) => {
                drop(heard);
                on_end(why);
            }
        }
    }

    /// Has [`Self::take_round_trips`] ask `take`.
    pub fn on_round_trips_wanted(&self, take: TakeRoundTrips) {
        self.lock().round_trips = Some(take);
    }

    /// Waits until `pick` finds what it looks for. The session sees to it that this, or its end,
    /// comes in time.
    ///
    /// # Errors
    ///
    /// Why the session ended, when it ends first.
    pub fn wait<T>(&self, pick: impl Fn(&Heard) -> Option<T>) -> Result<T, Error> {
        let mut heard = self.lock();
        loop {
            if let Some(why) = &heard.ended {
                return Err(why.clone());
            }
            if let Some(found) = pick(&heard) {
                return Ok(found);
            }
            heard = self.changed.wait(heard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The round trips that the aggregator is to know of, which are then told; `None` if there are
    /// none.
    pub fn take_round_trips(&self) -> Option<control::Times> {
        let take = self.lock().round_trips.clone()?;
        let times = take();
        let counts = &times[..BUCKETS];
        let is_some = counts.iter().any(|count| *count > 0);
        is_some.then(|| control::Times { counts: counts.to_vec(), sum: times[SUM] })
    }

    pub fn lock(&self) -> MutexGuard<'_, Heard> {
        // Every change is a single assignment: there is no half-made one to fear after a panic.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
