//! What a job uses of what its data plane can do, and why not the rest (rule 22.13 of `docs/spec`).
//!
//! The control plane asks here once for each job, and tells the ranks what they may use. So what
//! excludes a capability stands in one table, `EXCLUDED`, and nowhere else.

use core::fmt;

use crate::capabilities::Capabilities;
use crate::wire::audience::NAMED_RANKS;

/// The properties of a job that exclude capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobShape {
    /// Number of its ranks.
    pub ranks: u32,
    /// Its packets have tags.
    pub has_tags: bool,
    /// Some of its ranks send to combiners.
    pub has_combiners: bool,
    /// Its ranks send to an IPv6 address.
    pub is_ipv6: bool,
}

/// Why a job does not use a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The data plane lacks it.
    NotOffered,
    /// Combiners do not know it.
    Combiners,
    /// Packets with tags cannot have it.
    Tags,
    /// It names ranks, and can name few.
    ManyRanks,
    /// It needs IPv4.
    Ipv6,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOffered => f.write_str("the data plane lacks it"),
            Self::Combiners => f.write_str("the job has combiners"),
            Self::Tags => f.write_str("packets have tags"),
            Self::ManyRanks => write!(f, "the job has more than {NAMED_RANKS} ranks"),
            Self::Ipv6 => f.write_str("the job uses IPv6"),
        }
    }
}

/// A property of jobs, and the capabilities that it excludes on every data plane.
type Exclusion = (Reason, fn(&JobShape) -> bool, Capabilities);

const EXCLUDED: [Exclusion; 4] = [
    // A contribution of a combiner has lanes, and a DONE passes no combiner (rule 27.5).
    (
        Reason::Combiners,
        |job| job.has_combiners,
        Capabilities::EMPTY_CONTRIBUTIONS.union(Capabilities::AUDIENCES),
    ),
    // A DONE and a partial sum have no tags (rule 7.14, section 34).
    (Reason::Tags, |job| job.has_tags, Capabilities::AUDIENCES.union(Capabilities::PARTIAL_SUMS)),
    (Reason::ManyRanks, |job| job.ranks > NAMED_RANKS as u32, Capabilities::AUDIENCES),
    // There are no groups over IPv6 (rule 5.12).
    (Reason::Ipv6, |job| job.is_ipv6, Capabilities::GROUP_HELLOS),
];

/// What a job uses of what its data plane offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    offered: Capabilities,
    /// Those that this data plane has over IPv4 only.
    ipv4_only: Capabilities,
    job: JobShape,
}

impl Features {
    /// Those of a job of this shape at a data plane that offers this. `ipv4_only` are the
    /// capabilities that this data plane has over IPv4 only.
    pub const fn of(job: JobShape, offered: Capabilities, ipv4_only: Capabilities) -> Self {
        Self { offered, ipv4_only, job }
    }

    /// What the ranks may use.
    pub fn used(&self) -> Capabilities {
        let excluded = self.exclusions().map(|(_, capabilities)| capabilities);
        self.offered.difference(excluded.fold(Capabilities::empty(), Capabilities::union))
    }

    /// Why a rank may not use this one; `None` if it may.
    pub fn why_not(&self, capability: Capabilities) -> Option<Reason> {
        if !self.offered.contains(capability) {
            return Some(Reason::NotOffered);
        }
        let mut exclusions = self.exclusions();
        exclusions.find(|(_, excluded)| excluded.intersects(capability)).map(|(reason, _)| reason)
    }

    /// What the ranks below a combiner may use, if the root has told them `of_root` and these are
    /// the combiner's own: a combiner serves the way between its ranks and itself.
    pub fn below_combiner(&self, of_root: Capabilities) -> Capabilities {
        let of_way = Capabilities::GROUP_HELLOS | Capabilities::ROCE;
        of_root.difference(of_way) | self.used() & of_way
    }

    fn exclusions(&self) -> impl Iterator<Item = (Reason, Capabilities)> {
        let always = EXCLUDED.iter().filter(|(_, applies, _)| applies(&self.job));
        let always = always.map(|&(reason, _, excluded)| (reason, excluded));
        always.chain(self.job.is_ipv6.then_some((Reason::Ipv6, self.ipv4_only)))
    }
}
