//! The programs of `p4/`, compiled if their compilers are installed.

use anyhow::{Error, Result};
use std::path::{Path, PathBuf};
use switchml_rack::{p4_compilers, tools};

/// A program of `p4/`, and the compiler for its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The aggregator for bmv2's `simple_switch`.
    Bmv2,
    /// The same, for packets of up to 256 lanes.
    Bmv2Of256,
    /// The combiner for bmv2's `simple_switch`.
    Bmv2Combiner,
    /// The aggregator for Tofino 1.
    Tofino,
    /// The same, for packets of up to 256 lanes.
    TofinoOf256,
    /// The combiner for Tofino 1.
    TofinoCombiner,
}

/// The result of compiling a program.
pub enum Compiled {
    /// The compiler's output files.
    Files(Vec<PathBuf>),
    /// Tools that are not on the PATH.
    Missing(Vec<&'static str>),
}

impl Program {
    /// All programs.
    pub const ALL: [Self; 6] = [
        Self::Bmv2,
        Self::Bmv2Of256,
        Self::Bmv2Combiner,
        Self::Tofino,
        Self::TofinoOf256,
        Self::TofinoCombiner,
    ];

    /// The program's source file, relative to the workspace's root.
    pub const fn source(self) -> &'static str {
        match self {
            Self::Bmv2 => "p4/bmv2.p4",
            Self::Bmv2Of256 => "p4/bmv2_256.p4",
            Self::Bmv2Combiner => "p4/bmv2_combiner.p4",
            Self::Tofino => "p4/tofino.p4",
            Self::TofinoOf256 => "p4/tofino_256.p4",
            Self::TofinoCombiner => "p4/tofino_combiner.p4",
        }
    }

    /// The tools that compile it.
    pub const fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Bmv2 | Self::Bmv2Of256 | Self::Bmv2Combiner => &[p4_compilers::FOR_BMV2],
            Self::Tofino | Self::TofinoOf256 | Self::TofinoCombiner => &p4_compilers::FOR_TOFINO,
        }
    }

    /// The folder of its files in that of all programs: those of a target have the same
    /// names.
    pub fn folder(self, all: &Path) -> PathBuf {
        match self {
            Self::Bmv2 | Self::Tofino => all.to_owned(),
            Self::Bmv2Of256 | Self::TofinoOf256 => all.join("256"),
            Self::Bmv2Combiner | Self::TofinoCombiner => all.join("combiner"),
        }
    }

    /// Compiles the program into its part of `folder`, if its tools are on the PATH.
    pub fn compile(self, folder: &Path) -> Result<Compiled> {
        let missing = tools::missing(self.tools());
        if !missing.is_empty() {
            return Ok(Compiled::Missing(missing));
        }
        let (source, folder) = (self.source(), &self.folder(folder));
        let files = match self {
            Self::Bmv2 | Self::Bmv2Of256 | Self::Bmv2Combiner => {
                p4_compilers::compile_for_bmv2(source, folder)
            }
            Self::Tofino | Self::TofinoOf256 | Self::TofinoCombiner => {
                p4_compilers::compile_for_tofino(source, &[], folder)
            }
        };
        let files = files.map_err(Error::msg)?;
        Ok(Compiled::Files(files))
    }
}
