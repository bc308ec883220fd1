//! The source of `core`, which has no precompiled form for the BPF target.

use super::{announce, compiler::Compiler, output};
use anyhow::{Context, Result, bail, ensure};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Longer than rustup needs for its 4 MB on a slow line; without a network it may wait for an answer for ever.
const RUSTUP_DEADLINE: Duration = Duration::from_secs(60);

const MIRROR: &str = "http://deb.debian.org/debian";
/// Signs all suites of Debian; it is part of every Debian system, and of Ubuntu's `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Where Debian has recent compilers, the smallest package list first.
const SUITES: [&str; 3] = ["trixie-backports", "testing", "unstable"];

/// Brings the source of exactly the compiler's release: from rustup, or else from Debian.
///
/// # Errors
///
/// If neither has it.
pub fn ensure(compiler: &Compiler) -> Result<()> {
    let source = Source::of(compiler);
    if source.is_there() {
        return Ok(());
    }
    announce(&format!("rust-src {}: core is built from source for BPF; asking rustup", compiler.release));
    source.remove_other_release()?;
    let Err(rustup) = fetch_from_rustup() else { return Ok(()) };
    announce(&format!("rust-src {}: {rustup:#}; fetching Debian's package (45 MB)", compiler.release));
    source.fetch_from_debian().with_context(|| {
        format!(
            "getting rust-src {} failed; by hand: `rustup component add rust-src`, or unpack a package `rust-src` of \
             that version and link its usr/src/rustc-{0} as {}",
            compiler.release,
            source.link().display()
        )
    })
}

/// The place in the toolchain's folder where cargo looks for sources.
struct Source {
    /// `<sysroot>/lib/rustlib/src`
    folder: PathBuf,
    release: String,
}

impl Source {
    fn of(compiler: &Compiler) -> Self {
        Self { folder: compiler.sysroot.join("lib/rustlib/src"), release: compiler.release.clone() }
    }

    /// What cargo reads: rustup's folder, which rustup keeps in step with the compiler, or our link to an unpacked
    /// folder whose name is its release.
    fn link(&self) -> PathBuf {
        self.folder.join("rust")
    }

    fn unpacked_name(&self) -> String {
        format!("rustc-{}", self.release)
    }

    fn is_there(&self) -> bool {
        let right_release = match fs::read_link(self.link()) {
            Ok(target) => target.ends_with(self.unpacked_name()),
            Err(_) => true,
        };
        right_release && self.link().join("library/core/src/lib.rs").is_file()
    }

    /// Removes what we linked for an earlier compiler in the same folder.
    fn remove_other_release(&self) -> Result<()> {
        let Ok(target) = fs::read_link(self.link()) else { return Ok(()) };
        fs::remove_file(self.link()).with_context(|| format!("cannot remove {}", self.link().display()))?;
        // A relative target is ours and lies beside the link; anything else is someone else's.
        if target.is_relative() && target.components().count() == 1 {
            remove_folder(&self.folder.join(target))?;
        }
        Ok(())
    }

    /// Downloads, verifies (apt checks Debian's signature) and unpacks Debian's package beside the link, then links it.
    fn fetch_from_debian(&self) -> Result<()> {
        ensure!(Path::new(KEYRING).exists(), "no {KEYRING} to check Debian's signature with");
        let work = self.folder.join("unpacking");
        remove_folder(&work)?;
        fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
        let result = self.unpack_in(&work);
        remove_folder(&work)?;
        result
    }

    fn unpack_in(&self, work: &Path) -> Result<()> {
        let package = download(&self.release, work)?;
        let name = self.unpacked_name();
        let library = format!("./usr/src/{name}/library");
        let mut unpacker =
            Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&package).stdout(Stdio::piped()).spawn()?;
        let tar = unpacker.stdout.take().context("dpkg-deb has no output")?;
        let unpacked =
            output(Command::new("tar").arg("--extract").arg("--directory").arg(work).arg(&library).stdin(tar));
        ensure!(unpacker.wait()?.success(), "dpkg-deb cannot read {}", package.display());
        unpacked?;
        let target = self.folder.join(&name);
        remove_folder(&target)?;
        fs::rename(work.join("usr/src").join(&name), &target)
            .with_context(|| format!("cannot move the source to {}", target.display()))?;
        symlink(&name, self.link()).with_context(|| format!("cannot create {}", self.link().display()))
    }
}

fn fetch_from_rustup() -> Result<()> {
    let mut rustup = Command::new("rustup")
        .args(["--quiet", "component", "add", "rust-src"])
        .env("RUSTUP_MAX_RETRIES", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("rustup does not start")?;
    let start = Instant::now();
    loop {
        if let Some(status) = rustup.try_wait()? {
            ensure!(status.success(), "rustup cannot get it");
            return Ok(());
        }
        if start.elapsed() > RUSTUP_DEADLINE {
            rustup.kill()?;
            rustup.wait()?;
            bail!("rustup got no answer");
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Downloads the package of `release` into `work` with an apt that knows nothing of the system's sources and leaves its
/// lists and caches alone.
fn download(release: &str, work: &Path) -> Result<PathBuf> {
    for folder in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(work.join(folder))?;
    }
    for suite in SUITES {
        let source = format!("deb [signed-by={KEYRING}] {MIRROR} {suite} main\n");
        fs::write(work.join("sources.list"), source)?;
        output(apt_get(work).arg("update")).with_context(|| format!("cannot read the package list of {suite}"))?;
        let wanted = format!("rust-src={release}+*");
        if output(apt_get(work).args(["download", &wanted])).is_ok() {
            return find_package(work);
        }
    }
    bail!("none of Debian's {} has rust-src {release}", SUITES.join(", "))
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

fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
