//! Reads the aggregator's answers, and decides which of them count.

use switchml_protocol::EVERYONE;
use switchml_protocol::outcome::RejectReason;
use switchml_protocol::ranks::{Ranks, pending_lanes};
use switchml_protocol::root::done::named;
use switchml_protocol::wire::auth::{Key, TAG_LEN};
use switchml_protocol::wire::header::{Header, Kind, decode, flags};
use zerocopy::{FromBytes, IntoBytes};

use super::stats::Ignored;
use crate::numerics::lane_sum;
use crate::packet::has_right_tag;

/// The identity of this rank, which every packet of its session carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Number of the job.
    pub job: u16,
    /// Epoch of the session.
    pub epoch: u32,
    /// Number of this rank.
    pub rank: u16,
    /// Number of ranks N.
    pub ranks: u16,
    /// The keys that tell its packets and its answers from forged ones.
    pub keys: Keys,
}

/// The keys that a rank has for the tags of packets (section 28); [`Keys::NONE`] in a job without
/// tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Key of the packets that the rank sends, and of answers to it alone.
    pub own: Key,
    /// Key of RESULTs to all.
    pub job: Key,
}

impl Keys {
    /// The keys of a job without tags.
    pub const NONE: Self = Self { own: Key::NONE, job: Key::NONE };

    /// The keys made of these bytes: 16 for each, or no bytes at all without tags.
    pub fn from_bytes(own: &[u8], job: &[u8]) -> Option<Self> {
        if own.is_empty() && job.is_empty() {
            return Some(Self::default());
        }
        let key = |bytes: &[u8]| bytes.try_into().ok().map(Key::from_bytes);
        Some(Self { own: key(own)?, job: key(job)? })
    }
}

impl Identity {
    /// The flag of all packets that the rank sends in a job with tags.
    pub fn flags(&self) -> u8 {
        if self.keys.own.is_none() { 0 } else { flags::TAGGED }
    }

    /// Bytes of the tag that each packet of the rank has; 0 without tags.
    pub fn tag_len(&self) -> usize {
        if self.keys.own.is_none() { 0 } else { TAG_LEN }
    }

    /// All ranks.
    pub(super) fn all_ranks(&self) -> Ranks {
        Ranks::below(self.ranks)
    }
}

/// The meaning of a valid answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// The aggregate: big-endian lanes.
    Result(&'a [u8]),
    /// The ranks that are in: [`ranks_in`] tells which.
    Pending(&'a [u8]),
    /// Refused, with a detail.
    Reject(RejectReason, u32),
    /// The chunk is to be sent again with its lanes.
    Room,
    /// A RESULT that does not count.
    Damaged(Ignored),
}

/// An answer whose fields are valid by themselves; they must still be compared with the chunk that
/// it answers.
pub(super) struct Answer<'a> {
    pub header: &'a Header,
    kind: Kind,
    payload: &'a [u8],
}

/// Checks everything that does not depend on the outstanding chunks.
pub(super) fn read<'a>(identity: &Identity, datagram: &'a [u8]) -> Result<Answer<'a>, Ignored> {
    open(identity, datagram, |kind| {
        matches!(kind, Kind::Result | Kind::Pending | Kind::Reject | Kind::Room)
    })
}

/// Whether a datagram has the kind DONE.
pub(super) fn is_done(datagram: &[u8]) -> bool {
    Header::ref_from_prefix(datagram).is_ok_and(|(header, _)| header.kind == Kind::Done as u8)
}

/// The header of a DONE, and the slots and the low bits of the rounds that it names.
pub(super) fn read_done<'a>(
    identity: &Identity,
    datagram: &'a [u8],
) -> Result<(&'a Header, impl Iterator<Item = (u16, u16)> + use<'a>), Ignored> {
    let answer = open(identity, datagram, |kind| kind == Kind::Done)?;
    if answer.header.rank.get() != EVERYONE {
        return Err(Ignored::Rank);
    }
    answer.check(1)?;
    Ok((answer.header, lanes(answer.payload).map(named)))
}

