//! Moves packets between the transport and the endpoint, on the thread that drives: a caller's, or the data thread.
//!
//! A caller that waits for its call anyway drives it itself, so that no thread has to be woken up for it, twice. The data thread drives what is in
//! flight while nobody waits, and calls that were made while somebody else drove; otherwise it sleeps. Between calls nobody looks at
//! the sockets.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::control::Session;
use crate::endpoint::{Command, Endpoint};
use crate::engine::{EngineStats, Failure};
use crate::error::Error;
use crate::patience::{Patience, WaitStats, offer_core};
use crate::stats::CallStats;
use crate::transport::Transport;
use crate::waker::Waker;

/// The data plane may tell of an abort, or of different calls, before the control plane tells why. How long to wait for the reason; the
/// aggregator gathers for up to half a second what all ranks called.
const REASON: Duration = Duration::from_millis(1500);

/// What everyone sees of the driver.
#[derive(Default)]
pub(crate) struct Shared {
    /// Why the communicator failed. The first reason counts.
    pub failed: OnceLock<Error>,
    stats: Mutex<Snapshot>,
    /// Of all calls that were given back.
    calls: Mutex<CallStats>,
}

/// The data path's counters at some moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub engine: EngineStats,
    pub foreign: u64,
    pub rtt: Option<Duration>,
    pub window: u32,
    pub waits: WaitStats,
}

impl Shared {
    /// Why the driver is gone.
    pub fn reason(&self) -> Error {
        self.failed.get().cloned().unwrap_or(Error::Closed)
    }

    pub fn snapshot(&self) -> Snapshot {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn calls(&self) -> CallStats {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add_calls<'a>(&self, calls: impl Iterator<Item = &'a CallStats>) {
        let mut total = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.for_each(|call| *total += call);
    }
}

/// The driver, and who drives it: whoever has the lock.
pub(crate) struct Seat<T> {
    /// `None` once the communicator is closed or has failed.
    driver: Mutex<Option<Driver<T>>>,
    /// Wakes the data thread, which sleeps while there is nothing for it to drive.
    idle: Waker,
}

/// What it takes to drive.
pub(crate) struct Driver<T> {
    pub transport: T,
    pub endpoint: Endpoint,
    pub commands: Receiver<Command>,
    pub session: Session,
    pub shared: Arc<Shared>,
    /// Where the endpoint's time starts.
    pub begin: Instant,
    /// [`Config::deadline`](crate::engine::Config::deadline), for the error that names it.
    pub deadline: Duration,
    pub patience: Patience,
}

impl<T: Transport> Seat<T> {
    /// A seat for `driver`; `idle` is to be woken when there are commands, when they end, and when the communicator has failed.
    pub fn new(driver: Driver<T>, idle: Waker) -> Self {
        Self { driver: Mutex::new(Some(driver)), idle }
    }

    /// Runs a call on this thread, unless another one drives: then the command comes back. The command's task is gone on
    /// return, or will be soon if something failed.
    pub fn run(&self, command: Command) -> Option<Command> {
        // Goes last: the data thread can sit down when it wakes up.
        let mut relief = Relief { idle: &self.idle, is_needed: false };
        let Ok(mut seat) = self.driver.try_lock() else { return Some(command) };
        let Some(driver) = seat.as_mut() else { return Some(command) };
        relief.is_needed = true;
        relief.is_needed = driver.run(command).is_err() || !driver.endpoint.is_idle();
        None
    }

    /// The data thread: drives what nobody waits for until the communicator is closed or something fails, then leaves the job.
    pub fn serve(&self) {
        let _leaves = Leaves(self);
        let outcome = self.serve_until_closed();
        let driver = self.sit_down().take();
        if let Some(driver) = driver {
            driver.end(outcome);
        }
    }

    fn serve_until_closed(&self) -> Result<(), Error> {
        loop {
            if self.driver.is_poisoned() {
                return Err(Error::Panicked);
            }
            let mut seat = self.sit_down();
            let Some(driver) = seat.as_mut() else { return Ok(()) };
            let is_open = driver.take_commands();
            driver.drive(Endpoint::is_idle)?;
            if !is_open {
                return Ok(());
            }
            driver.publish();
            drop(seat);
            self.idle.sleep().map_err(Error::system("cannot wait for calls"))?;
        }
    }

    fn sit_down(&self) -> MutexGuard<'_, Option<Driver<T>>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the data thread if it is needed after this thread, also when that unwinds.
struct Relief<'a> {
    idle: &'a Waker,
    is_needed: bool,
}

impl Drop for Relief<'_> {
    fn drop(&mut self) {
        if self.is_needed {
            self.idle.wake();
        }
    }
}

/// Drops the driver if the data thread unwinds, and so tells those who wait for tasks.
struct Leaves<'a, T: Transport>(&'a Seat<T>);

impl<T: Transport> Drop for Leaves<'_, T> {
    fn drop(&mut self) {
        drop(self.0.sit_down().take());
    }
}

