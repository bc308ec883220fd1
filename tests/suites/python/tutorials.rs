//! The tutorials in `docs/`: each command runs as its page shows it, and prints what its page says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use switchml_rack::page::{Block, Page};
use switchml_rack::{Binaries, Namespace, Process, Rack, RackOptions, needs_racks};

use crate::site::{PATIENCE, Torch, fresh_folder};

#[test]
fn two_machines_and_a_spare_one() {
    needs_racks!();
    let hosts = [("a", 0), ("b", 1), ("c", 2)];
    follow("first-run.md", "tutorials::two_machines_and_a_spare_one", &hosts);
}

#[test]
fn a_host_as_the_switch() {
    needs_racks!();
    let hosts = [("a", 0), ("b", 1)];
    follow("first-switch.md", "tutorials::a_host_as_the_switch", &hosts);
}

/// Does what a page says. `workers` has the page's names of hosts, and their numbers in the rack;
/// `switch` is the rack's switch.
fn follow(file: &str, test: &str, workers: &[(&str, usize)]) {
    let Some(python) = Torch::Newest.interpreter(test) else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(file);
    let page = Page::parse(&fs::read_to_string(path).unwrap());
    assert!(page.sections.len() > 1, "{file} has no numbered sections");
    let rack = Rack::new(RackOptions { workers: workers.len(), ..RackOptions::default() }).unwrap();
    let mut hosts: BTreeMap<_, _> =
        workers.iter().map(|&(name, number)| (name, rack.worker(number))).collect();
    hosts.insert("switch", rack.switch());
    let path = Binaries::for_test().unwrap().path_behind(&python);
    let shell = Shell { folder: fresh_folder(&format!("tutorial-{file}")), path };
    page.follow(&shell.folder, PATIENCE, |block| shell.start(block, hosts[block.host.as_str()]));
}

/// What runs a page's commands.
struct Shell {
    folder: PathBuf,
    /// `PATH`, which leads to the programs that the wheel installs.
    path: OsString,
}

impl Shell {
    /// Starts a block's commands on a host of that name, of which torchrun tells others.
    fn start(&self, block: &Block, host: &Namespace) -> Process {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]);
        command.args(["sh", "-c", "hostname \"$0\" && exec \"$@\"", &block.host]);
        command.args(["bash", "-e", "-c", &block.commands.join("\n")]);
        command.current_dir(&self.folder).env("PATH", &self.path).env("OMP_NUM_THREADS", "1");
        host.spawn(&format!("{}: {}", block.host, block.commands[0]), command).unwrap()
    }
}
