//! `cargo xtask matrix`: the daemon and a job on other kernels and behind other NICs than this
//! machine's, in QEMU.

mod image;
mod initramfs;
mod nics;
mod qemu;
mod rxe;
mod suites;

use crate::cargo;
use crate::programs::Program;
use crate::setup::{self, packages, unpacked::QEMU};
use anyhow::{Context, Result, ensure};
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;
use switchml_cli::say;
use switchml_rack::Binaries;

use nics::{BUNDLES, NATIVE, NICS};
use qemu::Machine;
use rxe::RXE;

/// The kernels of Debian 12 and Debian 13, and Debian's newest one.
const KERNELS: [&str; 3] = ["6.1", "6.12", image::NEWEST];

/// Programs that this needs in addition to the build's packages, and their packages.
const NEEDED: [(&str, &str); 5] = [
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("strip", "binutils"),
    ("xz", "xz-utils"),
];

/// Tests that run on every kernel.
struct Tests {
    package: &'static str,
    /// The test target in the package.
    program: &'static str,
    /// The tests to run: those whose name contains one of these.
    names: &'static [&'static str],
}

/// The tests cover the daemon at both hooks: attached, removed, taken over, found by `detach`, with
/// three capabilities; an all-reduce of two ranks; and both programs packet by packet, except for
/// what would take minutes on an emulated processor.
const TESTS: [Tests; 3] = [
    Tests {
        package: "switchml-userspace",
        program: "suite",
        names: &["xdp::native::", "xdp::bundles::"],
    },
    Tests {
        package: "switchml-rack",
        program: "end_to_end",
        names: &["benchmark::native::two_workers", "benchmark::bundles::two_workers"],
    },
    Tests {
        package: "switchml-rack",
        program: "in_kernel",
        names: &["delivery::", "combiner::contributions", "combiner::superpackets"],
    },
];

/// A test program of `switchml-impairment`: cargo builds a package's binaries along with its tests.
/// The worker's come with its own `suite`.
const OF_BINARIES: &str = "impairment";

/// Options of `cargo xtask matrix`.
#[derive(clap::Args)]
pub struct Matrix {
    /// Only this kernel of Debian's, such as 6.12, or `newest`; give it once for each
    #[arg(long = "kernel", value_name = "VERSION")]
    kernels: Vec<String>,

    /// Only ports of this kind; give it once for each
    #[arg(long = "port", value_name = "KIND", value_parser = PORTS)]
    ports: Vec<String>,
}

/// Kinds of the switch's ports: veths of a rack inside the machine, in which the tests run; NICs
/// that QEMU emulates, with the workers outside; or a veth to ranks by RDMA, inside.
const PORTS: [&str; 5] = [VETH, NICS[0].name, NICS[1].name, NICS[2].name, RXE];
const VETH: &str = "veth";
const TUN: &str = "/dev/net/tun";

/// The result on a kernel with one kind of port.
struct Row {
    kernel: String,
    port: &'static str,
    native: String,
    bundles: String,
    others: String,
    seconds: u64,
    problems: Vec<String>,
}

impl Matrix {
    /// The part that belongs to all tests: Debian 13's kernel, in a rack, on virtio-net, and with
    /// ranks by RDMA. Containers often lack the taps that virtio-net needs.
    pub fn in_tests() -> Self {
        let ports =
            if Path::new(TUN).exists() { &[VETH, "virtio-net", RXE][..] } else { &[VETH, RXE] };
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Self { kernels: names(&["6.12"]), ports: names(ports) }
    }

    /// Boots the kernels one after the other, and prints a table of what works.
    pub fn run(&self) -> Result<()> {
        ensure!(
            ARCH == "x86_64",
            "Debian's kernels are tried on x86_64 alone, and this machine is {ARCH}"
        );
        ensure!(
            !NICS.iter().any(|nic| self.has(nic.name)) || Path::new(TUN).exists(),
            "emulated NICs need taps, and this machine has no {TUN} (`modprobe tun` makes it); \
             --port {VETH} and {RXE} need none"
        );
        setup::run()?;
        packages::ensure(&NEEDED, "running other kernels needs")?;
        let folder = cargo::target_folder()?.join("kernels");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let selected: Vec<&str> = match &self.kernels[..] {
            [] => KERNELS.to_vec(),
            kernels => kernels.iter().map(String::as_str).collect(),
        };
        let qemu = QEMU.ensure(&folder)?;
        let kernels = image::find(&folder, &selected)?;
        let tests = build_tests()?;
        let verbs = if self.has(RXE) { rxe::packages(&folder)? } else { Vec::new() };
        let binaries = Binaries::in_folder(&cargo::release_folder()?)?;
        let mut rows = Vec::new();
        for kernel in &kernels {
            let initramfs = initramfs::make(kernel, &tests, &verbs)?;
            let machine = Machine { qemu: &qemu, kernel, initramfs: &initramfs };
            rows.extend(self.try_out_all(&machine, &binaries)?);
        }
        conclude(&rows)
    }

