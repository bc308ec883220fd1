//! A P4 switch as a combiner: bmv2's `simple_switch`, at whose ports are all hosts. Ranks 0 and 1
//! are below it, and rank 2 is at the root, on one more host.

use std::process::{Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};

use switchml_rack::{
    Aggregator, Binaries, Mode, Namespace, Process, Rack, RackOptions, SWITCHED_ADDRESS,
    SimpleSwitch, leave_out, name_of_test, needs_racks, wait_until,
};

use super::{PATIENCE, counter};
use crate::benchmark::check;
use crate::report;

const RANKS: usize = 3;
/// The worker on whose host is the root, and so the number of the switch's port before it.
const ROOT: usize = 3;
/// The root's host, as [`Rack`] has it.
const ROOT_ADDRESS: &str = "10.88.0.4";
const ROOT_MAC: &str = "02:00:00:00:00:04";
/// The control planes of root and combiner.
const ROOT_AT: &str = "10.88.0.4:48865";
const COMBINER_AT: &str = "10.88.0.254:48865";

/// Seconds of ranks for an answer: on a busy machine the switch takes its time.
const DEADLINE: &str = "30";

/// Options of a root.
const SOFTWARE: &[&str] = &["--data-plane", "software", "--data-port", "48900"];
const NATIVE: &[&str] = &["--mode", "native", "--iface", "eth0"];
const BUNDLES: &[&str] = &["--mode", "bundle", "--iface", "eth0"];

/// Ends the test that it stands in, and reports that, without racks or without `simple_switch`.
macro_rules! needs_simple_switch {
    () => {{
        needs_racks!();
        fn here() {}
        if let Some(obstacle) = SimpleSwitch::obstacle() {
            return leave_out(name_of_test(here), &obstacle);
        }
    }};
}

/// A switch takes a processor or two: where several share them, ranks give up waiting.
static TURN: Mutex<()> = Mutex::new(());

/// The switch with a program, and the hosts at its ports. No daemon runs.
struct Hosts {
    binaries: Binaries,
    // Fields are dropped in this order.
    _switch: SimpleSwitch,
    rack: Rack,
    _turn: MutexGuard<'static, ()>,
}

impl Hosts {
    fn new(program: &str) -> Self {
        // A test that has failed has left nothing behind.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let options =
            RackOptions { workers: RANKS + 1, mode: Mode::Bmv2, ..RackOptions::default() };
        let rack = Rack::new(options).unwrap();
        assert_eq!(Rack::worker_address(ROOT).to_string(), ROOT_ADDRESS);
        let ports = rack.ports_of_simple_switch();
        let switch = SimpleSwitch::start(rack.switch(), &ports, program, &[]).unwrap();
        Self { binaries: Binaries::for_test().unwrap(), _switch: switch, rack, _turn: turn }
    }

    fn root(&self) -> &Namespace {
        self.rack.worker(ROOT)
    }

    fn start_combiner(&self) -> Aggregator {
        let options = combiner(&(ROOT + 1).to_string());
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        Aggregator::on_host(&self.binaries, self.rack.switch(), &options).unwrap()
    }

    /// Why a daemon with these options does not start at the switch, in one line.
    fn refusal(&self, options: &[String]) -> String {
        let mut command = Command::new(&self.binaries.aggregator);
        command.args(options);
        let mut daemon = self.rack.switch().spawn("daemon", command).unwrap();
        assert_eq!(daemon.wait(PATIENCE).unwrap().code(), Some(1));
        daemon.stderr().lines().last().expect("a line").to_owned()
    }
}

/// The options of a daemon at the switch.
fn at_switch() -> Vec<String> {
    let address = SWITCHED_ADDRESS;
    let text = format!("--data-plane bmv2 --data-address {address} --control {COMBINER_AT}");
    text.split(' ').map(str::to_owned).collect()
}

/// The options of a combiner, with this port towards its parent.
fn combiner(port: &str) -> Vec<String> {
    let way = ["--parent", ROOT_AT, "--uplink-port", port, "--uplink-mac", ROOT_MAC];
    [at_switch(), way.map(str::to_owned).to_vec()].concat()
}

/// A root, and a combiner below it.
struct Site {
    root: Aggregator,
    combiner: Aggregator,
    // Dropped last: the daemons run in its hosts.
    hosts: Hosts,
}

impl Site {
    fn new(root: &[&str]) -> Self {
        let hosts = Hosts::new("bmv2_combiner.p4");
        // The switch's end of the root's link takes frames from XDP only so.
        let mut gro = Command::new("ethtool");
        gro.args(["-K", &format!("p{ROOT}"), "gro", "on"]);
        hosts.rack.switch().output(gro).unwrap();
        let options = [root, &["--control", ROOT_AT]].concat();
        let root = Aggregator::on_host(&hosts.binaries, hosts.root(), &options).unwrap();
        let combiner = hosts.start_combiner();
        Self { root, combiner, hosts }
    }

