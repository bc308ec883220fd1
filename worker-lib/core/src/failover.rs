//! What a rank keeps of the chunks that it sent, so that another aggregator can go on where a lost
//! one has ended (rules 36.8 to 36.12 of `docs/spec`).
//!
//! Ranks are at different places when an aggregator dies. A rank may have the result of a chunk,
//! and have given the call back, while another one lacks it: then the other one needs the first
//! one's lanes again. How far back? A chunk is complete only if all ranks have sent it, and a rank
//! sends chunk c only once it has the result of chunk c - S. So all ranks have the results of the
//! chunks more than S places before a rank's oldest outstanding one, and a [`Log`] keeps no more.
//!
//! At the next aggregator the ranks first tell each other where they are, in sums with a lane for
//! each rank, which any data plane adds up with a check word. From the least of these places on
//! they send all chunks again: those that have their result from the log, the others from their
//! elements, which are intact until the result comes. So every chunk has the same lanes on all
//! ranks as before, and the same sums.
//!
//! The ranks agree in the data plane and not in the control plane, because only the data path knows
//! where it is, and because the order of chunks depends on the first chunks of the new epoch. They
//! use sums and not maxima, because some data planes have no check word for maxima.
//!
//! The log keeps payloads and does not make them again, for two reasons. The caller may already
//! have its elements back. And copying a payload that was just made costs less than making it again
//! once its result has come. Only jobs that can move keep a log.

use std::collections::VecDeque;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::wire::audience::Audience;
use switchml_protocol::wire::header::Op;

use crate::engine::{Chunk, Failure, Part};
use crate::hash;
use crate::numerics::lane_sum;

/// The kind of call that chunks of places are of, in the fingerprint (rule 4.2).
const KIND: u64 = 5;
/// The collective of these chunks: none.
const NO_COLLECTIVE: u64 = u64::MAX;

/// The chunks of a data path that may have to be sent again.
///
/// A chunk's place is its number among the data path's chunks since the job began; its number, as
/// the engine counts, is that among all chunks at the aggregator where it is sent.
#[derive(Clone, Debug)]
pub struct Log {
    rank: u16,
    ranks: u16,
    /// Lanes of a full chunk.
    lanes: u16,
    /// The place of the first chunk in `sent`.
    first: u64,
    sent: VecDeque<Sent>,
    /// The place of the next chunk to be sent: for the first time if it is behind those in `sent`.
    next: u64,
    /// The most slots of any aggregator so far.
    slots: u16,
    /// Number and place of the first chunk that was sent to this aggregator.
    begin: (u64, u64),
    /// Whether the aggregator is lost, and there is no other yet.
    is_lost: bool,
    /// The agreement on the place where the ranks go on, until it is reached.
    agreement: Option<Agreement>,
    /// Memory for payloads.
    spare: Vec<Vec<u8>>,
}

/// A chunk that was sent.
#[derive(Clone, Debug)]
struct Sent {
    chunk: Chunk,
    /// What this rank contributed; empty as long as its lanes were left out.
    payload: Vec<u8>,
    has_result: bool,
}

/// The ranks' places, as far as they are known.
#[derive(Clone, Debug)]
struct Agreement {
    /// The place of this rank's first chunk without a result.
    own: u64,
    /// Rule 36.12: how far ahead of it another rank may be.
    reach: u64,
    /// The chunks that were numbered, and those that are complete.
    numbered: u64,
    complete: u64,
    /// The least place so far, from this rank's on.
    least: i32,
}

/// What a data path sends next.
#[derive(Clone, Copy, Debug)]
pub enum Due {
    /// This chunk, for the first time to this aggregator.
    Known(Chunk),
    /// Nothing, until the ranks have agreed where to go on.
    Nothing,
    /// What the calls have next.
    New,
}

impl Log {
    /// The log of a rank at the start of a job of `ranks` ranks, chunks of up to `lanes` lanes, and
    /// so many slots.
    pub fn new(rank: u16, ranks: u16, lanes: u16, slots: u16) -> Self {
        Self {
            rank,
            ranks,
            lanes,
            first: 0,
            sent: VecDeque::new(),
            next: 0,
            slots,
            begin: (0, 0),
            is_lost: false,
            agreement: None,
            spare: Vec::new(),
        }
    }

    /// The aggregator is lost: other ranks may lack what was sent to it.
    pub fn lose(&mut self) {
        self.is_lost = true;
    }

    /// Another aggregator goes on, with so many slots, and chunk numbers from 0.
    pub fn resume(&mut self, slots: u16) {
        let (own, reach) = (self.oldest(), self.slots.into());
        self.is_lost = false;
        self.slots = slots.max(self.slots);
        self.agreement = Some(Agreement { own, reach, numbered: 0, complete: 0, least: 0 });
    }

    /// Whether everything that was sent to an earlier aggregator was sent to this one, too.
    pub fn is_settled(&self) -> bool {
        !self.is_lost && self.agreement.is_none() && self.next == self.end()
    }

