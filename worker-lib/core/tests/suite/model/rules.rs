//! The rules that can be taken out. Production code stays as it is: a rule that compares two things
//! is taken out by making the two equal before the real code compares them, and restoring them
//! afterwards.

/// A rule of docs/spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Admission: a contribution of another epoch is dropped.
    PacketEpoch,
    /// Admission: a contribution whose check word does not fit is dropped.
    ContributionCheck,
    /// Slots: a set of another epoch is empty.
    SetEpoch,
    /// Rule 8.4: a rank that is in `seen` is not added again.
    Seen,
    /// Rule 8.4: a round is complete when all ranks are in.
    AllIn,
    /// Rule 8.5: a rank that is in a complete round, and asks again, gets the stored copy.
    Replay,
    /// Rule 8.3: op, lanes and fingerprint agree with the contribution that started the round.
    SameCall,
    /// Rule 8.7: set s holds round r - 2.
    TwoBefore,
    /// Rule 8.7: set t holds round r - 1.
    OneBefore,
    /// Rule 8.7: the round of set t is complete.
    OneBeforeComplete,
    /// Rule 8.9: a round that is over is not started again. Without it, rules 8.7 to 8.10 know no
    /// order of rounds.
    Order,
    /// Rule 8.9: a contribution to a round that is over does not count for the round that its set
    /// holds.
    Round,
    /// Rule 8.9: a contribution to a round that is over is dropped, not refused.
    Stale,
    /// Rule 8.13: an EMPTY contribution that would complete a round does not.
    PayloadLast,
    /// Rule 8.13: the first payload overwrites values of an earlier round.
    Overwrite,
    /// Rule 8.13: an EMPTY contribution that would get an answer gets ROOM.
    Room,
    /// Rule 8.15: a partial sum that overlaps with the ranks that are in is not added.
    Overlap,
    /// Rule 27.8: resends pass combiners untouched.
    Untouched,
    /// Rule 27.9: a combiner does not wait again for contributions that it has passed on.
    Passed,
    /// Rule 27.9: a combiner adds no rank that it holds already.
    Disjoint,
    /// Rule 27.7: a combiner tells rounds apart.
    CellRound,
    /// Rule 27.13: the check word of a partial sum is the sum of its contributions' check words.
    PartialCheck,
    /// Worker: the answer's epoch is the session's.
    AnswerEpoch,
    /// Worker: the answer's slot is the chunk's.
    AnswerSlot,
    /// Worker: the answer's round is the chunk's.
    AnswerRound,
    /// Worker: the answer's fingerprint, op and lanes are the chunk's.
    AnswerCall,
    /// Worker: the answer has a check word, and it agrees.
    AnswerCheck,
    /// Worker: an answer to one rank is for that rank.
    AnswerRank,
    /// Worker: chunk c is sent only once the worker has the result of chunk c - S.
    Wait,
    /// Worker: a contribution without an answer is sent again.
    Resend,
    /// Worker: a resend has all its lanes.
    ResendInFull,
    /// Worker: a PENDING shows that a rank has left for good only if it answers a packet sent after
    /// the news.
    FreshPending,
    /// Control plane: a new session has a new epoch.
    NewEpoch,
    /// Control plane: an aggregator that has lost its slots does not continue in the same epoch.
    RestartEndsEpoch,
}
