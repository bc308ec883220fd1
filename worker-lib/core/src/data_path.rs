//! One rank's data path without its I/O: the [`Engine`], the collectives in flight, and the bundles
//! of their chunks.
//!
//! The library's `driver` drives it with sockets and a clock, simulators and fuzz targets with
//! invented inputs. In a loop, a caller
//!
//! 1. passes calls to [`DataPath::submit`] and every datagram to [`DataPath::receive`],
//! 2. sends by [`DataPath::turn`],
//! 3. calls [`DataPath::give_back`],
//! 4. waits for a call or a datagram, at most until [`DataPath::deadline`].
//!
//! Time is monotonic, in nanoseconds, from wherever the caller likes. After a [`Failure`] the data
//! path must be dropped: that drops the buffers in flight, which tells their owners.

use std::time::Duration;

use switchml_protocol::ranks::Ranks;
use switchml_protocol::root::done::Done;
use switchml_protocol::wire::audience::Audience;
use switchml_protocol::wire::header::{HEADER_LEN, Header, flags};
use switchml_protocol::{EVERYONE, U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::bundles::Bundles;
use crate::call::{Call, Submission};
use crate::collective::Terms;
use crate::engine::{Chunk, Completed, Config, Engine, Failure, Identity, Transmission, Waiting};
use crate::failover::{Due, Log};
use crate::greeting::Greeting;
use crate::packet::{write_hello, write_tag};
use crate::schedule::Schedule;
use crate::stats::CallStats;
use crate::wire::{TurnError, Wire};

/// See the [module's documentation](self).
pub struct DataPath {
    engine: Engine,
    schedule: Schedule,
    bundles: Bundles,
    /// The next new chunk, while its bundle lacks room.
    pending: Option<Chunk>,
    /// What may have to be sent to another aggregator, if the job has one.
    log: Option<Log>,
    /// Present until a repeated HELLO is answered.
    greeting: Option<Greeting>,
}

/// The control plane's knowledge of the other ranks.
#[derive(Clone, Copy, Debug)]
pub struct Others {
    /// The ranks that have left normally.
    pub departed: Ranks,
    /// Whether the control plane watches the ranks: [`Engine::note_watched`].
    pub are_watched: bool,
    /// Whether the aggregator is in a process that stands still: [`Engine::excuse_silence`].
    pub stand_still: bool,
}

impl Others {
    /// All ranks are present, and watched.
    pub const THERE: Self = Self { departed: Ranks::NONE, are_watched: true, stand_still: false };
}

impl DataPath {
    /// A data path without calls, for chunks of up to `lanes` lanes; a superpacket carries up to
    /// `batch` of them.
    pub fn new(engine: Engine, lanes: u16, batch: u32) -> Self {
        let Config { identity, capabilities, .. } = *engine.config();
        let Identity { rank, ranks, .. } = identity;
        let terms = Terms { rank: rank.into(), ranks: ranks.into(), lanes, capabilities };
        let (schedule, bundles) = (Schedule::new(terms), Bundles::new(batch));
        Self { engine, schedule, bundles, pending: None, log: None, greeting: None }
    }

    /// Has it keep what another aggregator may need ([`Self::resume`]): for each slot the lanes of
    /// the last two chunks. Before the first call.
    pub fn keep_for_another(&mut self, lanes: u16) {
        let Config { identity: Identity { rank, ranks, .. }, slots, .. } = *self.engine.config();
        self.log = Some(Log::new(rank, ranks, lanes, slots));
    }

    /// The aggregator is lost: until [`Self::resume`] it takes no turns, and is not idle.
    pub fn lose(&mut self) {
        self.log.iter_mut().for_each(Log::lose);
    }

    /// Goes on at another aggregator, which can do all that shapes the chunks of calls and that the
    /// lost one could. A HELLO took `rtt` there and back, and `batch` packets go into a superpacket
    /// on the way. False if it cannot, because it has not kept what it sent.
    pub fn resume(&mut self, config: Config, rtt: u64, batch: u32) -> bool {
        let Some(log) = &mut self.log else { return false };
        log.resume(config.slots);
        let capabilities = self.engine.config().capabilities;
        self.engine = self.engine.succeed(Config { capabilities, ..config });
        self.engine.sample_rtt(0, rtt);
        (self.bundles, self.greeting) = (Bundles::new(batch), None);
        true
    }

    /// The engine, to look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Has calls wait so long for other ranks from now on, as [`Config::timeout`] says.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.engine.set_timeout(timeout);
    }

    /// Whether no collective is in flight, and no other rank lacks what was sent to an aggregator
    /// that is lost.
    pub fn is_idle(&self) -> bool {
        let is_settled = self.log.as_ref().is_none_or(Log::is_settled);
        self.schedule.is_empty() && is_settled && self.engine.outstanding() == 0
    }

    /// Adds a collective after those in flight.
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

    /// Processes a datagram from the aggregator's address; `congested` if it carried ECN's CE mark.
    pub fn receive(&mut self, now: u64, datagram: &[u8], congested: bool) -> Result<(), Failure> {
        self.receive_and(now, datagram, congested, |_, _| {})
    }

    /// [`Self::receive`], which also has each chunk's result told to the other ranks of the host:
    /// `tell` gets it as a packet to all, header and lanes, in which slot and round are the
    /// chunk's.
    pub fn receive_and(
        &mut self,
        now: u64,
        datagram: &[u8],
        congested: bool,
        mut tell: impl FnMut(&Header, &[u8]),
    ) -> Result<(), Failure> {
        if self.greeting.take_if(|greeting| greeting.is_answer(datagram)).is_some() {
            return Ok(());
        }
        let Self { engine, schedule, log, .. } = self;
        let mut refused = Ok(());
        let pass = |completed: &Completed, missing: &Ranks| {
            tell_done(datagram, completed, congested, &mut tell);
            match is_needed(log, completed, &[]) {
                Ok(true) => schedule.pass(now, completed, missing),
                Ok(false) => {}
                Err(failure) => refused = Err(failure),
            }
        };
        if !engine.receive_done(now, datagram, congested, pass) {
            self.receive_other(now, datagram, congested, tell)?;
        }
        if let Some(log) = &mut self.log {
            log.forget(self.engine.oldest_number(), self.engine.config().slots);
        }
        refused
    }

    fn receive_other(
        &mut self,
        now: u64,
        datagram: &[u8],
        congested: bool,
        tell: impl FnOnce(&Header, &[u8]),
    ) -> Result<(), Failure> {
        let Self { engine, schedule, log, .. } = self;
        let accept = |number, chunk: &Chunk, maximum: &[u8]| {
            log.as_ref().is_some_and(|log| log.is_repeated(number))
                || schedule.accept(chunk, maximum)
        };
        let Some((completed, payload)) = engine.receive_if(now, datagram, congested, accept)?
        else {
            return Ok(());
        };
        if let Some(header) = for_all(datagram, congested) {
            tell(&header, payload);
        }
        if is_needed(log, &completed, payload)? {
            let missing = engine.missing_of(&completed);
            schedule.decode(now, &completed, &missing, payload)?;
        }
        Ok(())
    }

    /// The ranks that it has waited for without a result for `time` or longer; the call, and its
    /// number.
    pub fn waiting_for(&self, time: Duration, now: u64) -> Option<(Waiting, u64, &Call)> {
        let waiting = self
            .engine
            .waiting(now)
            .filter(|waiting| u128::from(waiting.time) >= time.as_nanos())?;
        let (number, call) = self.calls_in_flight(waiting.collective).last()?;
        Some((waiting, number, call))
    }

    /// Takes in what the control plane knows of the other ranks, before it may count against
    /// anybody, then sends what is overdue and what the window allows: HELLOs first, and
    /// contributions in superpackets of one audience each, because what one superpacket brings is
    /// sent on to the same ranks (rule 12.12). How many packets.
    pub fn turn<W: Wire>(
        &mut self,
        now: u64,
        others: Others,
        wire: &mut W,
    ) -> Result<usize, TurnError<W::Error>> {
        self.engine.note_departed(&others.departed);
        self.engine.note_watched(now, others.are_watched);
        if others.stand_still {
            self.engine.excuse_silence(now);
        }
        self.engine.on_timer(now).map_err(TurnError::DataPath)?;
        self.send(now, wire).map_err(TurnError::Wire)
    }

    fn send<W: Wire>(&mut self, now: u64, wire: &mut W) -> Result<usize, W::Error> {
        let mut packets = 0;
        while let Some(hello) = self.greeting.as_mut().and_then(|greeting| greeting.next(now)) {
            let key = &self.engine.config().identity.keys.own;
            wire.put(&hello, |packet| write_hello(key, &hello, packet))?;
            packets += 1;
        }
        let (mut audience, mut held) = (None, Vec::new());
        while let Some(transmission) = self.next(now) {
            packets += 1;
            if goes_behind(&transmission.header) {
                held.push(transmission);
            } else {
                self.put(&transmission, &mut audience, wire)?;
            }
        }
        for transmission in &held {
            self.put(transmission, &mut audience, wire)?;
        }
        wire.flush()?;
        Ok(packets)
    }

    /// Adds a packet to the superpacket; sends that first if it is for another `audience`.
    fn put<W: Wire>(
        &mut self,
        transmission: &Transmission,
        audience: &mut Option<Audience>,
        wire: &mut W,
    ) -> Result<(), W::Error> {
        let own = Audience::of(transmission.header.op);
        if audience.replace(own).is_some_and(|audience| audience != own) {
            wire.flush()?;
        }
        wire.put(&transmission.header, |packet| self.fill(transmission, packet))
    }

    /// The next contribution to send now, if any: resends first, then new chunks, each bundle once
    /// there is room for all of it.
    fn next(&mut self, now: u64) -> Option<Transmission> {
        let due = self.engine.next_resend(now).or_else(|| self.next_new(now));
        // Chunks that may wait were numbered meanwhile; some may go at once.
        due.or_else(|| self.engine.next_resend(now))
    }

    /// Writes a contribution's packet.
    fn fill(&mut self, transmission: &Transmission, packet: &mut [u8]) {
        let Transmission { mut header, chunk, number } = *transmission;
        let (head, rest) = packet.split_at_mut(HEADER_LEN);
        let payload = &mut rest[..4 * usize::from(header.payload_lanes())];
        let encode = |payload: &mut [u8]| self.schedule.encode(&chunk, payload);
        let sum = match &mut self.log {
            _ if payload.is_empty() => 0,
            None => encode(payload),
            Some(log) => log.write(number, payload, encode),
        };
        header.check.set(header.check_of(sum, 1));
        head.copy_from_slice(header.as_bytes());
        write_tag(&self.engine.config().identity.keys.own, &header, packet);
    }

    /// When to call [`Self::turn`] if nothing arrives before; `None` while nothing is outstanding.
    pub fn deadline(&self) -> Option<u64> {
        let greeting = self.greeting.as_ref().filter(|_| !self.is_idle()).map(Greeting::due);
        [self.engine.deadline(), greeting].into_iter().flatten().min()
    }

    /// The calls in flight up to collective `last` of this data path in the order of their issue,
    /// with their numbers.
    pub fn calls_in_flight(&self, last: u64) -> impl Iterator<Item = (u64, &Call)> {
        self.schedule.in_flight(last)
    }

    /// Whether there are finished collectives that are not given back yet.
    pub fn has_done(&self) -> bool {
        self.schedule.has_done()
    }

    /// Statistics of the finished collectives that are not given back yet.
    pub fn done(&self) -> impl Iterator<Item = &CallStats> {
        self.schedule.done()
    }

    /// Finishes the buffers of the collectives that are done.
    pub fn give_back(&mut self) {
        self.schedule.give_back();
    }

    fn next_new(&mut self, now: u64) -> Option<Transmission> {
        let chunk = loop {
            let Some(chunk) = self.next_chunk() else {
                self.bundles.pause();
                return None;
            };
            if !chunk.may_wait {
                break chunk;
            }
            if self.engine.room_for_empty() == 0 {
                self.put_back(chunk);
                return None;
            }
            self.bundles.interrupt();
            self.note_numbered(chunk);
            self.engine.defer(now, chunk);
        };
        if !self.bundles.goes_on(&chunk) {
            // The room will come: a bundle takes up at most half of the window.
            let (room, window) = if chunk.empty {
                (self.engine.room_for_empty(), self.engine.config().slots.into())
            } else {
                (self.engine.room(), self.engine.window())
            };
            if !self.bundles.begin(&chunk, room, window) {
                self.put_back(chunk);
                return None;
            }
        }
        self.bundles.advance();
        self.note_numbered(chunk);
        Some(self.engine.send(now, chunk))
    }

    /// The chunk that gets the next number, if it is known: first what another aggregator had.
    fn next_chunk(&mut self) -> Option<Chunk> {
        match self.log.as_ref().map_or(Due::New, Log::due) {
            Due::Known(chunk) => Some(chunk),
            Due::Nothing => None,
            Due::New => self.pending.take().or_else(|| self.schedule.next()),
        }
    }

    /// The next chunk has to wait.
    fn put_back(&mut self, chunk: Chunk) {
        if matches!(self.log.as_ref().map_or(Due::New, Log::due), Due::New) {
            self.pending = Some(chunk);
        }
    }

    fn note_numbered(&mut self, chunk: Chunk) {
        if let Some(log) = &mut self.log {
            log.note_numbered(chunk);
        }
    }
}