    /// What to send next; [`Self::note_numbered`] goes on to the chunk behind it.
    pub fn due(&self) -> Due {
        match &self.agreement {
            Some(agreement) if agreement.numbered < self.chunks_of_places() => {
                Due::Known(self.chunk_of_places(agreement.numbered))
            }
            Some(_) => Due::Nothing,
            None => self.at(self.next).map_or(Due::New, |sent| Due::Known(sent.chunk)),
        }
    }

    /// The chunk that was due has its number now.
    pub fn note_numbered(&mut self, chunk: Chunk) {
        if let Some(agreement) = &mut self.agreement {
            agreement.numbered += 1;
            return;
        }
        if self.next == self.end() {
            let payload = self.spare.pop().unwrap_or_default();
            self.sent.push_back(Sent { chunk, payload, has_result: false });
        }
        self.next += 1;
    }

    /// Writes what this rank contributes to the chunk with this number: `encode` does so if it has
    /// no result yet. Returns the wrapping sum of its lanes.
    pub fn write(
        &mut self,
        number: u64,
        payload: &mut [u8],
        encode: impl FnOnce(&mut [u8]) -> u32,
    ) -> u32 {
        if number < self.first_number() {
            return self.write_places(number, payload);
        }
        let Some(sent) = self.numbered(number) else { return encode(payload) };
        if !sent.has_result {
            let sum = encode(payload);
            if sent.payload.is_empty() {
                sent.payload.extend_from_slice(payload);
            }
            return sum;
        }
        match sent.payload.is_empty() {
            true => payload.fill(0),
            false => payload.copy_from_slice(&sent.payload),
        }
        lane_sum(payload)
    }

    /// Whether this rank has the result of the chunk with this number from an earlier aggregator,
    /// or never needs it.
    pub fn is_repeated(&self, number: u64) -> bool {
        let sent = self.place(number).and_then(|place| self.at(place));
        number < self.first_number() || sent.is_some_and(|sent| sent.has_result)
    }

    /// The result of the chunk with this number is here; `payload` has its lanes, if it has any.
    /// Whether it is to be used.
    ///
    /// # Errors
    /// [`Failure::Misplaced`] if other ranks are where they cannot be.
    pub fn complete(&mut self, number: u64, payload: &[u8]) -> Result<bool, Failure> {
        if number < self.first_number() {
            return self.complete_places(number, payload).map(|()| false);
        }
        let sent = self.numbered(number);
        Ok(sent.is_none_or(|sent| !std::mem::replace(&mut sent.has_result, true)))
    }

    /// Forgets the chunks that all ranks have the results of, with `slots` slots, if the oldest
    /// without a result here has the number `oldest`.
    pub fn forget(&mut self, oldest: u64, slots: u16) {
        let Some(oldest) = self.place(oldest).filter(|_| self.agreement.is_none()) else { return };
        while self.first + u64::from(slots) < oldest
            && let Some(mut sent) = self.sent.pop_front()
        {
            self.first += 1;
            sent.payload.clear();
            self.spare.push(sent.payload);
        }
    }

