//! Job tokens, between the real daemon and the library: which tokens let a rank join, and which do
//! not, each refused in one line and counted.

use std::fs;
use std::thread;
use std::time::Duration;

use switchml_worker::control::{Access, Error, Membership, Token, status};
use switchml_worker::{Communicator, ReduceOp};

use crate::folder::Folder;
use switchml_rack::daemon::{Daemon, PATIENCE, failure};

/// A daemon that asks for tokens, and its key.
fn guarded(folder: &Folder) -> (Daemon, String) {
    fs::write(folder.file("key"), "0123456789abcdef0123456789abcdef\n").unwrap();
    let key = folder.text("key");
    (Daemon::with_options(&["--token-key", &key]), key)
}

/// A token made by `switchml-aggregator token`.
fn token(daemon: &Daemon, key: &str, tenant: &str, jobs: &str, expires: &str) -> Token {
    let options = ["--token-key", key, "--tenant", tenant, "--jobs", jobs, "--expires", expires];
    let printed = daemon.run(&[&["token"], &options[..]].concat());
    assert_eq!(printed.lines().count(), 1, "{printed}");
    Token::Text(printed)
}

fn access(daemon: &Daemon, token: Option<Token>) -> Access {
    Access { token, ..Access::from(&daemon.address) }
}

/// The reason why a rank may not join.
fn refusal(daemon: &Daemon, token: Option<Token>, job: &str) -> String {
    let joined = Membership::join(access(daemon, token), job, 0, 2, Some(1), PATIENCE);
    match joined.err() {
        Some(Error::Refused { address, why }) => {
            assert_eq!(address, daemon.address);
            why
        }
        other => panic!("{other:?}"),
    }
}

/// The number of refusals of a kind.
fn refused(daemon: &Daemon, what: &str) -> u64 {
    let report = daemon.status(&[]);
    let line = report.lines().find(|line| line.starts_with("refused") && line.ends_with(what));
    line.map_or(0, |line| line.split_whitespace().nth(1).unwrap().parse().unwrap())
}

#[test]
fn a_token_for_a_job_lets_its_ranks_join() {
    let folder = Folder::new();
    let (daemon, key) = guarded(&folder);
    let token = token(&daemon, &key, "a", "train-*", "24h");
    let Token::Text(text) = &token else { unreachable!("made above") };
    fs::write(folder.file("token"), text).unwrap();
    thread::scope(|scope| {
        for (rank, token) in [(0, token.clone()), (1, Token::File(folder.file("token")))] {
            let builder = Communicator::builder().aggregator(&daemon.address).job("train-7");
            let builder = builder.token(token).rank(rank).world_size(2);
            scope.spawn(move || {
                let communicator = builder.connect().unwrap();
                let mut values = [rank as i32 + 1; 3];
                communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                assert_eq!(values, [3; 3]);
                communicator.close().unwrap();
            });
        }
    });
    let bench = ["bench", "--job", "train-8", "--rank", "0", "--world-size", "1"];
    let options = ["-b", "8", "-e", "8", "--token-file", &folder.text("token")];
    daemon.worker(&[&bench[..], &options].concat()).wait_success(PATIENCE).unwrap();
    // The status needs no token.
    assert!(status(&daemon.address, PATIENCE).is_ok());
}

#[test]
fn a_rank_without_a_token() {
    let folder = Folder::new();
    let (daemon, _) = guarded(&folder);
    let expected = "this aggregator requires a job token; give the file of one (token-file, \
                    SWITCHML_TOKEN_FILE), which its operator makes with `switchml-aggregator \
                    token`";
    assert_eq!(refusal(&daemon, None, "a"), expected);
    let mut rank = daemon.worker(&["bench", "--rank", "0", "--world-size", "1"]);
    let line = format!("error: {expected} (says the aggregator at {})", daemon.address);
    assert_eq!(failure(&mut rank), (3, line));
    assert_eq!(refused(&daemon, "joins without a job token"), 2);

    let missing = Token::File(folder.file("missing"));
    let joined = Membership::join(access(&daemon, Some(missing)), "a", 0, 1, Some(1), PATIENCE);
    let line = joined.err().unwrap().to_string();
    let start = format!("job token {}: No such file", folder.text("missing"));
    assert!(line.starts_with(&start), "{line}");
}

#[test]
fn an_expired_token() {
    let folder = Folder::new();
    let (daemon, key) = guarded(&folder);
    let token = token(&daemon, &key, "a", "*", "5s");
    let builder = Communicator::builder().aggregator(&daemon.address).job("early");
    let early = builder.token(token.clone()).rank(0).world_size(1).connect().unwrap();
    thread::sleep(Duration::from_millis(6100));
    // This rank joined in time, and continues.
    early.all_reduce(&mut [1i32; 1000], ReduceOp::Sum).unwrap();
    early.close().unwrap();
    let line = refusal(&daemon, Some(token), "a");
    assert!(line.starts_with("the job token expired "), "{line}");
    assert!(line.contains("s ago by the aggregator's clock, where it is 2"), "{line}");
    assert_eq!(refused(&daemon, "that has expired"), 1);
}

