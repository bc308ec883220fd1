//! The tests to run, and what they need.

use anyhow::Result;
use switchml_cli::say;

use super::times::{self, Level};
use crate::{programs::Program, python, setup};

/// Tests that need large dependencies, by package, program and the beginning of their names: torch,
/// vLLM, Ray, Open MPI and MPICH, Slurm, a browser and Prometheus, and the schemas of Kubernetes.
const WITH_FRAMEWORKS: [(&str, &str, &str); 8] = [
    ("switchml-rack", "python", ""),
    ("switchml-rack", BY_NAME_ONLY[0], ""),
    ("switchml-rack", BY_NAME_ONLY[1], ""),
    ("switchml-rack", "independent_worker", ""),
    ("switchml-rack", "slurm", ""),
    ("switchml-c", "mpi", ""),
    ("switchml-userspace", "suite", "web::"),
    ("xtask", "deploy", "kubernetes::"),
];

/// The test programs that no level has, only `cargo xtask test -- --test NAME`: vLLM's takes 5
/// minutes and 2.3 GB, Ray's 0.6 GB.
pub const BY_NAME_ONLY: [&str; 2] = ["vllm", "ray"];

/// The seed of property tests, which makes their verdict reproducible. A plain `cargo test` tries
/// other cases each time.
pub const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "2026");

/// The dependencies of the tests to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Whether a test needs Python with torch.
    pub python: bool,
    /// Whether a test needs vLLM, beside torch.
    pub vllm: bool,
    /// Whether a test needs Ray, beside torch.
    pub ray: bool,
    /// Whether a test needs Prometheus and a browser.
    pub watches: bool,
    /// Whether manifests for Kubernetes are validated.
    pub validates: bool,
    /// Whether a test needs Open MPI and MPICH.
    pub mpi: bool,
    /// Whether a test needs Slurm.
    pub slurm: bool,
}

impl Plan {
    /// The dependencies of the tests of a level.
    pub fn of(level: Level) -> Self {
        let all = level == Level::All;
        Self { python: all, watches: all, validates: all, mpi: all, slurm: all, ..Self::default() }
    }

    /// The dependencies of the tests that some arguments of `cargo test` choose.
    pub fn chosen(arguments: &[String]) -> Self {
        let names = |wanted: &str| arguments.iter().any(|argument| argument.starts_with(wanted));
        Self {
            python: ["python", "independent_worker", "vllm", "ray", "slurm"].into_iter().any(names),
            vllm: names("vllm"),
            ray: names("ray"),
            watches: names("web"),
            validates: ["xtask", "deploy"].into_iter().any(names),
            mpi: names("mpi"),
            slurm: names("slurm"),
        }
    }

    /// Prints what is about to be installed.
    pub fn announce_installs(self) -> Result<()> {
        let mut missing = setup::missing()?;
        let environments = [
            (self.python, python::TORCH),
            (self.python, python::OLDEST),
            (self.python, python::WITHOUT_COMPILER),
            (self.vllm, python::VLLM),
            (self.ray, python::RAY),
        ];
        for (_, environment) in environments.into_iter().filter(|(is_needed, _)| *is_needed) {
            missing.extend(environment.missing()?);
        }
        if !missing.is_empty() {
            say!("installs first: {}", missing.join("; "));
        }
        Ok(())
    }
}

/// Prints what is about to be run.
pub fn announce(level: Level) {
    let what = match level {
        Level::Usual => {
            "all tests that need no framework (--all: torch, MPI, Slurm, a browser, QEMU and \
             fuzzing, too)"
        }
        Level::All => "all tests, with torch, MPI, Slurm, a browser, QEMU and fuzzing",
    };
    say!("runs {what}; {}", times::announced(level));
}

/// The tests of a program that a level leaves out, by the beginnings of their names; none if it
/// leaves out the program.
pub fn left_out(level: Level, program: &Program) -> Option<Vec<&'static str>> {
    let of_program = WITH_FRAMEWORKS.iter().filter(|(package, target, _)| {
        let is_left_out = level == Level::Usual || BY_NAME_ONLY.contains(target);
        is_left_out && *package == program.package && *target == program.target
    });
    let tests: Vec<_> = of_program.map(|&(_, _, tests)| tests).collect();
    (!tests.contains(&"")).then_some(tests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs;

    #[test]
    fn what_the_usual_tests_leave_out_exists() {
        let programs = programs::of_workspace().unwrap();
        for (package, target, tests) in WITH_FRAMEWORKS {
            let of_unit_tests = package == target && !tests.is_empty();
            let exists = programs.iter().any(|(p, t)| (&**p, &**t) == (package, target));
            assert!(of_unit_tests || exists, "no program {target} of {package}");
        }
    }
}
