//! The engine's counters.

use std::ops::AddAssign;

macro_rules! ignored {
    ($($(#[doc = $doc:literal])+ $name:ident = $label:literal,)+) => {
        /// Why a received packet was ignored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Ignored {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Ignored {
            /// Every reason, in the order of [`EngineStats::ignored`].
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Name of the counter.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }
        }
    };
}

ignored! {
    /// Not a packet of this protocol.
    Malformed = "malformed",
    /// A filler: it replaces a segment without an answer, because the aggregator cannot shorten a
    /// superpacket.
    Filler = "filler",
    /// A kind that an aggregator does not send.
    Kind = "kind",
    /// A packet of another job.
    Job = "job",
    /// A packet of another epoch.
    Epoch = "epoch",
    /// Addressed to another rank.
    Rank = "rank",
    /// Without the tag that packets of this job have, or with a tag in a job without.
    Tag = "tag",
    /// For a chunk that is not outstanding: its result has come before.
    NotOutstanding = "not_outstanding",
    /// Fingerprint, operator or lanes are not the chunk's.
    Call = "call",
    /// The check word is missing or does not fit.
    Check = "check",
    /// A maximum without a check word that is less than what this rank contributed.
    Maximum = "maximum",
    /// A REJECT for a reason that this version does not know.
    Reason = "reason",
    /// A PENDING or REJECT about impossible ranks.
    Ranks = "ranks",
    /// A ROOM for a chunk whose lanes have been sent.
    Room = "room",
}

/// Counters since the engine was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Chunks sent for the first time.
    pub chunks: u64,
    /// Results accepted.
    pub results: u64,
    /// RESULTs for all ranks that came, in time or not.
    pub for_all: u64,
    /// Results accepted that came to this rank alone, in answer to a resend.
    pub copies: u64,
    /// Results without lanes, which a DONE told of.
    pub told: u64,
    /// Chunks of zeros sent without their lanes.
    pub empty: u64,
    /// Chunks of these whose lanes the aggregator asked for, because its answer needs the room.
    pub rooms: u64,
    /// Chunks sent again because no answer came in time.
    pub resent_by_timer: u64,
    /// Chunks sent again because results of later ones came first.
    pub resent_by_overtaking: u64,
    /// Chunks sent again to ask whether a late peer has come.
    pub probes: u64,
    /// PENDING answers: this rank waited for a peer.
    pub pending: u64,
    /// Results that met congestion (ECN).
    pub congested: u64,
    /// Times that the window was halved.
    pub window_cuts: u64,
    /// Packets ignored, by [`Ignored`].
    pub ignored: [u64; Ignored::ALL.len()],
}

/// Counters of several engines together.
impl AddAssign<&Self> for EngineStats {
    fn add_assign(&mut self, other: &Self) {
        self.chunks += other.chunks;
        self.results += other.results;
        self.for_all += other.for_all;
        self.copies += other.copies;
        self.told += other.told;
        self.empty += other.empty;
        self.rooms += other.rooms;
        self.resent_by_timer += other.resent_by_timer;
        self.resent_by_overtaking += other.resent_by_overtaking;
        self.probes += other.probes;
        self.pending += other.pending;
        self.congested += other.congested;
        self.window_cuts += other.window_cuts;
        self.ignored.iter_mut().zip(other.ignored).for_each(|(sum, packets)| *sum += packets);
    }
}

impl EngineStats {
    /// Number of packets ignored for this reason.
    pub fn ignored(&self, reason: Ignored) -> u64 {
        self.ignored[reason as usize]
    }

    /// Contributions of this rank and results for it that were lost: as many as resends were needed
    /// for. A resend was needless if it was answered by PENDING, or if the result had come when its
    /// answer came, which was ignored then.
    pub fn lost(&self) -> u64 {
        let needless = self.pending + self.ignored(Ignored::NotOutstanding);
        self.resent().saturating_sub(needless)
    }

    /// Chunks sent again, for any reason.
    pub fn resent(&self) -> u64 {
        self.resent_by_timer + self.resent_by_overtaking + self.probes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statistics in which each counter has another value.
    fn counted(times: u64) -> EngineStats {
        EngineStats {
            chunks: times,
            results: 2 * times,
            for_all: 3 * times,
            copies: 4 * times,
            told: 5 * times,
            empty: 6 * times,
            rooms: 7 * times,
            resent_by_timer: 8 * times,
            resent_by_overtaking: 9 * times,
            probes: 10 * times,
            pending: 11 * times,
            congested: 12 * times,
            window_cuts: 13 * times,
            ignored: std::array::from_fn(|reason| (14 + reason as u64) * times),
        }
    }

    #[test]
    fn all_counters_of_engines_are_added() {
        let mut sum = counted(1);
        sum += &counted(10);
        assert_eq!(sum, counted(11));
    }

    #[test]
    fn what_was_sent_again_was_lost_unless_the_answer_says_that_it_was_not() {
        let mut stats = EngineStats {
            resent_by_timer: 4,
            resent_by_overtaking: 5,
            probes: 3,
            pending: 4,
            ..EngineStats::default()
        };
        stats.ignored[Ignored::NotOutstanding as usize] = 2;
        assert_eq!(stats.lost(), 4 + 5 + 3 - 4 - 2);
        stats.pending = 40;
        assert_eq!(stats.lost(), 0);
    }
}
