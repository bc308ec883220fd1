//! A cluster with Slurm: a controller and four nodes, each as on a host of its own, and an
//! aggregator with TLS and job tokens on the switch host, which is the login host, too.

use std::env;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use switchml_rack::{Aggregator, Binaries, Process, Rack, RackOptions, can_build_racks, skip};
use tempfile::TempDir;

/// Far longer than anything takes here, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(240);
/// The login host, which has the controller, too.
pub const LOGIN: &str = "switch";
pub const NODES: [&str; 4] = ["n01", "n02", "n03", "n04"];
/// A user without privilege, and its number.
pub const USER: &str = "ada";
const UID: u32 = 4001;
const KEY: &str = "6b1fd0a2c3e4958776a5b4c3d2e1f00112233445566778899aabbccddeeff001";

/// The cluster, which is removed when this is dropped.
pub struct Cluster {
    pub aggregator: Aggregator,
    daemons: Vec<Process>,
    rack: Rack,
    folder: TempDir,
    programs: PathBuf,
    /// The node that has no `switchml-aggregator`.
    bare: Option<&'static str>,
}

impl Cluster {
    /// A cluster for the test `name`, unless this machine lacks something, which is reported.
    pub fn new(name: &str, bare: Option<&'static str>) -> Option<Self> {
        if !can_build_racks(name) {
            return None;
        }
        if let Some(missing) = ["slurmctld", "slurmd", "munged"].into_iter().find(|tool| !has(tool))
        {
            let how = "`apt install slurm-wlm munge`; `cargo xtask test --all` does so";
            skip(name, &format!("{missing} is not installed: {how}"));
            return None;
        }
        let rack = Rack::new(RackOptions::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        make_files(folder.path());
        let key = folder.path().join("home/token.key");
        let options = ["--tls-self-signed", "--token-key", key.to_str().unwrap()];
        let binaries = Binaries::for_test().unwrap();
        let aggregator = Aggregator::in_rack_with(&binaries, &rack, &options).unwrap();
        let programs = binaries.worker.parent().unwrap().to_owned();
        let daemons = Vec::new();
        let mut cluster = Self { aggregator, daemons, rack, folder, programs, bare };
        cluster.start_daemons();
        Some(cluster)
    }

    fn start_daemons(&mut self) {
        let (pid, seed) = (self.file("munged.pid"), self.file("munged.seed"));
        let files = format!("--pid-file={} --seed-file={}", pid.display(), seed.display());
        let log = self.file("munged.log");
        let log = log.display();
        let munged = format!("munged --foreground --force {files} --log-file={log}");
        self.daemons.push(self.start(LOGIN, "root", &munged));
        wait_until("munged listens", || self.file("munge/munge.socket.2").exists());
        self.daemons.push(self.start(LOGIN, "root", "slurmctld -D -c"));
        for node in NODES {
            self.daemons.push(self.start(node, "root", &format!("slurmd -D -N {node}")));
        }
        wait_until("all nodes are idle", || self.run(USER, "sinfo -h -o %D%T").text == "4idle\n");
    }

    /// A file or folder of the cluster.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The switch host's address.
    pub fn address(&self) -> IpAddr {
        self.rack.aggregator_address()
    }

    /// The output of `switchml-aggregator status`, without jobs that have ended.
    pub fn running(&self) -> String {
        let (control, fingerprint) = (self.aggregator.control(), self.fingerprint());
        let line = format!("status --connect {control} --tls-fingerprint {fingerprint}");
        let told = self.run("root", &format!("switchml-aggregator {line}"));
        assert_eq!(told.code, Some(0), "{}", told.text);
        let lines = told.text.lines().filter(|line| !line.starts_with("ended "));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Starts a command line on a host, as this user, in the user's folder.
    pub fn start(&self, host: &str, user: &str, line: &str) -> Process {
        let namespace = match NODES.iter().position(|node| *node == host) {
            Some(node) => self.rack.worker(node),
            None => self.rack.switch(),
        };
        let is_bare = self.bare == Some(host);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", include_str!("host.sh"), host]);
        command.arg(self.folder.path()).arg(&self.programs);
        command
            .arg(["switchml-worker switchml-aggregator", "switchml-worker"][usize::from(is_bare)]);
        command.args(["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]);
        command.args(["sh", "-c", line]);
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        command.env_clear().env("PATH", path).env("HOME", self.file("home"));
        command.env("SWITCHML_SUMMARY", "1").current_dir(self.file("home"));
        namespace.spawn(&format!("{host}: {line}"), command).unwrap()
    }

    /// Runs a command line on the login host, as this user, until it ends.
    pub fn run(&self, user: &str, line: &str) -> Told {
        Told::by(&mut self.start(LOGIN, user, line))
    }

    /// Submits a script of the user, with options of sbatch. Returns the job.
    pub fn submit(&self, options: &str, script: &str) -> Job<'_> {
        let name = format!("{:016x}", rand::random::<u64>());
        let (file, output) = (self.file("home").join(&name), self.file("home").join(name + ".out"));
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        let line = format!(
            "sbatch --parsable --open-mode=append -o {} {options} {}",
            output.display(),
            file.display()
        );
        let Told { text, code } = self.run(USER, &line);
        assert_eq!(code, Some(0), "{line}: {text}");
        Job { cluster: self, id: text.trim().to_owned(), output }
    }

    /// Installs the scripts, and gives the tasks the settings, as the page says.
    pub fn set_up(&self, page: &str, of_slurm: &str) {
        // The machine has no packages of the product.
        let lines = page.lines().filter(|line| !line.starts_with("apt install "));
        let page = lines.collect::<Vec<_>>().join("\n");
        assert!(page.contains("10.0.0.254") && page.contains("sha256:…"), "{page}");
        let page = page.replace("10.0.0.254", self.aggregator.control());
        let page = page.replace("sha256:…", &self.fingerprint());
        let told = self.run("root", &format!("set -e\n{page}"));
        assert_eq!(told.code, Some(0), "{}", told.text);
        let mut conf = File::options().append(true).open(self.file("etc/slurm/slurm.conf"));
        writeln!(conf.as_mut().unwrap(), "{of_slurm}").unwrap();
        let told = self.run("root", "scontrol reconfigure");
        assert_eq!(told.code, Some(0), "{}", told.text);
        let has_read = || self.run(USER, "scontrol show config").text.contains("/task_prolog");
        wait_until("slurmctld has read its settings", has_read);
    }

    fn fingerprint(&self) -> String {
        let line = self.aggregator.fingerprint();
        let at = line.find("sha256:").expect("a fingerprint");
        line[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == ':').collect()
    }
}

/// A job of a batch script.
pub struct Job<'c> {
    cluster: &'c Cluster,
    pub id: String,
    output: PathBuf,
}

impl Job<'_> {
    /// What it has printed so far.
    pub fn text(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Its state, as Slurm calls it.
    pub fn state(&self) -> String {
        let told = self.cluster.run(USER, &format!("scontrol show job {}", self.id)).text;
        let state = told.split_whitespace().find_map(|word| word.strip_prefix("JobState="));
        state.unwrap_or_default().to_owned()
    }

    /// When it began and when it ended, as Slurm writes it, which sorts; for each task of an array.
    pub fn times(&self) -> Vec<(String, String)> {
        let told = self.cluster.run(USER, &format!("scontrol show job {}", self.id)).text;
        let [begin, end] = ["StartTime=", "EndTime="]
            .map(|name| told.split_whitespace().filter_map(move |word| word.strip_prefix(name)));
        begin.zip(end).map(|(begin, end)| (begin.to_owned(), end.to_owned())).collect()
    }

    /// Waits until it has printed this text so many times.
    pub fn wait_for(&self, text: &str, times: usize) {
        let what = format!("job {} prints {text:?}", self.id);
        self.wait_until(&what, || self.text().matches(text).count() >= times);
    }

    /// Waits until it has left all its nodes, with their epilogs.
    pub fn wait_until_it_is_over(&self) {
        let line = format!("squeue -h -j {}", self.id);
        self.wait_until(&format!("job {} is over", self.id), || {
            let told = self.cluster.run(USER, &line);
            told.text.is_empty() || told.text.contains("Invalid job id")
        });
    }

    /// Waits for a condition; if it does not come true, says what the job and Slurm have printed.
    fn wait_until(&self, what: &str, is_so: impl FnMut() -> bool) {
        if comes_true(is_so) {
            return;
        }
        let job = self.cluster.run(USER, &format!("scontrol show job {}; sinfo", self.id)).text;
        let logs = ["slurmctld"].into_iter().chain(NODES).map(|daemon| {
            let log = fs::read_to_string(self.cluster.file(&format!("{daemon}.log")));
            let lines: Vec<_> = log.iter().flat_map(|log| log.lines().rev().take(40)).collect();
            lines.into_iter().rev().fold(format!("{daemon}:\n"), |text, line| text + line + "\n")
        });
        let (printed, logs) = (self.text(), logs.collect::<String>());
        panic!("waited for {PATIENCE:?} until {what}:\n{printed}\n{job}\n{logs}");
    }
}

/// What a command has printed, and how it ended.
pub struct Told {
    pub text: String,
    pub code: Option<i32>,
}

impl Told {
    pub fn by(process: &mut Process) -> Self {
        let code = process.wait(PATIENCE).unwrap().code();
        Self { text: process.stdout() + &process.stderr(), code }
    }
}

/// Waits for a condition.
///
/// # Panics
///
/// If it does not come true.
fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(comes_true(is_so), "waited for {PATIENCE:?} until {what}");
}

fn comes_true(mut is_so: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() >= PATIENCE {
            return false;
        }
        sleep(Duration::from_millis(200));
    }
    true
}

