//! NICs whose drivers have native XDP, as ports of a switch host in QEMU: a job of two ranks on
//! this machine adds up through them.

use anyhow::{Context, Result, ensure};
use std::{fs, process::Command, time::Duration};
use switchml_rack::{AGGREGATOR_ADDRESS, Binaries, Process, TapRack};

use super::qemu::Machine;
use crate::measure::{Ranks, finish};

/// A NIC that QEMU emulates.
pub struct Nic {
    /// The NIC's name for `--port`.
    pub name: &'static str,
    /// QEMU's name of the NIC, with its options.
    device: &'static str,
    /// Options of the NIC's tap.
    tap: &'static str,
    /// The first Linux version whose driver has native XDP.
    native_since: [u32; 2],
    /// What the driver says of native XDP with an MTU of 9000.
    refusal: &'static str,
}

/// All NICs that are tried. Their queues are for two processors.
pub const NICS: [Nic; 3] = [
    Nic {
        name: "virtio-net",
        device: "virtio-net-pci,mq=on,vectors=6",
        tap: "queues=2,",
        native_since: [4, 10],
        refusal: "virtio_net: MTU too large to enable XDP",
    },
    Nic {
        name: "vmxnet3",
        device: "vmxnet3",
        tap: "",
        native_since: [6, 3],
        refusal: "vmxnet3: MTU 9000 too large for XDP",
    },
    Nic {
        name: "igb",
        device: "igb",
        tap: "",
        native_since: [5, 10],
        refusal: "igb: The RX buffer size is too small for the frame size",
    },
];

/// The hook at which the daemon takes frames, and the daemon's words for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    mode: &'static str,
    said: &'static str,
}

/// Native XDP, in the driver.
pub const NATIVE: Hook = Hook { mode: "native", said: "native XDP on " };
/// Bundles at tc ingress.
pub const BUNDLES: Hook = Hook { mode: "bundle", said: "bundles at tc ingress on " };

const RANKS: usize = 2;
/// The daemon's default.
const CONTROL_PORT: u16 = 48865;
/// The daemon's output once it serves.
const READY: &str = "ready: control";
/// Many times longer than booting or the job takes on an idle machine.
const LIMIT: Duration = Duration::from_secs(180);

impl Nic {
    /// Boots a machine with two of these NICs, starts the daemon on them, and adds up from 8 bytes
    /// to 1 MiB. Returns the entry for the table.
    pub fn try_out(&self, hook: Hook, machine: &Machine, binaries: &Binaries) -> Result<String> {
        if hook == NATIVE && !machine.kernel.is_at_least(self.native_since) {
            let [major, minor] = self.native_since;
            return Ok(format!("in the driver since {major}.{minor}"));
        }
        let rack = TapRack::new(RANKS)?;
        let line = machine.command_line(&format!("HOOK={}", hook.mode))?;
        let (program, arguments) = line.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(arguments).args(["-smp", "2"]);
        command.args((0..RANKS).flat_map(|rank| self.port(rank)));
        let mut host = rack.machine().spawn("the switch host in QEMU", command)?;
        let result = add_up(&rack, &mut host, hook, binaries);
        let console = host.stdout();
        let log = machine.kernel.folder().join(format!("{}-{}.log", self.name, hook.mode));
        fs::write(&log, &console)?;
        let result = result.and_then(|()| self.check_refusal(hook, &console));
        result.with_context(|| format!("{} (console: {})", hook.mode, log.display()))?;
        let queues = console.lines().find_map(|line| line.trim().strip_prefix("queues "));
        Ok(format!("right, {} queues", queues.context("the machine names no queues")?))
    }

    /// The first daemon's line has the driver's sentence, and what helps.
    fn check_refusal(&self, hook: Hook, console: &str) -> Result<()> {
        let expected = ["refuses native XDP (MTU 9000)", self.refusal, "lower the MTU"];
        let is_said = |line: &str| expected.iter().all(|part| line.contains(part));
        ensure!(
            hook != NATIVE || console.lines().any(is_said),
            "no line of the daemon has all of {expected:?}"
        );
        Ok(())
    }

    /// QEMU's options for a port: each at a root port of PCI Express, because igb has virtual
    /// functions.
    fn port(&self, rank: usize) -> [String; 6] {
        let (name, mac) = (TapRack::tap(rank), TapRack::nic_mac(rank));
        let Self { device, tap, .. } = self;
        [
            "-device".to_owned(),
            format!("pcie-root-port,id=root{rank},chassis={}", rank + 1),
            "-netdev".to_owned(),
            format!("tap,{tap}id=net{rank},ifname={name},script=no,downscript=no"),
            "-device".to_owned(),
            format!("{device},netdev=net{rank},bus=root{rank},mac={mac},romfile="),
        ]
    }
}

fn add_up(rack: &TapRack, machine: &mut Process, hook: Hook, binaries: &Binaries) -> Result<()> {
    rack.join()?;
    machine.wait_for_line(READY, LIMIT)?;
    let control = format!("{AGGREGATOR_ADDRESS}:{CONTROL_PORT}");
    let ranks = Ranks::new(&binaries.worker, rack.workers(), "matrix", &control);
    // The ranks check every element.
    let sizes = ["--minbytes", "8", "--maxbytes", "1M", "--stepfactor", "512"];
    finish(ranks.start(&[&sizes[..], &["--iters", "3", "--warmup-iters", "1"]].concat())?)?;
    let mut status = Command::new(&binaries.aggregator);
    status.args(["status", "--connect", &control]);
    let status = String::from_utf8(rack.workers()[0].output(status)?.stdout)?;
    ensure!(
        status.contains(hook.said),
        "the daemon was to serve by {}; it says:\n{status}",
        hook.mode
    );
    Ok(())
}