    /// The place behind the last chunk that was ever sent.
    fn end(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    /// The place of the first chunk without a result here.
    fn oldest(&self) -> u64 {
        let before = self.sent.iter().take_while(|sent| sent.has_result);
        self.first + before.count() as u64
    }

    /// Chunks with smaller numbers have the ranks' places.
    fn first_number(&self) -> u64 {
        self.agreement.as_ref().map_or(self.begin.0, |_| self.chunks_of_places())
    }

    fn place(&self, number: u64) -> Option<u64> {
        let (first, place) = self.begin;
        number.checked_sub(first).map(|behind| place + behind)
    }

    fn at(&self, place: u64) -> Option<&Sent> {
        self.sent.get(place.checked_sub(self.first)? as usize)
    }

    fn numbered(&mut self, number: u64) -> Option<&mut Sent> {
        let index = self.place(number)?.checked_sub(self.first)?;
        self.sent.get_mut(index as usize)
    }

    /// Rule 36.10: how many chunks have the ranks' places.
    fn chunks_of_places(&self) -> u64 {
        self.ranks.div_ceil(self.lanes).into()
    }

    fn chunk_of_places(&self, index: u64) -> Chunk {
        let ranks = self.ranks - self.lanes * index as u16;
        Chunk {
            collective: NO_COLLECTIVE,
            part: Part::Data(index as usize),
            op: Op::Sum,
            audience: Audience::All,
            lanes: ranks.min(self.lanes).next_multiple_of(LANES_PER_BLOCK as u16),
            fingerprint: hash::fold([0, KIND << 32, 0, self.ranks.into()]) as u32,
            empty: false,
            may_wait: false,
        }
    }

    /// This rank's place, in a lane of its own.
    fn write_places(&self, index: u64, payload: &mut [u8]) -> u32 {
        payload.fill(0);
        let own = self.agreement.as_ref().map_or(0, |agreement| agreement.own) as u32;
        if u64::from(self.rank / self.lanes) != index {
            return 0;
        }
        let lane = usize::from(self.rank % self.lanes);
        payload[4 * lane..][..4].copy_from_slice(&own.to_be_bytes());
        own
    }

    /// Rule 36.11: once all places are known, the ranks go on at the least of them.
    fn complete_places(&mut self, index: u64, payload: &[u8]) -> Result<(), Failure> {
        let (chunks, first_rank, kept) =
            (self.chunks_of_places(), self.lanes * index as u16, self.first);
        let Some(agreement) = &mut self.agreement else { return Ok(()) };
        let places = payload.as_chunks::<4>().0.iter().map(|lane| u32::from_be_bytes(*lane));
        let (mut misplaced, mut is_own) = (Ranks::NONE, true);
        for (rank, place) in (first_rank..self.ranks).zip(places) {
            let behind = place.wrapping_sub(agreement.own as u32) as i32;
            agreement.least = agreement.least.min(behind);
            if rank == self.rank {
                is_own = behind == 0;
            } else if !agreement.allows(behind, kept) {
                misplaced.insert(rank);
            }
        }
        if !misplaced.is_empty() || !is_own {
            return Err(Failure::Misplaced(misplaced));
        }
        agreement.complete += 1;
        if agreement.complete < chunks {
            return Ok(());
        }
        let least = agreement.own.saturating_add_signed(agreement.least.into());
        (self.begin, self.next, self.agreement) = ((chunks, least), least, None);
        Ok(())
    }
}

impl Agreement {
    /// Rule 36.12: whether a rank may be so far behind this one, which keeps its chunks from `kept`
    /// on.
    fn allows(&self, behind: i32, kept: u64) -> bool {
        let place = self.own.checked_add_signed(behind.into());
        place.is_some_and(|place| kept <= place && place <= self.own + self.reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log of a rank whose first chunk without a result is at this place, behind two others.
    fn log(rank: u16, oldest: u64) -> Log {
        let start = || Log::new(rank, 3, 32, 4);
        let chunk = start().chunk_of_places(0);
        let sent =
            [true, true, false].map(|has_result| Sent { chunk, payload: vec![], has_result });
        Log { first: oldest - 2, sent: sent.into(), next: oldest + 1, ..start() }
    }

    /// The place where a rank goes on that is at the first of these, as the others are.
    fn agreed(places: [u64; 3]) -> Result<u64, Failure> {
        let mut logs = [0, 1, 2].map(|rank| log(rank, places[usize::from(rank)]));
        let mut sum = [0u32; 32];
        for log in &mut logs {
            log.resume(1);
            let mut payload = [0xEE; 128];
            let checked = log.write(0, &mut payload, |_| unreachable!("it has no collective"));
            assert_eq!(checked, lane_sum(&payload));
            let lanes = payload.as_chunks::<4>().0;
            sum.iter_mut().zip(lanes).for_each(|(lane, own)| *lane += u32::from_be_bytes(*own));
        }
        let payload: Vec<u8> = sum.iter().flat_map(|lane| lane.to_be_bytes()).collect();
        let [log, ..] = &mut logs;
        assert!(!log.is_settled());
        assert!(!log.complete(0, &payload)?);
        Ok(log.next)
    }

    #[test]
    fn ranks_go_on_at_the_least_place_also_where_it_wraps_around() {
        let wraps = 1 << 32;
        assert_eq!(agreed([7, 9, 8]), Ok(7));
        assert_eq!(agreed([9, 7, 8]), Ok(7));
        assert_eq!(agreed([wraps + 1, wraps, wraps - 1]), Ok(wraps - 1));
        assert_eq!(agreed([wraps - 1, wraps, wraps + 1]), Ok(wraps - 1));
    }

    /// The first rank keeps two chunks, and has had four slots.
    #[test]
    fn a_rank_that_is_where_it_cannot_be_is_named() {
        let misplaced = |ranks: &[u16]| {
            let mut named = Ranks::NONE;
            ranks.iter().for_each(|rank| named.insert(*rank));
            Err(Failure::Misplaced(named))
        };
        assert_eq!(agreed([9, 9, 6]), misplaced(&[2]), "more than this rank has kept");
        assert_eq!(agreed([9, 13, 7]), Ok(7), "the farthest");
        assert_eq!(agreed([9, 14, 9]), misplaced(&[1]), "more than slots ahead");
        assert_eq!(agreed([9, 6, 14]), misplaced(&[1, 2]));
        assert_eq!(agreed([3, 3 + (1 << 31), 3]), misplaced(&[1]), "before the first chunk");
    }

    #[test]
    fn a_rank_whose_own_place_was_changed_blames_nobody() {
        let mut log = log(1, 9);
        log.resume(1);
        let mut payload = [0; 128];
        for (lane, place) in payload.as_chunks_mut::<4>().0.iter_mut().zip([9u32, 8, 9]) {
            *lane = place.to_be_bytes();
        }
        assert_eq!(log.complete(0, &payload), Err(Failure::Misplaced(Ranks::NONE)));
    }

    /// The example of rule 36.10, with the hash computed elsewhere.
    #[test]
    fn places_have_the_fingerprint_of_the_specification() {
        assert_eq!(log(0, 2).chunk_of_places(0).fingerprint, 0x4A01_75EE);
    }
}
