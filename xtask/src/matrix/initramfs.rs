//! The file system that a kernel starts with: tools, modules, tests, and a script that runs them,
//! or the daemon.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Tests, image::Kernel, rxe, suites::END};
use crate::cargo;
use crate::command::output;

/// Modules that the rack, the tests and the NICs need.
const MODULES: [&str; 9] = [
    "veth",
    "bridge",
    "macvlan",
    "bonding",
    "sch_ingress",
    "cls_bpf",
    "virtio_net",
    "vmxnet3",
    "igb",
];
/// A module that some kernels have built in.
const BUILT_IN_SOMEWHERE: &str = "virtio_pci";
/// Programs that the tests start, in addition to the project's own binaries.
const TOOLS: [&str; 6] = ["ip", "tc", "ethtool", "setpriv", "ls", "mkdir"];
const BINARIES: [&str; 3] = ["switchml-aggregator", "switchml-worker", "switchml-impairment"];

/// Makes the file system, in the kernel's folder, with these test programs, and with the packages
/// of verbs that ranks by RDMA need, if they are to run.
pub fn make(kernel: &Kernel, tests: &[(&Tests, PathBuf)], verbs: &[PathBuf]) -> Result<PathBuf> {
    let root = Root(kernel.folder().join("initramfs"));
    if root.0.exists() {
        fs::remove_dir_all(&root.0)?;
    }
    for folder in ["bin", "proc", "sys", "dev", "tmp", "run", "modules"] {
        fs::create_dir_all(root.0.join(folder))?;
    }
    root.copy(&find("busybox")?, Path::new("/bin/busybox"))?;
    for tool in TOOLS {
        let tool = find(tool)?;
        root.copy(&tool, &tool)?;
    }
    // Tests know the binaries by their paths on this machine.
    let binaries = fs::canonicalize(cargo::release_folder()?)?;
    for binary in BINARIES {
        root.strip(&binaries.join(binary), &binaries.join(binary))?;
    }
    for (tests, executable) in tests {
        root.strip(executable, &Path::new("/").join(tests.program))?;
    }
    let mut modules = MODULES.to_vec();
    if !verbs.is_empty() {
        modules.extend(rxe::modules(kernel));
        for tool in rxe::TOOLS {
            let tool = find(tool)?;
            root.copy(&tool, &tool)?;
        }
    }
    for package in verbs {
        output(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&root.0))?;
    }
    root.modules(kernel, &modules)?;
    let init = root.0.join("init");
    fs::write(&init, script(&binaries, tests))?;
    fs::set_permissions(&init, PermissionsExt::from_mode(0o755))?;
    root.pack(&kernel.folder().join("initramfs.cpio"))
}

