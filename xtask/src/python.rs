//! Virtual environments with torch, below cargo's target folder, with this project's Python package
//! where needed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::fs::statvfs;

use switchml_rack::forget_package;

use crate::cargo;
use crate::command::succeed;
use crate::setup::packages;

/// An environment of Python: packages from PyPI.
pub struct Environment {
    /// The name of its folder.
    name: &'static str,
    /// What is in it, for users.
    about: &'static str,
    /// A package in each line, with its version.
    packages: &'static str,
    /// Gigabytes that it takes, at most.
    size: f64,
    /// Whether it has only these packages, without what they need: it uses all others, this
    /// project's included, from the environment of the newest torch. This takes a quarter of the
    /// disk and time.
    is_beside: bool,
}

const fn environment(
    name: &'static str,
    about: &'static str,
    packages: &'static str,
    size: f64,
    is_beside: bool,
) -> Environment {
    Environment { name, about, packages, size, is_beside }
}

/// Torch, which contains Gloo; numpy for some of torch's conversions, the package's build tool,
/// data for an example, a type checker, gRPC for the worker that shares no code, torchft for
/// replicas, and a module for torch's own tests.
pub const TORCH: Environment = environment(
    "torch-2.15.0",
    "torch 2.15.0 and what goes with it",
    include_str!("python/torch-2.15.0.txt"),
    5.8,
    false,
);

/// The oldest torch that the backend supports, the same as `OLDEST` in
/// `switchml/torch/_trampoline.py`, with the libraries that it needs and the newest does not bring.
pub const OLDEST: Environment =
    environment("torch-2.4.1", "torch 2.4.1", include_str!("python/torch-2.4.1.txt"), 5.0, true);

/// The first torch that needs no compiler, the same as `WITHOUT_COMPILER` in
/// `switchml/torch/_trampoline.py`.
pub const WITHOUT_COMPILER: Environment =
    environment("torch-2.14.0", "torch 2.14.0", include_str!("python/torch-2.14.0.txt"), 1.3, true);

/// The newest vLLM for CPUs, the torch that it was built for, and what both need and the newest
/// torch's environment lacks. Left out is what it does without here, such as sound, pictures and
/// traces.
pub const VLLM: Environment = environment(
    "vllm",
    "vLLM and the torch that it needs",
    include_str!("python/vllm.txt"),
    2.3,
    true,
);

/// Ray with Ray Train, and what they need and the newest torch's environment lacks.
pub const RAY: Environment = environment("ray", "Ray", include_str!("python/ray.txt"), 0.6, true);

/// kubernetes-validate, which has the schemas of Kubernetes' API.
pub const KUBERNETES: Environment = tools("kubernetes", "kubernetes-validate==1.37.0");

/// MLX for Linux, which uses MPI.
pub const MLX: Environment = tools("mlx", "mlx==0.32.4\nmlx-cpu==0.32.4");

/// An environment with some tools.
pub const fn tools(name: &'static str, packages: &'static str) -> Environment {
    environment(name, name, packages, 0.5, false)
}

impl Environment {
    fn folder(&self) -> Result<PathBuf> {
        Ok(cargo::target_folder()?.join("python").join(self.name))
    }

    /// The file that lists its packages once it is complete.
    fn list(&self) -> Result<PathBuf> {
        Ok(self.folder()?.join("complete"))
    }

    fn is_complete(&self) -> Result<bool> {
        Ok(fs::read_to_string(self.list()?).is_ok_and(|listed| listed == self.packages))
    }

    /// What [`Self::interpreter`] would install.
    pub fn missing(&self) -> Result<Option<String>> {
        let Self { about, size, .. } = self;
        Ok((!self.is_complete()?).then(|| format!("{about}, {size} GB")))
    }

    /// Its folder of programs.
    pub fn programs(&self) -> Result<PathBuf> {
        Ok(self.interpreter()?.with_file_name(""))
    }

    /// Its interpreter. The environment is made if it is missing.
    pub fn interpreter(&self) -> Result<PathBuf> {
        let Self { about, size, .. } = self;
        let (folder, list) = (self.folder()?, self.list()?);
        let python = folder.join("bin/python");
        if self.is_complete()? {
            return Ok(python);
        }
        let newest = if self.is_beside { Some(TORCH.interpreter()?) } else { None };
        self.make_room()?;
        eprintln!(
            "installing from PyPI into {}: {about}, {size} GB; deleting the folder undoes it",
            folder.display()
        );
        // An environment that was made for fewer packages stays; pip installs the missing ones.
        if !list.exists() {
            self.make(newest.as_deref())?;
        }
        // Only the newest torch's environment and those of tools have pip.
        let mut install = match &newest {
            None => pip(&python)?,
            Some(newest) => {
                let mut pip = pip(newest)?;
                pip.arg("--python").arg(&python);
                pip
            }
        };
        install.args(["install", "--no-cache-dir"]).args(self.is_beside.then_some("--no-deps"));
        succeed(install.args(self.packages.lines()))?;
        fs::write(&list, self.packages)
            .with_context(|| format!("cannot write {}", list.display()))?;
        Ok(python)
    }

