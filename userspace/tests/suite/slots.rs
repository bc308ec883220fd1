//! `slots`: which ranks the unfinished rounds of a job lack.

use std::ops::RangeInclusive;

use switchml_control::{JobState, SlotsReply, SlotsRequest, UnfinishedSlots};
use switchml_data_plane::software::Software;
use switchml_protocol::wire::header::Kind;
use tonic::{Code, Status};

use crate::common::program::aggregator;
use crate::common::slow::{Slow, What};
use crate::common::{Daemon, Path};

async fn ask(daemon: &Daemon, job: &str) -> Result<SlotsReply, Status> {
    let request = SlotsRequest { job: job.to_owned() };
    daemon.client().await.slots(request).await.map(tonic::Response::into_inner)
}

/// Contributes to a round that lacks others. On return the contribution is in: sent again, it is
/// answered with who is.
fn contribute(path: &Path, slot: u16, round: u32) {
    path.contribute(slot, round, &[1; 32]);
    path.contribute(slot, round, &[1; 32]);
    assert_eq!(path.receive().kind, Kind::Pending);
}

fn lack(slots: RangeInclusive<u32>, round: u32, missing: &[u32]) -> UnfinishedSlots {
    UnfinishedSlots {
        shard: 0,
        first_slot: *slots.start(),
        last_slot: *slots.end(),
        round,
        missing_ranks: missing.to_vec(),
        op: "sum".to_owned(),
        lanes: 32,
    }
}