    /// Runs everything for all kinds of ports. A machine has one processor, so the tests inside of
    /// one run beside all others.
    fn try_out_all(&self, machine: &Machine, binaries: &Binaries) -> Result<Vec<Row>> {
        let others = NICS.iter().map(|nic| nic.name).chain([RXE]).filter(|name| self.has(name));
        thread::scope(|scope| {
            let inside = self.has(VETH).then(|| scope.spawn(|| try_out(VETH, machine, binaries)));
            let others: Result<Vec<_>> =
                others.map(|port| try_out(port, machine, binaries)).collect();
            let inside = inside.map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            Ok(inside.transpose()?.into_iter().chain(others?).collect())
        })
    }

    fn has(&self, port: &str) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|chosen| chosen == port)
    }
}

/// Runs everything for one kind of port.
fn try_out(port: &'static str, machine: &Machine, binaries: &Binaries) -> Result<Row> {
    let begin = Instant::now();
    let kernel = machine.kernel;
    eprintln!("matrix: Linux {}, {port}", kernel.release);
    let mut problems = Vec::new();
    let (native, bundles, others) = match NICS.iter().find(|nic| nic.name == port) {
        None => {
            let options = if port == RXE { rxe::OPTION } else { "" };
            let console = kernel.console(port);
            let outcome = suites::run(machine, options, &console)?;
            let of = |part| outcome.of(part);
            let problem = outcome.problem();
            problems.extend(problem.map(|what| format!("{what}; see {}", console.display())));
            (of("native::"), of("bundles::"), outcome.of_others(&["native::", "bundles::"]))
        }
        Some(nic) => {
            let mut at = |hook| match nic.try_out(hook, machine, binaries) {
                Ok(said) => said,
                Err(error) => {
                    problems.push(format!("{error:#}"));
                    "FAILS".to_owned()
                }
            };
            (at(NATIVE), at(BUNDLES), "–".to_owned())
        }
    };
    let seconds = begin.elapsed().as_secs();
    Ok(Row { kernel: kernel.release.clone(), port, native, bundles, others, seconds, problems })
}

fn conclude(rows: &[Row]) -> Result<()> {
    say!("\n| Linux | ports | native XDP | bundles at tc ingress | other tests | seconds |");
    say!("| --- | --- | --- | --- | --- | --- |");
    for Row { kernel, port, native, bundles, others, seconds, .. } in rows {
        say!("| {kernel} | {port} | {native} | {bundles} | {others} | {seconds} |");
    }
    let problems: Vec<String> = rows
        .iter()
        .flat_map(|row| {
            row.problems.iter().map(move |what| format!("{}, {}: {what}", row.kernel, row.port))
        })
        .collect();
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// Builds the tests and the binaries that they start, as `cargo xtask test` does; the path of each
/// program of tests.
fn build_tests() -> Result<Vec<(&'static Tests, PathBuf)>> {
    let programs = TESTS.iter().map(|tests| tests.program).chain([OF_BINARIES]);
    let arguments: Vec<&str> = programs.flat_map(|program| ["--test", program]).collect();
    let tests: Vec<_> = Program::build(&arguments)?
        .into_iter()
        .filter_map(|built| {
            let is_it = |tests: &&Tests| {
                (tests.package, tests.program) == (&*built.package, &*built.target)
            };
            Some((TESTS.iter().find(is_it)?, built.executable().to_owned()))
        })
        .collect();
    ensure!(tests.len() == TESTS.len(), "cargo built {} tests of {}", tests.len(), TESTS.len());
    Ok(tests)
}
