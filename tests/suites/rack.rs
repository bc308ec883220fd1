//! The rack itself: does it carry packets like a deployment's network, and does it go away?

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use switchml_rack::{
    AGGREGATOR_ADDRESS, Error, Fabric, MAX_MTU, MAX_WORKERS, Mode, Multicast, Namespace, Rack,
    RackOptions, Router, Shaping, Signal, Topology, needs_racks, wait_until,
};

const SOON: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);

fn rack(workers: usize, mtu: u32) -> Rack {
    Rack::new(RackOptions { workers, mtu, ..RackOptions::default() }).expect("a rack")
}

/// A socket of this namespace.
fn socket(namespace: &Namespace, address: Ipv4Addr, port: u16) -> UdpSocket {
    let socket = namespace.run(move || UdpSocket::bind((address, port))).expect("bind");
    socket.set_read_timeout(Some(SOON)).expect("a timeout");
    socket
}

/// Sends `payload` and returns who it seemed to come from at the other end.
fn send(from: &UdpSocket, to: &UdpSocket, payload: &[u8]) -> SocketAddr {
    from.send_to(payload, to.local_addr().unwrap()).expect("send");
    let mut buffer = [0; 9000];
    let (length, sender) = to.recv_from(&mut buffer).expect("the datagram arrives");
    assert_eq!(&buffer[..length], payload);
    sender
}

/// The output of a tool in the namespace.
fn tool(namespace: &Namespace, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    String::from_utf8(namespace.output(command).expect("the tool runs").stdout).unwrap()
}

/// The network namespaces that some task on this machine is in, by inode.
fn namespaces_in_use() -> Vec<u64> {
    let tasks = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read_dir(entry.path().join("task")).ok());
    let inodes = tasks.flat_map(|tasks| {
        tasks.flatten().filter_map(|task| fs::metadata(task.path().join("ns/net")).ok())
    });
    inodes.map(|file| file.ino()).collect()
}

fn inode(namespace: &Namespace) -> u64 {
    namespace.run(|| fs::metadata("/proc/thread-self/ns/net")).unwrap().ino()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    wait_until!(SOON, condition(), "not {what} after {SOON:?}");
}

/// Whether the process runs; a zombie does not.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|after_name| !after_name.is_empty() && !after_name.starts_with(" Z"))
}

/// Interfaces of the namespace that the tests run in.
fn outside_links() -> Vec<String> {
    let links = fs::read_dir("/sys/class/net").unwrap().flatten();
    links.map(|link| link.file_name().into_string().unwrap()).collect()
}

#[test]
fn options_out_of_range_are_refused_before_anything_is_made() {
    let build =
        |workers, mtu| Rack::new(RackOptions { workers, mtu, ..RackOptions::default() }).map(drop);
    assert!(matches!(build(0, 1500), Err(Error::Workers(0))));
    assert!(matches!(build(MAX_WORKERS + 1, 1500), Err(Error::Workers(17))));
    assert!(matches!(build(4, MAX_MTU + 1), Err(Error::Mtu(3501))));
    assert_eq!(
        build(4, 67).unwrap_err().to_string(),
        "an MTU of 67 bytes was asked for; native XDP on veth allows 68 to 3500"
    );
}

#[test]
fn workers_reach_the_switch_and_each_other() {
    needs_racks!();
    let rack = rack(3, 1500);
    let switch = socket(rack.switch(), AGGREGATOR_ADDRESS, 5000);
    let workers: Vec<_> =
        (0..3).map(|rank| socket(rack.worker(rank), Rack::worker_address(rank), 5000)).collect();
    for (rank, worker) in workers.iter().enumerate() {
        let address = SocketAddr::from(([10, 88, 0, rank as u8 + 1], 5000));
        assert_eq!(send(worker, &switch, b"up"), address);
        assert_eq!(send(&switch, worker, b"down"), "10.88.0.254:5000".parse().unwrap());
        assert_eq!(send(worker, &workers[(rank + 1) % 3], b"across"), address);
    }
}

