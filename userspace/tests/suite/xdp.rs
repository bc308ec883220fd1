//! The daemon on XDP, in a rack: what it attaches, refuses and serves, and that it leaves nothing
//! behind.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use aya::programs::{SchedClassifier, TcAttachType};
use socket2::{Domain, Socket, Type};
use switchml_control::join_event::Event;
use switchml_control::{LeaveRequest, ListJobsRequest, StatusRequest};
use switchml_protocol::EVERYONE;
use switchml_protocol::outcome::RejectReason;
use switchml_protocol::wire::header::Kind;
use switchml_rack::{
    AGGREGATOR_ADDRESS, Fabric, Mode, Namespace, Process, Rack, RackOptions, Signal, Topology,
    in_both_modes, leave_out, needs_racks,
};

use crate::common::{PATIENCE, Path, Rank, SILENCE, receive_on};

in_both_modes! {
    it_attaches_and_goes_when_it_is_told_to,
    what_it_leaves_when_it_is_killed_can_be_removed,
    a_second_daemon_does_not_push_the_first_one_out,
    three_capabilities_are_enough,
    ranks_get_their_sums_by_multicast_in_job_after_job,
    it_knows_which_rank_does_not_contribute,
    with_trace_each_packet_has_a_line,
    it_takes_the_time_of_some_rounds,
    a_lost_rank_aborts_its_job_in_the_data_plane_too,
    a_job_at_an_address_that_is_not_served_fails_with_the_remedy,
    interfaces_over_a_port,
    a_port_whose_mtu_is_cut_is_named,
}

const CONTROL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(AGGREGATOR_ADDRESS), 48865);

pub fn rack(workers: usize, mode: Mode) -> Rack {
    Rack::new(RackOptions { workers, mode, ..RackOptions::default() }).expect("a rack")
}

/// Starts the daemon.
pub fn spawn(namespace: &Namespace, arguments: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchml-aggregator"));
    command.args(arguments).env("RUST_LOG", "switchml_userspace=debug,info");
    namespace.spawn("aggregator", command).expect("started")
}

/// The arguments for a daemon on all ports of the rack.
pub fn on_all_ports(rack: &Rack) -> Vec<String> {
    let ports = rack.ports().into_iter().flat_map(|port| ["--iface".to_owned(), port]);
    ["--mode", rack.mode().argument()].map(str::to_owned).into_iter().chain(ports).collect()
}

