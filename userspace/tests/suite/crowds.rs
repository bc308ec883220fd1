//! Many strangers at once: their cost for the daemon, while ranks join and finish.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::join_event::Event;
use switchml_control::{JoinRequest, LeaveRequest, ListJobsRequest};
use tonic::transport::Channel;

use crate::common::program::{IN_SOFTWARE, Program, aggregator};
use crate::common::{PATIENCE, Path, Rank, join_request};

/// Connections that say nothing.
const SILENT: usize = 10_000;
/// Hosts that they come from.
const HOSTS: u8 = 4;
/// Connections by each version of HTTP whose answers nobody reads.
const UNREAD: usize = 40;
/// Requests on each connection: as many as the daemon serves concurrently.
const REQUESTS: u32 = 100;
/// Requests on each HTTP/1.1 connection, from a separate host: enough that the answers do not fit
/// into the kernel's buffers.
const IN_A_ROW: u32 = 2000;
const HOST_OF_THESE: u8 = 9;
/// Requests that a host may send in a minute, and cancel.
const MOST_REQUESTS: usize = 6000;
const MOST_RESETS: usize = 2000;
/// Lines that a host may cause in a minute.
const MOST_LINES: usize = 2500;

struct Daemon {
    program: Program,
    /// Counts the lines of the daemon's log.
    lines: JoinHandle<usize>,
}

impl Daemon {
    fn start() -> Self {
        let (program, log) = Program::start(&mut aggregator(&IN_SOFTWARE));
        Self { program, lines: std::thread::spawn(move || log.count()) }
    }

    /// Ends the daemon, and returns the number of lines that it has logged since it was ready.
    fn end(mut self) -> usize {
        self.program.process.kill().expect("it runs");
        self.lines.join().expect("text")
    }

    /// The daemon's memory, in KiB.
    fn rss(&self) -> u64 {
        let path = format!("/proc/{}/status", self.program.process.id());
        let status = fs::read_to_string(path).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its RSS");
        line.trim().trim_end_matches(" kB").parse().expect("KiB")
    }

    /// The daemon's open files.
    fn files(&self) -> usize {
        let path = format!("/proc/{}/fd", self.program.process.id());
        fs::read_dir(path).expect("it runs").count()
    }

    fn connect_from(&self, host: u8) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0));
        socket.bind(&from.into()).expect("an address of this host");
        socket.connect(&self.program.control.into()).expect("connected");
        socket.into()
    }

    /// The number of refusals for this reason, from `/metrics`.
    fn refused(&self, reason: &str) -> usize {
        let mut stream = self.connect_from(1);
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            .expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("text");
        let start = format!("switchml_refusals_total{{reason=\"{reason}\"}} ");
        let times = text.lines().find_map(|line| line.strip_prefix(&start));
        let times = times.unwrap_or_else(|| panic!("no count of {reason:?} in {text:?}"));
        times.parse().expect("a number")
    }

    /// Waits until this many closed connections are counted: closed for their clients' silence, or
    /// for too many requests.
    fn wait_for_closed(&self, connections: usize) {
        let closed = || self.refused("silent") + self.refused("too_many_requests");
        switchml_rack::wait_until!(
            PATIENCE,
            closed() == connections,
            "{} of {connections}",
            closed()
        );
    }

    /// Waits until the daemon has closed all unused connections.
    fn wait_until_alone(&self, before: usize) {
        switchml_rack::wait_until!(
            PATIENCE,
            self.files() <= before,
            "{} files, {before} before",
            self.files()
        );
    }

    /// Two ranks join, add up and leave. Returns how long the joins took.
    async fn run_job(&self, name: &str) -> Duration {
        let begin = Instant::now();
        let mut ranks = Vec::new();
        for rank in 0..2 {
            ranks.push(Rank::join(self.program.control, name, rank, 2).await);
        }
        let took = begin.elapsed() / 2;
        let mut paths = Vec::new();
        for rank in &mut ranks {
            let path = Path::new(rank.assigned().await, rank.rank as u16);
            path.hello();
            rank.ready(&path.assigned, 352).await.expect("ready");
            paths.push(path);
        }
        for rank in &mut ranks {
            assert!(matches!(rank.next().await, Event::Started(_)));
        }
        paths.iter().for_each(|path| path.contribute(0, 0, &[21; 352]));
        for (rank, path) in ranks.iter_mut().zip(&paths) {
            assert_eq!(path.receive().lanes, [42; 352]);
            let member = Some(path.assigned.member(rank.rank));
            let leave = LeaveRequest { member, ..LeaveRequest::default() };
            rank.client.leave(leave).await.expect("left");
        }
        took
    }
}

