//! Why an engine cannot go on.

use switchml_protocol::outcome::RejectReason;

/// The end of a session, as the data path shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No result for the timeout, or for the deadline where nobody watches the other ranks, and
    /// these have not contributed: a bitmap.
    Missing(u64),
    /// No answer for the deadline: the aggregator does not answer.
    Silent,
    /// No answer for the deadline but results of a chunk that come damaged again and again.
    Damaged,
    /// Ranks were given a maximum without a check word that is none, or not the same one.
    Maximum,
    /// These ranks, a bitmap, have left in good order without having made this rank's call.
    Departed(u64),
    /// Two ranks made different calls.
    Mismatch {
        /// The rank that came first.
        first: u16,
        /// The rank that disagreed with it.
        dissenter: u16,
        /// [`Chunk::collective`](super::Chunk::collective) of this rank's chunk that was refused.
        collective: u64,
    },
    /// The aggregator holds another round: one side has lost its state.
    Round {
        /// The round that this rank is in.
        ours: u32,
        /// The newest round that the aggregator holds.
        newest: u32,
    },
    /// The job was aborted; the control plane says why.
    Aborted,
}

impl Failure {
    pub(super) fn rejected(reason: RejectReason, detail: u32, ours: u32, collective: u64) -> Self {
        match reason {
            RejectReason::Mismatch => Self::Mismatch {
                first: (detail >> 16) as u16,
                dissenter: detail as u16,
                collective,
            },
            RejectReason::Round => Self::Round { ours, newest: detail },
            RejectReason::Aborted => Self::Aborted,
        }
    }
}

/// The ranks of a bitmap, in order.
pub fn ranks_of(bitmap: u64) -> impl Iterator<Item = u16> {
    (0..64).filter(move |rank| bitmap >> rank & 1 == 1)
}