/// The header of a RESULT or DONE, as one for all ranks has it. Neither check word nor salt depend
/// on what differs.
fn for_all(datagram: &[u8], congested: bool) -> Option<Header> {
    let (mut header, _) = Header::read_from_prefix(datagram).ok()?;
    (header.rank, header.aux) = (U16::new(EVERYONE), U32::ZERO);
    header.flags |= if congested { flags::CE } else { 0 };
    Some(header)
}

/// Tells of one of the chunks that a DONE names, by a DONE of its own.
fn tell_done(
    datagram: &[u8],
    completed: &Completed,
    congested: bool,
    tell: &mut impl FnMut(&Header, &[u8]),
) {
    let result = for_all(datagram, congested).map(|mut header| {
        (header.slot, header.round) = (U16::new(completed.slot), U32::new(completed.round));
        header
    });
    let Some((mut done, result)) = result.and_then(|result| Some((Done::of(&result)?, result)))
    else {
        return;
    };
    if let Some(lane) = done.add(&result) {
        tell(&done.header(), &lane.to_be_bytes());
    }
}

/// Whether the result of a chunk is to be used: no earlier aggregator gave it, and it is not about
/// the ranks' places.
fn is_needed(
    log: &mut Option<Log>,
    completed: &Completed,
    payload: &[u8],
) -> Result<bool, Failure> {
    log.as_mut().map_or(Ok(true), |log| log.complete(completed.number, payload))
}

/// Whether a packet leaves after the packets without lanes of its turn: in an all-gather these
/// should arrive before other ranks' lanes, which then complete the round.
fn goes_behind(header: &Header) -> bool {
    let has_lanes = header.flags & flags::EMPTY == 0;
    has_lanes && matches!(Audience::of(header.op), Audience::AllBut(_))
}
