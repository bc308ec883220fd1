//! `switchml-aggregator slots` says for whom a job waits.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use serde_json::{Value, json};
use switchml_rack::{Mode, in_both_modes, wait_until};
use switchml_worker::ReduceOp;

use crate::{Cluster, PATIENCE, SOON, in_words};

in_both_modes! {
    a_rank_that_does_not_call_is_named_with_its_host,
}

/// More chunks than a shard has slots, so that the second call's rounds are not the first ones.
const ELEMENTS: usize = 500_000;

fn a_rank_that_does_not_call_is_named_with_its_host(mode: Mode) {
    let cluster = Cluster::in_mode(3, mode);
    let (has_summed, summed) = mpsc::channel();
    // Without its sender, which a failure drops, rank 1 goes on.
    let (go, may_go) = mpsc::channel::<()>();
    let may_go = Arc::new(Mutex::new(may_go));
    thread::scope(|scope| {
        let ranks = scope.spawn(|| {
            cluster.run_ranks(3, "train", move |rank, builder| {
                let communicator = builder.timeout(PATIENCE).connect().unwrap();
                for call in 0..2 {
                    if (rank, call) == (1, 1) {
                        has_summed.send(()).unwrap();
                        let _ = may_go.lock().unwrap().recv();
                    }
                    let mut values = vec![rank as i32; ELEMENTS];
                    communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                    assert!(values.iter().all(|&sum| sum == 3)); // 0 + 1 + 2
                }
                communicator.close().unwrap();
            })
        });
        // From here on, only rounds of the second call are unfinished.
        summed.recv_timeout(PATIENCE).unwrap();
        names_rank_1(&cluster);
        drop(go);
        ranks.join().unwrap();
    });
}

/// Waits until ranks 0 and 2 have contributed all that they can, so that only rank 1 is missing.
fn names_rank_1(cluster: &Cluster) {
    let arguments = ["slots", "--connect", cluster.aggregator.control(), "--job", "train"];
    let json = [&arguments[..], &["--json"]].concat();
    let rounds = || -> Vec<Value> {
        let told: Value = serde_json::from_str(&cluster.ask(&json)).unwrap_or_default();
        told["oldest"].as_array().cloned().unwrap_or_default()
    };
    let lacks_one =
        |round: &Value| round["contributed"] == json!([0, 2]) && round["missing"] == json!([1]);
    let all_lack_one = |rounds: &[Value]| !rounds.is_empty() && rounds.iter().all(lacks_one);
    wait_until!(SOON, all_lack_one(&rounds()), "{:?}", rounds());
    assert!(rounds().iter().all(|round| round["round"].as_u64() > Some(0)), "{:?}", rounds());
    let named = format!("missing      {}", in_words(1, "10.88.0.2"));
    let names_one = |text: &str| {
        let missing: Vec<_> = text.lines().filter(|line| line.starts_with("missing")).collect();
        missing == [&named] && text.contains("  ranks 0 and 2  rank 1\n")
    };
    wait_until!(SOON, names_one(&cluster.ask(&arguments)), "{}", cluster.ask(&arguments));
}
