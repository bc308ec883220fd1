//! Which tests run, and what that takes.

use anyhow::Result;
use serde::Deserialize;
use switchml_cli::say;

use crate::{cargo, python, setup};

/// Test programs that `--quick` leaves out: those that start a whole job for every case, or need
/// what is large.
const LONG: [&str; 5] = ["end_to_end", "independent_worker", WITH_MPI, "python", WATCHING];

/// Of the end-to-end tests `--quick` runs those of this name: a job of two ranks, with the
/// aggregator in native XDP and at tc ingress.
const SHORTEST_JOB: &str = "two_workers";

/// Cases of each property test whose number nothing else fixes; without, it is 256.
const QUICK_CASES: &str = "64";

/// Where property tests start from if all tests run, so that their verdict does not depend on
/// chance. Fewer tests, and `cargo test`, try other cases each time.
const SEED: &str = "2026";

/// The test program that needs Prometheus and a browser.
const WATCHING: &str = "web";

/// The crate whose tests validate manifests for Kubernetes.
const VALIDATING: &str = "xtask";

/// Test programs that need Python with torch.
const IN_PYTHON: [&str; 2] = ["python", "independent_worker"];

/// The test program that needs Open MPI and MPICH.
const WITH_MPI: &str = "mpi";

/// What is to be run.
pub struct Plan {
    /// Arguments of `cargo test`, for each time it is called.
    pub runs: Vec<Vec<String>>,
    /// What these find in their environment.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Whether a test needs Python with torch.
    pub needs_python: bool,
    /// Whether a test needs Prometheus and a browser.
    pub watches: bool,
    /// Whether manifests for Kubernetes are validated.
    pub validates: bool,
    /// Whether a test needs Open MPI and MPICH.
    pub needs_mpi: bool,
    /// Whether the fuzz targets run.
    pub fuzzes: bool,
    /// What is run, and how long that takes, for people.
    about: String,
}

impl Plan {
    /// Every test.
    pub fn all() -> Self {
        Self {
            runs: vec![Vec::new()],
            environment: vec![("PROPTEST_RNG_SEED", SEED)],
            needs_python: true,
            watches: true,
            validates: true,
            needs_mpi: true,
            fuzzes: true,
            about: "all tests, with torch, then the fuzz targets; with the build this usually \
                    takes 22 minutes on 2 cores, fewer on 4"
                .into(),
        }
    }

    /// Those that `cargo test` chooses by these arguments.
    pub fn chosen(arguments: &[String]) -> Self {
        let is_in_python = |argument: &String| IN_PYTHON.contains(&argument.as_str());
        Self {
            runs: vec![arguments.to_vec()],
            environment: Vec::new(),
            needs_python: arguments.iter().any(is_in_python),
            watches: arguments.iter().any(|argument| argument == WATCHING),
            validates: arguments.iter().any(|argument| argument == VALIDATING),
            needs_mpi: arguments.iter().any(|argument| argument == WITH_MPI),
            fuzzes: false,
            about: format!("what `cargo test --release {}` chooses", arguments.join(" ")),
        }
    }

    /// Those that are worth their time before each commit.
    ///
    /// # Errors
    ///
    /// If cargo does not say which tests there are.
    pub fn quick() -> Result<Self> {
        // All by the same selection of crates: another one has other features, and builds anew.
        let mut short = vec!["--lib".to_owned(), "--bins".to_owned()];
        for name in test_programs()? {
            if !LONG.contains(&name.as_str()) {
                short.extend(["--test".to_owned(), name]);
            }
        }
        let job = ["--test", "end_to_end", SHORTEST_JOB].map(str::to_owned).to_vec();
        Ok(Self {
            runs: vec![short, job],
            environment: vec![("PROPTEST_CASES", QUICK_CASES)],
            needs_python: false,
            watches: false,
            validates: false,
            needs_mpi: false,
            fuzzes: false,
            about: format!(
                "all tests but {}, and a job of two ranks; after the build this usually takes up \
                 to 4 minutes on 2 cores, 3 on 4",
                LONG.join(", ")
            ),
        })
    }

    /// Says what is about to be installed and run.
    ///
    /// # Errors
    ///
    /// If it cannot be found out what is missing.
    pub fn announce(&self) -> Result<()> {
        say!("runs {}", self.about);
        let mut missing = setup::missing()?;
        if self.needs_python {
            missing.extend(python::missing()?);
        }
        if !missing.is_empty() {
            say!("installs first: {}", missing.join("; "));
        }
        Ok(())
    }
}

/// The names of the workspace's test programs.
fn test_programs() -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
        workspace_default_members: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Package {
        id: String,
        targets: Vec<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    let Metadata { packages, workspace_default_members } = cargo::metadata()?;
    let members =
        packages.into_iter().filter(|package| workspace_default_members.contains(&package.id));
    let targets = members.flat_map(|package| package.targets);
    let mut names: Vec<String> = targets
        .filter(|target| target.kind.iter().any(|kind| kind == "test"))
        .map(|target| target.name)
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_quick_leaves_out_exists() {
        let programs = test_programs().unwrap();
        for name in LONG.iter().chain(&IN_PYTHON) {
            assert!(programs.iter().any(|program| program == name), "no test program {name}");
        }
        let runs = Plan::quick().unwrap().runs.concat();
        assert!(runs.iter().any(|argument| argument == "in_kernel"), "{runs:?}");
        assert!(!runs.iter().any(|argument| argument == "python"), "{runs:?}");
    }
}
