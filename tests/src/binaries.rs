//! The programs that run in a rack.

use crate::Error;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The variable that names the folder with the binaries to test; without it, tests build their own.
const BIN_DIR: &str = "SWITCHML_BIN_DIR";

/// The paths of the binaries.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// The daemon, `switchml-aggregator`.
    pub aggregator: PathBuf,
    /// The worker's command line, `switchml-worker`.
    pub worker: PathBuf,
    /// The process that makes links bad, `switchml-impairment`; only tests that need it check that
    /// it exists.
    pub impairment: PathBuf,
}

impl Binaries {
    /// The binaries in `folder`.
    pub fn in_folder(folder: &Path) -> Result<Self, Error> {
        let find = |name| {
            let path = folder.join(name);
            if path.is_file() { Ok(path) } else { Err(Error::NotBuilt(path)) }
        };
        Ok(Self {
            aggregator: find("switchml-aggregator")?,
            worker: find("switchml-worker")?,
            impairment: folder.join("switchml-impairment"),
        })
    }

    /// The release binaries for a test: those in the folder `SWITCHML_BIN_DIR` if it is set, as
    /// `cargo xtask test` does. Otherwise they are built first, because cargo does not build
    /// another package's binaries for a test, and a test that runs an old daemon is worse than
    /// none.
    pub fn for_test() -> Result<Self, Error> {
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        if let Some(folder) = env::var_os(BIN_DIR) {
            return Self::in_folder(Path::new(&folder));
        }
        if let Some(folder) = FOLDER.get() {
            return Self::in_folder(folder);
        }
        // Cargo's own lock makes tests that come here at the same time wait for each other.
        let folder = build()?;
        Self::in_folder(FOLDER.get_or_init(|| folder))
    }

    /// `PATH` with the programs of this interpreter's environment and these binaries in front.
    pub fn path_behind(&self, python: &Path) -> OsString {
        let folders = [python, &self.worker].map(|file| file.parent().unwrap_or(file).to_owned());
        let path = env::var_os("PATH").unwrap_or_default();
        let all = folders.into_iter().chain(env::split_paths(&path));
        env::join_paths(all).expect("no folder of PATH has a colon in its name")
    }
}

/// Removes from a command's environment what cargo told this program about its own package. Ring's
/// build script reads that: cargo would run it again, and recompile everything that depends on
/// ring, whenever cargo is run from here and then by hand.
pub fn forget_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name.to_str().is_some_and(|name| of_package.iter().any(|head| name.starts_with(head))) {
            command.env_remove(name);
        }
    }
}

/// Builds the binaries into the target folder of the running test, and returns the folder where
/// they are.
fn build() -> Result<PathBuf, Error> {
    let target = target_folder()?;
    let packages = ["switchml-userspace", "switchml-worker-cli", "switchml-impairment"]
        .map(|name| ["-p", name]);
    let arguments =
        [&["build", "--quiet", "--release", "--bins"], packages.as_flattened()].concat();
    let failed =
        |why: String| Error::Build { command: format!("cargo {}", arguments.join(" ")), why };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(&arguments).arg("--target-dir").arg(&target);
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    forget_package(&mut cargo);
    let status = cargo.status().map_err(|error| failed(error.to_string()))?;
    if status.success() { Ok(target.join("release")) } else { Err(failed(status.to_string())) }
}

/// The folder above the running executable in which cargo keeps its information about the compiler.
fn target_folder() -> Result<PathBuf, Error> {
    let executable = std::env::current_exe().unwrap_or_default();
    let found = executable.ancestors().find(|folder| folder.join(".rustc_info.json").exists());
    found.map(Path::to_owned).ok_or_else(|| Error::Build {
        command: "cargo build".to_owned(),
        why: format!(
            "{} is in no target folder of cargo; set {BIN_DIR} to the folder of the binaries",
            executable.display()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_that_is_missing_is_named_and_how_to_build_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::write(folder.join("switchml-aggregator"), "").unwrap();
        let missing = Binaries::in_folder(folder).unwrap_err().to_string();
        std::fs::write(folder.join("switchml-worker"), "").unwrap();
        let found = Binaries::in_folder(folder);
        assert_eq!(
            missing,
            format!(
                "{}/switchml-worker does not exist; build it: \
                 cargo build --release -p switchml-userspace \
                 -p switchml-worker-cli -p switchml-impairment",
                folder.display()
            )
        );
        assert_eq!(found.unwrap().worker, folder.join("switchml-worker"));
    }

    #[test]
    fn the_target_folder_is_the_one_that_this_test_came_from() {
        let target = target_folder().unwrap();
        // target/<profile>/deps/<this test>
        assert_eq!(Some(target.as_path()), std::env::current_exe().unwrap().ancestors().nth(3));
    }
}
