//! The engine: decides what to send next, given the aggregator's answers and the time.
//!
//! Datagrams and a monotonic time in nanoseconds go in, decisions come out. It has no I/O, no
//! clock, no allocation per chunk and no payload; it is deterministic and cloneable, so that
//! simulators and model checkers drive the same code as the sockets do. Sections 12 to 14 of
//! `docs/spec` are the specification.
//!
//! The session's chunks are numbered c = 0, 1, 2, … across collectives; chunk c uses slot c mod S
//! in round c div S. A chunk may go out once the result of chunk c - S is here, and while fewer
//! than the window are outstanding (rules 12.1 and 12.2). In a loop, a caller
//!
//! 1. passes every datagram to [`Engine::receive`] and uses the result it may return,
//! 2. calls [`Engine::on_timer`],
//! 3. sends what [`Engine::next_resend`] returns, then new chunks by [`Engine::send`] while
//!    [`Engine::may_send`],
//! 4. waits for a datagram, at most until [`Engine::deadline`].
//!
//! # Loss
//!
//! Chunks are sent again in two cases. First, when results came of chunks that were sent later by
//! more than the reordering window (RACK, RFC 8985; the result of a chunk that was sent again
//! proves nothing for a round trip). Second, when nothing came within the retransmission timeout
//! (RTO): then the oldest chunk is sent again, and twice as many at each further expiry. A PENDING
//! says that the chunk is in and a peer is late. That is no loss; from then on only the oldest
//! chunk is sent again, ever more rarely, because its RESULT may still get lost. A chunk of zeros
//! whose lanes were left out waits for another rank's lanes, so it is overtaken only by results of
//! chunks with larger numbers. A loss counts only if it is confirmed: by a result that follows the
//! resend after at least a round trip. And the window shrinks only if the share of losses is larger
//! than links cause by themselves.

mod answer;
mod chunk;
mod config;
mod departed;
mod failure;
mod outstanding;
mod overtaking;
mod reordering;
mod rtt;
mod stats;
mod window;

#[cfg(test)]
mod tests;

use std::time::Duration;

use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::wire::header::{CheckWord, Header, Kind, flags};
use switchml_protocol::{EVERYONE, U16, U32, VERSION};

use answer::Word;
use departed::Departed;
use outstanding::{Outstanding, Table};
use overtaking::{Doubtful, Evidence, Frontiers};
use reordering::Reordering;
use rtt::Rtt;
use window::Window;

pub use answer::{Identity, Keys};
pub use chunk::{Chunk, Completed, History, Part, Transmission};
pub use config::{Config, DEADLINE, Limits, TIMEOUT, TIMEOUT_CEILING};
pub use failure::Failure;
pub use rtt::RttLimits;
pub use stats::{EngineStats, Ignored};
pub use window::WindowLimits;

/// A collective that waits for other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The ranks that are missing, as the aggregator said last.
    pub ranks: Ranks,
    /// [`Chunk::collective`] of the chunk that they have not contributed to.
    pub collective: u64,
    /// Time since the last result, in ns.
    pub time: u64,
}

/// Ranks are named as missing if the aggregator has said so within this many of the longest
/// intervals at which it is asked, or within half the deadline. A rank that was missing earlier may
/// have come since, and the fault is now on the path to the aggregator.
const NEWS_LASTS: u64 = 4;

/// This many copies for one rank, without a RESULT for all in between, show that multicast fails
/// and not that packets are lost: at a loss of 20 %, one such rank in 400,000 would be wrong.
const TELLING_COPIES: u64 = 8;
/// Time that these copies must span, in ns. A network may take this long to learn a group's
/// members; and when a path recovers, copies come first, but RESULTs for all soon follow.
const TELLING_TIME: u64 = 500_000_000;

