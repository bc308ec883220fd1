//! Why an engine cannot go on.

use switchml_protocol::outcome::RejectReason;
use switchml_protocol::ranks::Ranks;

/// The end of a session, as the data path shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No result within the timeout, or within the deadline if nobody watches the other ranks, and
    /// these ranks have not contributed.
    Missing(Ranks),
    /// No answer within the deadline: the aggregator does not answer.
    Silent,
    /// Within the deadline, only damaged results of a chunk came.
    Damaged,
    /// A maximum without a check word was wrong, or not the same on all ranks.
    Maximum,
    /// These ranks have left normally without having made this rank's call.
    Departed(Ranks),
    /// Two ranks made different calls; or a packet was damaged, unless that is certain.
    Mismatch {
        /// The rank that came first.
        first: u16,
        /// The rank that disagreed with it.
        dissenter: u16,
        /// [`Chunk::collective`](super::Chunk::collective) of this rank's chunk that was refused.
        collective: u64,
        /// Whether the data plane verifies what it adds, and so refuses no damaged packet (rule
        /// 14.8).
        is_certain: bool,
    },
    /// The aggregator holds another round: one side has lost its state.
    Round {
        /// The round that this rank is in.
        ours: u32,
        /// The newest round that the aggregator holds.
        newest: u32,
    },
    /// After the loss of an aggregator these ranks say that they are where they cannot be; or, if
    /// there are none, another rank has spoilt what this one said.
    Misplaced(Ranks),
    /// The job was aborted; the control plane says why.
    Aborted,
}

impl Failure {
    pub(super) fn rejected(
        reason: RejectReason,
        detail: u32,
        ours: u32,
        refused: (u64, bool),
    ) -> Self {
        let (collective, is_certain) = refused;
        match reason {
            RejectReason::Mismatch => Self::Mismatch {
                first: (detail >> 16) as u16,
                dissenter: detail as u16,
                collective,
                is_certain,
            },
            RejectReason::Round => Self::Round { ours, newest: detail },
            RejectReason::Aborted => Self::Aborted,
        }
    }
}