fn has(tool: &str) -> bool {
    let path = env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin";
    env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}

/// The files of the cluster: a copy of this machine's settings, with those of the cluster in it.
fn make_files(folder: &Path) {
    let set_mode = |file: &Path, mode| {
        fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    };
    set_mode(folder, 0o755);
    let etc = folder.join("etc");
    let copied = Command::new("cp").arg("-a").arg("/etc").arg(&etc).status().unwrap();
    assert!(copied.success(), "/etc is copied");
    for name in ["etc/munge", "etc/slurm", "etc/switchml"] {
        let _ = fs::remove_dir_all(folder.join(name));
        fs::create_dir(folder.join(name)).unwrap();
    }
    for name in ["munge", "state", "spool", "home"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    for node in NODES {
        fs::create_dir(folder.join("spool").join(node)).unwrap();
    }
    let add = |file: &str, lines: &str| {
        write!(File::options().append(true).open(etc.join(file)).unwrap(), "{lines}").unwrap();
    };
    let home = folder.join("home");
    add("passwd", &format!("{USER}:x:{UID}:{UID}::{}:/bin/sh\n", home.display()));
    add("group", &format!("{USER}:x:{UID}:\n"));
    let hosts = NODES.iter().enumerate();
    let hosts = hosts.map(|(rank, node)| format!("{} {node}\n", Rack::worker_address(rank)));
    let hosts = format!("127.0.0.1 localhost\n10.88.0.254 {LOGIN}\n{}", hosts.collect::<String>());
    fs::write(etc.join("hosts"), hosts).unwrap();
    let conf = include_str!("slurm.conf").replace("FOLDER", folder.to_str().unwrap());
    fs::write(etc.join("slurm/slurm.conf"), conf).unwrap();
    fs::write(etc.join("slurm/cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();
    let munge_key = etc.join("munge/munge.key");
    fs::write(&munge_key, KEY).unwrap();
    set_mode(&munge_key, 0o400);
    set_mode(&etc.join("munge"), 0o700);
    // The aggregator's key, and the clone of which the page speaks, lie in the user's folder: that
    // is where commands run.
    fs::write(home.join("token.key"), KEY).unwrap();
    set_mode(&home.join("token.key"), 0o600);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::os::unix::fs::symlink(workspace.join("userspace"), home.join("userspace")).unwrap();
    chown(&home, Some(UID), Some(UID)).unwrap();
}