#[test]
fn multicast_reaches_the_workers_that_joined() {
    needs_racks!();
    let rack = rack(3, 1500);
    let group = Ipv4Addr::new(239, 88, 0, 1);
    let members: Vec<_> =
        rack.workers().iter().map(|worker| socket(worker, Ipv4Addr::UNSPECIFIED, 6000)).collect();
    for member in &members[..2] {
        member.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED).expect("join");
    }
    let switch = socket(rack.switch(), AGGREGATOR_ADDRESS, 6000);
    for member in &members[..2] {
        let mut buffer = [0; 16];
        member.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        // The bridge takes a moment to hear who joined.
        let begin = Instant::now();
        let (length, sender) = loop {
            switch.send_to(b"result", (group, 6000)).expect("send");
            match member.recv_from(&mut buffer) {
                Err(error) if begin.elapsed() > PATIENCE => panic!("nothing arrives: {error}"),
                Err(_) => {}
                Ok(heard) => break heard,
            }
        };
        assert_eq!(
            (&buffer[..length], sender),
            (&b"result"[..], "10.88.0.254:6000".parse().unwrap())
        );
    }
    members[2].set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(
        members[2].recv_from(&mut [0; 16]).is_err(),
        "a worker that did not join hears nothing"
    );
}

fn rack_with(workers: usize, topology: Topology) -> Rack {
    Rack::new(RackOptions { workers, topology, ..RackOptions::default() }).expect("a rack")
}

/// Which of two workers hears multicast from the switch to a job's group, after the first one has
/// joined the group.
fn who_hears(topology: Topology) -> [bool; 2] {
    let rack = rack_with(2, topology);
    let group = Ipv4Addr::new(239, 255, 0, 1);
    let workers: Vec<_> =
        rack.workers().iter().map(|worker| socket(worker, Ipv4Addr::UNSPECIFIED, 6000)).collect();
    workers[0].join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED).expect("join");
    // Until then, a querier does not trust what it knows.
    std::thread::sleep(Duration::from_millis(300));
    let switch = socket(rack.switch(), AGGREGATOR_ADDRESS, 6000);
    switch.set_multicast_ttl_v4(64).expect("a TTL");
    // Hardly anything else comes.
    let frames = |rank: usize| -> u64 {
        let file = "/sys/class/net/eth0/statistics/rx_packets";
        tool(rack.worker(rank), "cat", &[file]).trim().parse().unwrap()
    };
    let before = [frames(0), frames(1)];
    const SENT: u64 = 1000;
    for _ in 0..SENT {
        switch.send_to(b"result", (group, 6000)).expect("send");
    }
    workers[0].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let heard = workers[0].recv_from(&mut [0; 16]).is_ok();
    let came = [frames(0) - before[0], frames(1) - before[1]].map(|frames| frames >= SENT);
    assert_eq!(heard, came[0], "what comes is heard, for it joined");
    came
}

#[test]
fn a_network_brings_multicast_to_whom_it_should() {
    needs_racks!();
    let fabric = |multicast| Topology::OneNic(Fabric { multicast, ..Fabric::default() });
    let router = |multicast| Topology::Routed(Router { multicast, ..Router::default() });
    assert_eq!(who_hears(fabric(Multicast::Flooded)), [true, true]);
    assert_eq!(who_hears(fabric(Multicast::Snooped)), [true, true], "Linux floods");
    assert_eq!(who_hears(fabric(Multicast::Queried)), [true, false], "members alone");
    assert_eq!(who_hears(fabric(Multicast::Blocked)), [false, false]);
    assert_eq!(who_hears(router(true)), [true, true], "its routes are fixed");
    assert_eq!(who_hears(router(false)), [false, false]);
}

