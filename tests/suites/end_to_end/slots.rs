//! `switchml-aggregator slots` says for whom a job waits.

use std::sync::{Arc, Barrier};
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
    let arguments = ["slots", "--connect", cluster.aggregator.control(), "--job", "train"];
    let slots = || -> Value {
        let arguments = [&arguments[..], &["--json"]].concat();
        serde_json::from_str(&cluster.ask(&arguments)).unwrap_or_default()
    };
    let called = Arc::new(Barrier::new(2));
    let late = Arc::clone(&called);
    thread::scope(|scope| {
        let ranks = scope.spawn(|| {
            cluster.run_ranks(3, "train", move |rank, builder| {
                let communicator = builder.timeout(PATIENCE).connect().unwrap();
                for call in 0..2 {
                    if (rank, call) == (1, 1) {
                        late.wait();
                    }
                    let mut values = vec![rank as i32; ELEMENTS];
                    communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                    assert!(values.iter().all(|&sum| sum == 3)); // 0 + 1 + 2
                }
                communicator.close().unwrap();
            })
        });
        // The other ranks may not have contributed at first, either.
        let lack_one = |slots: &Value| {
            let rounds = slots["oldest"].as_array().map(Vec::as_slice).unwrap_or_default();
            !rounds.is_empty() && rounds.iter().all(|round| round["missing"] == json!([1]))
        };
        wait_until!(SOON, lack_one(&slots()), "{:?}", slots());
        let found = slots();
        for round in found["oldest"].as_array().unwrap() {
            assert_eq!(round["contributed"], json!([0, 2]), "{found}");
            assert!(round["round"].as_u64() > Some(0), "{found}");
        }
        let text = cluster.ask(&arguments);
        let missing: Vec<_> = text.lines().filter(|line| line.starts_with("missing")).collect();
        assert_eq!(missing, [format!("missing      {}", in_words(1, "10.88.0.2"))], "{text}");
        assert!(text.contains("  ranks 0 and 2  rank 1\n"), "{text}");
        called.wait();
        ranks.join().unwrap();
    });
}
