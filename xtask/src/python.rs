//! A virtual environment with torch, below cargo's target folder; with this project's Python
//! package in it where that is wanted.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use switchml_rack::forget_package;

use crate::{cargo, setup::packages};

/// Gloo comes with it.
const TORCH: &str = "2.15.0";

/// An older torch, and libraries that it wants and the newest does not bring.
pub struct Older {
    /// Its environment's name.
    name: &'static str,
    packages: &'static [&'static str],
    size: &'static str,
}

/// The oldest that the backend is for, as `OLDEST` in `switchml/torch/_trampoline.py`.
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
    size: "5 GB",
};

/// The first that needs no compiler, as `WITHOUT_COMPILER` there.
pub const WITHOUT_COMPILER: Older = Older {
    name: "torch-2.14.0",
    packages: &["torch==2.14.0", "nvidia-curand==10.4.5.25"],
    size: "1.3 GB",
};

/// What pip installs: torch, what it wants for some conversions, what builds the package, data for
/// an example, what checks types, gRPC for the worker that shares no code, what manages replicas,
/// and what torch's own tests import.
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

/// Where the environment with torch is, and the file in it that says what it was completed with.
fn environment() -> Result<(PathBuf, PathBuf)> {
    let folder = cargo::target_folder()?.join("python").join(format!("torch-{TORCH}"));
    let complete = folder.join("complete");
    Ok((folder, complete))
}

/// Where an older torch is, and that file of it.
fn folder_of(older: &Older) -> Result<(PathBuf, PathBuf)> {
    let folder = cargo::target_folder()?.join("python").join(older.name);
    let complete = folder.join("complete");
    Ok((folder, complete))
}

fn is_complete(file: &Path, wanted: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|there| there == wanted)
}

/// What [`with_torch`] and [`with_older_torch`] would install.
///
/// # Errors
///
/// If there is no target folder.
pub fn missing() -> Result<Vec<String>> {
    let mut missing = Vec::new();
    if !is_complete(&environment()?.1, &requirements().join("\n")) {
        missing.push(format!("torch {TORCH} and what goes with it, 5.4 GB"));
    }
    for older in [OLDEST, WITHOUT_COMPILER] {
        if !is_complete(&folder_of(&older)?.1, &older.packages.join("\n")) {
            missing.push(format!("{}, {}", older.packages[0].replace("==", " "), older.size));
        }
    }
    Ok(missing)
}

/// The interpreter of an environment with torch, from PyPI. It is made if it is not there.
///
/// # Errors
///
/// The first step that failed.
pub fn with_torch() -> Result<PathBuf> {
    let about = format!("torch {TORCH}: a minute or two, 5.4 GB");
    with(&environment()?.0, &requirements().join("\n"), &about)
}

/// The folder with the programs of an environment of this name, in which these are, from PyPI. It
/// is made if it is not there.
///
/// # Errors
///
/// The first step that failed.
pub fn with_tools(name: &str, tools: &[&str]) -> Result<PathBuf> {
    let folder = cargo::target_folder()?.join("python").join(name);
    with(&folder, &tools.join("\n"), &tools.join(", "))?;
    Ok(folder.join("bin"))
}

/// The folder with kubernetes-validate, which has the schemas of Kubernetes' API.
///
/// # Errors
///
/// As [`with_tools`].
pub fn kubernetes() -> Result<PathBuf> {
    with_tools("kubernetes", &["kubernetes-validate==1.37.0"])
}

/// The interpreter of an environment in the folder, with what is wanted.
fn with(environment: &Path, wanted: &str, about: &str) -> Result<PathBuf> {
    let (python, complete) = (environment.join("bin/python"), environment.join("complete"));
    if is_complete(&complete, wanted) {
        return Ok(python);
    }
    if complete.exists() {
        // It was wanted for less; pip brings the rest.
        return install(&python, &complete, wanted);
    }
    if !can_make_environments() {
        packages::ensure(
            &[("/usr/share/doc/python3-venv", "python3-venv")],
            "environments of Python need",
        )?;
    }
    eprintln!(
        "installing from PyPI into {}: {about}; deleting the folder undoes it",
        environment.display()
    );
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(environment))?;
    install(&python, &complete, wanted)
}

