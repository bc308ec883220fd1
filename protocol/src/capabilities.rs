//! What some data planes can do and others cannot.
//!
//! A new capability is a row here and one in rule 22.13 of `docs/protocol.md`. The data planes that
//! have it say so in their `Limits`: [`crate::aggregator::CAPABILITIES`] for those that use this
//! crate. `Assigned` carries all of them to the workers as they are.

bitflags::bitflags! {
    /// What a data plane can do, as `Assigned` says it to the workers. Bits that this program does
    /// not know are ignored: only a newer one makes use of them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// RESULTs of a maximum carry a check word. Elsewhere the ranks prove them to each other.
        const CHECKED_MAXIMA = 1 << 0;
        /// It takes contributions to sums without their lanes, where these are all zero.
        const EMPTY_CONTRIBUTIONS = 1 << 1;
        /// It answers to the job's group if a HELLO asks for that, so that ranks find out whether
        /// the network brings them its packets.
        const GROUP_HELLOS = 1 << 2;
        /// It takes what combiners have added up of several ranks.
        const PARTIAL_SUMS = 1 << 3;
        /// Its packets can have tags, which tell them from forged ones.
        const TAGS = 1 << 4;
        /// Sums may be for some ranks alone: its results bring their lanes to these, and to others
        /// at most the news that the round is complete.
        const AUDIENCES = 1 << 5;
    }
}
