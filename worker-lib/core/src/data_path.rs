//! One rank's data path without its I/O: [`Engine`], the collectives in flight, and their chunks in
//! bundles.
//!
//! The library's `driver` drives it with sockets and a clock, simulators and fuzz targets with what
//! they make up. In a loop, a caller
//!
//! 1. takes in calls by [`DataPath::submit`] and every datagram by [`DataPath::receive`],
//! 2. calls [`DataPath::begin_turn`],
//! 3. sends what [`DataPath::next_hello`] returns, then what [`DataPath::next`] does, each filled
//!    in by [`DataPath::fill`], until that is nothing,
//! 4. calls [`DataPath::give_back`],
//! 5. waits for a call or a datagram, at most until [`DataPath::deadline`].
//!
//! Time is monotonic, in nanoseconds, from wherever the caller likes. After a [`Failure`] the
//! data path is of no more use: dropping it drops the buffers in flight, which their owners hear.

use std::time::Duration;

use switchml_protocol::header::{HEADER_LEN, Header};
use switchml_protocol::ranks::Ranks;
use zerocopy::IntoBytes;

use crate::bundles::Bundles;
use crate::call::{Call, Submission};
use crate::collective::Terms;
use crate::engine::{Chunk, Completed, Config, Engine, Failure, Identity, Transmission, Waiting};
use crate::greeting::Greeting;
use crate::packet::{write_hello, write_tag};
use crate::schedule::Schedule;
use crate::stats::CallStats;

/// See the [module's documentation](self).
pub struct DataPath {
    engine: Engine,
    schedule: Schedule,
    bundles: Bundles,
    /// The next new chunk, while there is no room for the rest of its bundle.
    pending: Option<Chunk>,
    /// Until a HELLO that was said again is answered.
    greeting: Option<Greeting>,
}

/// What the control plane knows of the other ranks.
#[derive(Clone, Copy, Debug)]
pub struct Others {
    /// Those that have left in good order.
    pub departed: Ranks,
    /// Whether it watches them: [`Engine::note_watched`].
    pub are_watched: bool,
}

impl Others {
    /// All are there, and watched.
    pub const THERE: Self = Self { departed: Ranks::NONE, are_watched: true };
}

impl DataPath {
    /// A data path without calls, for chunks of up to `lanes` lanes, of which superpackets carry up
    /// to `batch`.
    pub fn new(engine: Engine, lanes: u16, batch: u32) -> Self {
        let Config { identity, capabilities, .. } = *engine.config();
        let Identity { rank, ranks, .. } = identity;
        let terms = Terms { rank: rank.into(), ranks: ranks.into(), lanes, capabilities };
        let (schedule, bundles) = (Schedule::new(terms), Bundles::new(batch));
        Self { engine, schedule, bundles, pending: None, greeting: None }
    }

