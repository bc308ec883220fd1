//! Ray on one host and on two: jobs of Ray Train, actors and compiled graphs; and the page about
//! it, whose commands run as they stand there.
//!
//! `SWITCHML_PYTHON_RAY` names an interpreter that has Ray and the package; `cargo xtask test`
//! makes its environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, fs};

use switchml_rack::page::Page;
use switchml_rack::{Aggregator, Binaries, Process, Rack, RackOptions, can_build_racks, skip};

/// Far longer than a job takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Far longer than a shell takes to start.
const SOON: Duration = Duration::from_secs(60);

/// Names of the hosts.
const HOSTS: [&str; 3] = ["a", "b", "c"];

/// Several clusters that start at once on few processors take longer than Ray waits for them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Hosts with a folder that they share.
struct Site {
    // Dropped in this order.
    hosts: Vec<Host>,
    rack: Rack,
    folder: PathBuf,
    path: OsString,
    _turn: MutexGuard<'static, ()>,
}

/// What makes a namespace a host for Ray, as long as its process runs: a name, shared memory, the
/// folder in which Ray keeps sockets, and processes, among which a driver looks for its node.
struct Host {
    _process: Process,
    /// Of the first process in there, as others see it.
    pid: String,
}

impl Site {
    fn new(name: &str) -> Option<Self> {
        if !can_build_racks(name) {
            return None;
        }
        let python = interpreter(name)?;
        let path = Binaries::for_test().unwrap().path_behind(&python);
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let options = RackOptions { workers: HOSTS.len(), ..RackOptions::default() };
        let rack = Rack::new(options).unwrap();
        let hosts = (0..HOSTS.len()).map(|number| Host::new(&rack, number)).collect();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::create_dir_all(&folder).unwrap();
        Some(Self { hosts, rack, folder, path, _turn: turn })
    }

    /// Starts commands of a shell on a host, in the shared folder. All that they start ends with
    /// the host.
    fn start(&self, host: &str, commands: &str, variables: &[(&str, &str)]) -> Process {
        let number = HOSTS.iter().position(|name| *name == host).expect("a host's name");
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.hosts[number].pid, "--mount", "--uts", "--pid"]);
        command.args(["bash", "-e", "-c", "cd \"$0\"; eval \"$1\""]);
        command.arg(&self.folder).arg(commands);
        command.env("PATH", &self.path).env("OMP_NUM_THREADS", "1");
        // Without the user's token, and without a report to Ray's makers.
        command.env("RAY_AUTH_MODE", "disabled").env("RAY_USAGE_STATS_ENABLED", "0");
        command.envs(variables.iter().copied());
        self.rack.worker(number).spawn(&format!("{host}: {commands}"), command).unwrap()
    }

    /// The nodes of a cluster, on so many hosts.
    fn cluster(&self, nodes: usize) -> Vec<Process> {
        let head = Rack::worker_address(0);
        let node = |number: usize| {
            let whose = match number {
                0 => "--head --include-dashboard=false".to_owned(),
                _ => format!("--address={head}:6379"),
            };
            let address = Rack::worker_address(number);
            let more = "--num-cpus=4 --block";
            let command = format!("ray start {whose} --node-ip-address={address} {more}");
            let mut node = self.start(HOSTS[number], &command, &[]);
            node.wait_for_line("Ray runtime started.", PATIENCE).unwrap();
            node
        };
        (0..nodes).map(node).collect()
    }

    /// Runs a script of the package's tests on the first node, which checks itself.
    fn run(&self, script: &str, arguments: &str, variables: &[(&str, &str)]) {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker-lib/python/tests");
        let command = format!("python {} {arguments}", scripts.join(script).display());
        let mut running = self.start(HOSTS[0], &command, variables);
        running.wait_success(PATIENCE).unwrap();
        let printed = running.stdout();
        println!("{printed}");
        assert!(printed.contains("all of it works"), "{printed}");
    }
}

impl Host {
    fn new(rack: &Rack, number: usize) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        let own = "mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray && \
                   mount -t tmpfs tmpfs /dev/shm && hostname \"$0\" && echo held && \
                   exec sleep infinity";
        command.args(["sh", "-c", own, HOSTS[number]]);
        let mut process = rack.worker(number).spawn(HOSTS[number], command).unwrap();
        process.wait_for_line("held", SOON).unwrap();
        let id = process.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        Self { _process: process, pid: children.trim().to_owned() }
    }
}

/// The interpreter that has Ray. If there is none, reports that the test `name` is skipped.
fn interpreter(name: &str) -> Option<PathBuf> {
    let python = env::var_os("SWITCHML_PYTHON_RAY").map(PathBuf::from);
    if python.is_none() {
        let how = "is not set; `cargo xtask test -- -p switchml-rack --test ray` makes an \
                   environment and sets it, if PyPI answers and the disk has room";
        skip(name, &format!("SWITCHML_PYTHON_RAY {how}"));
    }
    python
}

#[test]
fn the_page_about_ray_is_right() {
    let Some(site) = Site::new("the_page_about_ray_is_right") else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/clusters.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, text) = text.split_once("\n## Ray\n").expect("a part about Ray");
    let text = text.split("\n## ").next().unwrap_or_default();
    let page = Page::parse(&text.replace("\n### ", "\n## "));
    assert!(page.sections.len() > 1, "the part about Ray has no numbered sections");
    page.follow(&site.folder, PATIENCE, |block| {
        site.start(&block.host, &block.commands.join("\n"), &[])
    });
}

#[test]
fn jobs_and_actors_on_two_nodes_with_an_aggregator() {
    let name = "jobs_and_actors_on_two_nodes_with_an_aggregator";
    let Some(site) = Site::new(name) else { return };
    let aggregator = Aggregator::in_rack(&Binaries::for_test().unwrap(), &site.rack).unwrap();
    let _nodes = site.cluster(2);
    let variables = [("SWITCHML_AGGREGATOR", aggregator.control()), ("GLOO_SOCKET_IFNAME", "eth0")];
    site.run("ray_train.py", ". 2 4", &variables);
    site.run("ray_actors.py", "2 4", &variables);
}

#[test]
fn jobs_and_actors_on_one_node_that_serve_each_other() {
    let name = "jobs_and_actors_on_one_node_that_serve_each_other";
    let Some(site) = Site::new(name) else { return };
    let _nodes = site.cluster(1);
    let variables = [("GLOO_SOCKET_IFNAME", "eth0")];
    site.run("ray_train.py", ". 2", &variables);
    site.run("ray_actors.py", "2", &variables);
}