/// A daemon on all ports of the rack.
pub fn serve(rack: &Rack) -> Process {
    let arguments = on_all_ports(rack);
    ready(spawn(rack.switch(), &arguments.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// A daemon on all ports of the rack, as root with only these three capabilities.
fn serve_with_three_capabilities(rack: &Rack) -> Process {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all,+bpf,+net_admin,+perfmon", "--inh-caps=-all"]);
    command.arg(env!("CARGO_BIN_EXE_switchml-aggregator")).args(on_all_ports(rack));
    ready(rack.switch().spawn("aggregator", command).expect("started"))
}

/// Waits until a daemon is ready.
pub fn ready(mut daemon: Process) -> Process {
    daemon.wait_for_line("ready: control [::]:48865", PATIENCE).expect("ready");
    daemon
}

/// The output of a tool in the switch's namespace.
pub fn tool(namespace: &Namespace, line: &str) -> String {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    String::from_utf8(namespace.output(command).expect("it works").stdout).expect("text")
}

/// The interfaces with a program, in XDP or at tc ingress, by name.
pub fn attached(namespace: &Namespace) -> Vec<String> {
    let is_attached = |interface: &String| {
        let shown = tool(namespace, &format!("ip link show {interface}"));
        let name = interface.clone();
        let by_links =
            namespace.run(move || SchedClassifier::query_tcx(&name, TcAttachType::Ingress));
        let at_ingress = match by_links {
            Ok((_, programs)) => !programs.is_empty(),
            // Kernels before Linux 6.6 have no TCX.
            Err(_) => {
                !tool(namespace, &format!("tc filter show dev {interface} ingress")).is_empty()
            }
        };
        shown.contains("xdp") || at_ingress
    };
    // /sys/class/net does not help: with a bond, it also has files that are not interfaces.
    let shown = tool(namespace, "ip -brief link show");
    let names = shown.lines().filter_map(|line| line.split([' ', '@']).next());
    names.map(str::to_owned).filter(is_attached).collect()
}

/// Whether an aggregator has pins in the BPF file system.
pub fn pins(namespace: &Namespace) -> bool {
    tool(namespace, "ls /sys/fs/bpf").contains("switchml")
}

/// Runs the daemon, which must fail with one line that contains `expected`, and leave nothing
/// attached.
fn refuses(switch: &Namespace, arguments: &[&str], expected: &str) {
    let mut daemon = spawn(switch, &[&["--mode", "native"], arguments].concat());
    let status = daemon.wait(PATIENCE).expect("ends by itself");
    let is_usage = expected.starts_with("no interface") || expected.ends_with("given twice");
    assert_eq!(status.code(), Some(if is_usage { 2 } else { 1 }));
    let errors: Vec<_> = daemon
        .stderr()
        .lines()
        .filter(|line| line.starts_with("switchml-aggregator:"))
        .map(str::to_owned)
        .collect();
    let [error] = &errors[..] else {
        panic!("{} lines of error: {}", errors.len(), daemon.stderr())
    };
    assert!(error.contains(expected), "{error}");
    assert_eq!(attached(switch), [] as [&str; 0], "something stays attached");
    assert!(!pins(switch), "something stays pinned");
}

fn it_attaches_and_goes_when_it_is_told_to(mode: Mode) {
    let rack = rack(2, mode);
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = serve(&rack);
        assert_eq!(attached(rack.switch()), rack.ports());
        let shown = tool(rack.switch(), "ip link show p0");
        assert_eq!(
            shown.contains(" xdp ") && shown.contains("name switchml"),
            mode == Mode::Native,
            "{shown}"
        );
        daemon.signal(signal).expect("signalled");
        assert!(daemon.wait(PATIENCE).expect("ends in time").success(), "after {signal:?}");
        assert_eq!(attached(rack.switch()), [] as [&str; 0], "attached still after {signal:?}");
        assert!(!pins(rack.switch()), "pinned still after {signal:?}");
    }
}

fn a_port_whose_mtu_is_cut_is_named(mode: Mode) {
    let rack = rack(1, mode);
    let mut daemon = serve(&rack);
    tool(rack.switch(), "ip link set p0 mtu 1200");
    let line = "interface p0: its MTU is 1200 now, and was 1500; jobs that have started with";
    daemon.wait_for_line(line, PATIENCE).expect("it says so");
    assert!(daemon.terminate(PATIENCE).expect("ends").success());
    assert_eq!(daemon.stderr().matches("its MTU is").count(), 1, "{}", daemon.stderr());
}

/// A killed daemon cannot clean up; the next daemon or `detach` does.
fn what_it_leaves_when_it_is_killed_can_be_removed(mode: Mode) {
    let rack = rack(2, mode);
    let detach = concat!(env!("CARGO_BIN_EXE_switchml-aggregator"), " detach");
    assert_eq!(
        tool(rack.switch(), detach),
        "nothing to detach: there is no /sys/fs/bpf/switchml\n"
    );
    serve(&rack).kill().expect("killed");
    assert!(attached(rack.switch()) == rack.ports() && pins(rack.switch()));
    assert_eq!(tool(rack.switch(), detach), "removed /sys/fs/bpf/switchml\n");
    assert_eq!(attached(rack.switch()), [] as [&str; 0]);
    assert!(!pins(rack.switch()));

    // Incomplete pins have no owner: the daemon died while it made or removed them.
    for folder in ["switchml", "switchml/staging", "switchml/links"] {
        tool(rack.switch(), &format!("mkdir /sys/fs/bpf/{folder}"));
    }
    serve(&rack).terminate(PATIENCE).expect("ends");
    assert!(!pins(rack.switch()));
}

/// An interface can be given by any of its names, as for `ip link`.
#[test]
fn an_interface_may_be_given_by_another_of_its_names() {
    needs_racks!();
    let rack = rack(1, Mode::Native);
    let other = "a-name-that-is-too-long-for-an-interface";
    tool(rack.switch(), &format!("ip link property add dev p0 altname {other}"));
    refuses(
        rack.switch(),
        &["--iface", "p0", "--iface", other],
        &format!("interface \"{other}\" is given twice"),
    );
    let mut daemon = ready(spawn(rack.switch(), &["--mode", "native", "--iface", other]));
    assert_eq!(attached(rack.switch()), ["p0"]);
    // New addresses are served, too.
    tool(rack.switch(), "ip address add 10.88.0.253/24 dev br0");
    daemon.wait_for_line("10.88.0.253", PATIENCE).expect("served");
}

/// The kernel finds out that another host has the address, and does not use it.
#[test]
fn an_address_that_another_host_has_is_not_served() {
    needs_racks!();
    let rack = rack(1, Mode::Auto);
    let (switch, worker) = (rack.switch(), rack.worker(0));
    tool(worker, "ip address add fd88::99/64 dev eth0 nodad");
    // The daemon hears of the address long before the kernel's last probe.
    tool(switch, "sysctl -q net.ipv6.conf.br0.dad_transmits=5");
    let mut daemon = serve(&rack);
    tool(switch, "ip address add fd88::99/64 dev br0");
    daemon.wait_for_line("fd88::99 is not served: another host has it, too", PATIENCE).expect("so");
    tool(switch, "ip address add fd88::98/64 dev br0 nodad");
    daemon.wait_for_line("fd88::98 at ", PATIENCE).expect("another address");
    let status = tool(switch, &format!("{} status", env!("CARGO_BIN_EXE_switchml-aggregator")));
    assert!(status.contains("fd88::98") && !status.contains("fd88::99"), "{status}");
}

#[test]
fn what_stands_in_its_way_it_says_in_one_line() {
    needs_racks!();
    let rack = rack(1, Mode::Native);
    let switch = rack.switch();
    refuses(
        switch,
        &[],
        "no interface given; use --iface to name those that workers are behind, out of lo, br0, p0",
    );
    refuses(switch, &["--iface", "p0", "--iface", "p0"], "interface \"p0\" is given twice");
    refuses(
        switch,
        &["--iface", "p0", "--iface", "lo"],
        "native XDP cannot serve ranks on this host through \"lo\"; use --mode bundle, or give \
         such a rank a network namespace behind a veth, and that veth with --iface in place of lo",
    );

    // A veth whose other end is as the system made it: XDP can send nothing into it.
    tool(switch, "ip link add bare type veth peer name far");
    tool(switch, "ip link set bare up");
    tool(switch, "ip link set far up");
    tool(switch, "ip address add 10.99.0.1/24 dev bare");
    refuses(
        switch,
        &["--iface", "p0", "--iface", "bare"],
        "interface \"bare\" would silently drop every answer",
    );

    // The driver says why, and what it says has a remedy.
    tool(switch, "ip link add large mtu 8901 type veth peer name larger mtu 8901");
    refuses(
        switch,
        &["--iface", "p0", "--iface", "large"],
        "the driver of interface \"large\" refuses native XDP (MTU 8901): \"veth: Peer MTU is too \
         large to set XDP\"; lower the MTU on both ends (`ip link set large mtu 1500`), or use \
         --mode bundle",
    );

    // In the rack, the worker's end of a veth has a program that passes frames.
    let mut daemon = spawn(rack.worker(0), &["--mode", "native", "--iface", "eth0"]);
    assert_eq!(daemon.wait(PATIENCE).expect("ends by itself").code(), Some(1));
    let stderr = daemon.stderr();
    assert!(
        stderr.contains(
            "interface \"eth0\" already has an XDP program, which `ip link show eth0` names"
        ),
        "{stderr}"
    );

    let _taken = switch.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 48864)));
    let _listener =
        switch.run(|| std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 48865))).expect("a port");
    refuses(switch, &["--iface", "p0"], "cannot serve the control plane at TCP [::]:48865");
}

