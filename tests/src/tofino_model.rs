//! What tests on a model of Tofino need: open-p4studio's test harness with the model, and the
//! compiled program.

use std::fs;
use std::path::{Path, PathBuf};

use crate::p4_compilers::FOR_TOFINO;
use crate::tools;

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
    let [compiler, assembler] = FOR_TOFINO;
    let missing = tools::missing(&[compiler, assembler, HARNESS]);
    (!missing.is_empty()).then(|| format!("no {} on the PATH", missing.join(" and no ")))
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