/// See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct Engine {
    config: Config,
    table: Table,
    window: Window,
    rtt: Rtt,
    /// Transmissions so far.
    sequence: u64,
    evidence: Option<Evidence>,
    /// Evidence by the result of a chunk that was sent again, as long as it may be right.
    doubtful: Option<Doubtful>,
    frontiers: Frontiers,
    reordering: Reordering,
    /// When overtaken chunks that may just be late will count as lost.
    reordering_until: Option<u64>,
    /// Chunks marked as lost and not sent again yet.
    lost: u32,
    /// Start of the retransmission timer.
    timer_from: u64,
    /// The timer's expiries since the last progress.
    expiries: u32,
    progress_at: u64,
    /// When this rank went on after it had been frozen itself: packets may wait in its socket, so
    /// the aggregator was not silent.
    resumed_at: u64,
    /// Since when nobody watches whether the other ranks are present, if nobody does.
    unwatched_since: Option<u64>,
    /// Time of the last PENDING: results of chunks sent before it give no round-trip time.
    pending_at: Option<u64>,
    /// By slot, the ranks that were in at the last PENDING. Not in the table, to keep its entries
    /// small.
    seen: Box<[Ranks]>,
    departed: Departed,
    stats: EngineStats,
    unheard: Unheard,
}

/// The copies that have come for this rank since the last RESULT for all.
#[derive(Clone, Copy, Debug, Default)]
struct Unheard {
    copies: u64,
    first_at: u64,
    last_at: u64,
}

impl Unheard {
    fn note(&mut self, now: u64) {
        if self.copies == 0 {
            self.first_at = now;
        }
        self.copies += 1;
        self.last_at = now;
    }
}

impl Engine {
    /// An engine at the start of its epoch.
    pub fn new(config: Config) -> Self {
        Self::starting_at(config, 0)
    }

    /// An engine whose first chunk is number `first`, in an epoch whose chunks before it are all
    /// done: for tests that let round numbers wrap around.
    pub fn starting_at(config: Config, first: u64) -> Self {
        Self {
            config,
            table: Table::new(config.slots, first),
            window: Window::new(config.window),
            rtt: Rtt::new(config.rtt),
            sequence: 0,
            evidence: None,
            doubtful: None,
            frontiers: Frontiers::default(),
            reordering: Reordering::new(config.reordering, config.slots),
            reordering_until: None,
            lost: 0,
            timer_from: 0,
            expiries: 0,
            progress_at: 0,
            resumed_at: 0,
            unwatched_since: None,
            pending_at: None,
            seen: vec![Ranks::NONE; config.slots.max(1).into()].into(),
            departed: Departed::default(),
            stats: EngineStats::default(),
            unheard: Unheard::default(),
        }
    }

    /// The engine that goes on at another aggregator, in the epoch that begins there. It counts on.
    pub fn succeed(&self, config: Config) -> Self {
        Self { stats: self.stats.clone(), ..Self::new(config) }
    }

    /// Takes a round trip measured before the first chunk, by a HELLO.
    pub fn sample_rtt(&mut self, sent_at: u64, now: u64) {
        self.rtt.sample(sent_at, now);
    }

