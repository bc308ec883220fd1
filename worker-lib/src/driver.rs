//! The data thread: moves packets between the transport, the engine and the collectives in flight.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use switchml_protocol::header::HEADER_LEN;
use zerocopy::IntoBytes;

use crate::collective::Call;
use crate::control::Session;
use crate::engine::{Engine, EngineStats, Failure, Transmission};
use crate::error::Error;
use crate::hello::packet_len;
use crate::numerics::Codec;
use crate::schedule::Schedule;
use crate::task::Task;
use crate::transport::Transport;

/// Times that the processor is offered to others before the thread sleeps. More would be spinning: other ranks, or the kernel's packet
/// processing, may need this core.
const YIELDS: u32 = 3;
/// The data plane may tell of an abort before the control plane tells why. How long to wait for the reason.
const REASON: Duration = Duration::from_secs(1);

/// A collective to run.
pub(crate) struct Command {
    pub call: Call,
    pub codec: Codec,
    pub contributes: bool,
    pub task: Box<dyn Task>,
}

/// What the data thread shares with the others.
#[derive(Default)]
pub(crate) struct Shared {
    /// Why the communicator failed. The first reason counts.
    pub failed: OnceLock<Error>,
    stats: Mutex<Snapshot>,
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
}

/// The data thread's state.
pub(crate) struct Driver<T> {
    pub transport: T,
    pub engine: Engine,
    pub schedule: Schedule,
    pub commands: Receiver<Command>,
    pub session: Session,
    pub shared: Arc<Shared>,
    /// Where the engine's time starts.
    pub begin: Instant,
    /// [`Config::deadline`](crate::engine::Config::deadline), for the error that names it.
    pub deadline: Duration,
    /// Packets in a full batch of full chunks.
    pub batch: u32,
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
        drop(self.schedule);
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
            if !open && self.schedule.is_empty() {
                return Ok(());
            }
            if packets > 0 {
                yields = 0;
            } else if yields < YIELDS && self.engine.outstanding() > 0 {
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
                Ok(Command { call, codec, contributes, task }) => {
                    self.schedule.push(&call, codec, contributes, task);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Takes in what has arrived; how many packets.
    fn receive(&mut self) -> Result<usize, Error> {
        let now = self.now();
        let Self { transport, engine, schedule, .. } = self;
        let mut failure = None;
        let packets = transport
            .receive(&mut |packet, congested| match engine.receive(now, packet, congested) {
                Ok(Some((completed, payload))) => schedule.decode(&completed.chunk, payload),
                Ok(None) => {}
                Err(refused) => failure = Some(refused),
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
        self.engine.note_departed(self.session.departed());
        self.engine.on_timer(now).map_err(|failure| self.explain(failure))?;
        let mut packets = 0;
        while let Some(transmission) = self.engine.next_resend(now) {
            self.transmit(&transmission)?;
            packets += 1;
        }
        if self.is_worth_sending() {
            while self.engine.may_send()
                && let Some(chunk) = self.schedule.next()
            {
                let transmission = self.engine.send(now, chunk);
                self.transmit(&transmission)?;
                packets += 1;
            }
        }
        self.transport.flush().map_err(Error::system("cannot send to the aggregator"))?;
        self.give_back();
        Ok(packets)
    }

    /// Ends the calls that are done, once the statistics include them.
    fn give_back(&mut self) {
        if self.schedule.has_done() {
            self.publish();
            self.schedule.give_back();
        }
    }

    /// Whether the window has room for a batch: a trip through the kernel costs the same for one packet as for many.
    fn is_worth_sending(&self) -> bool {
        let (outstanding, window) = (self.engine.outstanding(), self.engine.window());
        outstanding == 0 || window.saturating_sub(outstanding) >= self.batch.min(window / 2)
    }

    fn transmit(&mut self, transmission: &Transmission) -> Result<(), Error> {
        let Transmission { mut header, chunk } = *transmission;
        let packet = self
            .transport
            .packet(packet_len(chunk.lanes.into()))
            .map_err(Error::system("cannot send to the aggregator"))?;
        let (head, payload) = packet.split_at_mut(HEADER_LEN);
        let sum = self.schedule.encode(&chunk, payload);
        header.check.set(header.check_of(sum, 1));
        head.copy_from_slice(header.as_bytes());
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        let now = self.now();
        let timeout = self.engine.deadline().map(|at| Duration::from_nanos(at.saturating_sub(now)));
        self.transport.wait(timeout).map_err(Error::system("cannot wait for packets"))
    }

    /// The error that a failure is, in the control plane's words if it has any.
    fn explain(&mut self, failure: Failure) -> Error {
        if failure == Failure::Aborted {
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
        Error::from_failure(failure, self.transport.aggregator(), self.deadline)
    }

    fn publish(&self) {
        let snapshot = Snapshot {
            engine: self.engine.stats().clone(),
            foreign: self.transport.foreign(),
            rtt: self.engine.rtt().map(Duration::from_nanos),
            window: self.engine.window(),
        };
        *self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// The engine's time.
    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}
