//! Quotas of tenants: jobs count on when the daemon that let them in is dead, and the next one
//! takes them back from the journal.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use switchml_rack::{Aggregator, Binaries, RackOptions, needs_racks};
use switchml_worker::control::{Access, Error, Membership, Token};
use switchml_worker::{Communicator, ReduceOp};

use crate::strangers::Stop;
use crate::{Cluster, PATIENCE};

/// The tenant's name, its quota, and the error for a second job.
type Tenant = (&'static str, &'static str, &'static str);
/// Each tenant has another limit, which its one job of one rank uses up.
const TENANTS: [Tenant; 3] = [
    ("a", "a:jobs=1", "1 jobs at once, has 1, and this job needs 1 more"),
    ("b", "b:ranks=2", "2 ranks at once, has 1, and this job needs 2 more"),
    ("c", "c:slots=512", "512 slots at once, has 512, and this job needs 512 more"),
];
/// The worker for second jobs, where no rank runs.
const OUTSIDE: usize = TENANTS.len();

/// A tenant's token for all jobs, by the key in a file.
fn token(key: &Path, cluster: &Cluster, tenant: &str) -> Token {
    let mut command = Command::new(Binaries::for_test().unwrap().aggregator);
    command.args(["token", "--token-key"]).arg(key);
    command.args(["--tenant", tenant, "--jobs", "*", "--expires", "1h"]);
    let output = cluster.rack.switch().output(command).unwrap();
    Token::Text(String::from_utf8(output.stdout).unwrap())
}

/// Why a second job of a tenant does not begin.
fn refusal(cluster: &Cluster, token: Token) -> String {
    let access = Access { token: Some(token), ..Access::from(cluster.aggregator.control()) };
    cluster.rack.worker(OUTSIDE).run(move || {
        match Membership::join(access, "second", 0, 2, Some(1), PATIENCE).err() {
            Some(Error::Refused { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    })
}

/// A job of one rank, until it is told to stop.
fn live(control: &str, tenant: &str, token: Token, stop: &AtomicBool) {
    let builder = Communicator::builder().aggregator(control).job(format!("of {tenant}"));
    let communicator = builder.token(token).rank(0).world_size(1).connect().unwrap();
    while !stop.load(Ordering::Relaxed) {
        let mut values = [7i32; 1000];
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        assert_eq!(values, [7; 1000]);
    }
    communicator.close().unwrap();
}

#[test]
fn jobs_of_tenants_count_on_after_a_restart() {
    needs_racks!();
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(&key, "k".repeat(32)).unwrap();
    let mut options = vec!["--token-key", key.path().to_str().unwrap()];
    options.extend(TENANTS.iter().flat_map(|(_, quota, _)| ["--tenant-quota", quota]));
    let rack = RackOptions { workers: TENANTS.len() + 1, ..RackOptions::default() };
    let mut cluster = Cluster::with_options(rack, &options);
    let control = cluster.aggregator.control().to_owned();
    let tokens = TENANTS.map(|(tenant, ..)| token(key.path(), &cluster, tenant));
    let all_refused = |cluster: &Cluster| {
        for ((tenant, _, what), token) in TENANTS.iter().zip(&tokens) {
            let start = format!("tenant {tenant:?} may have {what}");
            let why = refusal(cluster, token.clone());
            assert!(why.starts_with(&start), "{why}");
        }
    };
    let stop = Stop(Arc::default());
    let start = |(worker, ((tenant, ..), token)): (usize, (&Tenant, &Token))| {
        let (tenant, token) = (*tenant, token.clone());
        let (control, stop) = (control.clone(), Arc::clone(&stop.0));
        // A thread is in the namespace of the one that starts it.
        let worker = cluster.rack.worker(worker);
        worker.run(move || thread::spawn(move || live(&control, tenant, token, &stop)))
    };
    let ranks: Vec<_> = TENANTS.iter().zip(&tokens).enumerate().map(start).collect();
    let wait_for_ranks = |cluster: &Cluster| {
        for (tenant, ..) in TENANTS {
            cluster.wait_for_job(&[&format!("of {tenant}"), "started", "1 of 1"]);
        }
    };
    wait_for_ranks(&cluster);
    all_refused(&cluster);
    cluster.aggregator.process().kill().unwrap();
    cluster.aggregator =
        Aggregator::in_rack_at(&cluster.binaries, &cluster.rack, &control, &options).unwrap();
    // Jobs are refused whether the ranks are back or not.
    all_refused(&cluster);
    wait_for_ranks(&cluster);
    all_refused(&cluster);
    drop(stop);
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
    let token = tokens[0].clone();
    let access = Access { token: Some(token), ..Access::from(control.as_str()) };
    let next = cluster
        .rack
        .worker(OUTSIDE)
        .run(move || Membership::join(access, "next", 0, 1, Some(1), PATIENCE).map(drop));
    assert!(next.is_ok(), "the first job is over");
}
