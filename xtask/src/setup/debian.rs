//! Packages of Debian releases newer than the system's, through an apt that ignores the system's
//! sources and does not touch its lists and caches.

use crate::command::output;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mirror with all suites, if the system has no mirror of Debian.
const MIRROR: &str = "http://deb.debian.org/debian";
/// The keys that sign all suites of Debian. Every Debian system has this file, and so does Ubuntu's
/// `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Suites with recent compilers, the smallest package list first.
const SUITES: [&str; 3] = ["trixie-backports", "testing", "unstable"];

/// Downloads the `package` of an upstream release such as `1.95.0` into the folder `work`, and
/// returns its path. apt checks Debian's signature.
pub fn download(package: &str, release: &str, work: &Path) -> Result<PathBuf> {
    for suite in SUITES {
        let apt = Apt::new(work, &[suite])?;
        if let Ok(file) = apt.download(&format!("{package}={release}+*")) {
            return Ok(file);
        }
    }
    bail!("none of Debian's {} has {package} {release}", SUITES.join(", "))
}

/// An apt with its own folder and suites.
pub struct Apt(PathBuf);

impl Apt {
    /// An apt that keeps all its files in the folder `work`, and uses these suites.
    pub fn new(work: &Path, suites: &[&str]) -> Result<Self> {
        ensure!(Path::new(KEYRING).exists(), "no {KEYRING} to check Debian's signature with");
        for folder in ["lists/partial", "cache/archives/partial", "files"] {
            fs::create_dir_all(work.join(folder))?;
        }
        let mirror = mirror();
        let source = |suite: &&str| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
        fs::write(work.join("sources.list"), suites.iter().map(source).collect::<String>())?;
        let apt = Self(work.to_owned());
        output(apt.command("apt-get").arg("update"))
            .with_context(|| format!("cannot read the package lists of {}", suites.join(", ")))?;
        Ok(apt)
    }

    /// The names of packages that match a regular expression.
    pub fn names(&self, pattern: &str) -> Result<Vec<String>> {
        let found = output(self.command("apt-cache").args(["search", "--names-only", pattern]))?;
        Ok(found
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect())
    }

    /// Downloads a package. Returns its file, which the caller must remove.
    pub fn download(&self, package: &str) -> Result<PathBuf> {
        let folder = self.0.join("files");
        for file in packages_in(&folder)? {
            // Remove files of an interrupted run.
            fs::remove_file(file)?;
        }
        output(self.command("apt-get").current_dir(&folder).args(["download", package]))?;
        packages_in(&folder)?.pop().context("apt-get left no package")
    }

    /// Unpacks a package and all its dependencies into a folder, as if the system had none of them.
    pub fn unpack_with_all(&self, package: &str, folder: &Path) -> Result<()> {
        let installed = self.0.join("installed");
        fs::write(&installed, "")?;
        let mut command = self.command("apt-get");
        command.arg(format!("-oDir::State::status={}", installed.display()));
        command.args(["install", "--yes", "--no-install-recommends", "--download-only", package]);
        output(&mut command)?;
        fs::create_dir_all(folder)?;
        for file in packages_in(&self.0.join("cache/archives"))? {
            output(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(folder))?;
            fs::remove_file(file)?;
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let option = |name: &str, value: &Path| format!("-o{name}={}", value.display());
        let work = &self.0;
        let mut command = Command::new(program);
        command
            .current_dir(work)
            .arg("-q")
            .arg(option("Dir::Etc::sourcelist", &work.join("sources.list")))
            .arg(option("Dir::Etc::sourceparts", Path::new("-")))
            .arg(option("Dir::State::lists", &work.join("lists")))
            .arg(option("Dir::Cache", &work.join("cache")))
            // The user _apt cannot write below another user's toolchain.
            .args([
                "-oAPT::Sandbox::User=root",
                "-oAcquire::Languages=none",
                "-oAPT::Update::Error-Mode=any",
            ])
            // Descriptions for software centres, many times as long as the lists.
            .arg("-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false");
        command
    }
}

/// The mirror of this system's packages, if the system is Debian.
fn mirror() -> String {
    let mut command = Command::new("apt-get");
    command.args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        "Origin: Debian",
        "Component: main",
    ]);
    let listed = output(&mut command).unwrap_or_default();
    // Mirrors of security updates have no other suites.
    let found = listed.lines().find(|mirror| !mirror.contains("security"));
    found.unwrap_or(MIRROR).to_owned()
}

fn packages_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder)?.filter_map(|entry| entry.ok().map(|e| e.path()));
    Ok(files.filter(|file| file.extension().is_some_and(|e| e == "deb")).collect())
}
