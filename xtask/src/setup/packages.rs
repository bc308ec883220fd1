//! Debian packages.

use super::{announce, or_by_hand};
use crate::command::output;
use anyhow::{Result, bail};
use std::{env, path::Path, process::Command};

/// Programs and files that the build and the rack need, and the packages that contain them.
pub const NEEDED: [(&str, &str); 8] = [
    ("ip", "iproute2"),
    ("ethtool", "ethtool"),
    ("nft", "nftables"),
    // A compiler for libFuzzer, whose source libfuzzer-sys contains.
    ("c++", "g++"),
    // The rest is needed to build libbpf, whose source libbpf-sys contains.
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

/// Slurm's controller, its daemon for nodes, its commands, and what they authenticate with.
pub const SLURM: [(&str, &str); 4] = [
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("srun", "slurm-client"),
    ("munged", "munge"),
];

/// Folders of the superuser's tools, which are not in every user's `PATH`.
const SYSTEM_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// The missing packages among pairs as in [`ensure`].
pub fn missing<'a>(needed: &[(&str, &'a str)]) -> Vec<&'a str> {
    needed.iter().filter(|(thing, _)| !exists(thing)).map(|&(_, package)| package).collect()
}

/// Installs missing packages. `needed` has pairs of a file or program and the package that contains
/// it; a name without a path is a program in `PATH`. `why` says who needs them.
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
    // An unreachable source of another vendor must not stop the setup, so only the installation's
    // result counts.
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