/// A job of three ranks. Slot 7 has finished round 0, and has begun round 1; slot 3 lacks rank 1 in
/// round 0, and slots 100 to 139 lack ranks 1 and 2, except 120, which lacks rank 2 alone.
async fn hanging() -> (Daemon, impl Sized) {
    let daemon = Daemon::start(512).await;
    let (ranks, paths): (Vec<_>, Vec<_>) = daemon.start_job("train", 3).await.into_iter().unzip();
    paths.iter().for_each(|path| path.contribute(7, 0, &[1; 32]));
    for path in &paths {
        assert_eq!(path.receive().kind, Kind::Result);
    }
    contribute(&paths[0], 7, 1);
    contribute(&paths[2], 3, 0);
    contribute(&paths[0], 3, 0);
    (100..140).for_each(|slot| contribute(&paths[0], slot, 0));
    contribute(&paths[1], 120, 0);
    (daemon, (ranks, paths))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_rounds_come_first_with_the_ranks_that_they_lack() {
    let (daemon, _ranks) = hanging().await;
    let found = ask(&daemon, "train").await.expect("shown");
    assert!(found.shown);
    assert_eq!(
        found.job.as_ref().map(|job| (job.state(), job.world_size)),
        Some((JobState::Started, 3))
    );
    let expected = [
        lack(3..=3, 0, &[1]),
        lack(100..=119, 0, &[1, 2]),
        lack(120..=120, 0, &[2]),
        lack(121..=139, 0, &[1, 2]),
        lack(7..=7, 1, &[1, 2]),
    ];
    assert_eq!((found.unfinished, &*found.oldest), (42, &expected[..]));
    let by_number = ask(&daemon, "0").await.expect("shown, too");
    assert_eq!(by_number.oldest, found.oldest);
}

/// Every other slot has a contribution, so no two are neighbours.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_counted() {
    let daemon = Daemon::start(512).await;
    let (_ranks, paths): (Vec<_>, Vec<_>) = daemon.start_job("train", 2).await.into_iter().unzip();
    (0..40).for_each(|slot| contribute(&paths[0], 2 * slot, 0));
    let found = ask(&daemon, "train").await.expect("shown");
    let expected: Vec<_> = (0..32).map(|slot| lack(2 * slot..=2 * slot, 0, &[1])).collect();
    assert_eq!((found.unfinished, &found.oldest), (40, &expected));
    let control = daemon.control.to_string();
    let mut command = aggregator(&["slots", "--connect", &control, "--job", "train"]);
    let output = tokio::task::block_in_place(|| command.output().expect("it starts"));
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().last(), Some("and 8 more slots"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_between_calls_lacks_nobody() {
    let daemon = Daemon::start(512).await;
    let members = daemon.start_job("train", 2).await;
    let found = ask(&daemon, "train").await.expect("shown");
    assert_eq!((found.shown, found.unfinished, found.oldest), (true, 0, Vec::new()));
    members.iter().for_each(|(_, path)| path.contribute(7, 0, &[1; 32]));
    for (_, path) in &members {
        assert_eq!(path.receive().kind, Kind::Result);
    }
    let found = ask(&daemon, "train").await.expect("shown");
    assert_eq!((found.shown, found.unfinished, found.oldest), (true, 0, Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_ranks_has_no_slots_and_an_unknown_one_is_refused() {
    let daemon = Daemon::start(512).await;
    let _rank = daemon.join("half", 0, 2).await;
    let found = ask(&daemon, "half").await.expect("known");
    assert_eq!(found.job.map(|job| job.state()), Some(JobState::Waiting));
    assert_eq!((found.unfinished, found.oldest), (0, Vec::new()));
    for unknown in ["train", "0", ""] {
        let refused = ask(&daemon, unknown).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{unknown:?}: {refused}");
    }
}

/// [`Slow`] shows no slots, as P4 data planes do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_data_plane_that_shows_no_slots_says_so() {
    let software = Software::start(None, 0, 512, Box::new(drop)).expect("a socket");
    let (data_plane, go) = Slow::new(software, What::Prepare);
    go.send(()).expect("it prepares");
    let daemon = Daemon::over(data_plane, |limits| limits).await;
    let _members = daemon.start_job("train", 2).await;
    let found = ask(&daemon, "train").await.expect("known");
    assert_eq!((found.shown, found.unfinished, found.oldest), (false, 0, Vec::new()));
    let control = daemon.control.to_string();
    let mut command = aggregator(&["slots", "--connect", &control, "--job", "train"]);
    let output = tokio::task::block_in_place(|| command.output().expect("it starts"));
    let error = String::from_utf8(output.stderr).expect("text");
    let expected = format!(
        "switchml-aggregator: {control}'s data plane does not show the slots of this job\n"
    );
    assert_eq!((output.status.code(), error), (Some(1), expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_prints_a_table_or_json() {
    let (daemon, _ranks) = hanging().await;
    let control = daemon.control.to_string();
    let run = |more: &[&str]| {
        let arguments = [&["slots", "--connect", &control, "--job"], more].concat();
        tokio::task::block_in_place(|| aggregator(&arguments).output().expect("it starts"))
    };
    let text = String::from_utf8(run(&["train"]).stdout).expect("text");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("job          \"train\": started"), "{text}");
    let table = [
        "unfinished   42 of 512 slots",
        "missing      rank 1 (127.0.0.1)",
        "missing      rank 2 (127.0.0.1)",
        "",
        "shard    slots  round  operation        contributed    missing",
        "    0        3      0  sum of 32 lanes  ranks 0 and 2  rank 1",
        "    0  100-119      0  sum of 32 lanes  rank 0         ranks 1 and 2",
        "    0      120      0  sum of 32 lanes  ranks 0 and 1  rank 2",
        "    0  121-139      0  sum of 32 lanes  rank 0         ranks 1 and 2",
        "    0        7      1  sum of 32 lanes  rank 0         ranks 1 and 2",
    ];
    assert_eq!(lines[1..], table, "{text}");
    let json: serde_json::Value =
        serde_json::from_slice(&run(&["train", "--json"]).stdout).expect("JSON");
    let first = serde_json::json!({
        "shard": 0, "first_slot": 3, "last_slot": 3, "round": 0, "op": "sum", "lanes": 32,
        "contributed": [0, 2], "missing": [1]
    });
    assert_eq!((&json["unfinished"], &json["oldest"][0]), (&42.into(), &first), "{json}");
    assert_eq!(json["job"]["name"], "train");
    let output = run(&["other"]);
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{error}");
    let expected = format!(
        "switchml-aggregator: the aggregator at {control} refused the request: it has no such job; "
    );
    assert!(error.starts_with(&expected) && error.lines().count() == 1, "{error}");
}