/// Installs what is wanted, and notes it in the file `complete`.
fn install(python: &Path, complete: &Path, wanted: &str) -> Result<PathBuf> {
    run(pip(python).args(["install", "--no-cache-dir"]).args(wanted.lines()))?;
    fs::write(complete, wanted).with_context(|| format!("cannot write {}", complete.display()))?;
    Ok(python.to_owned())
}

/// The same interpreter, with the package as it is now, installed as a user would.
///
/// # Errors
///
/// The first step that failed.
pub fn with_package() -> Result<PathBuf> {
    let python = with_torch()?;
    let tools = python.parent().context("no folder of tools")?;
    let path = env::join_paths(
        [tools.to_owned()]
            .into_iter()
            .chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )?;
    let mut install = pip(&python);
    install.args(["install", "--force-reinstall", "--no-deps", "--no-build-isolation"]);
    install.arg(cargo::workspace().join("worker-lib/python"));
    install.env("PATH", path).env("CARGO_TARGET_DIR", cargo::target_folder()?);
    forget_package(&mut install);
    run(&mut install)?;
    Ok(python)
}

/// The interpreter of an environment with an older torch, which has all else from the environment
/// of the newest, the package included: a quarter of the disk and time that one of its own would
/// take.
///
/// # Errors
///
/// The first step that failed, as it does where there is no such torch for this Python.
pub fn with_older_torch(newest: &Path, older: &Older) -> Result<PathBuf> {
    let (folder, complete) = folder_of(older)?;
    let (python, wanted) = (folder.join("bin/python"), older.packages.join("\n"));
    if is_complete(&complete, &wanted) {
        return Ok(python);
    }
    eprintln!(
        "installing {} from PyPI into {}: {}; deleting the folder undoes it",
        older.packages[0],
        folder.display(),
        older.size
    );
    run(Command::new(newest).args(["-m", "venv", "--clear", "--without-pip"]).arg(&folder))?;
    run(pip(newest)
        .arg("--python")
        .arg(&python)
        .args(["install", "--no-cache-dir", "--no-deps"])
        .args(older.packages))?;
    // What Python finds in such a file comes after the environment's own.
    let beside = site_packages(&python)?.join("newest.pth");
    fs::write(&beside, site_packages(newest)?.as_os_str().as_encoded_bytes())
        .with_context(|| format!("cannot write {}", beside.display()))?;
    fs::write(&complete, wanted).with_context(|| format!("cannot write {}", complete.display()))?;
    Ok(python)
}

/// Where an environment has its packages.
fn site_packages(python: &Path) -> Result<PathBuf> {
    let path = ask(python, "import sysconfig; print(sysconfig.get_path('purelib'), end='')")?;
    Ok(path.into())
}

/// What Python prints that runs this code.
fn ask(python: &Path, code: &str) -> Result<String> {
    let output = Command::new(python)
        .args(["-c", code])
        .output()
        .with_context(|| format!("cannot start {}", python.display()))?;
    String::from_utf8(output.stdout).with_context(|| format!("what {code} prints"))
}

/// Whether there are wheels of [`OLDEST`] for this Python.
///
/// # Errors
///
/// If it cannot be started.
pub fn has_oldest(python: &Path) -> Result<bool> {
    let mut asked = Command::new(python);
    asked.args(["-c", "import sys; sys.exit(sys.version_info >= (3, 13))"]);
    let status = asked.status().with_context(|| format!("cannot start {}", python.display()))?;
    Ok(status.success())
}

/// Makes sure that there is what compiles for the oldest torch.
///
/// # Errors
///
/// If it cannot be installed.
pub fn compiler(python: &Path) -> Result<()> {
    let code = "import sysconfig; print(sysconfig.get_path('include'), end='/Python.h')";
    let header = ask(python, code)?;
    // Those who built their Python themselves have it.
    let needed = [("/usr/bin/c++", "g++"), (header.as_str(), "python3-dev")];
    packages::ensure(&needed, "the oldest torch needs")
}

/// Debian has that in a package of its own.
fn can_make_environments() -> bool {
    Command::new("python3")
        .args(["-c", "import venv, ensurepip"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command
        .args(["-m", "pip", "--quiet"])
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .env("PIP_ROOT_USER_ACTION", "ignore");
    command
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program} failed ({status}); what it said is above");
    Ok(())
}
