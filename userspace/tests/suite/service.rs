//! The control plane over gRPC: the events of each rank, and every refusal.

use std::net::SocketAddr;

use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::join_event::Event;
use switchml_control::{
    Aborted, Call, Combiner, ExamineReply, ExamineRequest, JobState, JoinRequest, LeaveRequest,
    Left, ListJobsRequest, MadeCall, MemberId, ReadyRequest, ReportCallsRequest,
    ReportRoundTripsRequest, ResumeRequest, StatusRequest, Times, Waiting,
};
use switchml_data_plane::software::Software;
use switchml_userspace_core::data_plane::DataPlane;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Status};

use crate::common::slow::{Slow, What};
use crate::common::{Daemon, Path, Rank, join_request};

fn waiting(missing: &[u32]) -> Event {
    Event::Waiting(Waiting { missing_ranks: missing.to_vec() })
}

/// The number of refusals for this reason.
async fn refused(daemon: &Daemon, reason: &str) -> u64 {
    let status = daemon.client().await.status(StatusRequest {}).await.unwrap().into_inner();
    let refusal = status.refusals.iter().find(|refusal| refusal.reason == reason);
    refusal.expect("such a reason").times
}

fn leave(rank: &Rank, path: &Path, error: &str) -> LeaveRequest {
    LeaveRequest {
        member: Some(path.assigned.member(rank.rank)),
        error: error.to_owned(),
        ..LeaveRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_hear_who_is_missing_and_then_get_the_same_job() {
    let daemon = Daemon::start(1 << 18).await;
    let mut one = daemon.join("train", 1, 2).await;
    assert_eq!(one.next().await, waiting(&[0]));
    let mut zero = daemon.join("train", 0, 2).await;
    let (zero, one) = (zero.assigned().await, one.assigned().await);
    assert_eq!((zero.job, zero.epoch, zero.slots), (one.job, one.epoch, one.slots));
    assert_ne!(zero.hello_secret, one.hello_secret);
    assert_eq!(zero.data_address, "127.0.0.1");
    assert_eq!((zero.group_address.as_str(), zero.max_lanes), ("", 768));
    assert_ne!(zero.data_port, 0);
}

/// `switchml-worker doctor` does that.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_hears_whether_its_hello_came_in_and_nobody_else_does() {
    let daemon = Daemon::start(1 << 18).await;
    let mut rank = daemon.join("train", 0, 1).await;
    let path = Path::new(rank.assigned().await, 0);
    let member = path.assigned.member(0);
    let request = ExamineRequest { member: Some(member) };
    // The software data plane has no interfaces.
    let expected = ExamineReply::default();
    assert_eq!(rank.client.examine(request).await.unwrap().into_inner(), expected);
    path.hello();
    let expected = ExamineReply { hello_seen: true, ..expected };
    assert_eq!(rank.client.examine(request).await.unwrap().into_inner(), expected);
    let forged = ExamineRequest { member: Some(MemberId { secret: member.secret ^ 1, ..member }) };
    assert_eq!(rank.client.examine(forged).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_life_of_a_job_in_good_order() {
    let daemon = Daemon::start(1 << 18).await;
    let members = daemon.start_job("train", 2).await;
    let mut client = daemon.client().await;

    let jobs = client.list_jobs(ListJobsRequest {}).await.unwrap().into_inner().jobs;
    let [job] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!(
        (job.name.as_str(), job.world_size, job.state(), job.lanes),
        ("train", 2, JobState::Started, 352)
    );
    assert_eq!((job.slots, &job.shards[..]), (512, &[0][..]));
    assert!(
        job.members
            .iter()
            .all(|member| member.ready && !member.left && member.address == "127.0.0.1")
    );

    let [(mut zero, path), (mut one, other_path)] =
        <[_; 2]>::try_from(members).ok().expect("two ranks");
    let request = leave(&zero, &path, "");
    zero.client.leave(request).await.expect("left");
    assert!(zero.ended().await);
    assert_eq!(one.next().await, Event::Left(Left { rank: 0 }));
    let request = leave(&one, &other_path, "");
    one.client.leave(request).await.expect("left");
    assert!(one.ended().await);
    assert_eq!(client.list_jobs(ListJobsRequest {}).await.unwrap().into_inner().jobs, []);
    let status = client.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.slots_free, status.slots_total), (1 << 18, 1 << 18));
    assert_eq!(
        (status.data_plane.as_str(), status.version.as_str()),
        ("software", env!("CARGO_PKG_VERSION"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_whose_stream_ends_aborts_its_job_alone() {
    let daemon = Daemon::start(1 << 18).await;
    let mut members = daemon.start_job("train", 3).await;
    let mut others = daemon.start_job("other", 2).await;
    drop(members.remove(1));
    for (rank, _) in &mut members {
        let Event::Aborted(Aborted { reason, ranks, .. }) = rank.next().await else {
            panic!("not aborted")
        };
        assert_eq!(ranks, [1]);
        assert_eq!(
            reason,
            "rank 1 (127.0.0.1) is gone: its process ended, or its connection broke"
        );
    }
    // While two ranks of the old job linger, the name is free for a new one; the other job goes on.
    let again = daemon.start_job("train", 3).await;
    assert_ne!(again[0].1.assigned.epoch, members[0].1.assigned.epoch);
    for (_, path) in &others {
        path.contribute(0, 0, &[21; 32]);
    }
    assert_eq!(others[0].1.receive().lanes, vec![42; 32]);
    let (rank, path) = &mut others[0];
    let request = leave(rank, path, "");
    rank.client.leave(request).await.expect("the other job is as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_leaves_with_an_error_tells_the_others_why() {
    let daemon = Daemon::start(1 << 18).await;
    let mut members = daemon.start_job("train", 3).await;
    let (rank, path) = &mut members[1];
    let request = LeaveRequest {
        ranks: vec![0],
        ..leave(rank, path, "no progress for 5 s: waiting for rank 0")
    };
    rank.client.leave(request).await.expect("left");
    for other in [0, 2] {
        let Event::Aborted(aborted) = members[other].0.next().await else { panic!("not aborted") };
        assert_eq!(
            aborted.reason,
            "rank 1 (127.0.0.1) failed: no progress for 5 s: waiting for rank 0; rank 0 (127.0.0.1)"
        );
        assert_eq!(aborted.ranks, [0], "whom it blames, not who says so");
    }
}

/// Rank 2 is in no call: the others wait for its report only for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_report_different_calls_hear_what_all_called() {
    let daemon = Daemon::start(1 << 18).await;
    let mut members = daemon.start_job("train", 3).await;
    let begin = std::time::Instant::now();
    for (rank, path) in &mut members[..2] {
        let call = Call { number: 5, call: format!("call of rank {}", rank.rank), cut: 0 };
        let member = Some(path.assigned.member(rank.rank));
        let request = ReportCallsRequest { member, calls: vec![call], named: vec![0, 1] };
        rank.client.report_calls(request).await.expect("taken");
    }
    let reason = "ranks made different calls: call 5 of rank 0 is call of rank 0; call 5 of rank \
                  1 is call of rank 1; every rank must make the same calls in the same order";
    let made =
        |rank: u32| MadeCall { ranks: vec![rank], number: 5, call: format!("call of rank {rank}") };
    let expected = Aborted {
        reason: reason.to_owned(),
        ranks: vec![0, 1],
        calls: vec![made(0), made(1)],
        stops: false,
    };
    for (rank, _) in &mut members {
        // Ranks that have not reported are asked to.
        let event = match rank.next().await {
            Event::CallsWanted(_) => rank.next().await,
            event => event,
        };
        assert_eq!(event, Event::Aborted(expected.clone()));
    }
    // Reports are gathered for half a second; this machine may be busy for longer.
    assert!(begin.elapsed() < std::time::Duration::from_secs(30), "{:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn several_jobs_have_slots_of_their_own() {
    let daemon = Daemon::start(1 << 18).await;
    let mut jobs = Vec::new();
    for name in ["a", "b", "c"] {
        jobs.push(daemon.start_job(name, 2).await);
    }
    // All use their slot 0, round 0.
    for (value, job) in (1u32..).zip(&jobs) {
        job.iter().for_each(|(_, path)| path.contribute(0, 0, &[value; 32]));
    }
    for (value, job) in (1u32..).zip(&jobs) {
        for (_, path) in job {
            assert_eq!(path.receive().lanes, vec![2 * value; 32]);
        }
    }
    let slots: Vec<_> = jobs.iter().map(|job| job[0].1.assigned.slots).collect();
    assert_eq!(slots, [512; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_are_refused_with_a_code_and_one_line() {
    let daemon = Daemon::start(512).await;
    let _first = daemon.join("train", 2, 4).await;
    let mut client = daemon.client().await;
    let cases = [
        ("", 0, 1, Code::InvalidArgument, "job name of 0 bytes"),
        ("new", 0, 0, Code::InvalidArgument, "world size 0; a job has 1 to 1024 ranks"),
        ("new", 0, 1025, Code::InvalidArgument, "world size 1025; a job has 1 to 1024 ranks"),
        ("new", 7, 4, Code::InvalidArgument, "rank 7 of world size 4; ranks are 0 to 3"),
        ("train", 2, 4, Code::AlreadyExists, "job \"train\" already has rank 2, from 127.0.0.1"),
        ("train", 0, 2, Code::FailedPrecondition, "job \"train\" has world size 4, not 2"),
    ];
    for (name, rank, world_size, code, text) in cases {
        let status = client
            .join(JoinRequest { job_name: name.to_owned(), rank, world_size, ..join_request() })
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().starts_with(text), "{}", status.message());
        assert_eq!(status.message().lines().count(), 1);
    }
    assert_eq!(
        (refused(&daemon, "wrong_join").await, refused(&daemon, "taken_rank").await),
        (5, 1)
    );
}

/// Ranks that join jobs whose other ranks never come.
#[tokio::test(flavor = "multi_thread")]
async fn idle_joins_are_refused_beyond_what_a_host_may_begin() {
    let daemon = Daemon::start(1 << 18).await;
    let mut client = daemon.client().await;
    let request = |job: u32| JoinRequest {
        job_name: format!("idle {job}"),
        rank: 0,
        world_size: 2,
        ..join_request()
    };
    // A connection has 100 streams at most.
    let mut idle = Vec::new();
    for job in 0..256 {
        if job % 64 == 0 {
            client = daemon.client().await;
        }
        idle.push(client.join(request(job)).await.expect("joined"));
    }
    let status = daemon.client().await.join(request(256)).await.expect_err("too many");
    let start = "256 jobs are waiting for ranks, 256 of them started from 127.0.0.1; at most 4096 \
                 may";
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().starts_with(start), "{}", status.message());
    assert_eq!(refused(&daemon, "too_many_waiting").await, 1);
}

/// A host that does nothing but join, and leaves no job behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_joins_so_often_in_a_minute() {
    let daemon = Daemon::start(1 << 18).await;
    let mut client = daemon.client().await;
    let begin = std::time::Instant::now();
    let wrong = |rank| JoinRequest { job_name: "train".to_owned(), rank, ..join_request() };
    for rank in 0..6000 {
        let status = client.join(wrong(rank)).await.expect_err("a world of nobody");
        if begin.elapsed().as_secs() < 60 {
            assert_eq!(status.code(), Code::InvalidArgument, "join {rank}");
        }
    }
    let status = client.join(wrong(0)).await.expect_err("refused");
    // Unless this host is so busy that the next minute has come.
    if begin.elapsed().as_secs() < 60 {
        let line = "6000 joins came from this address within a minute, the most for one; try \
                    again in a minute";
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, line));
        assert_eq!(refused(&daemon, "too_many_joins").await, 1);
    }
}

/// Rule 22.14.
#[tokio::test(flavor = "multi_thread")]
async fn another_version_of_the_protocol_is_refused() {
    let daemon = Daemon::start(512).await;
    let mut client = daemon.client().await;
    let request = |version| JoinRequest {
        job_name: "train".to_owned(),
        world_size: 1,
        protocol_version: version,
        ..JoinRequest::default()
    };
    let by_combiner = |version| JoinRequest {
        via: vec![Combiner {
            name: "tor1".to_owned(),
            address: "10.0.0.9".to_owned(),
            protocol_version: version,
            ..Combiner::default()
        }],
        ..request(1)
    };
    for (request, who) in [
        (request(2), "rank 0 from 127.0.0.1 has version 2"),
        (request(0), "rank 0 from 127.0.0.1 has an unknown version"),
        (by_combiner(2), "combiner tor1 at 10.0.0.9 has version 2"),
    ] {
        let status = client.join(request).await.expect_err("refused");
        let line = format!(
            "{who} of the protocol, this aggregator version 1 (switchml {}); install the same \
             build of switchml on both",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, line.as_str()));
    }
    client.join(by_combiner(1)).await.expect("joined");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_refused_with_a_code() {
    let daemon = Daemon::start(1 << 18).await;
    let mut rank = daemon.join("train", 0, 1).await;
    let assigned = rank.assigned().await;
    let early = rank.ready(&assigned, 352).await.unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition);
    assert_eq!(
        early.message(),
        "rank 0 is ready, but the data plane has had no HELLO from it; wait for HELLO to come back \
         first"
    );
    Path::new(assigned.clone(), 0).hello();
    assert_eq!(rank.ready(&assigned, 33).await.unwrap_err().code(), Code::InvalidArgument);
    rank.ready(&assigned, 352).await.expect("in good order after all that");
}

/// A host that knows everything about a job except its ranks' secrets.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_neither_starts_nor_ends_a_job() {
    let daemon = Daemon::start(1 << 18).await;
    let (mut zero, mut one) = (daemon.join("train", 0, 2).await, daemon.join("train", 1, 2).await);
    let paths = [Path::new(zero.assigned().await, 0), Path::new(one.assigned().await, 1)];
    paths.iter().for_each(Path::hello);
    let assigned = &paths[0].assigned;
    let own = assigned.member(0);
    let secrets = [0, assigned.hello_secret.into(), paths[1].assigned.control_secret];
    let forged = secrets.map(|secret| Some(MemberId { secret, ..own }));
    let mut client = daemon.client().await;
    for member in forged.into_iter().chain([None]) {
        let ready = ReadyRequest { member, lanes: 768, needs_copies: false, ..Default::default() };
        let calls = ReportCallsRequest { member, calls: Vec::new(), named: vec![0, 1] };
        let (error, ranks) = ("mine".to_owned(), vec![1]);
        let leave = LeaveRequest { member, error, ranks, ..LeaveRequest::default() };
        let round_trips = Some(Times { counts: vec![1; 24], sum: 1 });
        let round_trips = ReportRoundTripsRequest { member, round_trips, path: None };
        let refusals = [
            client.ready(ready).await.map(drop),
            client.report_calls(calls).await.map(drop),
            client.leave(leave).await.map(drop),
            client.report_round_trips(round_trips).await.map(drop),
            client.resume(ResumeRequest { member, ..ResumeRequest::default() }).await.map(drop),
        ];
        for refusal in refusals {
            let status = refusal.expect_err("refused");
            let expected = "rank 0 with that epoch and secret is not in job 0; its session has \
                            ended, join again";
            assert_eq!((status.code(), status.message()), (Code::NotFound, expected));
        }
    }
    assert_eq!(refused(&daemon, "no_member").await, 4 * 5, "each of them is counted");
    zero.ready(&paths[0].assigned, 352).await.expect("as if nothing had happened");
    one.ready(&paths[1].assigned, 352).await.expect("as if nothing had happened");
    assert!(matches!(zero.next().await, Event::Started(started) if started.lanes == 352));
    assert!(matches!(one.next().await, Event::Started(started) if started.lanes == 352));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_stops_tells_its_ranks() {
    let daemon = Daemon::start(1 << 18).await;
    let mut members = daemon.start_job("train", 2).await;
    let mut lonely = daemon.join("other", 0, 2).await;
    assert_eq!(lonely.next().await, waiting(&[1]));
    daemon.stop().await;
    let ranks = members.iter_mut().map(|(rank, _)| rank).chain([&mut lonely]);
    for rank in ranks {
        let Event::Aborted(aborted) = rank.next().await else { panic!("not aborted") };
        assert_eq!(
            (aborted.reason.as_str(), &aborted.ranks[..], aborted.stops),
            ("the aggregator stops", &[][..], true)
        );
        assert!(rank.ended().await);
    }
}

/// A host that dies sends no FIN: here, a peer that stops reading and answering altogether.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_falls_silent_is_noticed() {
    let daemon = Daemon::start(1 << 18).await;
    let mut alive = daemon.join("train", 0, 2).await;
    assert_eq!(alive.next().await, waiting(&[1]));
    // The rank has its own runtime, so that its connection can be frozen.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let control = daemon.control;
    let (joined, wait) = std::sync::mpsc::channel();
    let (thaw, thawed) = std::sync::mpsc::channel::<()>();
    let frozen = std::thread::spawn(move || {
        let rank = runtime.block_on(async {
            let mut client = switchml_control::aggregator_client::AggregatorClient::connect(
                format!("http://{control}"),
            )
            .await
            .unwrap();
            let request = JoinRequest {
                job_name: "train".to_owned(),
                rank: 1,
                world_size: 2,
                ..join_request()
            };
            let mut events = client.join(request).await.unwrap().into_inner();
            events.message().await.unwrap();
            (client, events)
        });
        joined.send(()).unwrap();
        // The runtime no longer runs, but its socket stays open.
        thawed.recv().unwrap();
        drop((rank, runtime));
    });
    wait.recv().unwrap();
    alive.assigned().await;
    let Event::Aborted(aborted) = alive.next().await else { panic!("not aborted") };
    assert_eq!(aborted.ranks, [1]);
    let silence =
        aborted.reason.strip_prefix("rank 1 (127.0.0.1) did not answer for ").expect("its reason");
    let seconds: u32 = silence
        .strip_suffix(" s, and is considered dead")
        .expect("how long")
        .parse()
        .expect("seconds");
    // At most 5 s, and the delay of a busy machine.
    assert!((4..15).contains(&seconds), "{}", aborted.reason);
    thaw.send(()).unwrap();
    frozen.join().unwrap();
}

/// Too long names and messages are never kept.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_long_is_refused() {
    let daemon = Daemon::start(1 << 18).await;
    let mut client = daemon.client().await;
    let request = JoinRequest { job_name: "train".to_owned(), world_size: 2, ..join_request() };
    let status =
        client.join(JoinRequest { host: "h".repeat(65), ..request.clone() }).await.unwrap_err();
    let expected =
        "host name of 65 bytes; give one of at most 64 bytes, such as the boot id, or none";
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
    let status = client
        .join(JoinRequest { host: "h".repeat(4_000_000), ..request.clone() })
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    assert_eq!((refused(&daemon, "wrong_join").await, refused(&daemon, "too_long").await), (1, 1));
    client.join(JoinRequest { host: "h".repeat(64), ..request }).await.expect("joined");
}

/// Sends these bytes, one every 100 ms, and waits for the daemon to hang up. How long that took.
async fn until_hung_up(daemon: &Daemon, bytes: &[u8]) -> std::time::Duration {
    let begin = std::time::Instant::now();
    let mut stream = tokio::net::TcpStream::connect(daemon.control).await.expect("connected");
    let (mut reader, mut writer) = stream.split();
    let write = async {
        for byte in bytes {
            if writer.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        std::future::pending::<()>().await;
    };
    // Reads the daemon's answer until the end or an error, which both count as the end.
    let read = async {
        let mut heard = Vec::new();
        let _ = reader.read_to_end(&mut heard).await;
    };
    tokio::select! {
        () = write => panic!("hung up, but not to the reader"),
        () = read => {}
    }
    begin.elapsed()
}

/// Half a preface keeps a connection no longer than none; and no other client waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_does_not_speak_http_is_sent_away() {
    let daemon = Daemon::start(1 << 18).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let silent =
        tokio::join!(until_hung_up(&daemon, b""), until_hung_up(&daemon, &preface[..12]), async {
            let mut rank = daemon.join("train", 0, 2).await;
            assert_eq!(rank.next().await, waiting(&[1]));
        });
    for waited in [silent.0, silent.1] {
        // 5 s, and the delay of a busy machine.
        assert!((4.9..15.0).contains(&waited.as_secs_f64()), "{waited:?}");
    }
    assert_eq!(refused(&daemon, "silent").await, 2);
}

/// Jobs that wait for ranks take nothing from other jobs, and no job takes more than its share.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_have_equal_shares_and_those_that_wait_have_none() {
    let daemon = Daemon::start(1 << 18).await;
    let mut idle = Vec::new();
    for job in 0..100 {
        idle.push(daemon.join(&format!("idle {job}"), 0, 2).await);
    }
    let status = daemon.client().await.status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.slots_free, status.slots_total);
    let mut jobs = Vec::new();
    for job in 0..512 {
        let mut rank = daemon.join(&job.to_string(), 0, 1).await;
        assert_eq!(rank.assigned().await.slots, 512, "job {job}");
        jobs.push(rank);
    }
    // There are no more numbers: all ranks of the next job are told so at once.
    let reason = "the aggregator has 512 jobs already; wait for one to end";
    let mut last = daemon.join("idle 7", 1, 2).await;
    for rank in [&mut idle[7], &mut last] {
        let event = loop {
            match rank.next().await {
                Event::Waiting(_) => {}
                event => break event,
            }
        };
        assert_eq!(
            event,
            Event::Aborted(Aborted { reason: reason.to_owned(), ..Aborted::default() })
        );
        assert!(rank.ended().await);
    }
    // The end of a job makes room for another.
    drop(jobs.pop());
    let end = std::time::Instant::now() + crate::common::PATIENCE;
    loop {
        let mut rank = daemon.join("late", 0, 1).await;
        match rank.next().await {
            Event::Assigned(assigned) => break assert_eq!(assigned.slots, 512),
            event => assert!(std::time::Instant::now() < end, "{event:?}"),
        }
    }
}

