//! Debian packages.

use super::{announce, or_by_hand, output};
use anyhow::{Result, bail};
use std::{env, path::Path, process::Command};

/// What the build and the rack need.
pub const NEEDED: [(&str, &str); 8] = [
    ("ip", "iproute2"),
    ("ethtool", "ethtool"),
    ("nft", "nftables"),
    // For libFuzzer, which libfuzzer-sys brings along.
    ("c++", "g++"),
    // The rest is what libbpf's own sources, which libbpf-sys brings along, need to be built.
    ("make", "make"),
    ("pkg-config", "pkg-config"),
    ("/usr/include/libelf.h", "libelf-dev"),
    ("/usr/include/zlib.h", "zlib1g-dev"),
];

/// A browser without a screen.
pub const BROWSER: (&str, &str) = ("chromium-headless-shell", "chromium-headless-shell");

/// Both MPIs, their compilers, and Python's bindings to Open MPI.
pub const MPI: [(&str, &str); 5] = [
    ("mpirun.openmpi", "openmpi-bin"),
    ("mpicc.openmpi", "libopenmpi-dev"),
    ("mpiexec.mpich", "mpich"),
    ("mpicc.mpich", "libmpich-dev"),
    ("/usr/lib/python3/dist-packages/mpi4py", "python3-mpi4py"),
];

/// Where the tools of the superuser lie; not in every user's `PATH`.
const SYSTEM_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// The packages that are missing, of pairs as in [`ensure`].
pub fn missing<'a>(needed: &[(&str, &'a str)]) -> Vec<&'a str> {
    needed.iter().filter(|(thing, _)| !exists(thing)).map(|&(_, package)| package).collect()
}

/// Installs the packages that are missing, of pairs of what must be there and the package that
/// brings it. A bare name is a program to be found in `PATH`. `why` says who needs them.
///
/// # Errors
///
/// If installing fails or needs the superuser; the error says which command to run.
pub fn ensure(needed: &[(&str, &str)], why: &str) -> Result<()> {
    let missing = missing(needed);
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !exists("apt-get") {
        bail!(
            "missing packages: {list} (named as on Debian); there is no apt-get here, so install \
             them by hand"
        );
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "missing packages: {list}; run `sudo apt-get update && sudo apt-get install {list}`, \
             then this again"
        );
    }
    announce(&format!("installing Debian packages that {why}: {list}"));
    // A source of someone else's that cannot be reached must not stop us, so only the
    // installation's result counts.
    let _ = apt_get().arg("update").output();
    let installed =
        output(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(&missing));
    or_by_hand(
        installed.map(drop),
        "installing packages",
        &format!("apt-get update && apt-get install {list}"),
    )
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    // A machine that was just started, or another build, may hold the lock for minutes.
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-oDPkg::Lock::Timeout=300"]);
    command
}

fn exists(thing: &str) -> bool {
    if thing.starts_with('/') {
        return Path::new(thing).exists();
    }
    let path = env::var("PATH").unwrap_or_default() + ":" + SYSTEM_FOLDERS;
    env::split_paths(&path).any(|folder| folder.join(thing).is_file())
}