#[test]
fn workers_behind_a_network_reach_the_switch_and_each_other() {
    needs_racks!();
    let router = |nat| Topology::Routed(Router { nat, ..Router::default() });
    for (topology, seen) in [
        (Topology::OneNic(Fabric::default()), [[10, 88, 0, 1], [10, 88, 0, 2]]),
        (router(false), [[10, 88, 1, 1], [10, 88, 2, 1]]),
        (router(true), [[10, 88, 0, 253]; 2]),
    ] {
        let rack = rack_with(2, topology);
        assert_eq!(rack.ports(), ["nic0"]);
        let switch = socket(rack.switch(), AGGREGATOR_ADDRESS, 5000);
        let workers = [0, 1].map(|rank| socket(rack.worker(rank), Ipv4Addr::UNSPECIFIED, 5000));
        for (worker, seen) in workers.iter().zip(seen) {
            worker.send_to(b"up", switch.local_addr().unwrap()).expect("send");
            let mut buffer = [0; 16];
            let (length, from) = switch.recv_from(&mut buffer).expect("the datagram arrives");
            assert_eq!((&buffer[..length], from.ip()), (&b"up"[..], seen.into()));
            switch.send_to(b"down", from).expect("send");
            let (length, _) = worker.recv_from(&mut buffer).expect("the datagram arrives");
            assert_eq!(&buffer[..length], b"down");
        }
    }
}

