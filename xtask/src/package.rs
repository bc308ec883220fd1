//! `cargo xtask package`: a wheel and a worker that run on any Linux; Debian packages and RPMs of
//! the daemon, the worker's command line and the C library; an image for containers; and bills of
//! materials. With all of them and their checksums, the folder is what a release page needs.
//!
//! debhelper makes Debian packages, from `userspace/deploy/debian`: it knows how Debian wants
//! users, services and shared libraries, and takes all times from the commit's. [`build`] leaves no
//! folder of this machine in what compilers write.

mod arm64;
mod build;
mod check;
mod image;
mod layout;
mod reproduce;
mod rpm;
mod sbom;
mod static_worker;
mod wheel;
mod zig;

use crate::cargo;
use crate::command::{output, succeed};
use crate::setup::{self, packages};
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use switchml_cli::say;

/// Programs that Debian packages are made with, and the packages that these programs are in.
const NEEDED: [(&str, &str); 2] = [("dh", "debhelper"), ("dpkg-architecture", "dpkg-dev")];

/// Options of `cargo xtask package`.
#[derive(clap::Args)]
pub struct Package {
    /// What to make [default: static, deb, wheel and sbom]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Make everything that a release page needs
    #[arg(long, conflicts_with = "parts")]
    release: bool,
    /// Then try it out: Debian packages in namespaces of their own (install, serve, upgrade under
    /// load, purge); needs root
    #[arg(long)]
    check: bool,
    /// Make it twice from the commit, in two other folders, and compare the bytes
    #[arg(long, conflicts_with = "check")]
    reproduce: bool,
}

/// What can be made.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Part {
    /// The worker's command line, linked with all it needs
    Static,
    /// Debian packages for x86-64
    Deb,
    /// RPMs of the daemon and of the worker's command line; not made unless asked for
    Rpm,
    /// An image of both for containers, made without Docker; not made unless asked for
    Image,
    /// A wheel for x86-64: the Python package, the worker's command line and the daemon; needs no
    /// root and nothing of Debian's
    Wheel,
    /// The same for 64-bit ARM; not made unless asked for
    WheelArm64,
    /// What each of these is made of, in CycloneDX's JSON
    Sbom,
    /// Debian packages and the static worker for 64-bit ARM; not made unless asked for
    Arm64,
}

impl Package {
    /// Makes the parts in `<target folder>/package`.
    pub fn run(&self) -> Result<()> {
        if self.reproduce {
            return reproduce::run(&self.wanted());
        }
        let wanted = self.wanted();
        if self.check {
            setup::run()?;
        }
        setup::bpf()?;
        if wanted.iter().any(|part| matches!(part, Part::Deb | Part::Arm64)) {
            packages::ensure(&NEEDED, "packages are made with")?;
        }
        let folder = cargo::target_folder()?.join("package");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        for part in wanted {
            part.make(&folder, self.check)?;
        }
        write_checksums(&folder)?;
        files(&folder)?.iter().for_each(|file| say!("{}", file.display()));
        Ok(())
    }

    /// The parts to make, in the order in which they are declared.
    fn wanted(&self) -> Vec<Part> {
        let is_wanted = |part: &Part| match self.parts.is_empty() {
            true => self.release || Part::NATIVE.contains(part),
            false => self.parts.contains(part),
        };
        Part::value_variants().iter().copied().filter(is_wanted).collect()
    }
}

impl Part {
    /// The default parts: those for machines like this one.
    const NATIVE: [Self; 4] = [Self::Static, Self::Deb, Self::Wheel, Self::Sbom];

