//! The programs of `p4/`, compiled if their compilers are installed.

use anyhow::{Error, Result};
use std::path::{Path, PathBuf};
use switchml_rack::{p4_compilers, tools};

/// A program of `p4/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// The source file, relative to the workspace's root.
    pub source: &'static str,
    /// The tools that compile it.
    pub tools: &'static [&'static str],
    /// The folder of its files in that of all programs: those of a target have the same names.
    folder: &'static str,
}

const fn of_bmv2(source: &'static str, folder: &'static str) -> Program {
    Program { source, tools: &[p4_compilers::FOR_BMV2], folder }
}

const fn of_tofino(source: &'static str, folder: &'static str) -> Program {
    Program { source, tools: &p4_compilers::FOR_TOFINO, folder }
}

/// The aggregator for Tofino 1.
pub const TOFINO: Program = of_tofino("p4/tofino.p4", "");
/// The combiner for Tofino 1.
pub const TOFINO_COMBINER: Program = of_tofino("p4/tofino_combiner.p4", "combiner");

/// Aggregators, those for packets of up to 256 lanes, and combiners.
pub const ALL: [Program; 6] = [
    of_bmv2("p4/bmv2.p4", ""),
    of_bmv2("p4/bmv2_256.p4", "256"),
    of_bmv2("p4/bmv2_combiner.p4", "combiner"),
    TOFINO,
    of_tofino("p4/tofino_256.p4", "256"),
    TOFINO_COMBINER,
];

/// The result of compiling a program.
pub enum Compiled {
    /// The compiler's output files.
    Files(Vec<PathBuf>),
    /// Tools that are not on the PATH.
    Missing(Vec<&'static str>),
}

impl Program {
    /// Whether it is for Tofino, and not for bmv2.
    pub fn is_of_tofino(self) -> bool {
        self.tools == p4_compilers::FOR_TOFINO
    }

    /// The folder of its files in that of all programs.
    pub fn folder(self, all: &Path) -> PathBuf {
        all.join(self.folder)
    }

    /// Compiles the program into its part of `folder`, if its tools are on the PATH.
    pub fn compile(self, folder: &Path) -> Result<Compiled> {
        let missing = tools::missing(self.tools);
        if !missing.is_empty() {
            return Ok(Compiled::Missing(missing));
        }
        let folder = &self.folder(folder);
        let files = if self.is_of_tofino() {
            p4_compilers::compile_for_tofino(self.source, &[], folder)
        } else {
            p4_compilers::compile_for_bmv2(self.source, folder)
        };
        Ok(Compiled::Files(files.map_err(Error::msg)?))
    }
}
