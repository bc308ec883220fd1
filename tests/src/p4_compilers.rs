//! The compilers of P4. None is in a package registry, so they are used only if they are installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What compiles for Tofino, and what assembles its output.
pub const FOR_TOFINO: [&str; 2] = ["p4c-barefoot", "bfas"];
/// What compiles for bmv2.
pub const FOR_BMV2: &str = "p4c-bm2-ss";

/// Compiles a program for Tofino, with these macros defined: into which files of the folder.
/// `source` is relative to the workspace's root. The error is what the tools say.
pub fn compile_for_tofino(
    source: &str,
    defines: &[&str],
    folder: &Path,
) -> Result<Vec<PathBuf>, String> {
    let [compiler, assembler] = FOR_TOFINO;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let stem = Path::new(source).file_stem().unwrap_or_default();
    // The compiler makes a folder for each pipeline, named as in the source.
    let (pipe, tables) = (folder.join("pipe"), folder.join("bf-rt.json"));
    let assembly = pipe.join(stem).with_extension("bfa");
    let mut compiler = command(compiler);
    // -g: with it come the reports of resources.
    compiler.args(["--target", "tofino", "--arch", "tna", "-g", "--Wdisable=unused"]);
    compiler.args(defines.iter().map(|name| format!("-D{name}")));
    compiler.arg("-o").arg(folder).arg("--bf-rt-schema").arg(&tables).arg(source);
    succeed(&mut compiler, source)?;
    parses(&assembly)?;
    let mut assembler = command(assembler);
    assembler.args(["--target", "tofino"]).arg("-o").arg(&pipe).arg(&assembly);
    succeed(&mut assembler, source)?;
    Ok(vec![pipe.join("tofino.bin"), tables])
}

/// Compiles a program for bmv2.
pub fn compile_for_bmv2(source: &str, folder: &Path) -> Result<Vec<PathBuf>, String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (json, tables) = (folder.join("bmv2.json"), folder.join("bmv2.p4info.txtpb"));
    let mut compiler = command(FOR_BMV2);
    // Not every program uses every number of the protocol, and the sizes of tables with constant
    // entries are for Tofino only.
    compiler.args(["--Wdisable=unused", "--Wdisable=mismatch"]).arg("-o").arg(&json);
    compiler.arg("--p4runtime-files").arg(&tables).arg(source);
    succeed(&mut compiler, source)?;
    Ok(vec![json, tables])
}

/// Checks that the parser's selects are in the assembly: a compiler with p4lang/p4c#5063 (February
/// 2026) and without p4lang/p4c#5753 silently loses all of them.
fn parses(assembly: &Path) -> Result<(), String> {
    let text = fs::read_to_string(assembly)
        .map_err(|error| format!("cannot read {}: {error}", assembly.display()))?;
    if text.lines().any(|line| line.trim_start().starts_with("match:")) {
        return Ok(());
    }
    Err(format!(
        "this {} loses every `select` of a parser; build one that has p4lang/p4c#5753",
        FOR_TOFINO[0]
    ))
}

fn command(tool: &str) -> Command {
    let mut command = Command::new(tool);
    // Makes paths in messages relative to the workspace.
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    command
}

fn succeed(command: &mut Command, source: &str) -> Result<(), String> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot start {tool}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("{tool} does not compile {source}:\n{}", String::from_utf8_lossy(&said).trim_end()))
}