    /// Makes the environment without packages.
    fn make(&self, newest: Option<&Path>) -> Result<()> {
        if !can_make_environments() {
            packages::ensure(
                &[("/usr/share/doc/python3-venv", "python3-venv")],
                "environments of Python need",
            )?;
        }
        let (folder, options) = (self.folder()?, ["-m", "venv", "--clear"]);
        let Some(newest) = newest else {
            return succeed(Command::new("python3").args(options).arg(folder));
        };
        succeed(Command::new(newest).args(options).arg("--without-pip").arg(&folder))?;
        // Python searches the folders in such a file after the environment's own.
        let beside = site_packages(&folder.join("bin/python"))?.join("newest.pth");
        fs::write(&beside, site_packages(newest)?.as_os_str().as_encoded_bytes())
            .with_context(|| format!("cannot write {}", beside.display()))
    }

    /// Removes what a failed installation has left, and fails if the disk has no room: pip's own
    /// message names no folder, and a linker beside it dies of SIGBUS.
    fn make_room(&self) -> Result<()> {
        let (environment, size) = (self.folder()?, self.size);
        // pip unpacks its downloads before it removes them.
        let wanted = 1.5 * size;
        let target = cargo::target_folder()?;
        fs::create_dir_all(&target)
            .with_context(|| format!("cannot create {}", target.display()))?;
        if !self.list()?.exists() {
            let _ = fs::remove_dir_all(&environment);
        }
        let disk =
            statvfs(&target).with_context(|| format!("cannot look at {}", target.display()))?;
        let free = disk.f_bavail as f64 * disk.f_frsize as f64 / 1e9;
        ensure!(
            free >= wanted,
            "{} takes {wanted:.1} GB while it is installed, and its disk has {free:.1} GB left: \
             free some, or set CARGO_TARGET_DIR to a folder on another disk",
            environment.display()
        );
        Ok(())
    }
}

/// The interpreter of [`TORCH`], with the package in its present state, installed as a user
/// would.
pub fn with_package() -> Result<PathBuf> {
    let python = TORCH.interpreter()?;
    let tools = python.parent().context("no folder of tools")?;
    let path = env::join_paths(
        [tools.to_owned()]
            .into_iter()
            .chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )?;
    let mut install = pip(&python)?;
    install.args(["install", "--force-reinstall", "--no-deps", "--no-build-isolation"]);
    install.arg(cargo::workspace().join("worker-lib/python"));
    install.env("PATH", path).env("CARGO_TARGET_DIR", cargo::target_folder()?);
    forget_package(&mut install);
    succeed(&mut install)?;
    Ok(python)
}

/// The interpreter of [`VLLM`].
pub fn with_vllm() -> Result<PathBuf> {
    let python = VLLM.interpreter()?;
    // vLLM asks for the version of a package called `vllm`, which this one is not; that it is made
    // for CPUs is in the version.
    let about = site_packages(&python)?.join("vllm-0.dist-info");
    fs::create_dir_all(&about)
        .and_then(|()| fs::write(about.join("METADATA"), "Name: vllm\nVersion: 0+cpu\n"))
        .with_context(|| format!("cannot write {}", about.display()))?;
    Ok(python)
}

/// The folder of an environment's packages.
fn site_packages(python: &Path) -> Result<PathBuf> {
    let path = ask(python, "import sysconfig; print(sysconfig.get_path('purelib'), end='')")?;
    Ok(path.into())
}

/// The output of some Python code.
fn ask(python: &Path, code: &str) -> Result<String> {
    let output = Command::new(python)
        .args(["-c", code])
        .output()
        .with_context(|| format!("cannot start {}", python.display()))?;
    String::from_utf8(output.stdout).with_context(|| format!("what {code} prints"))
}

/// Whether there are wheels of [`OLDEST`] for this Python.
pub fn has_oldest(python: &Path) -> Result<bool> {
    let mut asked = Command::new(python);
    asked.args(["-c", "import sys; sys.exit(sys.version_info >= (3, 13))"]);
    let status = asked.status().with_context(|| format!("cannot start {}", python.display()))?;
    Ok(status.success())
}

/// Installs the compiler for the oldest torch, if it is missing.
pub fn compiler(python: &Path) -> Result<()> {
    let code = "import sysconfig; print(sysconfig.get_path('include'), end='/Python.h')";
    let header = ask(python, code)?;
    // Python's header is there if the users have built their Python themselves.
    let needed = [("/usr/bin/c++", "g++"), (header.as_str(), "python3-dev")];
    packages::ensure(&needed, "the oldest torch needs")
}

/// Whether Python can make environments; Debian has this in a separate package.
fn can_make_environments() -> bool {
    Command::new("python3")
        .args(["-c", "import venv, ensurepip"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// pip, which keeps its downloads on the disk whose room [`Environment::make_room`] looks at.
fn pip(python: &Path) -> Result<Command> {
    let downloads = cargo::target_folder()?.join("python/downloads");
    fs::create_dir_all(&downloads)
        .with_context(|| format!("cannot create {}", downloads.display()))?;
    let mut command = Command::new(python);
    command
        .args(["-m", "pip", "--quiet"])
        .env("TMPDIR", downloads)
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .env("PIP_ROOT_USER_ACTION", "ignore");
    Ok(command)
}