/// Puts an interface of this kind, `host0`, over the switch host's only port, with its address.
/// False if this kernel does not have this kind.
fn put_over_the_port(switch: &Namespace, kind: &str) -> bool {
    let over = match kind {
        "macvlan" => "macvlan mode bridge",
        "bond" => "bond mode active-backup miimon 100",
        kind => kind,
    };
    let below = if kind == "macvlan" { "link nic0 " } else { "" };
    let mut add = Command::new("ip");
    add.args(format!("link add host0 {below}type {over}").split(' '));
    let added = switch.run(move || add.output()).expect("ip starts");
    if !added.status.success() {
        let why = String::from_utf8_lossy(&added.stderr).into_owned();
        assert!(why.contains("Unknown device type"), "{why}");
        return false;
    }
    tool(switch, "ip address flush dev nic0");
    // Otherwise the port answers ARP for all addresses of its host, with its own MAC.
    switch
        .run(|| std::fs::write("/proc/sys/net/ipv4/conf/nic0/arp_ignore", "1"))
        .expect("a setting of the namespace");
    if kind != "macvlan" {
        // A bond accepts only interfaces that are down.
        for line in ["nic0 down", "nic0 master host0", "nic0 up"] {
            tool(switch, &format!("ip link set {line}"));
        }
    }
    tool(switch, "ip link set host0 up");
    tool(switch, &format!("ip address add {AGGREGATOR_ADDRESS}/24 dev host0"));
    true
}