/// Raises the limit of open files for this process and the daemon. No other test needs fewer.
fn allow_files(files: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raise = |limit: Option<u64>| limit.map(|limit| limit.max(files));
    let raised = Rlimit { current: raise(current), maximum: raise(maximum) };
    setrlimit(Resource::Nofile, raised)
        .expect("allowed, or the limit of open files is high enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_silent_connections_keep_nobody_out() {
    allow_files(SILENT as u64 + 2000);
    let daemon = Daemon::start();
    let alone = daemon.run_job("before").await;
    let (rss, files) = (daemon.rss(), daemon.files());
    let begin = Instant::now();
    let silent: Vec<_> =
        (0..SILENT).map(|at| daemon.connect_from(2 + (at % usize::from(HOSTS)) as u8)).collect();
    let opened = begin.elapsed();
    let (most_files, crowded) = (daemon.files(), daemon.run_job("meanwhile").await);
    let grown = daemon.rss().saturating_sub(rss);
    println!(
        "{SILENT} opened in {opened:?}, {most_files} files at once, {grown} KiB more; a Join took \
         {alone:?} before, {crowded:?} meanwhile"
    );
    // A task, a timer and a socket each: 4 KiB, and as much again that is not freed at once.
    assert!(grown < SILENT as u64 * 8, "{grown} KiB");
    // The daemon closes them, not this process, and counts each.
    daemon.wait_until_alone(files);
    daemon.wait_for_closed(SILENT);
    drop(silent);
    daemon.run_job("after").await;
}

/// HTTP/2 (RFC 9113): a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request by HTTP/2 for this path: HEADERS with END_STREAM and END_HEADERS. Its fields are
/// indices into HPACK's table (RFC 7541, appendix A), except the path, which is a literal.
fn request(stream: u32, path: &str) -> Vec<u8> {
    let fields = [&[0x82, 0x86, 0x04, path.len() as u8], path.as_bytes()].concat();
    frame(1, 0x5, stream, &fields)
}

/// Asks for page and metrics as often as is allowed, and reads nothing.
fn ask_and_read_nothing(daemon: &Daemon, connection: usize) -> TcpStream {
    let mut stream = daemon.connect_from(2 + (connection % usize::from(HOSTS)) as u8);
    let requests = (0..REQUESTS).flat_map(|at| {
        let path = if at % 2 == 0 { "/metrics" } else { "/" };
        request(2 * at + 1, path)
    });
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(requests);
    stream.write_all(&bytes).expect("sent");
    stream
}

/// Sends requests by HTTP/1.1, one after the other, and reads no answer.
fn ask_in_a_row_and_read_nothing(daemon: &Daemon) -> TcpStream {
    let mut stream = daemon.connect_from(HOST_OF_THESE);
    let get = |path| format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n");
    let requests = (get("/metrics") + &get("/")).repeat(IN_A_ROW as usize / 2);
    // The daemon may close the connection before it has read everything.
    let _ = stream.write_all(requests.as_bytes());
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_and_does_not_read_costs_little() {
    let daemon = Daemon::start();
    daemon.run_job("before").await;
    let (rss, files) = (daemon.rss(), daemon.files());
    let unread: Vec<_> = (0..UNREAD)
        .flat_map(|at| [ask_and_read_nothing(&daemon, at), ask_in_a_row_and_read_nothing(&daemon)])
        .collect();
    let mut most = 0;
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        most = most.max(daemon.rss());
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = daemon.run_job("meanwhile").await;
    let grown = most.saturating_sub(rss);
    let asked = UNREAD as u32 * (REQUESTS + IN_A_ROW);
    println!("{asked} requests unread: {grown} KiB more; a Join took {took:?}");
    // With HTTP/1, only one answer at a time waits.
    assert!(grown < UNREAD as u64 * u64::from(REQUESTS + 1) * 16, "{grown} KiB");
    // The daemon closes them, not this process, and counts each.
    daemon.wait_until_alone(files);
    daemon.wait_for_closed(2 * UNREAD);
    drop(unread);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_too_much_is_sent_away() {
    let daemon = Daemon::start();
    let mut stream = daemon.connect_from(2);
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut asking = stream.try_clone().expect("a clone");
    let asking = std::thread::spawn(move || {
        let requests = "GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n".repeat(MOST_REQUESTS + 100);
        let _ = asking.write_all(requests.as_bytes());
    });
    let mut answers = Vec::new();
    let closed = stream.read_to_end(&mut answers);
    assert!(
        !closed.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        "it is open after {} answers",
        String::from_utf8_lossy(&answers).matches("HTTP/1.1 200").count()
    );
    asking.join().expect("no panic");
    assert!(daemon.refused("too_many_requests") > 0);
    daemon.run_job("of another host").await;
}

/// The next frame: its kind, flags and payload; `None` at the end.
fn next_frame(stream: &mut TcpStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    match stream.read_exact(&mut head) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing comes"),
        read => read.ok()?,
    }
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).ok()?;
    Some((head[3], head[4], payload))
}

/// Opens streams whose bodies never come, and cancels them once the daemon has them.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_takes_back_too_many_requests_is_sent_away() {
    // HTTP/2 itself ends a connection that has taken back 20 before they were looked at.
    const AT_ONCE: u32 = 15;
    let daemon = Daemon::start();
    let mut stream = daemon.connect_from(2);
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    // The scheme is http, and there is a path.
    let fields = |method: u8, path: &str| {
        [&[method, 0x86, 0x04, path.len() as u8], path.as_bytes()].concat()
    };
    let (mut taken_back, mut next, mut is_open) = (0, 1, true);
    while is_open && taken_back < 2 * MOST_RESETS {
        let first = next;
        let streams = (0..AT_ONCE).map(move |at| first + 2 * at);
        let last = first + 2 * AT_ONCE;
        next = last + 2;
        // POST, with END_HEADERS alone: a body should follow.
        let join = fields(0x83, "/switchml.v1.Aggregator/Join");
        bytes.extend(streams.clone().flat_map(|stream| frame(1, 0x4, stream, &join)));
        // GET, and END_STREAM besides. Requests are looked at in their order: once this one has an
        // answer, so were the others.
        bytes.extend(frame(1, 0x5, last, &fields(0x82, "/healthz")));
        is_open = stream.write_all(&std::mem::take(&mut bytes)).is_ok();
        while is_open {
            match next_frame(&mut stream) {
                // HEADERS or DATA with END_STREAM: the answer's end.
                Some((0 | 1, flags, _)) if flags & 1 == 1 => break,
                // The daemon asks for a sign of life.
                Some((6, 0, ping)) => is_open = stream.write_all(&frame(6, 1, 0, &ping)).is_ok(),
                Some(_) => {}
                None => is_open = false,
            }
        }
        // CANCEL.
        bytes.extend(streams.flat_map(|stream| frame(3, 0, stream, &8_u32.to_be_bytes())));
        taken_back += AT_ONCE as usize;
    }
    assert!(!is_open, "it is open after {taken_back}");
    assert!(taken_back >= MOST_RESETS, "it was closed after {taken_back}");
    assert!(daemon.refused("too_many_resets") > 0);
    daemon.run_job("of another host").await;
}

