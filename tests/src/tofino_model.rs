//! What tests on a model of Tofino need: open-p4studio's test harness with the model, and the
//! compiled program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools;

/// The compiler of the programs, and its assembler.
const COMPILER: &str = "p4c-barefoot";
const ASSEMBLER: &str = "bfas";

/// The harness, built with the commands of `suites/vectors/tofino_harness.cpp`.
pub const HARNESS: &str = "tofino_test_harness";

/// What is missing to play a program on the model, if anything. `program` is the folder into
/// which `cargo xtask p4 build` writes.
pub fn obstacle(program: &Path) -> Option<String> {
    if tools::on_path(HARNESS).is_none() {
        return Some(format!("no {HARNESS} on the PATH"));
    }
    not_built(program)
}

/// What is wrong with the compiled program in this folder, if anything.
pub fn not_built(program: &Path) -> Option<String> {
    let binary = program.join("pipe/tofino.bin");
    let Ok(built) = binary.metadata().and_then(|file| file.modified()) else {
        return Some(format!("no {}: run `cargo xtask p4 build`", binary.display()));
    };
    let is_newer = |source: &PathBuf| {
        source.metadata().and_then(|file| file.modified()).is_ok_and(|at| at > built)
    };
    let newer = sources().into_iter().find(is_newer)?;
    Some(format!(
        "{} is newer than {}: run `cargo xtask p4 build`",
        newer.display(),
        binary.display()
    ))
}

/// What is missing to compile a program and play it on the model, if anything.
pub fn obstacle_to_compiling() -> Option<String> {
    let missing = tools::missing(&[COMPILER, ASSEMBLER, HARNESS]);
    (!missing.is_empty()).then(|| format!("no {} on the PATH", missing.join(" and no ")))
}

/// Compiles a program of `p4/` with this macro into a folder, for a test alone. The error is what
/// the tools print.
pub fn compile(source: &str, define: &str, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let pipe = folder.join("pipe");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4").join(source);
    let mut compiler = Command::new(COMPILER);
    compiler.args(["--target", "tofino", "--arch", "tna", "-g", "--Wdisable=unused"]);
    compiler.arg(format!("-D{define}")).arg("-o").arg(folder);
    compiler.arg("--bf-rt-schema").arg(folder.join("bf-rt.json")).arg(path);
    succeed(&mut compiler)?;
    let assembly = Path::new(source).with_extension("bfa");
    let mut assembler = Command::new(ASSEMBLER);
    assembler.args(["--target", "tofino", "-o"]).arg(&pipe).arg(pipe.join(assembly));
    succeed(&mut assembler)
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        let said = [output.stdout, output.stderr].concat();
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&said)))
    }
}

fn sources() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../p4");
    let files = |folder: PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_file())
    };
    let included = files(folder.join("include")).chain(files(folder.join("include/tofino")));
    included
        .chain(["tofino.p4", "tofino_256.p4", "tofino_combiner.p4"].map(|file| folder.join(file)))
        .collect()
}
