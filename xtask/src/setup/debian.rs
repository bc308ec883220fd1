//! Packages of Debian releases newer than the system's, with an apt that knows nothing of the system's sources and leaves
//! its lists and caches alone.

use super::output;
use anyhow::{Context, Result, bail, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const MIRROR: &str = "http://deb.debian.org/debian";
/// Signs all suites of Debian; it is part of every Debian system, and of Ubuntu's `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where Debian has recent compilers, the smallest package list first.
const SUITES: [&str; 3] = ["trixie-backports", "testing", "unstable"];

/// Downloads the `package` of an upstream release such as `1.95.0` into the folder `work`, and returns its path. apt
/// checks Debian's signature.
///
/// # Errors
///
/// If a package list cannot be read or none has that release.
pub fn download(package: &str, release: &str, work: &Path) -> Result<PathBuf> {
    ensure!(Path::new(KEYRING).exists(), "no {KEYRING} to check Debian's signature with");
    for folder in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(work.join(folder))?;
    }
    for suite in SUITES {
        let source = format!("deb [signed-by={KEYRING}] {MIRROR} {suite} main\n");
        fs::write(work.join("sources.list"), source)?;
        output(apt_get(work).arg("update")).with_context(|| format!("cannot read the package list of {suite}"))?;
        let wanted = format!("{package}={release}+*");
        if output(apt_get(work).args(["download", &wanted])).is_ok() {
            return find_package(work);
        }
    }
    bail!("none of Debian's {} has {package} {release}", SUITES.join(", "))
}

fn apt_get(work: &Path) -> Command {
    let option = |name: &str, value: &Path| format!("-o{name}={}", value.display());
    let mut command = Command::new("apt-get");
    command
        .current_dir(work)
        .arg("-q")
        .arg(option("Dir::Etc::sourcelist", &work.join("sources.list")))
        .arg(option("Dir::Etc::sourceparts", Path::new("-")))
        .arg(option("Dir::State::lists", &work.join("lists")))
        .arg(option("Dir::Cache", &work.join("cache")))
        // The user _apt cannot write below another user's toolchain.
        .args(["-oAPT::Sandbox::User=root", "-oAcquire::Languages=none", "-oAPT::Update::Error-Mode=any"]);
    command
}

fn find_package(folder: &Path) -> Result<PathBuf> {
    let mut files = fs::read_dir(folder)?.filter_map(|entry| entry.ok().map(|e| e.path()));
    files.find(|file| file.extension().is_some_and(|e| e == "deb")).context("apt-get left no package")
}
