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

/// The version of torch, which contains Gloo.
const TORCH: &str = "2.15.0";
/// Gigabytes of an environment with it.
const SIZE: f64 = 5.8;

/// Gigabytes of tools that are no torch, at most.
const SIZE_OF_TOOLS: f64 = 0.5;

/// An older torch, with the libraries that it needs and the newest torch does not bring.
pub struct Older {
    /// The name of its environment.
    name: &'static str,
    packages: &'static [&'static str],
    /// Gigabytes.
    size: f64,
}

/// The oldest version that the backend supports, the same as `OLDEST` in
/// `switchml/torch/_trampoline.py`.
pub const OLDEST: Older = Older {
    name: "torch-2.4.1",
    packages: &[
        "torch==2.4.1",
        "nvidia-cuda-runtime-cu12==12.8.90",
        "nvidia-cuda-cupti-cu12==12.8.90",
        "nvidia-cublas-cu12==12.8.4.1",
        "nvidia-cudnn-cu12==9.10.2.21",
        "nvidia-cufft-cu12==11.3.3.83",
        "nvidia-curand-cu12==10.3.9.90",
        "nvidia-cusparse-cu12==12.5.8.93",
        "nvidia-nvjitlink-cu12==12.8.93",
        "nvidia-nccl-cu12==2.27.5",
        "nvidia-nvtx-cu12==12.8.90",
    ],
    size: 5.0,
};

/// The first version that needs no compiler, the same as `WITHOUT_COMPILER` in
/// `switchml/torch/_trampoline.py`.
pub const WITHOUT_COMPILER: Older = Older {
    name: "torch-2.14.0",
    packages: &["torch==2.14.0", "nvidia-curand==10.4.5.25"],
    size: 1.3,
};

/// The newest vLLM for CPUs, the torch that it was built for, and what both need and the newest
/// torch's environment lacks: a package in each line. Left out is what it does without here, such
/// as sound, pictures and traces.
const VLLM: &str = include_str!("python/vllm.txt");
/// The name of its environment.
const NAME_OF_VLLM: &str = "vllm";
/// Gigabytes of an environment with it.
const SIZE_OF_VLLM: f64 = 2.3;

/// Ray with Ray Train, and what they need and the newest torch's environment lacks: a package in
/// each line.
const RAY: &str = include_str!("python/ray.txt");
/// The name of its environment.
const NAME_OF_RAY: &str = "ray";
/// Gigabytes of an environment with it.
const SIZE_OF_RAY: f64 = 0.6;

/// Packages that pip installs: torch, numpy for some of torch's conversions, the package's build
/// tool, data for an example, a type checker, gRPC for the worker that shares no code, torchft for
/// replicas, and a module for torch's own tests.
fn requirements() -> [String; 8] {
    [
        format!("torch=={TORCH}"),
        "numpy>=2,<3".to_owned(),
        "maturin>=1.9,<2".to_owned(),
        "scikit-learn>=1.5,<2".to_owned(),
        "mypy>=2,<3".to_owned(),
        "grpcio-tools>=1.70,<2".to_owned(),
        "torchft==0.2.0".to_owned(),
        "expecttest>=0.3,<1".to_owned(),
    ]
}

/// The environment with torch, and the file in it that lists its installed packages once it is
/// complete.
fn environment() -> Result<(PathBuf, PathBuf)> {
    let folder = cargo::target_folder()?.join("python").join(format!("torch-{TORCH}"));
    let complete = folder.join("complete");
    Ok((folder, complete))
}

/// The environment of that name, and the file in it that lists its installed packages.
fn folder_of(name: &str) -> Result<(PathBuf, PathBuf)> {
    let folder = cargo::target_folder()?.join("python").join(name);
    let complete = folder.join("complete");
    Ok((folder, complete))
}

fn is_complete(file: &Path, wanted: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|there| there == wanted)
}

/// The packages that [`with_torch`] and [`with_older_torch`] would install.
pub fn missing() -> Result<Vec<String>> {
    let mut missing = Vec::new();
    if !is_complete(&environment()?.1, &requirements().join("\n")) {
        missing.push(format!("torch {TORCH} and what goes with it, {SIZE} GB"));
    }
    for older in [OLDEST, WITHOUT_COMPILER] {
        if !is_complete(&folder_of(older.name)?.1, &older.packages.join("\n")) {
            missing.push(format!("{}, {} GB", older.packages[0].replace("==", " "), older.size));
        }
    }
    Ok(missing)
}

/// The packages that [`with_vllm`] would install.
pub fn missing_vllm() -> Result<Option<String>> {
    let is_there = is_complete(&folder_of(NAME_OF_VLLM)?.1, VLLM);
    Ok((!is_there).then(|| format!("vLLM and the torch that it needs, {SIZE_OF_VLLM} GB")))
}

/// The packages that [`with_ray`] would install.
pub fn missing_ray() -> Result<Option<String>> {
    let is_there = is_complete(&folder_of(NAME_OF_RAY)?.1, RAY);
    Ok((!is_there).then(|| format!("Ray, {SIZE_OF_RAY} GB")))
}

/// The interpreter of an environment with torch, which is made from PyPI if it is missing.
pub fn with_torch() -> Result<PathBuf> {
    let about = format!("torch {TORCH}: a minute or two, {SIZE} GB");
    with(&environment()?.0, &requirements().join("\n"), (&about, SIZE))
}