#[test]
fn a_token_for_other_jobs() {
    let folder = Folder::new();
    let (daemon, key) = guarded(&folder);
    let token = token(&daemon, &key, "a", "a/*", "1h");
    let expected = "the job token is for jobs named \"a/*\", not \"b/1\"; give the job such a \
                    name, or ask the aggregator's operator for another token";
    assert_eq!(refusal(&daemon, Some(token), "b/1"), expected);
    assert_eq!(refused(&daemon, "for jobs of other names"), 1);
}

#[test]
fn a_forged_token() {
    let folder = Folder::new();
    let (daemon, key) = guarded(&folder);
    fs::write(folder.file("other"), "f".repeat(32)).unwrap();
    let Token::Text(narrow) = token(&daemon, &key, "a", "a", "1h") else { unreachable!() };
    let Token::Text(foreign) = token(&daemon, &folder.text("other"), "a", "*", "1h") else {
        unreachable!()
    };
    // The signature of one token, and the claims of the other.
    let parts = |token: &str| token.trim().split('.').map(str::to_owned).collect::<Vec<_>>();
    let (narrow, wide) = (parts(&narrow), parts(&foreign));
    let mixed = format!("{}.{}.{}", narrow[0], wide[1], narrow[2]);
    // {"alg":"none","typ":"JWT"} in base64url: a token without a signature.
    let unsigned = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{}.", wide[1]);
    let expected = "the job token is not from this aggregator; ask its operator for another";
    for forged in [mixed, unsigned, "token".to_owned()] {
        assert_eq!(refusal(&daemon, Some(Token::Text(forged)), "a"), expected);
    }
    let line = refusal(&daemon, Some(Token::Text(foreign)), "a");
    let (start, end) = line.split_once(", which this aggregator does not have").unwrap();
    let id = start.strip_prefix("the job token is signed with the key ").unwrap();
    assert!(id.len() == 8 && end.starts_with(", or no longer has; "), "{line}");
    assert_eq!(refused(&daemon, "not signed with this aggregator's key"), 4);
}

/// A tenant's jobs have no more than its quota, whatever its token allows.
#[test]
fn a_tenant_beyond_its_quota() {
    let folder = Folder::new();
    let key = folder.text("key");
    fs::write(&key, "k".repeat(32)).unwrap();
    let options = ["--tenant-quota", "ranks=4,joins=60", "--tenant-quota", "b:ranks=1"];
    let daemon = Daemon::with_options(&[&["--token-key", &key], &options[..]].concat());
    let (one, other) = (token(&daemon, &key, "a", "*", "1h"), token(&daemon, &key, "b", "*", "1h"));
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            Membership::join(access(&daemon, Some(one.clone())), "train", 1, 3, Some(1), PATIENCE)
        });
        daemon.wait_for_job("train", "1 of 3");
        assert_eq!(
            refusal(&daemon, Some(one.clone()), "more"),
            "tenant \"a\" may have 4 ranks at once, has 3, and this job needs 2 more; wait for \
             jobs of the tenant to end, or ask the aggregator's operator for a larger quota"
        );
        assert_eq!(
            refusal(&daemon, Some(other), "more"),
            "tenant \"b\" may have 1 ranks at once, and this job alone needs 2: it can never \
             start; ask the aggregator's operator for a larger quota"
        );
        assert_eq!(refused(&daemon, "beyond the quota of their tenant"), 2);
        let others = [0, 2].map(|rank| {
            let access = access(&daemon, Some(one.clone()));
            scope.spawn(move || Membership::join(access, "train", rank, 3, Some(1), PATIENCE))
        });
        // All are kept until the last has joined: one that leaves before the start ends the job.
        let joined = [first].into_iter().chain(others).map(|rank| rank.join().unwrap());
        let joined: Vec<_> = joined.collect();
        assert!(joined.iter().all(Result::is_ok));
    });
}

/// Though it has a token for a job of this name.
#[test]
fn a_rank_of_another_tenant() {
    let folder = Folder::new();
    let (daemon, key) = guarded(&folder);
    let (one, other) = (token(&daemon, &key, "a", "*", "1h"), token(&daemon, &key, "b", "*", "1h"));
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            Membership::join(access(&daemon, Some(one.clone())), "train", 1, 2, Some(1), PATIENCE)
        });
        daemon.wait_for_job("train", "1 of 2");
        let expected = "job \"train\" is another tenant's; give the job a name of its own";
        assert_eq!(refusal(&daemon, Some(other), "train"), expected);
        assert_eq!(refused(&daemon, "that another tenant has started"), 1);
        let second =
            Membership::join(access(&daemon, Some(one.clone())), "train", 0, 2, Some(1), PATIENCE);
        assert!(first.join().unwrap().is_ok() && second.is_ok());
    });
}
