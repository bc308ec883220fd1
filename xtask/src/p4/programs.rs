//! The compilers of P4. None is in a package registry, so they are used only if they are installed.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use switchml_rack::tools;

use crate::cargo;

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
            Self::Bmv2 | Self::Bmv2Of256 | Self::Bmv2Combiner => &["p4c-bm2-ss"],
            Self::Tofino | Self::TofinoOf256 | Self::TofinoCombiner => &["p4c-barefoot", "bfas"],
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
        let folder = &self.folder(folder);
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let files = match self {
            Self::Bmv2 | Self::Bmv2Of256 | Self::Bmv2Combiner => self.compile_for_bmv2(folder)?,
            Self::Tofino | Self::TofinoOf256 | Self::TofinoCombiner => {
                self.compile_for_tofino(folder)?
            }
        };
        Ok(Compiled::Files(files))
    }

    fn compile_for_bmv2(self, folder: &Path) -> Result<Vec<PathBuf>> {
        let (json, tables) = (folder.join("bmv2.json"), folder.join("bmv2.p4info.txtpb"));
        let mut compiler = command("p4c-bm2-ss");
        // Not every program uses every number of the protocol, and the sizes of tables with
        // constant entries are for Tofino only.
        compiler
            .args(["--Wdisable=unused", "--Wdisable=mismatch"])
            .arg("-o")
            .arg(&json)
            .arg("--p4runtime-files")
            .arg(&tables)
            .arg(self.source());
        succeed(&mut compiler, self.source())?;
        Ok(vec![json, tables])
    }

    fn compile_for_tofino(self, folder: &Path) -> Result<Vec<PathBuf>> {
        let stem = Path::new(self.source()).file_stem().unwrap_or_default().to_string_lossy();
        // The compiler makes a folder for each pipeline, named as in the source.
        let (pipe, tables) = (folder.join("pipe"), folder.join("bf-rt.json"));
        let assembly = pipe.join(format!("{stem}.bfa"));
        let mut compiler = command("p4c-barefoot");
        // -g: with it come the reports of resources.
        compiler.args(["--target", "tofino", "--arch", "tna", "-g", "--Wdisable=unused"]);
        compiler.arg("-o").arg(folder).arg("--bf-rt-schema").arg(&tables).arg(self.source());
        succeed(&mut compiler, self.source())?;
        parses(&assembly)?;
        let binary = pipe.join("tofino.bin");
        let mut assembler = command("bfas");
        assembler.args(["--target", "tofino"]).arg("-o").arg(&pipe).arg(&assembly);
        succeed(&mut assembler, self.source())?;
        Ok(vec![binary, tables])
    }
}

/// Checks that the parser's selects are in the assembly: a compiler with p4lang/p4c#5063 (February
/// 2026) and without p4lang/p4c#5753 silently loses all of them.
fn parses(assembly: &Path) -> Result<()> {
    let text = fs::read_to_string(assembly)
        .with_context(|| format!("cannot read {}", assembly.display()))?;
    ensure!(
        text.lines().any(|line| line.trim_start().starts_with("match:")),
        "this p4c-barefoot loses every `select` of a parser; build one that has p4lang/p4c#5753"
    );
    Ok(())
}

fn command(tool: &str) -> Command {
    let mut command = Command::new(tool);
    // Makes paths in messages relative to the workspace.
    command.current_dir(cargo::workspace());
    command
}

fn succeed(command: &mut Command, source: &str) -> Result<()> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {tool}"))?;
    ensure!(
        status.success(),
        "{tool} does not compile {source} ({status}); its messages are above"
    );
    Ok(())
}