/// HTTP/2's library ends a connection that takes back requests faster than they are looked at, and
/// would have a line for each.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_breaks_the_rules_of_http_2_does_not_flood_the_log() {
    const CONNECTIONS: usize = 50;
    let daemon = Daemon::start();
    for _ in 0..CONNECTIONS {
        let mut stream = daemon.connect_from(2);
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, &[]));
        let numbers = (0..REQUESTS).map(|at| 2 * at + 1);
        bytes.extend(numbers.flat_map(|number| {
            [request(number, "/metrics"), frame(3, 0, number, &8_u32.to_be_bytes())].concat()
        }));
        // The daemon may close the connection before it has read everything.
        let _ = stream.write_all(&bytes);
        while next_frame(&mut stream).is_some() {}
    }
    let lines = daemon.end();
    assert!(lines < CONNECTIONS / 2, "{lines} lines of {CONNECTIONS} connections");
}

async fn until_all_gave_up(client: &mut AggregatorClient<Channel>) {
    let end = Instant::now() + PATIENCE;
    while !client.list_jobs(ListJobsRequest {}).await.expect("a list").get_ref().jobs.is_empty() {
        assert!(Instant::now() < end, "some have not given up");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_in_a_loop_do_not_flood_the_log() {
    let daemon = Daemon::start();
    let address = format!("http://{}", daemon.program.control);
    let mut client = AggregatorClient::connect(address).await.expect("connected");
    // Each join causes one line, and giving up another. Few joins at once may begin jobs.
    let joins = MOST_RESETS - 100;
    for number in 0..joins {
        let job_name = format!("job {number}");
        let request = JoinRequest { job_name, world_size: 2, ..join_request() };
        drop(client.join(request).await.expect("it waits"));
        if number % 100 == 99 {
            until_all_gave_up(&mut client).await;
        }
    }
    until_all_gave_up(&mut client).await;
    let lines = daemon.end();
    // After the limit, there is one line a second.
    assert!((MOST_LINES..2 * joins - 500).contains(&lines), "{lines} lines of {joins} joins");
}

/// The most open requests of a connection, as the daemon's SETTINGS tell.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_has_a_hundred_requests_under_way_at_most() {
    let daemon = crate::common::Daemon::start(512).await;
    let heard = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(daemon.control).expect("connected");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sent");
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("a frame");
        assert_eq!(head[3], 4, "SETTINGS come first");
        let mut settings = vec![0; usize::from(head[2])];
        stream.read_exact(&mut settings).expect("settings");
        settings
    });
    let settings = heard.await.expect("no panic");
    // SETTINGS_MAX_CONCURRENT_STREAMS is 3 (RFC 9113, 6.5.2).
    let most = settings.chunks(6).find(|setting| setting[..2] == [0, 3]).expect("a bound");
    assert_eq!(most[2..], 100_u32.to_be_bytes());
}