    /// The engine, to look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Has calls wait so long for other ranks from now on, as [`Config::timeout`] says.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.engine.set_timeout(timeout);
    }

    /// Whether no collective is in flight.
    pub fn is_idle(&self) -> bool {
        self.schedule.is_empty()
    }

    /// Adds a collective, behind those in flight.
    pub fn submit(&mut self, submission: Submission) {
        self.schedule.push(submission);
    }

    /// Whether call `number`, which was submitted, is done.
    pub fn is_done(&self, number: u64) -> bool {
        self.schedule.is_done(number)
    }

    /// Has it say HELLO again, ahead of all else, with this secret.
    pub fn greet(&mut self, now: u64, secret: u32) {
        self.greeting = Some(Greeting::new(now, &self.engine.config().identity, secret));
    }

    /// A HELLO to send now, without payload, ahead of what [`Self::next`] has.
    pub fn next_hello(&mut self, now: u64) -> Option<Header> {
        self.greeting.as_mut()?.next(now)
    }

    /// Takes in a datagram that came from the aggregator's address; `congested` when it carried the
    /// CE mark of ECN.
    ///
    /// # Errors
    /// As [`Engine::receive`], and [`Failure::Maximum`].
    pub fn receive(&mut self, now: u64, datagram: &[u8], congested: bool) -> Result<(), Failure> {
        if self.greeting.take_if(|greeting| greeting.is_answer(datagram)).is_some() {
            return Ok(());
        }
        let Self { engine, schedule, .. } = self;
        let pass = |completed: &Completed, missing: &Ranks| schedule.pass(now, completed, missing);
        if engine.receive_done(now, datagram, congested, pass) {
            return Ok(());
        }
        let accept = |chunk: &Chunk, maximum: &[u8]| self.schedule.accept(chunk, maximum);
        if let Some((completed, payload)) =
            self.engine.receive_if(now, datagram, congested, accept)?
        {
            let missing = self.engine.missing_of(&completed);
            self.schedule.decode(now, &completed, &missing, payload)?;
        }
        Ok(())
    }

    /// Whom it has waited for without a result for `time` or longer, and in which call, with its
    /// number.
    pub fn waiting_for(&self, time: Duration, now: u64) -> Option<(Waiting, u64, &Call)> {
        let waiting = self
            .engine
            .waiting(now)
            .filter(|waiting| u128::from(waiting.time) >= time.as_nanos())?;
        let (number, call) = self.calls_in_flight(waiting.collective).last()?;
        Some((waiting, number, call))
    }

    /// Begins a turn: takes in what the control plane knows of the other ranks, before it may count
    /// against anybody, and marks what is overdue, to be sent again.
    ///
    /// # Errors
    /// As [`Engine::on_timer`].
    pub fn begin_turn(&mut self, now: u64, others: Others) -> Result<(), Failure> {
        self.engine.note_departed(&others.departed);
        self.engine.note_watched(now, others.are_watched);
        self.engine.on_timer(now)
    }

    /// The next packet to send now, if any: what is due again, then new chunks, each bundle once
    /// there is room for all of it.
    pub fn next(&mut self, now: u64) -> Option<Transmission> {
        let due = self.engine.next_resend(now).or_else(|| self.next_new(now));
        // Of what may wait, some may go at once.
        due.or_else(|| self.engine.next_resend(now))
    }

    /// Writes a transmission's packet, of [`Transmission::packet_len`] bytes.
    ///
    /// # Panics
    /// When `packet` is of another length.
    pub fn fill(&self, transmission: &Transmission, packet: &mut [u8]) {
        let Transmission { mut header, chunk } = *transmission;
        let (head, rest) = packet.split_at_mut(HEADER_LEN);
        let payload = &mut rest[..4 * usize::from(header.payload_lanes())];
        let sum = if payload.is_empty() { 0 } else { self.schedule.encode(&chunk, payload) };
        header.check.set(header.check_of(sum, 1));
        head.copy_from_slice(header.as_bytes());
        write_tag(&self.engine.config().identity.keys.own, &header, packet);
    }

    /// Writes a HELLO of [`Self::next_hello`], of [`len_of`](crate::packet::len_of) bytes.
    pub fn fill_hello(&self, hello: &Header, packet: &mut [u8]) {
        write_hello(&self.engine.config().identity.keys.own, hello, packet);
    }

    /// When [`Self::begin_turn`] is to be called, if nothing comes before; `None` while nothing is
    /// outstanding.
    pub fn deadline(&self) -> Option<u64> {
        let greeting = self.greeting.as_ref().filter(|_| !self.is_idle()).map(Greeting::due);
        [self.engine.deadline(), greeting].into_iter().flatten().min()
    }

    /// The calls in flight up to collective `last` of this data path in the order of their issue,
    /// with their numbers.
    pub fn calls_in_flight(&self, last: u64) -> impl Iterator<Item = (u64, &Call)> {
        self.schedule.in_flight(last)
    }

    /// Whether collectives are done and not given back yet.
    pub fn has_done(&self) -> bool {
        self.schedule.has_done()
    }

    /// Statistics of the collectives that are done and not given back yet.
    pub fn done(&self) -> impl Iterator<Item = &CallStats> {
        self.schedule.done()
    }

    /// Finishes the buffers of the collectives that are done.
    pub fn give_back(&mut self) {
        self.schedule.give_back();
    }

    fn next_new(&mut self, now: u64) -> Option<Transmission> {
        let chunk = loop {
            let Some(chunk) = self.pending.take().or_else(|| self.schedule.next()) else {
                self.bundles.pause();
                return None;
            };
            if !chunk.may_wait {
                break chunk;
            }
            if self.engine.room_for_empty() == 0 {
                self.pending = Some(chunk);
                return None;
            }
            self.bundles.interrupt();
            self.engine.defer(now, chunk);
        };
        if !self.bundles.goes_on(&chunk) {
            // There is room for it some time: a bundle takes up half of the window at most.
            let (room, window) = if chunk.empty {
                (self.engine.room_for_empty(), self.engine.config().slots.into())
            } else {
                (self.engine.room(), self.engine.window())
            };
            if !self.bundles.begin(&chunk, room, window) {
                self.pending = Some(chunk);
                return None;
            }
        }
        self.bundles.advance();
        Some(self.engine.send(now, chunk))
    }
}
