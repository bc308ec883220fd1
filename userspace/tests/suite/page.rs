//! The status page in a headless Chromium: its texts, their order, and that they fit.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use serde::Deserialize;
use switchml_control::{
    Counter, EndedJob, JobState, JobStatus, LeaveRequest, ListJobsReply, MemberStatus, Path, Port,
    Refusal, Security, StatusReply, Throughput, Times,
};
use switchml_userspace::view::View;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::common::Daemon;
use crate::web::{job_that_lacks_rank_3, waiting_job};

/// A headless Chromium, as Debian calls it.
const BROWSER: &str = "chromium-headless-shell";

/// Longest time from opening the page to the content.
const PROMISED: Duration = Duration::from_secs(2);

/// The content of a browser after this much of the page's time; `None` if there is no browser.
async fn seen(test: &str, address: SocketAddr, path: &str, after: Duration) -> Option<String> {
    if Command::new(BROWSER).arg("--version").output().is_err() {
        switchml_rack::skip(test, &format!("there is no {BROWSER}"));
        return None;
    }
    let url = format!("http://{address}{path}");
    let budget = format!("--virtual-time-budget={}", after.as_millis());
    let output = tokio::task::spawn_blocking(move || {
        let options = ["--no-sandbox", "--hide-scrollbars", "--dump-dom", &budget];
        Command::new(BROWSER).args(options).arg(url).output().expect("it starts")
    });
    Some(String::from_utf8(output.await.expect("no panic").stdout).expect("text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_sees_within_2_s_for_whom_a_job_waits() {
    const NAME: &str = "a_browser_sees_within_2_s_for_whom_a_job_waits";
    let daemon = Daemon::start(1024).await;
    let mut ranks = Vec::new();
    for rank in [0, 1, 2] {
        ranks.push(daemon.join("<b>train</b>", rank, 4).await);
    }
    let Some(page) = seen(NAME, daemon.control, "/", PROMISED).await else { return };
    assert!(page.contains("waits for rank 3 to join, for "), "{page}");
    assert!(page.contains(">&lt;b&gt;train&lt;/b&gt;</h2>"), "names are text: {page}");
    drop(ranks);
    daemon.stop().await;
}

/// The browser's two seconds begin once the daemon knows, which takes it three looks at most.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_sees_within_2_s_which_rank_does_not_contribute() {
    const NAME: &str = "a_browser_sees_within_2_s_which_rank_does_not_contribute";
    let daemon = Daemon::start(1024).await;
    let members = job_that_lacks_rank_3(&daemon).await;
    waiting_job(&daemon).await;
    // A stranger is refused, and told apart from no other reason.
    let leave = LeaveRequest::default();
    daemon.client().await.leave(leave).await.expect_err("no member's");
    let Some(page) = seen(NAME, daemon.control, "/", PROMISED).await else { return };
    assert!(page.contains("waits for rank 3 to contribute, for "), "{page}");
    assert!(page.contains("data-name=\"no_member\""), "{page}");
    assert!(!page.contains("data-name=\"no_token\""), "{page}");
    drop(members);
    daemon.stop().await;
}

/// Shows the page in frames as wide as a phone and as a screen, stops the daemon if asked to, and
/// then records the page's look, with all folded parts open.
const FRAMES: &str = include_str!("frames.html");

/// Paths of the frames, with a daemon that answers, and with one that no longer does.
const LIVE: &str = "/frames";
const DOWN: &str = "/frames?down";
/// Longest wait, in the page's time, which passes at once when nothing is loading.
const PATIENCE: Duration = Duration::from_secs(10);

/// The look of the page in a frame.
#[derive(Debug, Deserialize)]
struct Look {
    width: u32,
    state: String,
    /// The visible sections, from the top.
    sections: Vec<String>,
    /// The states of the jobs, from the first.
    jobs: Vec<String>,
    /// Opacity of the part below the head.
    opacity: f64,
    text: String,
    scroll_width: u32,
    /// Elements that end further to the right than the frame.
    too_wide: Vec<String>,
}

/// Serves the page for these jobs, until `/down` is requested.
async fn serve(status: StatusReply, jobs: Vec<JobStatus>) -> SocketAddr {
    let view = View::new(status, Ok(ListJobsReply { jobs }));
    let text = serde_json::to_string(&view).expect("it has no maps");
    let is_down = Arc::new(AtomicBool::new(false));
    let goes_down = Arc::clone(&is_down);
    let status = move || {
        let gone = (StatusCode::SERVICE_UNAVAILABLE, "gone");
        let answer = if is_down.load(Ordering::Relaxed) { Err(gone) } else { Ok(text.clone()) };
        async move { answer }
    };
    let go_down = move || {
        goes_down.store(true, Ordering::Relaxed);
        async {}
    };
    let file = |kind: &'static str, text: &'static str| get(([(header::CONTENT_TYPE, kind)], text));
    let routes = Router::new()
        .route("/", file("text/html", include_str!("../../src/web/page.html")))
        .route("/page.js", file("text/javascript", include_str!("../../src/web/page.js")))
        .route("/page.css", file("text/css", include_str!("../../src/web/page.css")))
        .route("/status.json", get(status))
        .route("/frames", file("text/html", FRAMES))
        .route("/down", get(go_down));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let server = Server::builder().accept_http1(true).add_routes(Routes::from(routes));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// The look of these jobs on a phone and on a screen; checks that they fit. `None` if there is no
/// browser.
async fn looks(
    test: &str,
    status: StatusReply,
    jobs: Vec<JobStatus>,
    frames: &str,
) -> Option<[Look; 2]> {
    let address = serve(status, jobs).await;
    let page = seen(test, address, frames, PATIENCE).await?;
    let noted = page.split_once("<pre>").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (noted, _) = noted.expect("the frames' own element");
    let looks: [Look; 2] = serde_json::from_slice(&percent_decoded(noted))
        .unwrap_or_else(|error| panic!("{error}: {page}"));
    assert_eq!(looks.each_ref().map(|look| look.width), [390, 1280]);
    for look in &looks {
        assert!(look.scroll_width <= look.width && look.too_wide.is_empty(), "{look:#?}");
    }
    Some(looks)
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut parts = text.split('%');
    let first = parts.next().unwrap_or_default().as_bytes().to_vec();
    parts.fold(first, |mut bytes, part| {
        let (code, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(code, 16).expect("a byte"));
        bytes.extend_from_slice(rest.as_bytes());
        bytes
    })
}

/// An aggregator that has served for 3 days and 4 hours, with two ports.
fn aggregator() -> StatusReply {
    let port = |name: &str, link_speed| Port {
        name: name.to_owned(),
        hook: "native XDP".to_owned(),
        link_speed,
        received_bytes: 1_000_000,
        ..Port::default()
    };
    let mut counts = vec![0; 24];
    // Shorter than 2^6 × 1.024 us, and than 2^10.
    (counts[6], counts[10]) = (90, 10);
    StatusReply {
        host: "switch-7.example.org".to_owned(),
        version: "0.1.0".to_owned(),
        uptime_ms: (3 * 24 + 4) * 3_600_000,
        security: Some(Security {
            tls: true,
            tokens: true,
            // 1 March 2031
            certificate_expires: Some(1_930_089_600),
            ..Security::default()
        }),
        data_plane: "xdp".to_owned(),
        attachment: "eth1, eth2 (Linux 6.12.0), serving 2001:db8:1234:5678::fffe".to_owned(),
        slots_total: 16384,
        slots_free: 1024,
        ports: vec![port("eth1", 10_000_000_000), port("enp193s0f1np1", 1_000_000_000)],
        counters: vec![Counter {
            name: "added".to_owned(),
            help: "added to a round that lacks other ranks' contributions still".to_owned(),
            packets: 12_345_678,
        }],
        refusals: vec![Refusal {
            reason: "no_member".to_owned(),
            help: "requests of who is no member of the job".to_owned(),
            times: 4321,
        }],
        round_trips: Some(Times { counts, sum: 10_000 }),
        ..StatusReply::default()
    }
}

/// A job of four ranks, 90 minutes old, with a name that has no place to break.
fn job(number: u32, state: JobState) -> JobStatus {
    let member = |rank| MemberStatus {
        rank,
        address: format!("2001:db8:1234:5678:9abc:def0:1234:{rank}"),
        ready: true,
        here_ms: 90 * 60_000,
        ..MemberStatus::default()
    };
    let mut job = JobStatus {
        name: format!("{number}{}", "x".repeat(199)),
        job: number,
        world_size: 4,
        slots: 512,
        lanes: 352,
        shards: vec![number],
        members: (0..4).map(member).collect(),
        ..JobStatus::default()
    };
    job.set_state(state);
    job
}

/// A job that gets a gigabyte of results a second, a third of them from here.
fn running() -> JobStatus {
    let bytes_per_second = vec![500_000_000, 2_000_000_000, 1_000_000_000];
    let throughput = Throughput { bytes: 5_000_000_000_000, period_ms: 2000, bytes_per_second };
    let (aggregators, share) = (5, Some(3333));
    let throughput = Some(throughput);
    let other_aggregators = ["10.0.0.2:50051", "10.0.0.3:50051"].map(str::to_owned).into();
    let job = job(1, JobState::Started);
    JobStatus { throughput, aggregators, share, other_aggregators, ..job }
}

/// A job in which ranks 1 and 2 are awaited for 75 s.
fn waiting() -> JobStatus {
    let mut job = job(2, JobState::Started);
    for member in &mut job.members[1..3] {
        member.lacked_ms = 75_000;
    }
    job
}

fn aborted() -> JobStatus {
    let reason = "rank 3 (10.0.0.4) is gone: its connection broke".to_owned();
    JobStatus { reason, ..job(3, JobState::Aborted) }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_aggregator_says_how_to_begin() {
    const NAME: &str = "an_idle_aggregator_says_how_to_begin";
    let idle = StatusReply { counters: vec![], refusals: vec![], ..aggregator() };
    let Some(looks) = looks(NAME, idle, vec![], LIVE).await else { return };
    for look in looks {
        assert_eq!((look.state.as_str(), look.opacity), ("idle", 1.0));
        assert_eq!(look.sections, ["idle", "ports", "times"], "no tables without rows");
        for text in [
            "switch-7.example.org",
            "Idle",
            "3 d 4 h",
            "TLS until 2031-03-01, job tokens",
            "1,024 of 16,384 slots free",
            "10.0 Gb/s link",
            "1.00 Gb/s link",
            "switchml-worker bench --aggregator 127.0.0.1:",
        ] {
            assert!(look.text.contains(text), "no {text:?} in {}", look.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_has_a_throughput() {
    const NAME: &str = "a_running_job_has_a_throughput";
    let Some(looks) = looks(NAME, aggregator(), vec![running()], LIVE).await else { return };
    for look in looks {
        assert_eq!((look.state.as_str(), look.opacity), ("running", 1.0));
        assert_eq!(look.sections, ["jobs", "ports", "times", "refusals", "packets"]);
        for text in [
            "1 job runs",
            "job 1, 4 ranks, for 1 h 30 min, one of 5 aggregators, with 33.3 % of large calls, \
             beside 10.0.0.2:50051, 10.0.0.3:50051",
            // 1e9 bytes a second, and twice as many at most.
            "8.00 Gb/s to each rank",
            "5.00 TB in all",
            "last 6 s, at most 16.0 Gb/s",
            "12,345,678",
            "4,321",
            // 90 % are shorter than 64 × 1.024 us, all than 1024 × 1.024 us.
            "half below 66 µs, 99 % below 1.0 ms",
        ] {
            assert!(look.text.contains(text), "no {text:?} in {}", look.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_comes_first() {
    const NAME: &str = "what_is_wrong_comes_first";
    let mut status = aggregator();
    status.slots_free = 0;
    status.ports[1].problem = "no such device".to_owned();
    let jobs = vec![running(), waiting(), aborted()];
    let Some(looks) = looks(NAME, status, jobs, LIVE).await else { return };
    for look in looks {
        assert_eq!(look.state, "trouble");
        assert_eq!(look.sections[..2], ["problems", "jobs"]);
        assert_eq!(look.jobs, ["aborted", "waiting", "running"]);
        for text in [
            "1 port with faults, 1 job aborted, 1 job waits for ranks, 1 job runs",
            "Port enp193s0f1np1: ",
            "no such device",
            "No slot is free",
            "rank 3 (10.0.0.4) is gone: its connection broke",
            "waits for ranks 1, 2 to contribute, for 1 min 15 s",
        ] {
            assert!(look.text.contains(text), "no {text:?} in {}", look.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_comes_before_one_that_runs() {
    const NAME: &str = "a_job_that_waits_comes_before_one_that_runs";
    let jobs = vec![running(), waiting()];
    let Some(looks) = looks(NAME, aggregator(), jobs, LIVE).await else { return };
    for look in looks {
        assert_eq!((look.state.as_str(), look.sections[0].as_str()), ("waiting", "jobs"));
        assert_eq!(look.jobs, ["waiting", "running"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_daemon_is_down_what_it_said_last_is_grey() {
    const NAME: &str = "while_the_daemon_is_down_what_it_said_last_is_grey";
    let Some(looks) = looks(NAME, aggregator(), vec![running()], DOWN).await else { return };
    for look in looks {
        assert_eq!(look.state, "down");
        assert!(look.opacity < 0.6, "{look:#?}");
        assert_eq!(look.sections[..2], ["problems", "jobs"]);
        for text in ["No answer", "The aggregator does not answer: gone.", "8.00 Gb/s"] {
            assert!(look.text.contains(text), "no {text:?} in {}", look.text);
        }
    }
}

/// A job that a rank makes slow, with 5 % of the packets lost that it sent.
fn slow() -> JobStatus {
    let mut job = job(4, JobState::Started);
    job.slow = "rank 2 (2001:db8::2, host b) loses 5 % of its packets".to_owned();
    let (sent, resent, pending, lost) = (100_000, 5_100, 100, 5_000);
    job.members[2].path = Some(Path { sent, resent, pending, lost, ..Path::default() });
    job.members[2].late_us = 36_000;
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_job_says_which_rank_is_slow_and_why() {
    const NAME: &str = "a_slow_job_says_which_rank_is_slow_and_why";
    let mut status = aggregator();
    (status.ports[0].receive_drops, status.ports[0].send_drops) = (7, 1);
    let Some(looks) = looks(NAME, status, vec![slow()], LIVE).await else { return };
    for look in looks {
        assert_eq!((look.state.as_str(), &look.jobs[..]), ("running", &["running".to_owned()][..]));
        for text in [
            "Slow: rank 2 (2001:db8::2, host b) loses 5 % of its packets.",
            "5,100 packets sent again, 5,000 of them lost, 100 to wait for others",
            "36 ms late",
            "7 frames received dropped; 1 frame to be sent dropped",
        ] {
            assert!(look.text.contains(text), "no {text:?} in {}", look.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_ended_lately_are_listed_with_the_reason() {
    const NAME: &str = "jobs_that_ended_lately_are_listed_with_the_reason";
    let ended = |name: &str, ending: &str, reason: &str, ago_ms| EndedJob {
        name: name.to_owned(),
        job: Some(7),
        world_size: 4,
        ending: ending.to_owned(),
        reason: reason.to_owned(),
        ago_ms,
    };
    let ended_lately = vec![
        ended("train", "rank_lost", "rank 3 (10.0.0.4) is gone: its connection broke", 12_000),
        ended("eval and hosts", "finished", "", 125_000),
    ];
    let idle = StatusReply { ended_lately, ..aggregator() };
    let Some(looks) = looks(NAME, idle, vec![], LIVE).await else { return };
    for look in looks {
        assert_eq!(look.state, "idle");
        let position = |text: &str| {
            look.text.find(text).unwrap_or_else(|| panic!("no {text:?} in {}", look.text))
        };
        assert!(position("rank 3 (10.0.0.4) is gone") < position("2 min 5 s ago"));
        for text in ["Ended lately 2", "job 7, 4 ranks", "12 s ago", "eval", "finished"] {
            position(text);
        }
        assert!(!look.text.contains("and hosts"), "{}", look.text);
    }
}

/// The part that was moved here, and a wait that usual training has, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_survivor_says_whose_part_it_has_and_short_waits_are_not_told() {
    const NAME: &str = "a_survivor_says_whose_part_it_has_and_short_waits_are_not_told";
    let mut job = job(5, JobState::Started);
    job.name = "train#0000000000000abc".to_owned();
    job.in_place_of = "10.0.0.3:50051".to_owned();
    job.members[0].lacked_ms = 900;
    let Some(looks) = looks(NAME, aggregator(), vec![job], LIVE).await else { return };
    for look in looks {
        assert_eq!((look.state.as_str(), &look.jobs[..]), ("running", &["running".to_owned()][..]));
        assert!(look.text.contains("in place of the aggregator at 10.0.0.3:50051, which was lost"));
        assert!(!look.text.contains("waits for") && !look.text.contains('#'), "{}", look.text);
    }
}
