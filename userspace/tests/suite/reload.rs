//! SIGHUP: the options that take effect, while nothing ends; and the messages to a service manager.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::join_event::Event;
use switchml_control::{JoinEvent, JoinRequest};
use switchml_rack::{Mode, in_both_modes};
use switchml_userspace::tokens::TokenKey;
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::common::program::aggregator;
use crate::common::{PATIENCE, join_request};
use crate::xdp::{Member, attached, rack, ready, run_ranks, spawn, tool};

in_both_modes! {
    interfaces_are_taken_in_and_let_go,
}

fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let file = folder.path().join(name);
    fs::write(&file, text).expect("written");
    file
}

/// Its options come by a pipe, so that it reads them while the signal comes.
#[test]
fn a_hangup_before_it_serves_does_not_end_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("options");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it starts").success());
    let options = "data-plane = 'software'\ncontrol = '127.0.0.1:0'\ndata-port = 0\n";
    let mut command = aggregator(&["--config"]);
    let mut process = command.arg(&pipe).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut given = fs::OpenOptions::new().write(true).open(&pipe).expect("it reads them");
    kill_process(Pid::from_child(&process), Signal::HUP).expect("it is there");
    given.write_all(options.as_bytes()).expect("it still reads them");
    drop(given);
    let log = BufReader::new(process.stderr.take().expect("piped"));
    let mut log = log.lines().map(|line| line.expect("text"));
    assert!(log.any(|line| line.contains("ready: control ")), "it has ended");
    // It was told to read them again.
    fs::write(&pipe, options).expect("it reads them");
    assert!(log.any(|line| line.contains("reloaded")), "it has ended");
    process.kill().expect("killed");
    process.wait().expect("ended");
}