impl<T: Transport> Driver<T> {
    /// Leaves the job: after all collectives are done, or because something failed.
    fn end(self, outcome: Result<(), Error>) {
        self.publish();
        let Err(error) = outcome else {
            return self.session.leave(None);
        };
        let error = self.shared.failed.get_or_init(|| error).clone();
        // What is in flight, and what was issued in the meantime: who waits for it finds the reason in `failed`.
        drop(self.endpoint);
        drop(self.commands);
        match error {
            Error::Control(_) => self.session.leave(None),
            own => self.session.leave(Some(&own.to_string())),
        }
    }

    /// Runs a call, behind those in flight, until it is done.
    fn run(&mut self, command: Command) -> Result<(), Error> {
        self.take_commands();
        let number = self.endpoint.submit(command);
        let outcome = self.drive(|endpoint| endpoint.is_done(number));
        if let Err(error) = &outcome {
            self.shared.failed.get_or_init(|| error.clone());
        }
        outcome
    }

    /// Moves packets until the endpoint is as wanted.
    fn drive(&mut self, is_enough: impl Fn(&Endpoint) -> bool) -> Result<(), Error> {
        loop {
            if let Some(error) = self.shared.failed.get() {
                return Err(error.clone());
            }
            self.take_commands();
            let mut packets = self.send()?;
            if is_enough(&self.endpoint) {
                return Ok(());
            }
            packets += self.receive()?;
            if packets > 0 {
                self.patience.end();
            } else if !self.patience.look_again(self.now(), offer_core) {
                self.publish();
                self.wait()?;
                self.patience.end();
            }
        }
    }

    /// Takes in new collectives; whether there may be more.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    self.endpoint.submit(command);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Takes in what has arrived; how many packets.
    fn receive(&mut self) -> Result<usize, Error> {
        let now = self.now();
        let Self { transport, endpoint, .. } = self;
        let mut failure = None;
        let packets = transport
            .receive(&mut |packet, congested| {
                if let Err(refused) = endpoint.receive(now, packet, congested) {
                    // The first one counts.
                    failure.get_or_insert(refused);
                }
            })
            .map_err(Error::system("cannot receive from the aggregator"))?;
        self.give_back();
        match failure {
            None => Ok(packets),
            Some(failure) => Err(self.explain(failure)),
        }
    }

    /// Sends what is due and what the window allows; how many packets.
    fn send(&mut self) -> Result<usize, Error> {
        let now = self.now();
        self.endpoint.note_departed(self.session.departed());
        self.endpoint.on_timer(now).map_err(|failure| self.explain(failure))?;
        let refused = Error::system("cannot send to the aggregator");
        let mut packets = 0;
        while let Some(transmission) = self.endpoint.next(now) {
            let packet = self.transport.packet(transmission.packet_len()).map_err(&refused)?;
            self.endpoint.fill(&transmission, packet);
            packets += 1;
        }
        self.transport.flush().map_err(refused)?;
        self.give_back();
        Ok(packets)
    }

    /// Ends the calls that are done, once the statistics include them.
    fn give_back(&mut self) {
        if self.endpoint.has_done() {
            self.publish();
            self.shared.add_calls(self.endpoint.done());
            self.endpoint.give_back();
        }
    }

    fn wait(&mut self) -> Result<(), Error> {
        let now = self.now();
        let timeout = self.endpoint.deadline().map(|at| Duration::from_nanos(at.saturating_sub(now)));
        self.transport.wait(timeout).map_err(Error::system("cannot wait for packets"))
    }

    /// The error that a failure is, in the control plane's words if it has any.
    fn explain(&mut self, failure: Failure) -> Error {
        match failure {
            Failure::Aborted => self.wait_for_reason(),
            Failure::Mismatch { first, dissenter, collective } => {
                let calls = self.endpoint.calls_in_flight(collective);
                let calls = calls.map(|(number, call)| (number + 1, call.to_string()));
                self.session.report_calls(calls.collect(), [first, dissenter]);
                self.wait_for_reason();
            }
            _ => {}
        }
        Error::from_failure(failure, self.transport.aggregator(), self.deadline)
    }

    /// Waits until the control plane has said why the job is over.
    fn wait_for_reason(&mut self) {
        let until = Instant::now() + REASON;
        while self.shared.failed.get().is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.transport.wait(Some(left)).is_err() {
                break;
            }
            // Packets that keep coming must not keep this loop busy.
            let _ = self.transport.receive(&mut |_, _| {});
        }
    }

    fn publish(&self) {
        let engine = self.endpoint.engine();
        let snapshot = Snapshot {
            engine: engine.stats().clone(),
            foreign: self.transport.foreign(),
            rtt: engine.rtt().map(Duration::from_nanos),
            window: engine.window(),
            waits: self.patience.stats(),
        };
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// The endpoint's time.
    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}
