//! A daemon that has reached its limit of open files waits, and goes on when files are free.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::common::program::{IN_SOFTWARE, Program, aggregator, busy};

/// Files that the daemon may have open; it needs about 15 for itself.
const FILES: usize = 40;
/// Connections that one host may have then.
const OF_HOST: usize = 20;

fn start() -> Program {
    let command = format!("ulimit -n {FILES}; exec \"$0\" \"$@\"");
    let aggregator = aggregator(&IN_SOFTWARE);
    let mut bash = Command::new("bash");
    bash.args(["-c", &command]).arg(aggregator.get_program()).args(aggregator.get_args());
    let (daemon, log) = Program::start(&mut bash);
    std::thread::spawn(move || log.count());
    daemon
}

fn connect_from(host: u8, control: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0));
    socket.bind(&from.into()).expect("an address of this host");
    socket.connect(&control.into()).expect("connected");
    socket.into()
}

fn ask(stream: &mut TcpStream, path: &str, connection: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: {connection}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
}

/// The number of connections refused because their host had too many.
fn refused(control: SocketAddr) -> usize {
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
    let daemon = start();
    let control = daemon.control;
    let mut first = connect_from(2, control);
    let still_there = |stream: &mut TcpStream| {
        ask(stream, "/healthz", "keep-alive");
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).expect("it is still there");
        assert_eq!(answer, *b"HTTP/1.1 200 OK");
    };
    still_there(&mut first);
    let _others: Vec<_> = (1..OF_HOST).map(|_| connect_from(2, control)).collect();
    assert_eq!(refused(control), 0);
    for _ in 0..5 {
        let mut stream = connect_from(2, control);
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "it was let in");
    }
    assert_eq!(refused(control), 5);
    let mut rest = [0; 1 << 12];
    first.set_nonblocking(true).expect("a socket");
    while first.read(&mut rest).is_ok_and(|len| len > 0) {}
    first.set_nonblocking(false).expect("a socket");
    still_there(&mut first);
}

fn status(control: SocketAddr) -> bool {
    let mut command = aggregator(&["status", "--connect", &control.to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("it starts").success()
}

#[test]
fn without_files_the_daemon_waits_until_there_are_some() {
    let daemon = start();
    let control = daemon.control;
    // Connections that are not accepted wait in the kernel's queue.
    let connections: Vec<_> =
        (0..2 * FILES).map(|at| connect_from(2 + (at % 8) as u8, control)).collect();
    std::thread::sleep(Duration::from_millis(500));
    let (begin, before) = (Instant::now(), busy(daemon.process.id()));
    std::thread::sleep(Duration::from_secs(2));
    // Ten attempts a second take almost no time; attempts without a pause would take a whole
    // processor.
    let share = (busy(daemon.process.id()) - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    assert!(share < 0.05, "busy {:.0} % of the time", 100.0 * share);
    drop(connections);
    switchml_rack::wait_until!(
        Duration::from_secs(60),
        status(control),
        "nobody is let in any more"
    );
}