/// A daemon with options from a file, started as by systemd.
struct Service {
    process: Child,
    log: BufReader<ChildStderr>,
    told: UnixDatagram,
    control: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Service {
    fn start(folder: &TempDir, config: &Path) -> Self {
        let socket = folder.path().join("notify");
        let told = UnixDatagram::bind(&socket).expect("a socket");
        told.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut command = Command::new(env!("CARGO_BIN_EXE_switchml-aggregator"));
        command.arg("--config").arg(config).env("NOTIFY_SOCKET", &socket);
        // The daemon then reports every 50 ms.
        command.env("WATCHDOG_USEC", "100000").stderr(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let log = BufReader::new(process.stderr.take().expect("piped"));
        let mut service = Self { process, log, told, control: String::new() };
        let line = service.wait_for_line("ready: control ");
        let address = line.split("ready: control ").nth(1).and_then(|rest| rest.split(',').next());
        service.control = address.expect("an address").to_owned();
        service
    }

    fn wait_for_line(&mut self, pattern: &str) -> String {
        let mut line = String::new();
        while !line.contains(pattern) {
            line.clear();
            assert_ne!(self.log.read_line(&mut line).expect("text"), 0, "no {pattern}");
        }
        line
    }

    /// Waits until the service manager is told `what`.
    fn wait_until_told(&self, what: &str) {
        let mut message = [0; 4096];
        loop {
            let len = self.told.recv(&mut message).unwrap_or_else(|_| panic!("no {what}"));
            let text = String::from_utf8_lossy(&message[..len]);
            if text.lines().any(|line| line == what) {
                return;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// Has it read its options again, and waits until that is done, with this line in the log.
    fn reload(&mut self, line: &str) {
        self.signal(Signal::HUP);
        self.wait_until_told("RELOADING=1");
        self.wait_until_told("READY=1");
        self.wait_for_line(line);
    }

    async fn client(&self) -> AggregatorClient<Channel> {
        AggregatorClient::connect(format!("http://{}", self.control)).await.expect("connected")
    }

    /// Rank 0 of a job of two, with a token of this key.
    async fn join(&self, key: &Path, job: &str) -> Result<Streaming<JoinEvent>, Status> {
        let key = TokenKey::read(key).expect("a key");
        let token = key.sign("blue", "*", Duration::from_secs(3600)).expect("a token");
        let job_name = job.to_owned();
        let request = JoinRequest { job_name, world_size: 2, token, ..join_request() };
        Ok(self.client().await.join(request).await?.into_inner())
    }
}

/// Whether the job still waits for its other rank.
async fn waits(events: &mut Streaming<JoinEvent>) -> bool {
    let event = tokio::time::timeout(PATIENCE, events.message()).await.expect("an event in time");
    let event = event.expect("no error").expect("the stream goes on").event;
    matches!(event, Some(Event::Waiting(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn options_are_read_again_and_no_job_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) =
        (write(&folder, "one", &"1".repeat(32)), write(&folder, "other", &"2".repeat(32)));
    let config = |key: &Path, further: &str| {
        let text = format!(
            "data-plane = 'software'\ncontrol = '127.0.0.1:0'\ndata-port = 0\n\
             token-key = '{}'\n{further}",
            key.display()
        );
        write(&folder, "config", &text)
    };
    let file = config(&one, "tenant-quota = 'jobs=1'\n");
    let mut service = Service::start(&folder, &file);
    service.wait_until_told("READY=1");
    service.wait_until_told("WATCHDOG=1");
    service.wait_until_told("WATCHDOG=1");

    let mut first = service.join(&one, "first").await.expect("it may have one job");
    assert!(waits(&mut first).await);
    let refused = service.join(&one, "second").await.expect_err("it has one job");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    config(&one, "tenant-quota = 'jobs=2'\n");
    service.reload("reloaded");
    let _second = service.join(&one, "second").await.expect("it may have two jobs");

    config(&one, "tenant-quota = 'jobs=many'\n");
    service.reload("not reloaded, all options stay as they were: ");
    write(&folder, "config", "slots = ");
    service.reload("not reloaded, all options stay as they were: ");
    config(Path::new("/no/such/key"), "");
    service.reload("not reloaded, all options stay as they were: token key /no/such/key: ");
    let refused = service.join(&one, "third").await.expect_err("it has two jobs");
    assert_eq!(refused.code(), Code::ResourceExhausted);

    config(&other, "slots = 1024\npacket-tags = true\ntls-self-signed = true\n");
    service.reload(
        "these options only change with a restart: --slots, --tls-self-signed, --packet-tags",
    );
    let refused = service.join(&one, "third").await.expect_err("another key");
    assert_eq!(refused.code(), Code::Unauthenticated);
    let _third = service.join(&other, "third").await.expect("no quota");

    // The first job goes on.
    let mut list = service.client().await;
    let jobs = list.list_jobs(switchml_control::ListJobsRequest {}).await.expect("a list");
    let names: Vec<_> = jobs.into_inner().jobs.into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["first", "second", "third"]);
    service.signal(Signal::TERM);
    service.wait_until_told("STOPPING=1");
    assert!(service.process.wait().expect("it ends").success());
}

fn interfaces_are_taken_in_and_let_go(mode: Mode) {
    let folder = tempfile::tempdir().expect("a folder");
    let rack = rack(2, mode);
    let config = |interfaces: &str| {
        let text = format!("mode = '{}'\niface = {interfaces}\n", mode.argument());
        write(&folder, "config", &text)
    };
    let file = config("'p0'");
    let file = file.to_str().expect("text");
    let mut daemon = ready(spawn(rack.switch(), &["--config", file]));
    assert_eq!(attached(rack.switch()), ["p0"]);

    config("['p0', 'p1']");
    daemon.signal(Signal::HUP).expect("signalled");
    daemon.wait_for_line("interface p1: ", PATIENCE).expect("attached");
    assert_eq!(attached(rack.switch()), ["p0", "p1"]);
    run_ranks(&rack, |rank| async move {
        let mut member = Member::start(rank, 2).await;
        assert_eq!(member.sum(0, 0, &[rank + 1; 32]), vec![3; 32]);
        member.leave().await;
    });

    config("'p0'");
    daemon.signal(Signal::HUP).expect("signalled");
    daemon.wait_for_line("interface p1 is not served any more", PATIENCE).expect("let go");
    // The kernel takes its time.
    let begin = Instant::now();
    while attached(rack.switch()) != ["p0"] {
        assert!(begin.elapsed() < PATIENCE, "{:?}", attached(rack.switch()));
    }

    // Another name of an interface stands for the same interface.
    tool(rack.switch(), "ip link property add dev p0 altname port-of-worker-0");
    config("'port-of-worker-0'");
    let before = daemon.stderr().matches("INFO reloaded").count();
    daemon.signal(Signal::HUP).expect("signalled");
    while daemon.stderr().matches("INFO reloaded").count() == before {
        assert!(begin.elapsed() < PATIENCE, "{}", daemon.stderr());
    }
    assert!(!daemon.stderr().contains("p0 is not served"), "{}", daemon.stderr());
    assert_eq!(attached(rack.switch()), ["p0"]);
    assert!(daemon.terminate(PATIENCE).expect("ends").success());
    assert_eq!(attached(rack.switch()), [] as [&str; 0]);
}