fn interfaces_over_a_port(mode: Mode) {
    for kind in ["macvlan", "bridge", "bond"] {
        let topology = Topology::OneNic(Fabric::default());
        let rack = Rack::new(RackOptions { workers: 2, mode, topology, ..RackOptions::default() });
        let rack = rack.expect("a rack");
        if !put_over_the_port(rack.switch(), kind) {
            leave_out("interfaces_over_a_port", &format!("this kernel has no {kind}"));
            continue;
        }
        println!("{kind}");
        // The workers know the port's MAC already.
        rack.workers().iter().for_each(|worker| drop(tool(worker, "ip neighbour flush all")));
        if mode == Mode::Native {
            let why = if kind == "bond" {
                "XDP cannot serve bond \"host0\""
            } else {
                "the driver of interface \"host0\" has no native XDP; use --mode bundle"
            };
            refuses(rack.switch(), &["--iface", "host0"], why);
            continue;
        }
        let mut daemon = ready(spawn(rack.switch(), &["--iface", "host0"]));
        run_ranks(&rack, |rank| async move {
            let mut member = Member::start(rank, 2).await;
            let lanes: Vec<_> = (0..352).map(|lane| (rank + 1) * lane).collect();
            assert_eq!(member.sum(0, 0, &lanes), (0..352).map(|lane| 3 * lane).collect::<Vec<_>>());
            member.leave().await;
        });
        daemon.terminate(PATIENCE).expect("ends");
        assert_eq!(attached(rack.switch()), Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn without_the_privilege_it_says_which_is_needed() {
    needs_racks!();
    let rack = rack(1, Mode::Native);
    // Root without any capabilities.
    let mut command = Command::new("setpriv");
    command.args([
        "--bounding-set=-all",
        "--inh-caps=-all",
        env!("CARGO_BIN_EXE_switchml-aggregator"),
    ]);
    command.args(["--iface", "p0"]);
    let mut daemon = rack.switch().spawn("aggregator", command).expect("started");
    assert_eq!(daemon.wait(PATIENCE).expect("ends by itself").code(), Some(1));
    let expected = "switchml-aggregator: not allowed to load or attach BPF programs; run it as \
                    root, or with the capabilities CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN\n";
    assert!(daemon.stderr().ends_with(expected), "{}", daemon.stderr());
}

fn a_second_daemon_does_not_push_the_first_one_out(mode: Mode) {
    let rack = rack(1, mode);
    let _first = serve(&rack);
    let refused = |mode: &str, pin_dir: &str, expected: &str| {
        let arguments =
            ["--mode", mode, "--iface", "p0", "--control", "0.0.0.0:1234", "--pin-dir", pin_dir];
        let mut second = spawn(rack.switch(), &arguments);
        assert_eq!(second.wait(PATIENCE).expect("ends").code(), Some(1));
        let stderr = second.stderr();
        assert!(stderr.lines().last().is_some_and(|error| error.contains(expected)), "{stderr}");
    };
    let program = if mode == Mode::Native { "switchml" } else { "switchml_bundle" };
    refused(
        "native",
        "/sys/fs/bpf/switchml",
        "another aggregator runs with \"/sys/fs/bpf/switchml\"; stop it",
    );
    // At either hook: both daemons would get the same frames, or one of them none.
    for second in ["native", "bundle"] {
        let expected =
            format!("interface \"p0\" is another aggregator's, whose program {program} (id ");
        refused(second, "/sys/fs/bpf/other", &expected);
    }
    assert!(!tool(rack.switch(), "ls /sys/fs/bpf").contains("other"));
    assert_eq!(attached(rack.switch()), ["p0"]);
}

/// The daemon's warnings, except that a veth's other end hides tags, and that there is no TLS and
/// no tags.
fn warnings(daemon: &Process) -> String {
    let known = ["VLAN", "the control plane trusts everybody", "can forge its results"];
    let is_new = |line: &&str| !known.iter().any(|known| line.contains(known));
    let log = daemon.stderr();
    log.lines().filter(|line| line.contains(" WARN ")).filter(is_new).collect()
}

/// A whole life of a daemon, with a job that lasts for several checks of the ports, and a restart.
fn three_capabilities_are_enough(mode: Mode) {
    let rack = rack(2, mode);
    let mut daemon = serve_with_three_capabilities(&rack);
    run_ranks(&rack, |rank| async move {
        let mut member = Member::start(rank, 2).await;
        for round in 0..5 {
            assert_eq!(member.sum(0, round, &[rank + round; 32]), vec![1 + 2 * round; 32]);
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        let id = Some(member.path.assigned.member(rank));
        let leave = LeaveRequest { member: id, ..LeaveRequest::default() };
        member.rank.client.leave(leave).await.expect("left");
    });
    assert_eq!(warnings(&daemon), "");
    daemon.kill().expect("killed");
    assert_eq!(attached(rack.switch()), rack.ports());
    let mut next = serve_with_three_capabilities(&rack);
    assert_eq!(warnings(&next), "");
    next.signal(Signal::TERM).expect("signalled");
    next.wait_success(PATIENCE).expect("in good order");
    assert_eq!(attached(rack.switch()), [] as [&str; 0]);
    assert!(!pins(rack.switch()));
}

/// A socket of the group, bound as a worker does: a child process may still hold the earlier job's
/// socket, until it executes its program.
fn group_socket(group: Ipv4Addr, port: u16) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((group, port)).into())?;
    Ok(socket.into())
}

/// A rank of the rack's job, in its worker's namespace.
pub struct Member {
    number: u32,
    rank: Rank,
    path: Path,
    /// The socket that gets RESULTs for all.
    group: UdpSocket,
}

impl Member {
    /// Joins the rack's job, and waits until all ranks have.
    pub async fn start(rank: u32, world_size: u32) -> Self {
        let local = Rack::worker_address(rank as usize);
        let mut control = Rank::join(CONTROL, "train", rank, world_size).await;
        let assigned = control.assigned().await;
        assert_eq!(assigned.data_address, AGGREGATOR_ADDRESS.to_string());
        let group: Ipv4Addr = assigned.group_address.parse().expect("a group");
        assert!(group.is_multicast());
        let socket = group_socket(group, assigned.group_port as u16).expect("a socket");
        socket.join_multicast_v4(&group, &local).expect("joined");
        let path = Path::bind(assigned, rank as u16, local);
        path.hello();
        control.ready(&path.assigned, 352).await.expect("ready");
        assert!(matches!(control.next().await, Event::Started(_)));
        Self { number: rank, rank: control, path, group: socket }
    }

    /// Contributes, and takes the RESULT that comes for all.
    pub fn sum(&self, slot: u16, round: u32, lanes: &[u32]) -> Vec<u32> {
        self.path.contribute(slot, round, lanes);
        self.result(slot, round)
    }

    /// Takes the RESULT that comes for all.
    fn result(&self, slot: u16, round: u32) -> Vec<u32> {
        let result = receive_on(&self.group, self.path.aggregator, PATIENCE).expect("a RESULT");
        assert_eq!((result.kind, result.header.rank.get()), (Kind::Result, EVERYONE));
        assert_eq!((result.header.slot.get(), result.header.round.get()), (slot, round));
        result.lanes
    }

    /// Leaves the job normally.
    pub async fn leave(&mut self) {
        let member = Some(self.path.assigned.member(self.number));
        let leave = LeaveRequest { member, ..LeaveRequest::default() };
        self.rank.client.leave(leave).await.expect("left");
    }
}

/// Runs a rank's life in each worker's namespace, all at the same time.
pub fn run_ranks<F: Future<Output = ()>>(
    rack: &Rack,
    life: impl Fn(u32) -> F + Copy + Send + 'static,
) {
    std::thread::scope(|scope| {
        for (rank, worker) in (0..).zip(rack.workers()) {
            scope.spawn(move || {
                worker.run(move || {
                    // The data path blocks this thread; another one answers the daemon's pings.
                    let runtime = tokio::runtime::Builder::new_multi_thread()
                        .worker_threads(1)
                        .enable_all()
                        .build()
                        .expect("a runtime");
                    runtime.block_on(life(rank));
                });
            });
        }
    });
}

fn ranks_get_their_sums_by_multicast_in_job_after_job(mode: Mode) {
    let rack = rack(3, mode);
    let mut daemon = serve(&rack);
    // The second job has the number and the slots of the first one, and finds no values of it.
    for _ in 0..2 {
        run_ranks(&rack, |rank| async move {
            let mut member = Member::start(rank, 3).await;
            for round in 0..4 {
                let lanes: Vec<_> = (0..352).map(|lane| (rank + 1) * (lane + round)).collect();
                let sum: Vec<_> = (0..352).map(|lane| 6 * (lane + round)).collect(); // (1 + 2 + 3)
                assert_eq!(member.sum(511, round, &lanes), sum);
            }
            // A resend gets the stored copy, for this rank alone.
            member.path.contribute(511, 3, &[0; 352]);
            let replay = member.path.receive();
            assert_eq!((replay.kind, u32::from(replay.header.rank.get())), (Kind::Result, rank));
            assert_eq!(replay.lanes[351], 6 * (351 + 3));
            member.leave().await;
        });
        daemon.wait_for_line("job 0 \"train\": ended", PATIENCE).expect("ended");
    }
    let status =
        tool(rack.switch(), &format!("{} status", env!("CARGO_BIN_EXE_switchml-aggregator")));
    let count = |name: &str| -> u64 {
        let line = status
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")))
            .unwrap_or_else(|| panic!("{status}"));
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    };
    assert_eq!((count("hello"), count("completed"), count("replayed")), (6, 8, 6));
    assert_eq!((count("started"), count("added")), (8, 8));
    assert_eq!(
        daemon.stderr().matches("DEBUG job 0: HELLO of a member: echoed.").count(),
        6,
        "{}",
        daemon.stderr()
    );
    daemon.signal(Signal::TERM).expect("signalled");
    daemon.wait_success(PATIENCE).expect("in good order");
}

/// Only rounds of slot 0 are timed: they take 100 ms here, those of slot 1 are over at once.
fn it_takes_the_time_of_some_rounds(mode: Mode) {
    const PAUSE: Duration = Duration::from_millis(100);
    let rack = rack(2, mode);
    let _daemon = serve(&rack);
    // Rounds that rank 0 has begun.
    let begun: &AtomicU32 = Box::leak(Box::default());
    run_ranks(&rack, move |rank| async move {
        let mut member = Member::start(rank, 2).await;
        for round in 0..3 {
            member.sum(1, round, &[rank; 32]);
            if rank == 0 {
                member.path.contribute(0, round, &[rank; 32]);
                begun.store(round + 1, Ordering::SeqCst);
                member.result(0, round);
            } else {
                while begun.load(Ordering::SeqCst) <= round {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                tokio::time::sleep(PAUSE).await;
                member.sum(0, round, &[rank; 32]);
            }
        }
        if rank == 1 {
            let status = member.rank.client.status(StatusRequest {}).await.expect("a status");
            let times = status.get_ref().round_times.clone().expect("times");
            // 2^15 units of 1.024 us are 34 ms.
            assert_eq!(times.counts[..=15], [0; 16], "{times:?}");
            assert_eq!(times.counts[16..].iter().sum::<u64>(), 3, "{times:?}");
            let sum = Duration::from_nanos(times.sum * 1024);
            assert!((Duration::from_millis(3 * 34)..PATIENCE).contains(&sum), "{sum:?}");
        }
    });
}

/// The usual object has nothing of that.
fn with_trace_each_packet_has_a_line(mode: Mode) {
    let maps = |object: &[u8]| {
        let object = aya_obj::Object::parse(object).expect("an object");
        object.maps.keys().any(|name| name == "AYA_LOGS")
    };
    assert!(!maps(switchml_data_plane::xdp_object()));
    assert!(maps(switchml_data_plane::xdp_trace_object()));

    let rack = rack(2, mode);
    let arguments: Vec<_> = [on_all_ports(&rack), vec!["--trace".to_owned()]].concat();
    let mut daemon =
        ready(spawn(rack.switch(), &arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    let is_over: &AtomicBool = Box::leak(Box::default());
    run_ranks(&rack, move |rank| async move {
        let member = Member::start(rank, 2).await;
        for round in 0..3 {
            assert_eq!(member.sum(7, round, &[rank; 32]), vec![1; 32]);
        }
        if rank == 0 {
            // The job ends when rank 0 leaves.
            while !is_over.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        } else {
            // A contribution to an older round from a rank that is in; and one to a slot outside of
            // the job.
            member.path.contribute(7, 1, &[1; 32]);
            assert_eq!(member.path.receive().kind, Kind::Result);
            member.path.contribute(512, 0, &[1; 32]);
            is_over.store(true, Ordering::SeqCst);
        }
    });
    for line in [
        "packet: job 0, rank 0, slot 0, round 0: hello",
        "packet: job 0, rank 1, slot 7, round 1: replayed",
        "packet: job 0, rank 1, slot 512, round 0: bad_slot",
    ] {
        daemon.wait_for_line(line, PATIENCE).unwrap_or_else(|_| panic!("no {line}"));
    }
    for round in 0..3 {
        for what in ["started", "completed"] {
            let end = format!(", slot 7, round {round}: {what}");
            let stderr = daemon.stderr();
            let lines = stderr.lines().filter(|line| line.ends_with(&end));
            assert_eq!(lines.count(), 1, "{end} in {stderr}");
        }
    }
    assert!(!daemon.stderr().contains("rank 65535"), "{}", daemon.stderr());
}

/// The slots show which rank is late; three capabilities are enough to read them.
fn it_knows_which_rank_does_not_contribute(mode: Mode) {
    let rack = rack(3, mode);
    let _daemon = serve_with_three_capabilities(&rack);
    run_ranks(&rack, |rank| async move {
        let mut member = Member::start(rank, 3).await;
        for chunk in 0..600 {
            let (slot, round) = (chunk % 512, u32::from(chunk / 512));
            if (chunk, rank) == (599, 2) {
                until_only_it_is_waited_for(&mut member).await;
            }
            assert_eq!(member.sum(slot, round, &[rank; 32]), vec![3; 32]); // 0 + 1 + 2
        }
    });
}

async fn until_only_it_is_waited_for(member: &mut Member) {
    let begin = std::time::Instant::now();
    loop {
        let jobs = member.rank.client.list_jobs(ListJobsRequest {}).await.expect("a list");
        let members = &jobs.get_ref().jobs[0].members;
        let waited_for = members.iter().filter(|member| member.lacked_ms > 0);
        let waited_for: Vec<_> = waited_for.map(|member| member.rank).collect();
        if waited_for == [member.number] {
            return;
        }
        // The other ranks may not have contributed at first.
        assert!(begin.elapsed() < PATIENCE, "{waited_for:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn a_lost_rank_aborts_its_job_in_the_data_plane_too(mode: Mode) {
    let rack = rack(2, mode);
    let _daemon = serve(&rack);
    run_ranks(&rack, |rank| async move {
        let mut member = Member::start(rank, 2).await;
        assert_eq!(member.sum(0, 0, &[rank; 32]), vec![1; 32]);
        if rank == 1 {
            return;
        }
        let Event::Aborted(aborted) = member.rank.next().await else { panic!("not aborted") };
        assert_eq!(aborted.ranks, [1]);
        member.path.contribute(0, 1, &[0; 32]);
        let reject = member.path.receive();
        assert_eq!(
            (reject.kind, reject.lanes),
            (Kind::Reject, vec![RejectReason::Aborted as u32, 0])
        );
        assert_eq!(receive_on(&member.group, member.path.aggregator, SILENCE), None);
    });
}

fn a_job_at_an_address_that_is_not_served_fails_with_the_remedy(mode: Mode) {
    let rack = rack(1, mode);
    let _daemon = serve(&rack);
    rack.switch().run(|| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut rank = Rank::join("127.0.0.1:48865".parse().unwrap(), "train", 0, 1).await;
            let told = loop {
                match rank.next().await {
                    Event::Aborted(aborted) => break aborted,
                    Event::Waiting(_) => {}
                    other => panic!("{other:?}"),
                }
            };
            let expected =
                "the aggregator failed: the data plane serves 10.88.0.254, not 127.0.0.1";
            assert!(told.reason.starts_with(expected), "{}", told.reason);
        });
    });
}