    /// Sets the time to wait for other ranks, [`Config::timeout`].
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.config.timeout = config::nanoseconds(timeout);
    }

    /// Notes that these ranks have left normally: they have all their results, and make no more
    /// calls. From then on, waiting for one of them is a failure.
    pub fn note_departed(&mut self, ranks: &Ranks) {
        self.departed.note(ranks, self.sequence);
    }

    /// Notes whether the control plane watches the other ranks, so that it would report one that
    /// died. By default it does.
    pub fn note_watched(&mut self, now: u64, watched: bool) {
        self.unwatched_since = if watched { None } else { self.unwatched_since.or(Some(now)) };
    }

    /// Rule 36.18: the aggregator is in a process that stands still, so its silence says nothing.
    /// The deadline begins anew.
    pub fn excuse_silence(&mut self, now: u64) {
        self.resumed_at = now;
    }

    /// The ranks that the oldest outstanding chunk waits for, if the aggregator has named them.
    pub fn waiting(&self, now: u64) -> Option<Waiting> {
        let oldest = self.table.oldest()?;
        let ranks = self.missing(oldest)?;
        Some(Waiting {
            ranks,
            collective: oldest.chunk.collective,
            time: now.saturating_sub(self.progress_at),
        })
    }

    /// The engine's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Counters so far.
    pub fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// Smoothed round-trip time in ns, if there is a sample.
    pub fn rtt(&self) -> Option<u64> {
        self.rtt.smoothed()
    }

    /// Slot and round of the chunk that has been outstanding for longest, if any.
    pub fn oldest(&self) -> Option<(u16, u32)> {
        self.table.oldest().map(|entry| (entry.slot, entry.round))
    }

    /// The number of the first chunk that has no result, or has yet to be sent.
    pub fn oldest_number(&self) -> u64 {
        self.table.oldest_number()
    }

    /// Chunks outstanding.
    pub fn outstanding(&self) -> u32 {
        self.table.len()
    }

    /// Chunks that may be outstanding.
    pub fn window(&self) -> u32 {
        self.window.size()
    }

    /// Whether a new chunk with lanes may go out now.
    pub fn may_send(&self) -> bool {
        self.room() > 0
    }

    /// Rule 12.2: how many new chunks with lanes may go out now, as many as both the window and the
    /// slots have room for.
    pub fn room(&self) -> u32 {
        self.window.size().saturating_sub(self.table.in_full()).min(self.table.room())
    }

    /// Rule 12.10: how many without lanes may, as many as the slots have room for. They cost a path
    /// next to nothing, and should be there before another rank's lanes, which then complete the
    /// round.
    pub fn room_for_empty(&self) -> u32 {
        self.table.room()
    }

    /// Sends a new chunk: gives it the next number. Only while [`Self::may_send`].
    pub fn send(&mut self, now: u64, chunk: Chunk) -> Transmission {
        let entry = *self.push(now, chunk);
        let empty = if chunk.empty { flags::EMPTY } else { 0 };
        transmission(&self.config.identity, &entry, flags::CHECKED | empty)
    }

    /// Gives the next number to a chunk that may wait: [`Self::next_resend`] returns it once the
    /// window has room. Only while [`Self::room_for_empty`].
    pub fn defer(&mut self, now: u64, chunk: Chunk) {
        self.push(now, chunk);
        self.lost += 1;
    }

    fn push(&mut self, now: u64, chunk: Chunk) -> &Outstanding {
        if self.table.len() == 0 {
            self.timer_from = now;
            self.progress_at = now;
        }
        let sequence = self.next_sequence();
        self.stats.chunks += 1;
        self.stats.empty += u64::from(chunk.empty);
        self.table.push(chunk, now, sequence)
    }

    /// The next chunk to send again, or that had to wait, if there is one.
    pub fn next_resend(&mut self, now: u64) -> Option<Transmission> {
        let has_room = self.table.in_full() < self.window.size();
        let oldest = self.table.oldest()?.number;
        let unsent_may_go = self.table.first_unsent().is_some_and(|number| {
            number == oldest || has_room && number < oldest + self.lead_of_lanes()
        });
        if self.lost == 0 || self.lost == self.table.unsent() && !unsent_may_go {
            return None;
        }
        let sequence = self.next_sequence();
        let (identity, mut found) = (&self.config.identity, None);
        let (mut is_first_in_full, mut was_unsent) = (false, false);
        self.table.for_each_while(|entry| {
            // A chunk that was asked for was not lost: it counts as new, and waits for the window.
            // But other ranks may wait for the oldest chunk before they send those that fill this
            // rank's window.
            was_unsent = entry.is_unsent();
            let is_asked_for = entry.history.room && !entry.in_full || was_unsent;
            let may_go = match was_unsent {
                true => unsent_may_go,
                false => !is_asked_for || has_room || entry.number == oldest,
            };
            if !entry.lost || !may_go {
                return true;
            }
            is_first_in_full = !entry.in_full;
            entry.lost = false;
            entry.resent |= !is_asked_for;
            entry.in_full = true;
            entry.sent_at = now;
            entry.sequence = sequence;
            let again = if was_unsent { 0 } else { flags::RETRANSMIT };
            if was_unsent {
                entry.history.sent_at = now;
            }
            found = Some(transmission(identity, entry, flags::CHECKED | again));
            false
        });
        self.lost -= u32::from(found.is_some());
        let was_unsent = was_unsent && found.is_some();
        self.table.note_in_full(is_first_in_full, was_unsent);
        found
    }

    /// How far ahead of the oldest outstanding chunk a rank sends chunks of its own part of an
    /// all-gather: a quarter of the slots. Chunks without lanes go ahead by all slots, so they
    /// arrive before other ranks' lanes, and no rank's part gets ahead of the others'. Without this
    /// bound, ranks would be asked for lanes all the time (`docs/research/notebook.md`).
    fn lead_of_lanes(&self) -> u64 {
        u64::from(self.config.slots / 4).max(1)
    }

    /// Processes a datagram from the aggregator's address; `congested` if it carried ECN's CE mark.
    ///
    /// Returns the chunk that it completes and the aggregate, big-endian lanes. Everything else,
    /// especially answers for no outstanding chunk, is counted in [`EngineStats::ignored`] and has
    /// no effect.
    ///
    /// # Errors
    /// What a REJECT says. The session is over then (rule 13.2).
    pub fn receive<'a>(
        &mut self,
        now: u64,
        datagram: &'a [u8],
        congested: bool,
    ) -> Result<Option<(Completed, &'a [u8])>, Failure> {
        self.receive_if(now, datagram, congested, |_, _, _| true)
    }

    /// [`Engine::receive`] for [unchecked](Config::capabilities) maxima: `accept` is called for
    /// each, with the number of its chunk, and a maximum that it refuses is ignored.
    pub fn receive_if<'a>(
        &mut self,
        now: u64,
        datagram: &'a [u8],
        congested: bool,
        accept: impl FnOnce(u64, &Chunk, &[u8]) -> bool,
    ) -> Result<Option<(Completed, &'a [u8])>, Failure> {
        match self.judge(datagram, accept) {
            Ok((header, Word::Result(payload))) => {
                if header.rank.get() == EVERYONE {
                    self.hear_all();
                } else {
                    self.stats.copies += 1;
                    self.unheard.note(now);
                }
                let congested = congested || header.flags & flags::CE != 0;
                Ok(self
                    .complete(now, header.slot.get(), congested)
                    .map(|completed| (completed, payload)))
            }
            Ok((header, Word::Pending(payload))) => {
                let seen = answer::ranks_in(payload);
                self.wait_for_peers(now, header.slot.get(), seen);
                self.departed.check(&seen, header.aux.get()).map(|()| None)
            }
            Ok((header, Word::Reject(reason, detail))) => {
                let collective =
                    self.table.get_mut(header.slot.get()).map_or(0, |entry| entry.chunk.collective);
                let refused = (collective, self.checks_maxima());
                Err(Failure::rejected(reason, detail, header.round.get(), refused))
            }
            Ok((header, Word::Room)) => {
                self.make_room(now, header.slot.get());
                Ok(None)
            }
            Ok((header, Word::Damaged(reason))) => {
                self.stats.ignored[reason as usize] += 1;
                if let Some(entry) = self.table.get_mut(header.slot.get()) {
                    entry.damaged_at = Some(now);
                }
                Ok(None)
            }
            Err(reason) => {
                self.stats.ignored[reason as usize] += 1;
                if reason == Ignored::NotOutstanding {
                    self.hear_late(now, datagram);
                }
                Ok(None)
            }
        }
    }

    /// Processes a datagram from the aggregator's address, if it is a DONE: `pass` gets the chunks
    /// that it completes, and the ranks that they waited for. False if it is no DONE.
    pub fn receive_done(
        &mut self,
        now: u64,
        datagram: &[u8],
        congested: bool,
        mut pass: impl FnMut(&Completed, &Ranks),
    ) -> bool {
        if !answer::is_done(datagram) {
            return false;
        }
        let counts = match answer::read_done(&self.config.identity, datagram) {
            Ok((header, named)) => {
                self.hear_all();
                let congested = congested || header.flags & flags::CE != 0;
                let mut counts = Err(Ignored::NotOutstanding);
                for (slot, round) in named {
                    match self.pass(now, header, (slot, round), congested) {
                        Ok(completed) => {
                            pass(&completed, &self.missing_of(&completed));
                            counts = Ok(());
                        }
                        Err(reason) => counts = counts.or(Err(reason)),
                    }
                }
                counts
            }
            Err(reason) => Err(reason),
        };
        if let Err(reason) = counts {
            self.stats.ignored[reason as usize] += 1;
        }
        true
    }

    /// Whether the chunk that was sent in this slot and round, whose low bits are given, has no
    /// result yet.
    pub fn awaits(&self, slot: u16, round: u16) -> bool {
        self.table.named(slot, round).is_some()
    }

    /// The chunk that a DONE names, which is complete now; or why that does not count.
    fn pass(
        &mut self,
        now: u64,
        header: &Header,
        (slot, round): (u16, u16),
        congested: bool,
    ) -> Result<Completed, Ignored> {
        let chunk = &self.table.named(slot, round).ok_or(Ignored::NotOutstanding)?.chunk;
        let is_right = header.fingerprint.get() == chunk.fingerprint
            && header.op == chunk.wire_op()
            && !chunk.audience.has(self.config.identity.rank);
        if !is_right {
            return Err(Ignored::Call);
        }
        self.stats.told += 1;
        self.complete(now, slot, congested).ok_or(Ignored::NotOutstanding)
    }

    /// An answer that nothing waits for.
    fn hear_late(&mut self, now: u64, datagram: &[u8]) {
        let Some((slot, round, is_for_all)) = answer::result_of(datagram) else { return };
        if is_for_all {
            self.hear_all();
        }
        self.reordering.answered_again(now, slot, round, self.rtt.smoothed());
    }

    /// A RESULT for all has come, in time or late.
    fn hear_all(&mut self) {
        self.stats.for_all += 1;
        self.unheard = Unheard::default();
    }

    /// Whether RESULTs for all ranks do not come, though copies for this rank do (rule 14.10): loss
    /// would affect both.
    pub fn hears_no_group(&self) -> bool {
        let Unheard { copies, first_at, last_at } = self.unheard;
        copies >= TELLING_COPIES && last_at - first_at >= TELLING_TIME
    }

    /// Marks overdue chunks as lost.
    ///
    /// # Errors
    /// When there was no answer within the deadline, or no result within the timeout.
    pub fn on_timer(&mut self, now: u64) -> Result<(), Failure> {
        let Some(oldest) = self.table.oldest().copied() else {
            return Ok(());
        };
        // Rule 14.4: so late is only a rank that stood still itself.
        if now.saturating_sub(self.timer_at()) > self.config.deadline / 2 {
            self.resumed_at = now;
        }
        if self.end_of_wait(&oldest).is_some_and(|end| now >= end)
            || now >= self.end_of_silence(&oldest)
        {
            return Err(self.out_of_time(now, &oldest));
        }
        self.mark_overtaken(now);
        if now >= self.timer_at() {
            self.timer_from = now;
            self.expiries += 1;
            self.mark_overdue(&oldest);
        }
        Ok(())
    }

    /// When to call [`Self::on_timer`] if nothing arrives before; `None` while nothing is
    /// outstanding.
    pub fn deadline(&self) -> Option<u64> {
        let oldest = self.table.oldest()?;
        let at = self.timer_at().min(self.end_of_silence(oldest));
        let others = [self.end_of_wait(oldest), self.reordering_until];
        Some(others.into_iter().flatten().fold(at, u64::min))
    }

    /// Whether the data plane verifies maxima, and so all contributions before it adds them.
    fn checks_maxima(&self) -> bool {
        self.config.capabilities.contains(Capabilities::CHECKED_MAXIMA)
    }

    /// Rule 14.1: when the aggregator has given no answer for too long.
    fn end_of_silence(&self, oldest: &Outstanding) -> u64 {
        let heard_at = self.progress_at.max(self.resumed_at).max(oldest.answered_at);
        heard_at.saturating_add(self.config.deadline)
    }

    /// Rules 14.2 and 14.3: when other ranks have been waited for too long, if they are what is
    /// waited for. While nobody watches them, they may be dead.
    fn end_of_wait(&self, oldest: &Outstanding) -> Option<u64> {
        oldest.pending.then(|| match self.unwatched_since {
            None => self.progress_at.saturating_add(self.config.timeout),
            Some(since) => self
                .progress_at
                .max(self.resumed_at)
                .max(since)
                .saturating_add(self.config.deadline),
        })
    }

    /// The ranks that the aggregator waits for, if it has said so.
    fn missing(&self, entry: &Outstanding) -> Option<Ranks> {
        entry.pending.then(|| self.missing_in(entry.slot))
    }

    /// The ranks that a chunk which is complete now waited for at its last PENDING, if it had one.
    /// Valid until the next [`Self::receive`].
    pub fn missing_of(&self, completed: &Completed) -> Ranks {
        let was_pending = completed.history.pending > 0;
        if was_pending { self.missing_in(completed.slot) } else { Ranks::NONE }
    }

    fn missing_in(&self, slot: u16) -> Ranks {
        let seen = self.seen.get(usize::from(slot)).copied().unwrap_or_default();
        self.config.identity.all_ranks().without(&seen)
    }

    /// The meaning of a datagram for the outstanding chunk in its slot, or why it does not count.
    fn judge<'a>(
        &self,
        datagram: &'a [u8],
        accept: impl FnOnce(u64, &Chunk, &[u8]) -> bool,
    ) -> Result<(&'a Header, Word<'a>), Ignored> {
        let identity = &self.config.identity;
        let answer = answer::read(identity, datagram)?;
        let header = answer.header;
        let entry =
            self.table.get(header.slot.get(), header.round.get()).ok_or(Ignored::NotOutstanding)?;
        let chunk = &entry.chunk;
        let same_call = header.fingerprint.get() == chunk.fingerprint
            && (!answer.names_lanes()
                || (header.op == chunk.wire_op() && header.lanes.get() == chunk.lanes));
        if !same_call {
            return Err(Ignored::Call);
        }
        if !self.checks_maxima()
            && answer.is_result()
            && chunk.op.check_word() == CheckWord::OfLanes
        {
            let maximum = answer.unchecked();
            let accepted = accept(entry.number, chunk, maximum);
            return Ok((
                header,
                if accepted { Word::Result(maximum) } else { Word::Damaged(Ignored::Maximum) },
            ));
        }
        match answer.word(identity) {
            Err(Ignored::Check) if answer.is_result() => {
                Ok((header, Word::Damaged(Ignored::Check)))
            }
            Ok(Word::Room) if entry.in_full => Err(Ignored::Room),
            word => Ok((header, word?)),
        }
    }

    /// The result of the chunk in this slot is here.
    fn complete(&mut self, now: u64, slot: u16, congested: bool) -> Option<Completed> {
        let entry = self.table.take(slot)?;
        if entry.lost {
            self.lost -= 1;
        }
        self.stats.results += 1;
        if entry.history.resent_by_overtaking > 0 {
            self.reordering.completed(slot, entry.round);
        }
        self.learn(now, &entry, congested);
        // A chunk without lanes waited for others, so its time does not count.
        if entry.in_full {
            let asked_for = entry.history.room && !entry.resent;
            let sent_at = if asked_for { entry.sent_at } else { entry.history.sent_at };
            self.window.grow(now.saturating_sub(sent_at), self.rtt.minimum());
        }
        self.progress_at = now;
        self.timer_from = now;
        self.expiries = 0;
        let Outstanding { chunk, history, number, round, .. } = entry;
        Some(Completed { chunk, history, number, slot, round })
    }

    /// Learns about the path from a result.
    fn learn(&mut self, now: u64, entry: &Outstanding, congested: bool) {
        let elapsed = now.saturating_sub(entry.sent_at);
        let waited = self.pending_at.is_some_and(|at| at >= entry.sent_at);
        if !entry.resent && !waited && !entry.chunk.empty {
            self.rtt.sample(entry.sent_at, now);
        }
        // The result of a chunk sent twice may answer the first transmission, or may have waited
        // for a peer.
        let confirmed_loss = entry.resent && !entry.pending && elapsed >= self.rtt.minimum();
        if congested {
            self.stats.congested += 1;
        }
        let next = self.table.next();
        let cut = (congested && self.window.shrink(entry.number, next))
            || (confirmed_loss && self.window.lose(entry.number, next));
        self.stats.window_cuts += u64::from(cut);
        if !entry.pending && (confirmed_loss || !entry.resent) {
            self.note_evidence(now, entry, elapsed);
        }
        let took = now.saturating_sub(entry.history.sent_at);
        self.frontiers.advance(&entry.chunk, entry.number, entry.sequence, took);
    }

    /// The result of this chunk shows how far transmissions have come. Doubt ends when a chunk that
    /// was sent once gets its result.
    fn note_evidence(&mut self, now: u64, entry: &Outstanding, elapsed: u64) {
        // Lanes that were asked for go out after lanes of chunks with larger numbers, which other
        // ranks may not have sent yet.
        let below = if entry.chunk.empty { entry.number } else { u64::MAX };
        let evidence = Evidence { sequence: entry.sequence, rtt: elapsed, below };
        if !entry.resent {
            self.doubtful = None;
            if self.evidence.is_none_or(|before| before.sequence < entry.sequence) {
                self.evidence = Some(evidence);
            }
        } else if self.doubtful.is_none_or(|before| before.evidence.sequence < entry.sequence) {
            let wait = self.reordering().max(self.rtt.smoothed().unwrap_or(0));
            let by_timer = entry.history.resent_by_timer > 0;
            self.doubtful = Some(Doubtful { evidence, from: now + wait, by_timer });
        }
    }

    /// The chunk in this slot has arrived, and the aggregator waits for other ranks.
    fn wait_for_peers(&mut self, now: u64, slot: u16, seen: Ranks) {
        self.stats.pending += 1;
        self.pending_at = Some(now);
        let sequence = self.next_sequence();
        let Some(entry) = self.table.get_mut(slot) else { return };
        self.seen[usize::from(slot)] = seen;
        entry.pending = true;
        entry.pending_at = now;
        entry.answered_at = now;
        entry.history.pending += 1;
        // Treat the chunk as sent just now: only later transmissions can overtake it.
        entry.sent_at = now;
        entry.sequence = sequence;
        if std::mem::take(&mut entry.lost) {
            self.lost -= 1;
        }
    }

    /// The lanes of the chunk in this slot, which were left out, are to be sent (rule 12.10).
    fn make_room(&mut self, now: u64, slot: u16) {
        self.timer_from = now;
        let Some(entry) = self.table.get_mut(slot) else { return };
        entry.answered_at = now;
        self.stats.rooms += u64::from(!entry.history.room);
        entry.history.room = true;
        self.lost += u32::from(!entry.lost);
        entry.lost = true;
    }

    /// Rule 12.7: marks the chunks that were overtaken by more than the reordering window.
    fn mark_overtaken(&mut self, now: u64) {
        self.reordering_until = None;
        let (evidence, doubtful) = (self.evidence, self.doubtful);
        let (reordering, smoothed) = (self.reordering(), self.rtt.smoothed());
        let (frontiers, window) = (&self.frontiers, &self.reordering);
        let (mut marked, mut until) = (0, None::<u64>);
        self.table.for_each_while(|entry| {
            // Except for resends by the timer, results say nothing about lanes that other ranks
            // have yet to send: these may have come long ago.
            let waits = entry.waits_for_lanes();
            let certain = match waits {
                // If lanes are left out, round trips do not measure how long results take.
                true => frontiers.of(&entry.chunk).and_then(|frontier| {
                    frontier.due(entry, window.window(smoothed.max(Some(frontier.took))))
                }),
                false => evidence.and_then(|evidence| evidence.due(entry, reordering)),
            };
            let later = doubtful.filter(|doubtful| doubtful.by_timer || !waits);
            let later = later.and_then(|doubtful| doubtful.due(entry, reordering));
            let due = certain.into_iter().chain(later).min();
            match due {
                // Chunks sent once are in the order of their numbers: after the first that is
                // newer, all are, and resent ones are newer still.
                None => return !entry.is_fresh(),
                Some(_) if entry.lost => {}
                Some(due) if due <= now => {
                    entry.lost = true;
                    entry.history.resent_by_overtaking += 1;
                    marked += 1;
                }
                Some(due) => until = Some(until.map_or(due, |until| until.min(due))),
            }
            true
        });
        self.reordering_until = until;
        self.lost += marked;
        self.stats.resent_by_overtaking += u64::from(marked);
        if marked > 0 {
            self.reordering.recover(now, self.rtt.smoothed());
        }
    }

    /// The retransmission timer has expired: marks the oldest chunk, or more of them each time in a
    /// row; that one alone while it waits for a peer (rule 12.6).
    fn mark_overdue(&mut self, oldest: &Outstanding) {
        let waiting = oldest.pending;
        let most = if waiting { 1 } else { 1 << (self.expiries - 1).min(5) };
        let mut marked = 0;
        self.table.for_each_while(|entry| {
            let overdue = if waiting { entry.number == oldest.number } else { !entry.pending };
            if overdue && !entry.lost {
                entry.lost = true;
                let cause = if waiting {
                    &mut entry.history.probes
                } else {
                    &mut entry.history.resent_by_timer
                };
                *cause += 1;
                marked += 1;
            }
            !waiting && marked < most
        });
        self.lost += marked;
        if waiting {
            self.stats.probes += u64::from(marked);
            return;
        }
        self.stats.resent_by_timer += u64::from(marked);
        // The first resend of the oldest chunk may have been too early; its answer will tell. If
        // that has no answer either, it is congestion.
        if self.expiries > 1 && self.window.shrink(oldest.number, self.table.next()) {
            self.stats.window_cuts += 1;
        }
    }

    fn out_of_time(&self, now: u64, oldest: &Outstanding) -> Failure {
        let believed = (self.config.deadline / 2).max(NEWS_LASTS * self.config.rtt.ceiling);
        let is_news = |at: Option<u64>| at.is_some_and(|at| now.saturating_sub(at) <= believed);
        // A rank that was missing then no longer is.
        if is_news(oldest.damaged_at) {
            return Failure::Damaged;
        }
        match self.missing(oldest) {
            Some(missing) if is_news(Some(oldest.pending_at)) => Failure::Missing(missing),
            _ => Failure::Silent,
        }
    }

    /// The reordering window, in ns.
    fn reordering(&self) -> u64 {
        self.reordering.window(self.rtt.smoothed())
    }

    fn timer_at(&self) -> u64 {
        self.timer_from.saturating_add(self.rtt.timeout(self.table.len(), self.expiries))
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

/// Rule 12.4.
fn transmission(identity: &Identity, entry: &Outstanding, flags: u8) -> Transmission {
    let chunk = entry.chunk;
    let header = Header {
        version: VERSION,
        kind: Kind::Contribution as u8,
        job: U16::new(identity.job),
        epoch: U32::new(identity.epoch),
        rank: U16::new(identity.rank),
        slot: U16::new(entry.slot),
        round: U32::new(entry.round),
        op: chunk.wire_op(),
        flags: flags | identity.flags(),
        lanes: U16::new(chunk.lanes),
        fingerprint: U32::new(chunk.fingerprint),
        check: U32::ZERO,
        aux: U32::new(entry.sequence as u32),
    };
    Transmission { header, chunk, number: entry.number }
}
