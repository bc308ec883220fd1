//! The two kinds of programs in `p4/`, and what tells one from the other.

use crate::combiner::{self, CELLS};
use crate::entries::{self, ROUNDS, Table};

/// What a program makes of its switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// The aggregator at the root.
    Root,
    /// A combiner.
    Combiner,
}

impl ProgramKind {
    /// The register with an entry for each set, or for each cell. Programs of the other kind lack
    /// it.
    pub const fn register(self) -> &'static str {
        match self {
            Self::Root => ROUNDS,
            Self::Combiner => CELLS,
        }
    }

    /// The other kind.
    pub const fn other(self) -> Self {
        match self {
            Self::Root => Self::Combiner,
            Self::Combiner => Self::Root,
        }
    }

    /// The tables whose entries are the control plane's, on all targets.
    pub fn tables(self) -> impl Iterator<Item = &'static Table> {
        let own = match self {
            Self::Root => &[],
            Self::Combiner => combiner::TABLES,
        };
        let is_there =
            move |table: &&Table| self == Self::Root || combiner::SHARED.contains(&table.name);
        own.iter().chain(entries::TABLES.iter().filter(is_there))
    }

    /// The program's file in `p4/`, for a target.
    pub fn source(self, target: &str) -> String {
        match self {
            Self::Root => format!("{target}.p4"),
            Self::Combiner => format!("{target}_combiner.p4"),
        }
    }

    /// What is there is of the other kind: which program that is, and which it has to be.
    pub fn instead_of_other(self, target: &str) -> String {
        let (found, wanted) = (self.other().source(target), self.source(target));
        match self {
            Self::Root => {
                format!("{found}, a combiner's program; without --parent it must be {wanted}")
            }
            Self::Combiner => {
                format!("{found}, the root's program; with --parent it must be {wanted}")
            }
        }
    }
}
