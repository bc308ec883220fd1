//! The software data plane over loopback, packet by packet.

use std::time::Instant;

use switchml_protocol::outcome::RejectReason;
use switchml_protocol::wire::header::{Kind, Op};
use switchml_protocol::{EVERYONE, U16, U32};

use crate::common::{Daemon, PATIENCE, Path, Rank, SILENCE, checked, packet};

async fn started(world_size: u32) -> (Daemon, Vec<Rank>, Vec<Path>) {
    let daemon = Daemon::start(512).await;
    let (ranks, paths) = daemon.start_job("train", world_size).await.into_iter().unzip();
    (daemon, ranks, paths)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rank_gets_the_sum() {
    let (daemon, _ranks, paths) = started(3).await;
    for (rank, path) in (0u32..).zip(&paths) {
        let lanes: Vec<_> = (0..96).map(|lane| 1000 * rank + lane).collect();
        path.contribute(0, 0, &lanes);
    }
    // 1000 (0 + 1 + 2) + 3 lane
    let sum: Vec<_> = (0..96).map(|lane| 3000 + 3 * lane).collect();
    for path in &paths {
        let result = path.receive();
        assert_eq!((result.kind, &result.lanes), (Kind::Result, &sum));
        assert_eq!((result.header.rank.get(), result.header.aux.get()), (EVERYONE, 0));
        assert_eq!((result.header.slot.get(), result.header.round.get()), (0, 0));
        assert_eq!(result.header.fingerprint.get(), 0xF00D);
        assert_eq!(path.receive_within(SILENCE), None, "one RESULT, once");
    }
    assert_eq!(daemon.counter("started").await, 1);
    assert_eq!(daemon.counter("added").await, 1);
    assert_eq!(daemon.counter("completed").await, 1);
    assert_eq!(daemon.counter("hello").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_sends_again_is_told_who_is_in_or_the_result() {
    let (_daemon, _ranks, paths) = started(2).await;
    paths[0].contribute(5, 0, &[u32::MAX; 32]);
    paths[0].contribute(5, 0, &[u32::MAX; 32]);
    let pending = paths[0].receive();
    assert_eq!((pending.kind, pending.lanes), (Kind::Pending, vec![0, 0b01]));
    assert_eq!((pending.header.rank.get(), pending.header.aux.get()), (0, 0xA0_0000));

    paths[1].contribute(5, 0, &[3; 32]);
    let sum = vec![2; 32]; // -1 + 3
    assert_eq!(paths[0].receive().lanes, sum);
    assert_eq!(paths[1].receive().lanes, sum);
    paths[1].contribute(5, 0, &[3; 32]);
    let replay = paths[1].receive();
    assert_eq!(
        (replay.kind, replay.header.rank.get(), replay.header.aux.get()),
        (Kind::Result, 1, 0xA0_0001)
    );
    assert_eq!(replay.lanes, sum);
    assert_eq!(paths[0].receive_within(SILENCE), None, "a replay is for one rank");
}

#[tokio::test(flavor = "multi_thread")]
async fn max_takes_the_larger_signed_number() {
    let (_daemon, _ranks, paths) = started(2).await;
    for (path, value) in paths.iter().zip([-5i32, -9]) {
        let mut header = path.header(Kind::Contribution);
        header.op = Op::Max as u8;
        header.lanes = U16::new(32);
        let lanes = [value as u32; 32];
        path.send(checked(header, &lanes), &lanes);
    }
    for path in &paths {
        assert_eq!(path.receive().lanes, vec![-5i32 as u32; 32]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_slots_and_rounds_are_served_in_bundles() {
    const SLOTS: u32 = 512;
    const ROUNDS: u32 = 6;
    /// Slots in flight at the same time: as many as the ranks' sockets hold.
    const WINDOW: u32 = 32;
    let (daemon, _ranks, paths) = started(4).await;
    assert_eq!(paths[0].assigned.slots, SLOTS);
    // The last slots of a window carry shorter packets, so bundles break up.
    let lanes = |slot: u32| if slot % WINDOW < WINDOW - 5 { 352 } else { 64 };
    for (round, first) in (0..ROUNDS)
        .flat_map(|round| (0..SLOTS).step_by(WINDOW as usize).map(move |first| (round, first)))
    {
        for (rank, path) in (0u32..).zip(&paths) {
            for slot in first..first + WINDOW {
                path.contribute(
                    slot as u16,
                    round,
                    &vec![(rank + 1) * (slot + 100 * round); lanes(slot)],
                );
            }
        }
        for path in &paths {
            let mut seen = [false; WINDOW as usize];
            for _ in 0..WINDOW {
                let result = path.receive();
                let slot = u32::from(result.header.slot.get());
                // (1 + 2 + 3 + 4) times what rank 0 sent
                assert_eq!(result.lanes, vec![10 * (slot + 100 * round); lanes(slot)]);
                assert_eq!(result.header.round.get(), round);
                assert!(!std::mem::replace(&mut seen[(slot - first) as usize], true));
            }
        }
    }
    assert_eq!(daemon.counter("completed").await, u64::from(SLOTS * ROUNDS));
    assert_eq!(daemon.counter("send_failed").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_disagree_are_both_told() {
    let (daemon, _ranks, paths) = started(2).await;
    paths[0].contribute(0, 0, &[1; 32]);
    paths[1].contribute(0, 0, &[1; 64]);
    let detail = 1; // rank 0 was first, rank 1 disagreed: 0 << 16 | 1
    let told = vec![RejectReason::Mismatch as u32, detail];
    let reject = paths[1].receive();
    assert_eq!((reject.kind, reject.lanes), (Kind::Reject, told.clone()));
    paths[0].contribute(0, 0, &[1; 32]);
    assert_eq!(paths[0].receive().lanes, told);
    assert_eq!(daemon.counter("mismatch").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_job_is_rejected_until_it_is_gone() {
    let (daemon, mut ranks, paths) = started(2).await;
    drop(ranks.pop());
    ranks[0].next().await; // Aborted: the data plane knows by then
    paths[0].contribute(0, 0, &[1; 32]);
    let reject = paths[0].receive();
    assert_eq!((reject.kind, reject.lanes), (Kind::Reject, vec![RejectReason::Aborted as u32, 0]));
    drop(ranks);
    while !daemon
        .client()
        .await
        .list_jobs(switchml_control::ListJobsRequest {})
        .await
        .unwrap()
        .into_inner()
        .jobs
        .is_empty()
    {}
    paths[0].contribute(0, 0, &[1; 32]);
    assert_eq!(paths[0].receive_within(SILENCE), None);
    assert_eq!(daemon.counter("unknown_job").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_that_are_refused_are_counted_and_not_answered() {
    let (daemon, _ranks, paths) = started(2).await;
    let path = &paths[0];
    let valid = || {
        let mut header = path.header(Kind::Contribution);
        header.lanes = U16::new(32);
        checked(header, &[1; 32])
    };
    let hello = |secret: u32| {
        let mut header = path.header(Kind::Hello);
        header.aux = U32::new(secret);
        packet(&header, &[])
    };
    let with = |change: &dyn Fn(&mut switchml_protocol::wire::header::Header)| {
        let mut header = valid();
        change(&mut header);
        packet(&header, &[1; 32])
    };
    let whole = with(&|_| {});
    let stranger = Path {
        socket: std::net::UdpSocket::bind("127.0.0.1:0").unwrap(),
        ..Path::new(path.assigned.clone(), 0)
    };
    let cases: Vec<(&str, &Path, Vec<u8>)> = vec![
        ("truncated", path, vec![]),
        ("truncated", path, whole[..31].to_vec()),
        ("bad_length", path, whole[..32].to_vec()),
        ("bad_length", path, whole[..whole.len() - 1].to_vec()),
        ("bad_length", path, [&whole[..], &[0]].concat()),
        ("bad_version", path, with(&|h| h.version = 2)),
        ("bad_kind", path, with(&|h| h.kind = 0)),
        ("bad_kind", path, with(&|h| h.kind = Kind::Result as u8)),
        ("bad_op", path, with(&|h| h.op = 2)),
        ("bad_lanes", path, with(&|h| h.lanes = U16::new(31))),
        ("bad_check", path, with(&|h| h.check = U32::new(h.check.get() ^ 1))),
        ("bad_check", path, with(&|h| h.flags = 0)),
        ("unknown_job", path, with(&|h| h.job = U16::new(9))),
        ("unknown_job", path, with(&|h| h.job = U16::new(60_000))),
        ("wrong_epoch", path, with(&|h| h.epoch = U32::new(h.epoch.get() ^ 1))),
        ("bad_rank", path, with(&|h| h.rank = U16::new(2))),
        ("bad_slot", path, with(&|h| h.slot = U16::new(path.assigned.slots as u16))),
        ("wrong_secret", path, hello(path.assigned.hello_secret ^ 1)),
        ("wrong_place", &stranger, hello(path.assigned.hello_secret)),
        ("wrong_place", &stranger, whole.clone()),
    ];
    for (reason, path, bytes) in cases {
        let before = daemon.counter(reason).await;
        path.send_bytes(&bytes);
        assert_eq!(path.receive_within(SILENCE), None, "{reason}");
        // The daemon may not have served the packet yet.
        let begin = Instant::now();
        while daemon.counter(reason).await == before && begin.elapsed() < PATIENCE {}
        assert_eq!(daemon.counter(reason).await, before + 1, "{reason}");
    }
    assert_eq!(daemon.counter("started").await, 0, "no slot was touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_from_the_address_that_was_sent_to() {
    let daemon = Daemon::start(512).await;
    let mut rank = daemon.join("train", 0, 1).await;
    let mut path = Path::new(rank.assigned().await, 0);
    // All of 127/8 is this host. `receive` checks the source.
    path.aggregator.set_ip("127.0.0.2".parse().unwrap());
    path.hello();
}
