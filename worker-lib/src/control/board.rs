//! The news of the control thread, for the other threads to read and wait for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use switchml_control as control;
use switchml_control::signs::Pulse;
use switchml_protocol::bpf_types::times::{BUCKETS, SUM, Times};
use switchml_protocol::ranks::Ranks;

use super::{Assigned, Error};

/// An aggregator pings a rank that says nothing once a second. Without a sign of life for so long,
/// its process stands still.
const STILL: Duration = Duration::from_millis(2500);

/// Called once when the session has ended.
pub(super) type OnEnd = Box<dyn FnOnce(Error) + Send>;

/// Returns the calls in flight up to a call.
pub(super) type CallsInFlight = Arc<dyn Fn(u64) -> Vec<control::Call> + Send + Sync>;

/// Returns the round trips since the last call.
pub(super) type TakeRoundTrips = Arc<dyn Fn() -> Times + Send + Sync>;

/// Returns what became of this rank's packets.
pub(super) type PathOf = Arc<dyn Fn() -> control::Path + Send + Sync>;

#[derive(Default)]
pub(super) struct Heard {
    pub assigned: Option<Assigned>,
    pub started: Option<u16>,
    /// The control plane has nothing to say on the failure of the data path.
    pub has_no_reason: bool,
    ended: Option<Error>,
    has_left: bool,
    /// Nothing will be heard any more.
    is_over: bool,
    on_end: Option<OnEnd>,
    pub calls_in_flight: Option<CallsInFlight>,
    /// When the aggregator last said something.
    pub pulse: Option<Pulse>,
    round_trips: Option<TakeRoundTrips>,
    path: Option<PathOf>,
    departed: Ranks,
}

#[derive(Default)]
pub(super) struct Board {
    heard: Mutex<Heard>,
    changed: Condvar,
    /// Whether ranks have left normally.
    have_departed: AtomicBool,
    /// How often the control plane asked the data path to say HELLO again.
    pub hellos: AtomicU64,
    /// Whether the connection is broken, and may come back.
    pub unwatched: AtomicBool,
    /// The aggregator's share of calls, for its operator (rule 36.14).
    pub share: OnceLock<u32>,
    /// The rank whose copies of results this one reads (rule 38.2).
    pub taker: OnceLock<u16>,
}

impl Board {
    /// Notes a change, and wakes the threads that wait for it.
    pub fn note(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Notes the end of the session. The first reason counts: later ones are its consequences.
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

    /// This rank has left: nothing will be heard any more.
    pub fn leave(&self) {
        self.note(|heard| heard.has_left = true);
    }

    /// The control thread has done with this membership.
    pub fn be_over(&self) {
        self.note(|heard| heard.is_over = true);
    }

    /// Waits until the control thread has done with this membership.
    pub fn wait_until_over(&self) {
        let goes_on = |heard: &mut Heard| !heard.is_over;
        drop(self.changed.wait_while(self.lock(), goes_on));
    }

    /// See [`Membership::stands_still`](super::Membership::stands_still).
    pub fn stands_still(&self) -> bool {
        let pulse = self.lock().pulse.clone();
        pulse.is_some_and(|pulse| pulse.silence() >= STILL)
    }

    /// The ranks that have left normally.
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

    /// Sets `take` as the source of [`Self::take_round_trips`].
    pub fn on_round_trips_wanted(&self, take: TakeRoundTrips) {
        self.lock().round_trips = Some(take);
    }

    /// Sets `path` as the source of [`Self::path`].
    pub fn on_path_wanted(&self, path: PathOf) {
        self.lock().path = Some(path);
    }

    /// What became of this rank's packets, once it has sent any.
    pub fn path(&self) -> Option<control::Path> {
        let path = self.lock().path.clone()?;
        Some(path()).filter(|path| path.sent > 0)
    }

    /// Waits until `pick` returns something. The session ensures that this, or the end of the
    /// session, comes in time.
    ///
    /// # Errors
    ///
    /// The reason why the session ended, if it ends first; [`Error::Left`] if this rank leaves.
    pub fn wait<T>(&self, pick: impl Fn(&Heard) -> Option<T>) -> Result<T, Error> {
        let mut heard = self.lock();
        loop {
            if let Some(why) = &heard.ended {
                return Err(why.clone());
            }
            if let Some(found) = pick(&heard) {
                return Ok(found);
            }
            if heard.has_left {
                return Err(Error::Left);
            }
            heard = self.changed.wait(heard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The round trips to be reported to the aggregator, which then count as reported; `None` if
    /// there are none.
    pub fn take_round_trips(&self) -> Option<control::Times> {
        let take = self.lock().round_trips.clone()?;
        let times = take();
        let counts = &times[..BUCKETS];
        let is_some = counts.iter().any(|count| *count > 0);
        is_some.then(|| control::Times { counts: counts.to_vec(), sum: times[SUM] })
    }

    pub fn lock(&self) -> MutexGuard<'_, Heard> {
        // Every change is a single assignment, so a panic leaves nothing half changed.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