/// Payload that arrives, in bits per second, while 150 Mb/s are sent; measured after the first
/// moment, when the buckets are still full.
fn throughput(from: UdpSocket, to: &UdpSocket, payload: usize) -> f64 {
    let receiver = to.local_addr().unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let sender = std::thread::spawn(move || {
        let datagram = vec![7; payload];
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            // Refusals are the queue's, when it is full.
            (0..256).for_each(|_| drop(from.send_to(&datagram, receiver)));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let mut buffer = [0; 2000];
    let mut receive_for = |time: Duration| {
        let (begin, mut bytes) = (Instant::now(), 0);
        while begin.elapsed() < time {
            // The kernel may interrupt a wait with a timeout, without a signal to the test.
            match to.recv_from(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => bytes += received.expect("datagrams arrive").0,
            }
        }
        bytes
    };
    receive_for(Duration::from_millis(200));
    let measured = Instant::now();
    // Earlier datagrams still wait in the socket; they may be more than a fair share, if this
    // thread had to wait.
    to.set_nonblocking(true).unwrap();
    while to.recv_from(&mut [0; 2000]).is_ok() {}
    to.set_nonblocking(false).unwrap();
    let bytes = receive_for(Duration::from_millis(800));
    let rate = bytes as f64 * 8.0 / measured.elapsed().as_secs_f64();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    sender.join().unwrap();
    rate
}

#[test]
fn a_shaped_link_carries_its_rate_each_way() {
    needs_racks!();
    // Slow enough for a sender that has to wait for a processor, because the machine is busy.
    const RATE: f64 = 50e6;
    let rack = rack(1, 1500);
    let shaping = Shaping::new(&rack, RATE as u64).expect("shaping");
    let ends = [(rack.worker(0), Rack::worker_address(0)), (rack.switch(), AGGREGATOR_ADDRESS)];
    for (from, to) in [(0, 1), (1, 0)] {
        // Full frames: 1500 bytes and the Ethernet header count, 1472 arrive.
        let measure = || {
            let sockets = [from, to].map(|end| socket(ends[end].0, ends[end].1, 0));
            let [from, to] = sockets;
            throughput(from, &to, 1472) / (RATE * 1472.0 / 1514.0)
        };
        // A machine that is busy with something else makes it less at times, but never more.
        let share = (0..5).map(|_| measure()).find(|share| *share > 0.98);
        assert!(share.is_some_and(|share| share < 1.02), "{share:?} of the rate");
    }
    drop(shaping);
    let left =
        tool(rack.worker(0), "tc", &["qdisc", "show"]) + &tool(rack.worker(0), "ip", &["link"]);
    assert!(!left.contains("tbf") && !left.contains("ingress") && !left.contains("ifb"), "{left}");
}

#[test]
fn the_mtu_is_what_was_asked_for() {
    needs_racks!();
    for mtu in [600, 1500, MAX_MTU] {
        let rack = rack(1, mtu);
        let worker = socket(rack.worker(0), Rack::worker_address(0), 7000);
        let switch = socket(rack.switch(), AGGREGATOR_ADDRESS, 7000);
        // "FragCreates" is the last but two figure of the line.
        let fragments = || {
            let snmp = tool(rack.worker(0), "cat", &["/proc/net/snmp"]);
            let figures = snmp.lines().filter(|line| line.starts_with("Ip: ")).nth(1).unwrap();
            let names = snmp.lines().find(|line| line.starts_with("Ip: ")).unwrap();
            let column = names.split(' ').position(|name| name == "FragCreates").unwrap();
            figures.split(' ').nth(column).unwrap().parse::<u32>().unwrap()
        };
        // 20 bytes of IPv4 header and 8 of UDP header.
        let fits = vec![7; mtu as usize - 28];
        send(&worker, &switch, &fits);
        assert_eq!(fragments(), 0, "{} bytes fit in {mtu}", fits.len());
        send(&worker, &switch, &vec![7; mtu as usize - 27]);
        assert_eq!(fragments(), 2, "one byte more does not");
    }
}

#[test]
fn addresses_and_programs_are_as_drawn() {
    needs_racks!();
    let options =
        RackOptions { workers: MAX_WORKERS, mode: Mode::Native, ..RackOptions::default() };
    let rack = Rack::new(options).expect("a rack");
    assert_eq!(rack.ports().len(), 16);
    assert_eq!(rack.ports()[15], "p15");
    assert!(
        tool(rack.switch(), "ip", &["link", "show", "br0"])
            .contains(" link/ether 02:00:00:00:00:fe ")
    );
    assert!(
        tool(rack.switch(), "ip", &["link", "show", "p15"])
            .contains(" link/ether 02:00:00:00:01:10 ")
    );
    for (rank, worker) in rack.workers().iter().enumerate() {
        let link = tool(worker, "ip", &["-d", "link", "show", "eth0"]);
        assert!(link.contains(&format!(" link/ether 02:00:00:00:00:{:02x} ", rank + 1)), "{link}");
        // "xdp" means the driver's mode; the others are shown as "xdpgeneric" and "xdpoffload".
        assert!(link.contains(" mtu 1500 xdp ") && link.contains("prog/xdp id "), "{link}");
        let offloads = tool(worker, "ethtool", &["-k", "eth0"]);
        for off in [
            "tx-checksumming: off",
            "tcp-segmentation-offload: off",
            "generic-segmentation-offload: off",
        ] {
            assert!(offloads.contains(off), "{offloads}");
        }
    }
}

/// Without native XDP, superpackets pass whole.
#[test]
fn by_default_workers_have_offloads_and_no_program() {
    needs_racks!();
    let rack = rack(1, 1500);
    assert!(!tool(rack.worker(0), "ip", &["-d", "link", "show", "eth0"]).contains("xdp"));
    let offloads = tool(rack.worker(0), "ethtool", &["-k", "eth0"]);
    for on in ["tx-checksumming: on", "generic-segmentation-offload: on", "tx-udp-segmentation: on"]
    {
        assert!(offloads.contains(on), "{offloads}");
    }
}

#[test]
fn two_racks_live_side_by_side() {
    needs_racks!();
    let racks = [rack(2, 1500), rack(2, 1500)];
    // Both racks have the same addresses; packets stay in their rack.
    let switches = racks.each_ref().map(|rack| socket(rack.switch(), AGGREGATOR_ADDRESS, 5000));
    let workers =
        racks.each_ref().map(|rack| socket(rack.worker(1), Rack::worker_address(1), 5000));
    send(&workers[0], &switches[0], b"first");
    send(&workers[1], &switches[1], b"second");
    let [first, second] = racks;
    drop(first);
    send(&workers[1], &switches[1], b"second still");
    drop(second);
}

#[test]
fn dropping_a_rack_removes_it() {
    needs_racks!();
    let before = outside_links();
    let rack = rack(2, 1500);
    let namespaces: Vec<_> = rack.workers().iter().chain([rack.switch()]).map(inode).collect();
    let in_use = namespaces_in_use();
    assert!(namespaces.iter().all(|inode| in_use.contains(inode)));
    let mut forgotten = rack.worker(1).spawn("sleeper", sleeper()).expect("spawn");
    assert!(forgotten.is_running());
    assert_eq!(outside_links(), before, "no link of a rack is ever seen outside");
    drop(rack);
    let status = forgotten.wait(SOON).expect("it dies with the rack, even if it is held on to");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    let in_use = namespaces_in_use();
    assert!(namespaces.iter().all(|inode| !in_use.contains(inode)));
}

/// A program that runs until it is killed.
fn sleeper() -> Command {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    sleep
}

/// Set for the process that is to be killed.
const OWNER: &str = "SWITCHML_TEST_OWNS_A_RACK";

/// However its owner ends, a rack and the processes in it go away.
#[test]
fn a_killed_or_interrupted_owner_leaves_nothing() {
    needs_racks!();
    if std::env::var_os(OWNER).is_some() {
        own_a_rack();
    }
    for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
        let (mut owner, printed) = start_owner();
        let namespaces: Vec<u64> =
            printed.lines().filter_map(|l| l.strip_prefix("namespace ")?.parse().ok()).collect();
        let sleeper: u32 =
            printed.lines().find_map(|l| l.strip_prefix("process ")?.parse().ok()).unwrap();
        assert_eq!(namespaces.len(), 3);
        assert!(
            runs(sleeper) && namespaces.iter().all(|inode| namespaces_in_use().contains(inode))
        );
        rustix::process::kill_process(rustix::process::Pid::from_child(&owner), signal)
            .expect("kill");
        owner.wait().expect("reap");
        wait_until("gone", || {
            !runs(sleeper) && namespaces.iter().all(|inode| !namespaces_in_use().contains(inode))
        });
    }
}

/// Starts this test again as the owner of a rack, and returns its output up to "ready".
fn start_owner() -> (Child, String) {
    use std::io::{BufRead, BufReader};
    // A shell that starts the tests in the background may have them ignore SIGINT.
    let mut owner = Command::new("env")
        .arg("--default-signal=INT")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_or_interrupted_owner_leaves_nothing", "--nocapture"])
        .env(OWNER, "")
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test's own executable");
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok);
    let printed: Vec<_> = lines.take_while(|line| line != "ready").collect();
    (owner, printed.join("\n"))
}

/// The owner of a rack, which is to be killed.
fn own_a_rack() -> ! {
    let rack = rack(2, 1500);
    println!();
    rack.workers()
        .iter()
        .chain([rack.switch()])
        .for_each(|namespace| println!("namespace {}", inode(namespace)));
    let sleeper = rack.worker(0).spawn("sleeper", sleeper()).expect("spawn");
    println!("process {}\nready", sleeper.id());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_panic_in_a_test_removes_its_rack() {
    needs_racks!();
    let (tell, told) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let rack = rack(1, 1500);
        let sleeper = rack.worker(0).spawn("sleeper", sleeper()).expect("spawn");
        tell.send((sleeper.id(), inode(rack.worker(0)))).unwrap();
        panic!("on purpose");
    });
    let (sleeper, namespace) = told.recv().unwrap();
    assert!(test.join().is_err());
    assert!(!runs(sleeper) && !namespaces_in_use().contains(&namespace));
}