/// The folder with the programs of an environment with some tools, which is made from PyPI if it is
/// missing.
pub fn with_tools(name: &str, tools: &[&str]) -> Result<PathBuf> {
    let folder = cargo::target_folder()?.join("python").join(name);
    with(&folder, &tools.join("\n"), (&tools.join(", "), SIZE_OF_TOOLS))?;
    Ok(folder.join("bin"))
}

/// The folder with kubernetes-validate, which has the schemas of Kubernetes' API.
pub fn kubernetes() -> Result<PathBuf> {
    with_tools("kubernetes", &["kubernetes-validate==1.37.0"])
}

/// The folder with an interpreter that has MLX for Linux, which uses MPI.
pub fn mlx() -> Result<PathBuf> {
    with_tools("mlx", &["mlx==0.32.4", "mlx-cpu==0.32.4"])
}

/// The interpreter of an environment in a folder, with the wanted packages, which take so many
/// gigabytes.
fn with(environment: &Path, wanted: &str, (about, size): (&str, f64)) -> Result<PathBuf> {
    let (python, complete) = (environment.join("bin/python"), environment.join("complete"));
    if is_complete(&complete, wanted) {
        return Ok(python);
    }
    if complete.exists() {
        // The environment was made for fewer packages; pip installs the missing ones.
        make_room(environment, size)?;
        return install(&python, &complete, wanted);
    }
    if !can_make_environments() {
        packages::ensure(
            &[("/usr/share/doc/python3-venv", "python3-venv")],
            "environments of Python need",
        )?;
    }
    make_room(environment, size)?;
    eprintln!(
        "installing from PyPI into {}: {about}; deleting the folder undoes it",
        environment.display()
    );
    succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(environment))?;
    install(&python, &complete, wanted)
}

/// Removes what a failed installation has left, and fails where the disk has no room for so many
/// gigabytes: pip's own message names no folder, and a linker beside it dies of SIGBUS.
fn make_room(environment: &Path, size: f64) -> Result<()> {
    // pip unpacks its downloads before it removes them.
    let wanted = 1.5 * size;
    let target = cargo::target_folder()?;
    fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
    if !environment.join("complete").exists() {
        let _ = fs::remove_dir_all(environment);
    }
    let disk = statvfs(&target).with_context(|| format!("cannot look at {}", target.display()))?;
    let free = disk.f_bavail as f64 * disk.f_frsize as f64 / 1e9;
    ensure!(
        free >= wanted,
        "{} takes {wanted:.1} GB while it is installed, and its disk has {free:.1} GB left: free \
         some, or set CARGO_TARGET_DIR to a folder on another disk",
        environment.display()
    );
    Ok(())
}

/// Installs the wanted packages, and lists them in the file `complete`.
fn install(python: &Path, complete: &Path, wanted: &str) -> Result<PathBuf> {
    succeed(pip(python)?.args(["install", "--no-cache-dir"]).args(wanted.lines()))?;
    fs::write(complete, wanted).with_context(|| format!("cannot write {}", complete.display()))?;
    Ok(python.to_owned())
}

/// The interpreter of [`with_torch`], with the package in its present state, installed as a user
/// would.
pub fn with_package() -> Result<PathBuf> {
    let python = with_torch()?;
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

/// The interpreter of an environment with an older torch, as of [`beside`].
pub fn with_older_torch(newest: &Path, older: &Older) -> Result<PathBuf> {
    beside(newest, older.name, &older.packages.join("\n"), older.size)
}

/// The interpreter of an environment with vLLM, as of [`beside`].
pub fn with_vllm(newest: &Path) -> Result<PathBuf> {
    let python = beside(newest, NAME_OF_VLLM, VLLM, SIZE_OF_VLLM)?;
    // vLLM asks for the version of a package called `vllm`, which this one is not; that it is made
    // for CPUs is in the version.
    let about = site_packages(&python)?.join("vllm-0.dist-info");
    fs::create_dir_all(&about)
        .and_then(|()| fs::write(about.join("METADATA"), "Name: vllm\nVersion: 0+cpu\n"))
        .with_context(|| format!("cannot write {}", about.display()))?;
    Ok(python)
}

/// The interpreter of an environment with Ray, as of [`beside`].
pub fn with_ray(newest: &Path) -> Result<PathBuf> {
    beside(newest, NAME_OF_RAY, RAY, SIZE_OF_RAY)
}

/// The interpreter of an environment with these packages, a line each, without what they need. It
/// uses all other packages, this project's included, from the newest torch's environment: this
/// takes a quarter of the disk and time.
fn beside(newest: &Path, name: &str, wanted: &str, size: f64) -> Result<PathBuf> {
    let (folder, complete) = folder_of(name)?;
    let python = folder.join("bin/python");
    if is_complete(&complete, wanted) {
        return Ok(python);
    }
    make_room(&folder, size)?;
    eprintln!(
        "installing {name} from PyPI into {}: {size} GB; deleting the folder undoes it",
        folder.display(),
    );
    succeed(Command::new(newest).args(["-m", "venv", "--clear", "--without-pip"]).arg(&folder))?;
    succeed(
        pip(newest)?
            .arg("--python")
            .arg(&python)
            .args(["install", "--no-cache-dir", "--no-deps"])
            .args(wanted.lines()),
    )?;
    // Python searches the folders in such a file after the environment's own.
    let beside = site_packages(&python)?.join("newest.pth");
    fs::write(&beside, site_packages(newest)?.as_os_str().as_encoded_bytes())
        .with_context(|| format!("cannot write {}", beside.display()))?;
    fs::write(&complete, wanted).with_context(|| format!("cannot write {}", complete.display()))?;
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

/// pip, which keeps its downloads on the disk whose room [`make_room`] looks at.
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
