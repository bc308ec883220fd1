//! The data thread: moves packets between the transport and the endpoint.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::control::Session;
use crate::endpoint::{Command, Endpoint};
use crate::engine::{EngineStats, Failure};
use crate::error::Error;
use crate::stats::CallStats;
use crate::transport::Transport;

/// Times that the processor is offered to others before the thread sleeps. More would be spinning: other ranks, or the kernel's packet
/// processing, may need this core.
const YIELDS: u32 = 3;
/// The data plane may tell of an abort, or of different calls, before the control plane tells why. How long to wait for the reason; the
/// aggregator gathers for up to half a second what all ranks called.
const REASON: Duration = Duration::from_millis(1500);

/// What the data thread shares with the others.
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
}

impl Shared {
    /// Why the data thread is gone.
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

/// The data thread's state.
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
}

impl<T: Transport> Driver<T> {
    /// Runs until the communicator is closed and all its collectives are done, or until something fails.
    pub fn run(mut self) {
        let Err(error) = self.serve() else {
            self.publish();
            return self.session.leave(None);
        };
        let error = self.shared.failed.get_or_init(|| error).clone();
        self.publish();
        // What is in flight, and what was issued in the meantime: who waits for it finds the reason in `failed`.
        drop(self.endpoint);
        drop(self.commands);
        match error {
            Error::Control(_) => self.session.leave(None),
            own => self.session.leave(Some(&own.to_string())),
        }
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut yields = 0;
        loop {
            if let Some(error) = self.shared.failed.get() {
                return Err(error.clone());
            }
            let open = self.take_commands();
            let mut packets = self.receive()?;
            packets += self.send()?;
            if !open && self.endpoint.is_idle() {
                return Ok(());
            }
            if packets > 0 {
                yields = 0;
            } else if yields < YIELDS && self.endpoint.engine().outstanding() > 0 {
                yields += 1;
                std::thread::yield_now();
            } else {
                self.publish();
                self.wait()?;
            }
        }
    }

    /// Takes in new collectives; whether there may be more.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(command) => self.endpoint.submit(command),
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
        };
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// The endpoint's time.
    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}
