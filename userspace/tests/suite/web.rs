//! The daemon's HTTP interface: for people, programs and Prometheus.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use switchml_control::{LeaveRequest, Path as Packets, ReportRoundTripsRequest, Times};
use switchml_data_plane::software::Software;
use tempfile::TempDir;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::common::slow::{Slow, What};
use crate::common::{Daemon, PATIENCE};

/// An answer.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Asks by HTTP/1.1, as browsers and Prometheus do.
async fn get(address: SocketAddr, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let text = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("text");
        text
    });
    let text = text.await.expect("no panic");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer { status: status.expect("a status"), head: head.to_owned(), body: body.to_owned() }
}

async fn status(daemon: &Daemon) -> Value {
    serde_json::from_str(&get(daemon.control, "/status.json").await.body).expect("JSON")
}

async fn metrics(daemon: &Daemon) -> String {
    // Tests ask until something is there; a host has 6000 requests a minute.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let answer = get(daemon.control, "/metrics").await;
    assert_eq!(answer.status, 200, "{}", answer.head);
    answer.body
}

/// When the kernel takes long to prepare a job, nobody else waits.
#[tokio::test]
async fn while_a_job_is_prepared_all_others_are_served() {
    let (events, _) = switchml_userspace::events::channel();
    let software = Software::start(None, 0, 2048, events).expect("a socket");
    let (data_plane, go) = Slow::new(software, What::Prepare);
    let daemon = Daemon::over(data_plane, |limits| limits).await;
    let mut first = [daemon.join("first", 0, 2).await, daemon.join("first", 1, 2).await];
    assert_eq!(get(daemon.control, "/healthz").await.status, 200);
    assert_eq!(get(daemon.control, "/readyz").await.status, 200);
    assert_eq!(daemon.start_job("second", 2).await.len(), 2);
    assert_eq!(status(&daemon).await["jobs"][0]["name"], "first");
    go.send(()).expect("it waits");
    for rank in &mut first {
        assert_eq!(rank.assigned().await.job, 0);
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_for_whom_a_job_waits_and_since_when() {
    let daemon = Daemon::start(1024).await;
    let mut ranks = Vec::new();
    for rank in [0, 1, 2] {
        ranks.push(daemon.join("train", rank, 4).await);
    }
    let first = &status(&daemon).await["jobs"][0];
    assert_eq!(first["state"], "waiting");
    assert_eq!(first["number"], Value::Null);
    assert_eq!(first["waits_for"], serde_json::json!([3]));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let second = &status(&daemon).await["jobs"][0];
    let waited = |job: &Value| job["waiting_seconds"].as_f64().expect("it waits");
    assert!(waited(second) >= waited(first) + 0.3, "{first} {second}");
    let text = metrics(&daemon).await;
    for line in [
        "switchml_job_rank_awaited{name=\"train\",number=\"\",rank=\"3\"} 1",
        "switchml_job_ranks{name=\"train\",number=\"\"} 4",
        "switchml_job_ranks_here{name=\"train\",number=\"\"} 3",
        "switchml_jobs{state=\"waiting\"} 1",
        "switchml_jobs{state=\"started\"} 0",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line} in {text}");
    }
    assert_eq!(text.matches("switchml_job_rank_awaited{").count(), 1, "{text}");

    ranks.push(daemon.join("train", 3, 4).await);
    let whole = &status(&daemon).await["jobs"][0];
    assert_eq!((&whole["state"], &whole["number"]), (&"assigned".into(), &0.into()));
    assert_eq!(whole["waits_for"], serde_json::json!([0, 1, 2, 3]), "all are to be ready");
    assert_eq!(whole["waiting_seconds"], Value::Null);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_waits_for_nobody_and_its_packets_count() {
    let daemon = Daemon::start(1024).await;
    let members = daemon.start_job("train", 2).await;
    let job = &status(&daemon).await["jobs"][0];
    assert_eq!((&job["state"], &job["waits_for"]), (&"started".into(), &serde_json::json!([])));
    assert_eq!(job["members"][1]["results"], "by copies (all ranks get their own)");
    // Each rank has said HELLO once.
    let text = metrics(&daemon).await;
    assert!(text.contains("\nswitchml_packets_total{outcome=\"hello\"} 2\n"), "{text}");
    assert!(text.contains("\nswitchml_slots 1024\n"), "{text}");
    assert!(text.contains("\nswitchml_slots_free 512\n"), "{text}");
    drop(members);
    daemon.stop().await;
}

/// Asks until a job is seen to wait for ranks, and returns it.
pub async fn waiting_job(daemon: &Daemon) -> Value {
    let begin = Instant::now();
    loop {
        let job = status(daemon).await["jobs"][0].take();
        if job["waits_for"] != serde_json::json!([]) {
            return job;
        }
        assert!(begin.elapsed() < PATIENCE, "{job}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Chunk 0 is complete, of chunk 1 rank 3's contribution is missing, and of chunk 2 rank 2's, too.
pub async fn job_that_lacks_rank_3(
    daemon: &Daemon,
) -> Vec<(crate::common::Rank, crate::common::Path)> {
    let members = daemon.start_job("train", 4).await;
    for (slot, ranks) in [(0, 4), (1, 3), (2, 2)] {
        for (_, path) in &members[..ranks] {
            path.contribute(slot, 0, &[1; 352]);
        }
    }
    members
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_which_rank_of_a_running_job_does_not_contribute() {
    let daemon = Daemon::start(1024).await;
    let mut members = job_that_lacks_rank_3(&daemon).await;
    let job = waiting_job(&daemon).await;
    assert_eq!(job["waits_for"], serde_json::json!([3]), "of the oldest round");
    assert_eq!(job["waits_for_them"], "to contribute");
    let first = job["waiting_seconds"].as_f64().expect("a time");
    tokio::time::sleep(Duration::from_millis(1000)).await;
    let job = waiting_job(&daemon).await;
    let second = job["waiting_seconds"].as_f64().expect("a time");
    // Looks at the slots are up to a quarter of a second apart, more if this host is busy.
    assert!(second > first && second <= first + PATIENCE.as_secs_f64(), "{first} {second}");
    let of_rank = |rank: usize| job["members"][rank]["waited_for_seconds"].as_f64().expect("one");
    assert!(of_rank(3) >= second && of_rank(0) == 0.0, "{job}");
    let text = metrics(&daemon).await;
    for line in [
        "switchml_job_rank_awaited{name=\"train\",number=\"0\",rank=\"3\"} 1",
        "switchml_job_stalled_seconds{name=\"train\",number=\"0\"} ",
        "switchml_rank_waited_seconds_total{name=\"train\",number=\"0\",rank=\"3\"} ",
    ] {
        assert!(text.contains(&format!("\n{line}")), "no {line} in {text}");
    }
    assert_eq!(text.matches("switchml_rank_waited_seconds_total{").count(), 1, "{text}");

    // Rank 3 contributes, and is no longer waited for; chunk 2 now waits for ranks 2 and 3.
    members[3].1.contribute(1, 0, &[1; 352]);
    let begin = Instant::now();
    while waiting_job(&daemon).await["waits_for"] != serde_json::json!([2, 3]) {
        assert!(begin.elapsed() < PATIENCE);
    }
    for (_, path) in &mut members[2..] {
        path.contribute(2, 0, &[1; 352]);
    }
    while status(&daemon).await["jobs"][0]["waits_for"] != serde_json::json!([]) {
        assert!(begin.elapsed() < PATIENCE);
    }
    let job = status(&daemon).await["jobs"][0].take();
    assert_eq!((&job["waits_for_them"], &job["waiting_seconds"]), (&Value::Null, &Value::Null));
    drop(members);
    daemon.stop().await;
}

/// Asks until the first job is so, and returns it.
async fn job_that(daemon: &Daemon, is: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let job = status(daemon).await["jobs"][0].take();
        if is(&job) {
            return job;
        }
        assert!(begin.elapsed() < PATIENCE, "{job}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_what_a_running_job_gets_done() {
    let daemon = Daemon::start(1024).await;
    let members = daemon.start_job("train", 2).await;
    for slot in 0..5 {
        members.iter().for_each(|(_, path)| path.contribute(slot, 0, &[1; 352]));
    }
    // Chunk 5 has no result.
    members[0].1.contribute(5, 0, &[1; 352]);
    // Five results of 352 lanes of 4 bytes each.
    let done = |job: &Value| job["throughput"]["bytes"] == 5 * 352 * 4;
    job_that(&daemon, done).await;
    // A period later there are no more bytes.
    let rates = |job: &Value| job["throughput"]["bytes_per_second"].as_array().map_or(0, Vec::len);
    let before = rates(&status(&daemon).await["jobs"][0]);
    let job = job_that(&daemon, |job| rates(job) > before).await;
    assert!(done(&job), "{job}");
    assert_eq!(job["throughput"]["period_seconds"], 2.0);
    assert!(job["age_seconds"].as_f64().expect("an age") >= 2.0, "{job}");
    drop(members);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_why_a_job_was_aborted() {
    let daemon = Daemon::start(1024).await;
    let mut members = daemon.start_job("train", 2).await;
    let reason = |job: &Value| job["reason"].as_str().map(str::to_owned);
    assert_eq!(reason(&status(&daemon).await["jobs"][0]), None);
    members.truncate(1);
    let job = job_that(&daemon, |job| job["state"] == "aborted").await;
    assert!(reason(&job).is_some_and(|reason| reason.starts_with("rank 1")), "{job}");
    drop(members);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_who_it_is_and_what_it_asks_for() {
    let daemon = Daemon::start(1024).await;
    let first = status(&daemon).await;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_eq!(first["host"], host.trim());
    let open = serde_json::json!({"tls": false, "client_certificates": false, "tokens": false,
        "certificate_expires": null});
    assert_eq!(first["security"], open);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let uptime = |status: &Value| status["uptime_seconds"].as_f64().expect("a time");
    assert!(uptime(&status(&daemon).await) >= uptime(&first) + 0.05);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_how_long_rounds_take() {
    let daemon = Daemon::start(1024).await;
    let members = daemon.start_job("train", 2).await;
    for (slot, pause) in [(0, 100), (1, 0)] {
        members[0].1.contribute(slot, 0, &[1; 352]);
        while daemon.counter("started").await <= slot.into() {}
        tokio::time::sleep(Duration::from_millis(pause)).await;
        members[1].1.contribute(slot, 0, &[1; 352]);
        members[1].1.receive();
    }
    let times = status(&daemon).await["round_times"].take();
    let sum = times["sum_seconds"].as_f64().expect("a sum");
    assert!(sum >= 0.1, "{times}");
    let text = metrics(&daemon).await;
    let value = |line: &str| -> f64 {
        let start = format!("{line} ");
        let mut values = text.lines().filter_map(|line| line.strip_prefix(&start));
        values.next().unwrap_or_else(|| panic!("no {line} in {text}")).parse().expect("a number")
    };
    let below =
        |bound: &str| value(&format!("switchml_round_duration_seconds_bucket{{le={bound}}}"));
    assert_eq!(value("switchml_round_duration_seconds_count"), 1.0);
    assert_eq!(value("switchml_round_duration_seconds_sum"), sum);
    assert_eq!((below("\"0.067108864\""), below("\"+Inf\"")), (0.0, 1.0));
    drop(members);
    daemon.stop().await;
}

/// The ranks' reports while the job runs, and at its end; in both of Prometheus' formats.
#[tokio::test(flavor = "multi_thread")]
async fn it_shows_the_round_trips_that_ranks_report() {
    let daemon = Daemon::start(1024).await;
    let mut members = daemon.start_job("train", 2).await;
    let mut client = daemon.client().await;
    let ids: Vec<_> =
        members.iter().map(|(rank, path)| Some(path.assigned.member(rank.rank))).collect();
    // 5 of 2 to 4 units of 1.024 us, then 7 of more than 4.3 s.
    let of = |bucket: usize, count, sum| {
        let mut counts = vec![0; 24];
        counts[bucket] = count;
        Some(Times { counts, sum })
    };
    let report = |round_trips: Option<Times>| ReportRoundTripsRequest {
        member: ids[0],
        round_trips,
        path: None,
    };
    client.report_round_trips(report(of(2, 5, 15))).await.expect("taken");
    let wrong = Some(Times { counts: vec![1; 25], sum: 1 });
    let status = client.report_round_trips(report(wrong)).await.expect_err("refused");
    assert_eq!(
        (status.code(), status.message()),
        (tonic::Code::InvalidArgument, "round trips in 25 buckets; give 24")
    );
    let round_trips = of(23, 7, 35_000_000);
    let leave = LeaveRequest { member: ids[1], round_trips, ..LeaveRequest::default() };
    client.leave(leave).await.expect("taken");
    members.clear();
    let text = metrics(&daemon).await;
    for line in [
        "switchml_round_trip_seconds_bucket{le=\"0.002097152\"} 5",
        "switchml_round_trip_seconds_count 12",
        // (15 + 35,000,000) × 1.024 us.
        "switchml_round_trip_seconds_sum 35.84001536",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "no {line} in {text}");
    }
    daemon.stop().await;
}

/// Of 1000 packets rank 1 loses 50, and tells so. When the job is gone, all of it is told still.
#[tokio::test(flavor = "multi_thread")]
async fn it_shows_which_rank_loses_packets_and_why_a_job_ended() {
    let daemon = Daemon::start(1024).await;
    let mut members = daemon.start_job("train and hosts", 2).await;
    let member = Some(members[1].1.assigned.member(members[1].0.rank));
    let path = Packets {
        joined_ms: 10_000,
        in_calls_ms: 9_000,
        sent: 1000,
        resent: 60,
        pending: 10,
        lost: 50,
    };
    let report = ReportRoundTripsRequest { member, path: Some(path), round_trips: None };
    daemon.client().await.report_round_trips(report).await.expect("taken");
    let job = status(&daemon).await["jobs"][0].take();
    assert_eq!(job["slow"], "rank 1 (127.0.0.1) loses 5 % of its packets");
    assert_eq!(job["name"], "train", "without what ranks put behind it");
    let text = metrics(&daemon).await;
    for (what, count) in [("sent", 1000), ("resent", 60), ("pending", 10), ("lost", 50)] {
        let line =
            format!("switchml_rank_{what}_total{{name=\"train\",number=\"0\",rank=\"1\"}} {count}");
        assert!(text.contains(&format!("\n{line}\n")), "no {line} in {text}");
    }
    let leave = LeaveRequest { member, error: "no memory".to_owned(), ..LeaveRequest::default() };
    daemon.client().await.leave(leave).await.expect("taken");
    members.clear();
    let begin = Instant::now();
    while status(&daemon).await["jobs"] != serde_json::json!([]) {
        assert!(begin.elapsed() < PATIENCE);
    }
    let ended = status(&daemon).await["ended_lately"].take();
    assert_eq!(ended.as_array().map(Vec::len), Some(1), "{ended}");
    let ended = &ended[0];
    let reason = "rank 1 (127.0.0.1) failed: no memory";
    assert_eq!((&ended["name"], &ended["number"]), (&"train".into(), &0.into()));
    assert_eq!((&ended["ending"], &ended["reason"]), (&"rank_failed".into(), &reason.into()));
    assert!(
        ended["ago_seconds"].as_f64().is_some_and(|ago| ago <= begin.elapsed().as_secs_f64() + 1.0)
    );
    let line = format!(
        "switchml_job_ended_seconds{{name=\"train\",number=\"0\",ending=\"rank_failed\",\
         reason=\"{reason}\"}} "
    );
    let text = metrics(&daemon).await;
    assert!(text.contains(&format!("\n{line}")), "no {line} in {text}");
    daemon.stop().await;
}

/// The icon is a data URL, which a policy without `img-src` forbids.
#[tokio::test]
async fn the_policy_lets_the_page_have_its_icon() {
    let daemon = Daemon::start(1024).await;
    let page = get(daemon.control, "/").await;
    assert!(page.body.contains("<link rel=\"icon\" href=\"data:"), "{}", page.body);
    let is_policy = |line: &&str| line.to_ascii_lowercase().starts_with("content-security-policy:");
    let policy = page.head.lines().find(is_policy).expect("a policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("img-src data:"), "{policy}");
    daemon.stop().await;
}

/// The value of a metric's sample, given with its labels; `None` if there is none.
fn sample(text: &str, name: &str) -> Option<f64> {
    let start = format!("{name} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(value.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn it_counts_jobs_by_how_they_ended_and_what_they_got_done() {
    let daemon = Daemon::start(1024).await;
    let mut members = daemon.start_job("works", 2).await;
    for (_, path) in &members {
        path.contribute(0, 0, &[1; 352]);
    }
    // One full packet of lanes, when the slots are looked at next.
    let bytes = "switchml_job_results_bytes_total{name=\"works\",number=\"0\"}";
    let begin = Instant::now();
    while sample(&metrics(&daemon).await, bytes) != Some(4.0 * 352.0) {
        assert!(begin.elapsed() < PATIENCE, "{}", metrics(&daemon).await);
    }
    for (rank, path) in &mut members {
        let member = Some(path.assigned.member(rank.rank));
        let leave = LeaveRequest { member, ..Default::default() };
        rank.client.leave(leave).await.expect("left");
    }
    drop(daemon.start_job("loses its ranks", 2).await);
    let ended = |ending: &str| format!("switchml_jobs_ended_total{{ending=\"{ending}\"}}");
    while sample(&metrics(&daemon).await, &ended("rank_lost")) != Some(1.0) {
        assert!(begin.elapsed() < PATIENCE, "{}", metrics(&daemon).await);
    }
    let text = metrics(&daemon).await;
    assert_eq!(sample(&text, &ended("finished")), Some(1.0), "{text}");
    assert_eq!(sample(&text, &ended("stopped")), Some(0.0), "{text}");
    assert_eq!(sample(&text, "switchml_jobs_started_total"), Some(2.0), "{text}");
    daemon.stop().await;
}

/// The daemon's own process is this one.
#[tokio::test(flavor = "multi_thread")]
async fn it_shows_what_its_process_uses() {
    let daemon = Daemon::start(1024).await;
    let text = metrics(&daemon).await;
    let value = |name: &str| sample(&text, name).unwrap_or_else(|| panic!("no {name} in {text}"));
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    let peak: f64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    let resident = value("process_resident_memory_bytes");
    assert!((1e6..=1024.0 * peak).contains(&resident), "{resident}, at most {peak} kB");
    // Standard input, output and error, and the daemon's socket.
    assert!(value("process_open_fds") >= 4.0, "{text}");
    assert!(value("process_max_fds") >= value("process_open_fds"), "{text}");
    assert!(value("process_cpu_seconds_total") > 0.0, "{text}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let start = value("process_start_time_seconds");
    assert!((now - 3600.0..=now).contains(&start), "{start}, now {now}");
    let again = metrics(&daemon).await;
    assert_eq!(sample(&again, "process_start_time_seconds"), Some(start));
    daemon.stop().await;
}

/// kubelet asks in this way.
#[tokio::test(flavor = "multi_thread")]
async fn probes_may_speak_grpc() {
    let daemon = Daemon::start(1024).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", daemon.control));
    let channel = channel.expect("a URL").connect().await.expect("connected");
    let mut client = HealthClient::new(channel);
    for service in ["", "switchml.v1.Aggregator", "liveness"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let reply = client.check(request).await.expect("an answer").into_inner();
        assert_eq!(reply.status(), ServingStatus::Serving, "{service:?}");
    }
    let request = HealthCheckRequest { service: "other".to_owned() };
    let refused = client.check(request).await.expect_err("no such service");
    assert_eq!(refused.code(), tonic::Code::NotFound);
    daemon.stop().await;
}

/// A job's name may contain anything: it must not forge a line.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_jobs_cannot_forge_metrics() {
    let daemon = Daemon::start(1024).await;
    let name = "a\"} 1\nswitchml_slots_free 0\\";
    let rank = daemon.join(name, 0, 2).await;
    let text = metrics(&daemon).await;
    let line = r#"switchml_job_ranks{name="a\"} 1\nswitchml_slots_free 0\\",number=""} 2"#;
    assert!(text.contains(&format!("\n{line}\n")), "{text}");
    assert!(!text.contains("\nswitchml_slots_free 0"), "{text}");
    assert_eq!(status(&daemon).await["jobs"][0]["name"], name);
    drop(rank);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_the_page() {
    let daemon = Daemon::start(512).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(daemon.control, path).await.status, 200, "{path}");
    }
    let page = get(daemon.control, "/").await;
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    for file in ["page.js", "page.css"] {
        assert!(page.body.contains(&format!("\"{file}\"")), "{}", page.body);
        assert_eq!(get(daemon.control, &format!("/{file}")).await.status, 200);
    }
    assert_eq!(get(daemon.control, "/nothing").await.status, 404);
    daemon.stop().await;
}

/// hyper's limit for a request's head is 30 s, so that nobody keeps unused connections.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_keeps_no_connection() {
    let daemon = Daemon::start(512).await;
    let address = daemon.control;
    let closed = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: somebody\r\n").expect("sent");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.read_to_end(&mut Vec::new())
    });
    closed.await.expect("no panic").expect("it ends");
    daemon.stop().await;
}

/// The folder with `promtool` and `prometheus`, or `None` if they are not installed.
fn monitor(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("SWITCHML_PROMETHEUS").map(PathBuf::from);
    if folder.is_none() {
        switchml_rack::skip(test, "SWITCHML_PROMETHEUS names no folder with Debian's Prometheus");
    }
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_finds_nothing_wrong_with_the_metrics() {
    let Some(folder) = monitor("promtool_finds_nothing_wrong_with_the_metrics") else { return };
    let daemon = Daemon::start(1024).await;
    let rank = daemon.join("train", 0, 2).await;
    let text = metrics(&daemon).await;
    let mut promtool = Command::new(folder.join("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    promtool.stdin.take().expect("piped").write_all(text.as_bytes()).expect("read");
    let output = promtool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
    drop(rank);
    daemon.stop().await;
}

#[test]
fn alerts_fire_when_they_should() {
    let Some(folder) = monitor("alerts_fire_when_they_should") else { return };
    let output = Command::new(folder.join("promtool"))
        .args(["test", "rules", "alerts_test.yml"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy"))
        .output()
        .expect("promtool starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A Prometheus that scrapes one target; killed when dropped.
struct Prometheus {
    child: Child,
    _folder: TempDir,
    address: SocketAddr,
}

impl Prometheus {
    fn start(programs: &Path, target: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = format!(
            "{{global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}, scrape_configs: \
             [{{job_name: switchml, static_configs: [{{targets: [\"{target}\"]}}]}}]}}"
        );
        std::fs::write(folder.path().join("config.yml"), config).expect("written");
        let mut child = Command::new(programs.join("prometheus"))
            .arg(format!("--config.file={}", folder.path().join("config.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("prometheus starts");
        let log = BufReader::new(child.stderr.take().expect("piped"));
        let mut lines = log.lines().map(|line| line.expect("text"));
        let listens = lines.find(|line| line.contains("Listening on")).expect("it listens");
        // The remaining lines must be read, or the daemon would block.
        std::thread::spawn(move || lines.count());
        let address = listens.split("address=").nth(1).and_then(|text| text.split(' ').next());
        let address = address.and_then(|text| text.parse().ok()).expect(&listens);
        Self { child, _folder: folder, address }
    }

    /// The value of a metric, once it has one.
    async fn value(&self, metric: &str) -> String {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let answer = get(self.address, &format!("/api/v1/query?query={metric}")).await;
            let answer: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            if let Some(value) = answer["data"]["result"][0]["value"][1].as_str() {
                return value.to_owned();
            }
        }
        panic!("Prometheus has no {metric}");
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_scrapes_it() {
    let Some(folder) = monitor("prometheus_scrapes_it") else { return };
    let daemon = Daemon::start(1024).await;
    let rank = daemon.join("train", 0, 7).await;
    let prometheus = Prometheus::start(&folder, daemon.control);
    assert_eq!(prometheus.value("switchml_job_ranks").await, "7");
    assert_eq!(prometheus.value("switchml_packets_total%7Boutcome=%22hello%22%7D").await, "0");
    drop(rank);
    daemon.stop().await;
}