/// The script of the first process. It runs the daemon on the machine's NICs if the kernel's
/// command line has `HOOK=`, which the kernel puts into the environment, and ranks by RDMA if it
/// has [`rxe::OPTION`]; otherwise it runs the tests.
fn script(binaries: &Path, tests: &[(&Tests, PathBuf)]) -> String {
    let binaries = binaries.display();
    let tests: String = tests
        .iter()
        .map(|(Tests { program, names, .. }, _)| {
            format!("/{program} --test-threads=1 {}\n", names.join(" "))
        })
        .collect();
    format!(
        "#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ NO_COLOR=1
export SWITCHML_SKIPPED=/skipped SWITCHML_BIN_DIR={binaries}
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mount -t bpf bpf /sys/fs/bpf
for module in /modules/*; do insmod $module; done
ip link set lo up
if [ -n \"$HOOK\" ]; then
aggregator={binaries}/switchml-aggregator
{SERVE}$aggregator $ports --mode $HOOK
elif [ -n \"$RXE\" ]; then
binaries={binaries}
{}
else
{tests}# A test that cannot run returns, and says so in that file.
[ -e /skipped ] && sed 's/^/skipped /' /skipped
fi
echo {END}
poweroff -f
",
        rxe::SCRIPT
    )
}

/// Joins the NICs by a bridge that has the aggregator's address, as the rack's switch does. A first
/// daemon shows why the driver refuses native XDP with long frames.
const SERVE: &str = "\
ip link add br0 address 02:00:00:00:00:fe type bridge
ip address add 10.88.0.254/24 dev br0
ip link set br0 up
ip route add 224.0.0.0/4 dev br0
for device in /sys/class/net/*/device; do
nic=${device#/sys/class/net/}; nic=${nic%/device}
ip link set $nic master br0 up
ports=\"$ports --iface $nic\"
done
echo queues $(ls -d /sys/class/net/$nic/queues/rx-* | wc -l)
if [ $HOOK = native ]; then
ip link set $nic mtu 9000
$aggregator --iface $nic --mode native
ip link set $nic mtu 1500
fi
";

struct Root(PathBuf);

impl Root {
    fn place(&self, path: &Path) -> Result<PathBuf> {
        let place = self.0.join(path.strip_prefix("/")?);
        let folder = place.parent().context("a file lies in a folder")?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(place)
    }

    /// Copies a program, and the libraries that it needs.
    fn copy(&self, program: &Path, to: &Path) -> Result<()> {
        fs::copy(program, self.place(to)?)
            .with_context(|| format!("cannot copy {}", program.display()))?;
        self.libraries(program)
    }

    /// Copies a program without debug information, and the libraries that it needs.
    fn strip(&self, program: &Path, to: &Path) -> Result<()> {
        output(Command::new("strip").arg("-o").arg(self.place(to)?).arg(program))?;
        self.libraries(program)
    }

    fn libraries(&self, program: &Path) -> Result<()> {
        // `ldd` fails for a program that needs no libraries.
        let Ok(listed) = output(Command::new("ldd").arg(program)) else { return Ok(()) };
        for library in listed.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new)
        {
            let place = self.place(library)?;
            if !place.exists() {
                fs::copy(library, place)
                    .with_context(|| format!("cannot copy {}", library.display()))?;
            }
        }
        Ok(())
    }

    /// Copies the modules, numbered in the order in which they depend on each other.
    fn modules(&self, kernel: &Kernel, names: &[&str]) -> Result<()> {
        let mut command = Command::new("/sbin/modprobe");
        command.arg("--dirname").arg(kernel.root()).args([
            "--set-version",
            &kernel.release,
            "--show-depends",
            "--all",
        ]);
        command.args(names);
        if kernel.has_module(BUILT_IN_SOMEWHERE) {
            command.arg(BUILT_IN_SOMEWHERE);
        }
        let listed = output(&mut command)?;
        // Behind a file's name may be options.
        let modules = listed
            .lines()
            .filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next());
        for (number, module) in modules.enumerate() {
            let place = self.0.join(format!("modules/{number:02}.ko"));
            if module.ends_with(".xz") {
                let plain =
                    Command::new("xz").args(["--decompress", "--stdout", module]).output()?;
                ensure!(plain.status.success(), "xz cannot read {module}");
                fs::write(place, plain.stdout)?;
            } else {
                fs::copy(module, place)?;
            }
        }
        Ok(())
    }

    /// Packs the folder into one file, in the format that kernels read.
    fn pack(&self, file: &Path) -> Result<PathBuf> {
        let mut list =
            Command::new("find").arg(".").current_dir(&self.0).stdout(Stdio::piped()).spawn()?;
        let names = list.stdout.take().context("find has no output")?;
        let packed = Command::new("cpio")
            .args(["--create", "--format=newc", "--quiet"])
            .current_dir(&self.0)
            .stdin(names)
            .stdout(fs::File::create(file)?)
            .status()?;
        ensure!(packed.success() && list.wait()?.success(), "cpio cannot write {}", file.display());
        Ok(file.to_owned())
    }
}

/// The path of a program.
fn find(program: &str) -> Result<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(Path::new);
    let found = folders.into_iter().map(|folder| folder.join(program)).find(|file| file.is_file());
    found.with_context(|| format!("no {program} on this system"))
}
