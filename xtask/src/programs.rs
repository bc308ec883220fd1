//! The test programs: cargo builds them all in one call, and reports the path of each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cargo;

/// Test threads per processor. Most tests mostly wait, each in its own namespaces.
const THREADS_PER_PROCESSOR: usize = 4;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program's package, such as `switchml-worker`.
    pub package: String,
    /// The program's target in its package, such as `suite`; for unit tests the crate's name.
    pub target: String,
    executable: PathBuf,
    /// The package's folder.
    folder: PathBuf,
}

/// The fields of cargo's messages that are read here.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    package_id: Option<String>,
    profile: Option<Profile>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

impl Program {
    /// Builds the test programs that some arguments of `cargo test` choose, without running them.
    pub fn build(arguments: &[&str]) -> Result<Vec<Self>> {
        let mut command = cargo::command("test")?;
        command.args(["--release", "--no-run", "--message-format=json-render-diagnostics"]);
        let output = command
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start cargo")?;
        ensure!(
            output.status.success(),
            "the tests could not be built; the compiler's messages are above"
        );
        let text = String::from_utf8(output.stdout).context("cargo writes no text")?;
        Ok(text.lines().filter_map(Self::of_message).collect())
    }

    /// The program that a message of cargo is about, if any.
    fn of_message(line: &str) -> Option<Self> {
        let message: Message = serde_json::from_str(line).ok()?;
        let is_test = message.profile.is_some_and(|profile| profile.test);
        Some(Self {
            executable: message.executable.filter(|_| is_test)?,
            folder: message.manifest_path?.parent()?.to_owned(),
            package: name_of(&message.package_id?)?.to_owned(),
            target: message.target?.name,
        })
    }

    /// The program's name in the table of times: `switchml-worker: suite`.
    pub fn name(&self) -> String {
        format!("{}: {}", self.package, self.target)
    }

    /// The path of the program.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// The folder of the program's package.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The command that runs the program as `cargo test` does, with [`THREADS_PER_PROCESSOR`].
    pub fn command(&self) -> Command {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.env("RUST_TEST_THREADS", (THREADS_PER_PROCESSOR * processors).to_string());
        command
    }
}

/// The package's name in its id, such as `path+file:///folder/worker-lib#switchml-worker@0.1.0`.
/// The id leaves out the name if the folder has the same: `path+file:///folder/xtask#0.1.0`.
fn name_of(id: &str) -> Option<&str> {
    let (folder, version) = id.rsplit_once('#')?;
    match version.split_once('@') {
        Some((name, _)) => Some(name),
        None => folder.rsplit('/').next(),
    }
}

/// The package and the target of each integration test program in the workspace.
#[cfg(test)]
pub fn of_workspace() -> Result<Vec<(String, String)>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
        workspace_default_members: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Package {
        id: String,
        name: String,
        targets: Vec<Kinds>,
    }
    #[derive(Deserialize)]
    struct Kinds {
        name: String,
        kind: Vec<String>,
    }
    let Metadata { packages, workspace_default_members } = cargo::metadata()?;
    let members =
        packages.into_iter().filter(|package| workspace_default_members.contains(&package.id));
    let of_package = |Package { name, targets, .. }: Package| {
        let tests = targets.into_iter().filter(|target| target.kind.contains(&"test".to_owned()));
        tests.map(move |target| (name.clone(), target.name)).collect::<Vec<_>>()
    };
    Ok(members.flat_map(of_package).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_told_from_what_else_is_built() {
        let line = |id: &str, test: bool, executable: &str| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///a/{id}\",\
                 \"manifest_path\":\"/a/worker-lib/Cargo.toml\",\"target\":{{\"name\":\"suite\"}},\
                 \"profile\":{{\"test\":{test}}},\"executable\":{executable}}}"
            )
        };
        let found = |id, test, executable| Program::of_message(&line(id, test, executable));
        let program = |package: &str| Program {
            package: package.to_owned(),
            target: "suite".to_owned(),
            executable: "/a/target/suite-1".into(),
            folder: "/a/worker-lib".into(),
        };
        let (path, id) = ("\"/a/target/suite-1\"", "worker-lib#switchml-worker@0.1.0");
        assert_eq!(found(id, true, path), Some(program("switchml-worker")));
        assert_eq!(found("xtask#0.1.0", true, path), Some(program("xtask")));
        assert_eq!(found(id, false, path), None, "a binary");
        assert_eq!(found(id, true, "null"), None, "a library");
        assert_eq!(Program::of_message("{\"reason\":\"build-finished\",\"success\":true}"), None);
    }
}
