//! What some data planes can do and others cannot.
//!
//! A new capability is a row here and one in rule 22.13 of `docs/spec`. The data planes that
//! have it say so in their `Limits`: [`crate::root::CAPABILITIES`] for those that use this crate.
//! [`crate::features`] says which jobs cannot use it. `Assigned` carries the others to the workers
//! as they are.

bitflags::bitflags! {
    /// A data plane's capabilities, as `Assigned` tells them to the workers. Bits that this program
    /// does not know are ignored: only a newer program uses them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// RESULTs of a maximum carry a check word. Without this, the ranks prove maxima to each
        /// other.
        const CHECKED_MAXIMA = 1 << 0;
        /// Contributions to sums may leave out their lanes if these are all zero.
        const EMPTY_CONTRIBUTIONS = 1 << 1;
        /// The answer to a HELLO goes to the job's group if the HELLO asks for that, so that ranks
        /// find out whether the network delivers multicast.
        const GROUP_HELLOS = 1 << 2;
        /// Partial sums of combiners are taken.
        const PARTIAL_SUMS = 1 << 3;
        /// Packets can have tags, which tell them from forged ones.
        const TAGS = 1 << 4;
        /// A sum may have an audience: a RESULT brings its lanes to these ranks alone. Other ranks
        /// learn at most that the round is complete.
        const AUDIENCES = 1 << 5;
        /// Ranks may send packets as messages of RoCEv2.
        const ROCE = 1 << 6;
    }
}

impl Capabilities {
    /// Those that decide on the chunks of calls (rule 36.8): an aggregator that lacks one of them
    /// cannot go on with a job that uses it.
    pub const SHAPING: Self =
        Self::CHECKED_MAXIMA.union(Self::EMPTY_CONTRIBUTIONS).union(Self::AUDIENCES);
}