async fn list_jobs(control: SocketAddr) -> Result<(), Status> {
    let mut client = AggregatorClient::connect(format!("http://{control}")).await.expect("there");
    client.list_jobs(ListJobsRequest {}).await.map(drop)
}

/// A data plane in a switch may take long to open a job. All else fails in one line meanwhile, on
/// fewer threads than there are requests, and the watchdog hears that the daemon lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_ever_while_a_job_waits_for_its_switch() {
    let software = Software::start(None, 0, 2048, Box::new(drop)).expect("a socket");
    let (data_plane, go) = Slow::new(software, What::Open);
    let daemon = Daemon::over(data_plane.clone(), |limits| limits).await;
    let mut stays = daemon.join("other", 0, 3).await;
    let goes = daemon.join("other", 1, 3).await;
    for missing in [&[1, 2][..], &[2]] {
        assert_eq!(stays.next().await, waiting(missing));
    }
    let mut client = daemon.client().await;
    let request = JoinRequest { job_name: "a".to_owned(), world_size: 1, ..join_request() };
    let opens = tokio::spawn(async move { client.join(request).await.map(drop) });
    while !data_plane.is_waiting() {
        tokio::task::yield_now().await;
    }
    let looks: Vec<_> = (0..4)
        .map(|_| {
            let control = daemon.control;
            tokio::spawn(async move { list_jobs(control).await })
        })
        .collect();
    for look in looks {
        let status = look.await.expect("no panic").expect_err("it waits");
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(
            status.message(),
            "the aggregator has waited for its switch for 3 s; look after the switch, or try again"
        );
    }
    daemon.service.check().await;
    // A rank that goes meanwhile is noticed afterwards.
    drop(goes);
    assert!(!opens.is_finished());
    go.send(()).expect("it opens");
    opens.await.expect("no panic").expect("joined");
    assert!(list_jobs(daemon.control).await.is_ok());
    assert_eq!(stays.next().await, waiting(&[1, 2]));
}