/// The common part of [`read`] and [`read_done`], each of which accepts other kinds.
fn open<'a>(
    identity: &Identity,
    datagram: &'a [u8],
    is_known: impl FnOnce(Kind) -> bool,
) -> Result<Answer<'a>, Ignored> {
    let (header, kind, _, lanes) = decode(datagram).map_err(|_| Ignored::Malformed)?;
    if kind == Kind::Filler {
        return Err(Ignored::Filler);
    }
    if !is_known(kind) {
        return Err(Ignored::Kind);
    }
    if header.job.get() != identity.job {
        return Err(Ignored::Job);
    }
    if header.epoch.get() != identity.epoch {
        return Err(Ignored::Epoch);
    }
    let rank = header.rank.get();
    let may_be_for_all = matches!(kind, Kind::Result | Kind::Done);
    if rank != identity.rank && !(rank == EVERYONE && may_be_for_all) {
        return Err(Ignored::Rank);
    }
    let key = if rank == EVERYONE { &identity.keys.job } else { &identity.keys.own };
    if !has_right_tag(key, header, datagram) {
        return Err(Ignored::Tag);
    }
    Ok(Answer { header, kind, payload: lanes.as_bytes() })
}

/// Slot and round of an answer that [`read`] takes, if it is a RESULT, and whether it is for all
/// ranks.
pub(super) fn result_of(datagram: &[u8]) -> Option<(u16, u32, bool)> {
    let (header, _) = Header::ref_from_prefix(datagram).ok()?;
    let is_for_all = header.rank.get() == EVERYONE;
    let is_result = header.kind == Kind::Result as u8;
    is_result.then(|| (header.slot.get(), header.round.get(), is_for_all))
}

/// The ranks that the payload of a PENDING names.
pub(super) fn ranks_in(payload: &[u8]) -> Ranks {
    Ranks::of_pending(lanes(payload))
}

fn lanes(payload: &[u8]) -> impl Iterator<Item = u32> {
    payload.as_chunks::<4>().0.iter().map(|bytes| u32::from_be_bytes(*bytes))
}

impl<'a> Answer<'a> {
    /// Whether it is a RESULT, not a note about a chunk.
    pub fn is_result(&self) -> bool {
        self.kind == Kind::Result
    }

    /// Whether its operator and lanes must equal the contribution's.
    pub fn names_lanes(&self) -> bool {
        matches!(self.kind, Kind::Result | Kind::Room)
    }

    /// The payload of a RESULT, whatever its check word.
    pub fn unchecked(&self) -> &'a [u8] {
        self.payload
    }

    /// Checks the check word, which must be there (rule 2.7).
    fn check(&self, contributions: u32) -> Result<(), Ignored> {
        let expected = self.header.check_of(lane_sum(self.payload), contributions);
        let is_right =
            self.header.flags & flags::CHECKED != 0 && self.header.check.get() == expected;
        if is_right { Ok(()) } else { Err(Ignored::Check) }
    }

    /// Checks the check word, then returns the meaning of the answer. Its ranks must be possible.
    pub fn word(&self, identity: &Identity) -> Result<Word<'a>, Ignored> {
        let contributions = if self.is_result() { identity.ranks.into() } else { 1 };
        self.check(contributions)?;
        let note = |index| lanes(self.payload).nth(index).unwrap_or_default();
        match self.kind {
            Kind::Result => Ok(Word::Result(self.payload)),
            Kind::Room => Ok(Word::Room),
            Kind::Pending => {
                let (seen, all) = (ranks_in(self.payload), identity.all_ranks());
                let is_whole = self.payload.len() == 4 * pending_lanes(identity.ranks.into());
                // This rank is in, and another is missing.
                let is_possible = is_whole
                    && seen.contains(identity.rank)
                    && seen.without(&all).is_empty()
                    && seen != all;
                if is_possible { Ok(Word::Pending(self.payload)) } else { Err(Ignored::Ranks) }
            }
            _ => {
                let (reason, detail) =
                    (RejectReason::from_wire(note(0)).ok_or(Ignored::Reason)?, note(1));
                let names_ranks = [detail >> 16, detail & 0xFFFF]
                    .iter()
                    .all(|rank| *rank < identity.ranks.into());
                let is_possible = reason != RejectReason::Mismatch || names_ranks;
                if is_possible { Ok(Word::Reject(reason, detail)) } else { Err(Ignored::Ranks) }
            }
        }
    }
}
