//! What became of a packet: one value that gives the action, the counter and the log line, so that
//! they agree.

use crate::lanes::ShortPayload;
use crate::wire::header::Malformed;

/// What a data plane does with a packet after serving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Not for the aggregator: the host's network stack gets it, untouched.
    Pass,
    /// Consumed or refused without an answer.
    Drop,
    /// The packet, rewritten, goes back to where it came from.
    Reply,
    /// The packet, rewritten, goes to every rank of the job; a combiner's, to those below it.
    Broadcast,
    /// A combiner's packet goes on to its parent.
    Up,
    /// A combiner's packet goes on to where the rank in its header lives.
    Down,
}

macro_rules! outcomes {
    ($($(#[doc = $doc:literal])+ $name:ident = $label:literal => $action:ident,)+) => {
        /// What became of a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Outcome {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Outcome {
            /// Every outcome, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The outcome with this number.
            #[inline(always)]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $(number if number == Self::$name as u8 => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// What the data plane does with the packet.
            #[inline(always)]
            pub const fn action(self) -> Action {
                match self { $(Self::$name => Action::$action,)+ }
            }

            /// Name of the counter, as operators see it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// What the counter counts, in one line.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

outcomes! {
    /// Not addressed to the aggregator.
    NotOurs = "not_ours" => Pass,
    /// Frame with several VLAN tags, or one of 802.1ad, left to the host.
    Vlan = "vlan" => Pass,
    /// IPv6 packet with extension headers, left to the host.
    Ipv6 = "ipv6" => Pass,
    /// IPv4 header with options, left to the host.
    IpOptions = "ip_options" => Pass,
    /// Fragment of an IPv4 packet, left to the host.
    Fragment = "fragment" => Pass,

    /// First contribution of a round.
    Started = "started" => Drop,
    /// Contribution added to a round.
    Added = "added" => Drop,
    /// Last contribution of a round: RESULT to all.
    Completed = "completed" => Broadcast,
    /// Contribution seen before, round complete: RESULT to the sender alone.
    Replayed = "replayed" => Reply,
    /// Contribution seen before, round incomplete: PENDING to the sender.
    Pending = "pending" => Reply,
    /// Contribution of a round long complete: a late duplicate.
    Stale = "stale" => Drop,
    /// Ranks disagree on the call: REJECT.
    Mismatch = "mismatch" => Reply,
    /// Round that the sender may not be in: REJECT.
    WrongRound = "wrong_round" => Reply,
    /// Contribution to an aborted job: REJECT.
    Aborted = "aborted" => Reply,
    /// HELLO of a member: echoed.
    Hello = "hello" => Reply,

    /// From the aggregator's own address, or hidden behind more than two VLAN tags.
    Spoofed = "spoofed" => Drop,
    /// Ends before its headers or its payload do.
    Truncated = "truncated" => Drop,
    /// Wrong IPv4 header checksum.
    BadIpChecksum = "bad_ip_checksum" => Drop,
    /// Unknown protocol version.
    BadVersion = "bad_version" => Drop,
    /// Kind that the aggregator does not take.
    BadKind = "bad_kind" => Drop,
    /// Unknown operator, or a maximum of a contribution without payload.
    BadOp = "bad_op" => Drop,
    /// Lane count that is not a multiple of 32 up to 768.
    BadLanes = "bad_lanes" => Drop,
    /// Payload not as long as the lane count says.
    BadLength = "bad_length" => Drop,
    /// Check word that is missing, or does not fit the packet.
    BadCheck = "bad_check" => Drop,
    /// Job that does not exist.
    UnknownJob = "unknown_job" => Drop,
    /// Epoch that is not the job's.
    WrongEpoch = "wrong_epoch" => Drop,
    /// Rank outside of the job.
    BadRank = "bad_rank" => Drop,
    /// Tag that is missing or wrong, or in a job without tags.
    BadTag = "bad_tag" => Drop,
    /// Slot outside of the job's range.
    BadSlot = "bad_slot" => Drop,
    /// HELLO with a wrong secret.
    WrongSecret = "wrong_secret" => Drop,
    /// Contribution of a rank that has not said HELLO.
    NoHello = "no_hello" => Drop,
    /// Packet not from where its rank lives.
    WrongPlace = "wrong_place" => Drop,
    /// Of another job than the segments before it, whose RESULTs the superpacket carries; the
    /// resend covers it.
    MixedJobs = "mixed_jobs" => Drop,
    /// Slot held by another CPU for too long; the resend covers it.
    SlotBusy = "slot_busy" => Drop,
    /// RESULT for all that the kernel would not send.
    SendFailed = "send_failed" => Drop,

    /// Contribution without payload whose answer has one: ROOM to the sender.
    Room = "room" => Reply,
    /// Partial sum of ranks that are all in the round already, or at a combiner a contribution.
    Duplicate = "duplicate" => Drop,
    /// Partial sum of ranks some of which are in the round already; their resends complete it.
    Overlap = "overlap" => Drop,
    /// Partial sum that the round refuses: of another call, out of turn, or of an aborted job.
    Conflict = "conflict" => Drop,

    /// Added up at this combiner, where others are missing.
    Held = "held" => Drop,
    /// Last one below this combiner: all went on as a partial sum.
    Combined = "combined" => Up,
    /// Took the place of a partial sum that had waited for too long, and went on.
    Evicted = "evicted" => Up,
    /// Went on to the parent as it was: a resend, or one with nobody to be combined with.
    Passed = "passed" => Up,
    /// Went on to the parent as it was, behind what had waited for it.
    Flushed = "flushed" => Up,
    /// HELLO of a rank below this combiner: went on to the parent.
    HelloPassed = "hello_passed" => Up,
    /// Answer of the parent to one rank.
    ToRank = "to_rank" => Down,
    /// RESULT of the parent to all ranks.
    ToAll = "to_all" => Broadcast,

    /// Lost on purpose, for tests; the resend covers it.
    LostForTests = "lost_for_tests" => Drop,
}

macro_rules! reject_reasons {
    ($(
        $(#[$doc:meta])+
        $name:ident = $number:literal, $label:literal => $outcome:ident;
    )+) => {
        numbers! {
            /// Why the aggregator refused a contribution (rule 2.5). First word of a REJECT's
            /// payload; the second is the detail.
            pub enum RejectReason: u32 {
                $($(#[$doc])+ $name = $number, $label;)+
            }
        }

        impl RejectReason {
            /// What becomes of a contribution that is refused for this reason.
            #[inline(always)]
            pub const fn outcome(self) -> Outcome {
                match self { $(Self::$name => Outcome::$outcome,)+ }
            }
        }

        impl Outcome {
            /// The reason that the REJECT of this outcome carries.
            pub const fn reject_reason(self) -> Option<RejectReason> {
                match self {
                    $(Self::$outcome => Some(RejectReason::$name),)+
                    _ => None,
                }
            }
        }
    };
}

reject_reasons! {
    /// Ranks disagree on op, lanes or fingerprint. Detail: the round's first rank << 16 | the rank
    /// that disagreed.
    Mismatch = 1, "MISMATCH" => Mismatch;
    /// The round is not one that the sender may be in. Detail: the newest round that the slot
    /// holds.
    Round = 2, "ROUND" => WrongRound;
    /// The job was aborted. Detail: 0; the control plane says why.
    Aborted = 3, "ABORTED" => Aborted;
}

impl Outcome {
    /// Number of outcomes: the size of a table of counters.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether only combiners count this outcome.
    pub const fn is_of_combiner(self) -> bool {
        matches!(self.action(), Action::Up | Action::Down)
            || matches!(self, Self::Held | Self::ToAll)
    }

    /// Whether operators want to hear of every packet of this outcome, not of the count alone.
    #[inline(always)]
    pub const fn is_notable(self) -> bool {
        matches!(
            self,
            Self::Hello
                | Self::HelloPassed
                | Self::Mismatch
                | Self::WrongRound
                | Self::WrongSecret
                | Self::WrongPlace
        )
    }
}

impl From<Malformed> for Outcome {
    #[inline(always)]
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Truncated => Self::Truncated,
            Malformed::Version => Self::BadVersion,
            Malformed::Kind => Self::BadKind,
            Malformed::Op => Self::BadOp,
            Malformed::Lanes => Self::BadLanes,
            Malformed::Length => Self::BadLength,
        }
    }
}

impl From<ShortPayload> for Outcome {
    #[inline(always)]
    fn from(_: ShortPayload) -> Self {
        Self::Truncated
    }
}
