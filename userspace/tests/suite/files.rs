//! A daemon that has reached its limit of open files waits, and goes on when files are free.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// Files that the daemon may have open; it needs about 15 for itself.
const FILES: usize = 40;
/// Connections that one host may have then.
const OF_HOST: usize = 20;

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// The daemon and its control address.
    fn start() -> (Self, String) {
        let command = format!(
            "ulimit -n {FILES}; exec {} --data-plane software --control 127.0.0.1:0 --data-port 0",
            env!("CARGO_BIN_EXE_switchml-aggregator")
        );
        let mut child = Command::new("bash")
            .args(["-c", &command])
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let log = BufReader::new(child.stderr.take().expect("piped"));
        let mut lines = log.lines().map(|line| line.expect("text"));
        let ready = lines.find(|line| line.contains("ready: control ")).expect("ready");
        // The remaining lines must be read, or the daemon would block.
        std::thread::spawn(move || lines.count());
        let address = ready.split("ready: control ").nth(1).and_then(|rest| rest.split(',').next());
        (Self(child), address.expect("an address").to_owned())
    }

    /// The processor time that it has used.
    fn busy(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("it runs");
        // utime and stime are fields 14 and 15 (proc(5)), in ticks of 10 ms; the name before them
        // ends with a parenthesis.
        let fields: Vec<_> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
        let ticks: u64 =
            fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(10 * ticks)
    }
}

fn connect_from(host: u8, control: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0));
    socket.bind(&from.into()).expect("an address of this host");
    let control: SocketAddr = control.parse().expect("an address");
    socket.connect(&control.into()).expect("connected");
    socket.into()
}

fn ask(stream: &mut TcpStream, path: &str, connection: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: {connection}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
}

/// The number of connections refused because their host had too many.
fn refused(control: &str) -> usize {
    let mut stream = connect_from(9, control);
    ask(&mut stream, "/metrics", "close");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("text");
    let start = "switchml_refusals_total{reason=\"too_many_connections\"} ";
    let times = text.lines().find_map(|line| line.strip_prefix(start)).expect("a count");
    times.parse().expect("a number")
}

/// Existing connections stay, and other hosts get in.
#[test]
fn a_host_has_half_of_the_files_at_most() {
    let (_daemon, control) = Daemon::start();
    let mut first = connect_from(2, &control);
    let still_there = |stream: &mut TcpStream| {
        ask(stream, "/healthz", "keep-alive");
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).expect("it is still there");
        assert_eq!(answer, *b"HTTP/1.1 200 OK");
    };
    still_there(&mut first);
    let _others: Vec<_> = (1..OF_HOST).map(|_| connect_from(2, &control)).collect();
    assert_eq!(refused(&control), 0);
    for _ in 0..5 {
        let mut stream = connect_from(2, &control);
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "it was let in");
    }
    assert_eq!(refused(&control), 5);
    let mut rest = [0; 1 << 12];
    first.set_nonblocking(true).expect("a socket");
    while first.read(&mut rest).is_ok_and(|len| len > 0) {}
    first.set_nonblocking(false).expect("a socket");
    still_there(&mut first);
}

fn status(control: &str) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchml-aggregator"));
    command.args(["status", "--connect", control]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("it starts").success()
}

#[test]
fn without_files_the_daemon_waits_until_there_are_some() {
    let (daemon, control) = Daemon::start();
    // Connections that are not accepted wait in the kernel's queue.
    let connections: Vec<_> =
        (0..2 * FILES).map(|at| connect_from(2 + (at % 8) as u8, &control)).collect();
    std::thread::sleep(Duration::from_millis(500));
    let (begin, before) = (Instant::now(), daemon.busy());
    std::thread::sleep(Duration::from_secs(2));
    // Ten attempts a second take almost no time; attempts without a pause would take a whole
    // processor.
    let share = (daemon.busy() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    assert!(share < 0.05, "busy {:.0} % of the time", 100.0 * share);
    drop(connections);
    let end = Instant::now() + Duration::from_secs(60);
    while !status(&control) {
        assert!(Instant::now() < end, "nobody is let in any more");
    }
}
