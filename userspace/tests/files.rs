//! A daemon that may open no more files: it waits, and goes on when it may.

use std::io::{BufRead, BufReader};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Files that the daemon may have open; it needs about 15 for itself.
const FILES: usize = 40;

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// With its control address.
    fn start() -> (Self, String) {
        let port = UdpSocket::bind("0.0.0.0:0")
            .and_then(|socket| socket.local_addr())
            .expect("a port")
            .port();
        let command = format!(
            "ulimit -n {FILES}; exec {} --data-plane software --control 127.0.0.1:0 --data-port \
             {port}",
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
        // Whatever else it says is read, so that it does not wait for that.
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

fn status(control: &str) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchml-aggregator"));
    command.args(["status", "--connect", control]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("it starts").success()
}

#[test]
fn without_files_the_daemon_waits_until_there_are_some() {
    let (daemon, control) = Daemon::start();
    // Those that are not let in wait in the kernel's queue.
    let connections: Vec<_> =
        (0..2 * FILES).map(|_| TcpStream::connect(&control).expect("queued")).collect();
    std::thread::sleep(Duration::from_millis(500));
    let (begin, before) = (Instant::now(), daemon.busy());
    std::thread::sleep(Duration::from_secs(2));
    // Ten attempts a second take next to nothing; one behind the other take a processor, or what is
    // left of it.
    let share = (daemon.busy() - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    assert!(share < 0.05, "busy {:.0} % of the time", 100.0 * share);
    drop(connections);
    let end = Instant::now() + Duration::from_secs(60);
    while !status(&control) {
        assert!(Instant::now() < end, "nobody is let in any more");
    }
}