    fn bench(&self, job: &str, options: &[&str]) -> Vec<Process> {
        let start = |rank: usize| {
            let at = if rank < 2 { COMBINER_AT } else { ROOT_AT };
            let mut command = Command::new(&self.hosts.binaries.worker);
            command.args(["bench", "--aggregator", at, "--job", job, "--json", "-"]);
            command.args(["--rank", &rank.to_string(), "--world-size", &RANKS.to_string()]);
            command.args(["--own-hosts", "0", "--deadline", DEADLINE]).args(options);
            self.hosts.rack.worker(rank).spawn(&format!("worker {rank}"), command).unwrap()
        };
        (0..RANKS).map(start).collect()
    }

    /// Waits for a benchmark that must succeed, and checks it.
    fn check(mut ranks: Vec<Process>, sizes: &[u64]) {
        let ended: Vec<_> = ranks.iter_mut().map(|rank| rank.wait(PATIENCE).unwrap()).collect();
        let said: Vec<_> = ranks.iter().map(Process::stderr).collect();
        assert!(ended.iter().all(ExitStatus::success), "{said:#?}");
        check(&report(ranks), RANKS, 64, sizes);
    }

    fn at_root(&self, name: &str) -> u64 {
        counter(&self.hosts.binaries, self.hosts.root(), ROOT_AT, name)
    }

    fn at_combiner(&self, name: &str) -> u64 {
        counter(&self.hosts.binaries, self.hosts.rack.switch(), COMBINER_AT, name)
    }
}

#[test]
fn below_a_root_in_software() {
    needs_simple_switch!();
    sums_are_right(SOFTWARE);
}

#[test]
fn below_a_root_in_native_xdp() {
    needs_simple_switch!();
    sums_are_right(NATIVE);
}

#[test]
fn below_a_root_at_tc_ingress() {
    needs_simple_switch!();
    sums_are_right(BUNDLES);
}

/// Ranks 0 and 1 are added up on the way, and all three have right elements.
fn sums_are_right(root: &[&str]) {
    let site = Site::new(root);
    let run = |dtype, op| {
        let sizes = ["-n", "1", "-w", "1", "-b", "8", "-e", "8K", "-f", "1024"];
        let options = [&sizes[..], &["--dtype", dtype, "--op", op]].concat();
        Site::check(site.bench(&format!("{dtype} {op}"), &options), &[8, 8192]);
    };
    run("i32", "sum");
    // Each round gets a partial sum of ranks 0 and 1, and rank 2's packet, unless a rank was late,
    // as many are on a busy machine.
    let (combined, completed) = (site.at_combiner("combined"), site.at_root("completed"));
    assert!(completed > 100 && 4 * combined > completed, "{combined} of {completed}");
    for (dtype, op) in [("f32", "sum"), ("bf16", "avg"), ("f16", "max"), ("i32", "min")] {
        run(dtype, op);
    }
    let bad = ["bad_check", "bad_lanes", "bad_op", "mismatch"];
    assert_eq!(bad.map(|name| site.at_combiner(name)), [0; 4]);
    assert_eq!(bad.map(|name| site.at_root(name)), [0; 4]);
    site.combiner.stop().unwrap();
    site.root.stop().unwrap();
}

/// The daemon is killed amid sums. The next one empties the tables, and ranks come back to it.
#[test]
fn calls_go_on_with_the_next_daemon_of_a_switch() {
    needs_simple_switch!();
    let mut site = Site::new(SOFTWARE);
    let ranks = site.bench("lasting", &["-n", "60", "-w", "1", "-b", "4K", "-e", "4K"]);
    wait_until!(PATIENCE, site.at_root("completed") >= 200, "no progress");
    site.combiner.process().kill().unwrap();
    site.combiner = site.hosts.start_combiner();
    Site::check(ranks, &[4096]);
    assert!(site.at_combiner("combined") > 100, "{}", site.at_combiner("combined"));
}

#[test]
fn a_switch_that_cannot_be_a_combiner_is_told_why() {
    needs_simple_switch!();
    {
        let hosts = Hosts::new("bmv2_combiner.p4");
        let line = hosts.refusal(&combiner("9"));
        let there = "--uplink-port 9 is not among the switch's ports: simple_switch at \
                     127.0.0.1:9090, ports 1 (p0), 2 (p1), 3 (p2), 4 (p3), 5 (host); give the \
                     number of one";
        assert!(line.ends_with(there), "{line}");
        let line = hosts.refusal(&at_switch());
        let other = "it runs bmv2_combiner.p4, a combiner's program; without --parent it must be \
                     bmv2.p4";
        assert!(line.ends_with(other), "{line}");
    }
    let hosts = Hosts::new("bmv2.p4");
    let line = hosts.refusal(&combiner("4"));
    let other = "it runs bmv2.p4, the root's program; with --parent it must be bmv2_combiner.p4";
    assert!(line.ends_with(other), "{line}");
}