    /// Makes the part in the folder, and tries it out if `check` is set.
    fn make(self, folder: &Path, check: bool) -> Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        match self {
            Self::Static => static_worker::make(folder, &static_worker::AMD64),
            Self::Deb => {
                let packed = compile(build::AMD64)?;
                let packages = make(&packed, folder, version)?;
                if check { check::run(&packed, folder, &packages) } else { Ok(()) }
            }
            Self::Rpm => {
                rpm::make(&compile(build::AMD64)?, folder)?;
                if check { rpm::check(folder) } else { Ok(()) }
            }
            Self::Image => {
                let image = image::make(folder, version)?;
                if check { image::check(&image) } else { Ok(()) }
            }
            Self::Wheel => {
                wheel::make(folder, &wheel::AMD64)?;
                if check { wheel::check(folder, &wheel::AMD64) } else { Ok(()) }
            }
            Self::WheelArm64 => {
                wheel::make(folder, &wheel::ARM64)?;
                if check { wheel::check(folder, &wheel::ARM64) } else { Ok(()) }
            }
            Self::Sbom => {
                sbom::make(folder)?;
                if check { sbom::check(folder) } else { Ok(()) }
            }
            Self::Arm64 => {
                static_worker::make(folder, &static_worker::ARM64)?;
                let packed = arm64::compile()?;
                let packages = make(&packed, folder, version)?;
                if check { arm64::check(&packed, &packages) } else { Ok(()) }
            }
        }
    }
}

/// The content of Debian packages.
struct Packed {
    /// The folder of the programs and the library.
    folder: PathBuf,
    /// Debian's name of the processor architecture.
    architecture: &'static str,
    /// The emulator that runs the programs here, and its arguments; empty if they need none.
    emulator: &'static [&'static str],
}

impl Packed {
    /// The command that runs one of the programs here.
    fn start(&self, program: &str) -> Command {
        let path = self.folder.join(program);
        let Some((emulator, arguments)) = self.emulator.split_first() else {
            return Command::new(path);
        };
        let mut command = Command::new(emulator);
        command.args(arguments).arg(path);
        command
    }
}

/// Builds the content of Debian packages for a target.
fn compile(target: &str) -> Result<Packed> {
    let mut programs = build::command("build", target)?;
    programs.args(["--bins", "-p", "switchml-userspace", "-p", "switchml-worker-cli"]);
    succeed(&mut programs)?;
    // Programs that are linked with the library ask for this name.
    let mut library = build::command("rustc", target)?;
    library.args(["-p", "switchml-c", "--lib", "--crate-type", "cdylib", "--"]);
    succeed(library.arg(format!("-Clink-arg=-Wl,-soname,{}", layout::SONAME)))?;
    let folder = build::folder(target)?;
    Ok(match target {
        build::ARM64 => Packed { folder, architecture: "arm64", emulator: &build::EMULATOR },
        _ => Packed { folder, architecture: "amd64", emulator: &[] },
    })
}

/// Makes Debian packages of this version in the folder. Returns their paths.
fn make(packed: &Packed, folder: &Path, version: &str) -> Result<Vec<PathBuf>> {
    let source = folder.join("switchml");
    let _ = fs::remove_dir_all(&source);
    layout::lay_out(packed, &source, version)?;
    // This sets the environment variables about the architecture.
    let mut rules = Command::new("dpkg-architecture");
    rules.args(["--host-arch", packed.architecture, "--force", "--command"]);
    succeed(rules.arg("debian/rules binary").current_dir(&source))?;
    fs::remove_dir_all(&source).context("cannot clean up")?;
    let end = format!("_{}.deb", packed.architecture);
    let is_one = |file: &PathBuf| file.to_string_lossy().ends_with(&end);
    Ok(files(folder)?.into_iter().filter(is_one).collect())
}

/// Writes the SHA-256 sums of the folder's files into a file that `sha256sum --check` reads.
fn write_checksums(folder: &Path) -> Result<()> {
    let names = files(folder)?.into_iter().filter_map(|file| Some(file.file_name()?.to_owned()));
    let sums = output(Command::new("sha256sum").args(names).current_dir(folder))?;
    fs::write(folder.join("SHA256SUMS"), sums).context("cannot write the checksums")
}

/// The files in a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    Ok(files)
}
