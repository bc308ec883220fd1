//! A job that not all ranks join. The ranks that wait get an error in time that names the others,
//! and nothing of the job stays.

use std::time::{Duration, Instant};

use switchml_rack::{needs_racks, wait_until};
use switchml_worker::control::{self, AggregatorStatus};
use switchml_worker::{Error, ReduceOp};

use crate::{Cluster, PATIENCE, SOON};

const WORLD_SIZE: u32 = 5;
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The aggregator's status, without the counters of its ports.
fn status(cluster: &Cluster) -> AggregatorStatus {
    let address = cluster.aggregator.control().to_owned();
    let status = cluster.rack.switch().run(move || control::status(&address, PATIENCE));
    let mut status = status.unwrap();
    for port in &mut status.ports {
        (port.received_bytes, port.sent_bytes) = (0, 0);
    }
    status
}

#[test]
fn a_job_that_never_fills_names_the_missing_and_gives_everything_back() {
    needs_racks!();
    let cluster = Cluster::of(2);
    let before = status(&cluster);
    assert_eq!(before.slots_free, before.slots_total);
    // Ranks 0 and 1 come, 2, 3 and 4 do not.
    let outcomes = cluster.run_ranks(2, "lonely", |rank, builder| {
        let begin = Instant::now();
        let error =
            builder.world_size(WORLD_SIZE).join_timeout(JOIN_TIMEOUT).connect().err().unwrap();
        (rank as u16, error, begin.elapsed())
    });
    for (own, error, elapsed) in outcomes {
        let Error::Control(control::Error::Missing { job, world_size, ranks, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!((job.as_str(), *world_size), ("lonely", WORLD_SIZE as u16));
        // A rank that waits a moment longer misses the other one, too.
        assert!(
            [2, 3, 4].iter().all(|rank| ranks.contains(rank)) && !ranks.contains(&own),
            "{error}"
        );
        assert!(elapsed >= JOIN_TIMEOUT && elapsed < JOIN_TIMEOUT + SOON, "{elapsed:?}");
    }
    // The daemon notices at once that they are gone.
    wait_until!(SOON, !cluster.list_jobs().contains("lonely"), "{}", cluster.list_jobs());
    assert_eq!(status(&cluster), before);
    // The name is free, for a job of another size.
    let sums = cluster.run_ranks(2, "lonely", |rank, builder| {
        let communicator = builder.connect().unwrap();
        let mut values = vec![rank as i32 + 1; 1000];
        communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        communicator.close().unwrap();
        values
    });
    assert!(sums.iter().flatten().all(|&sum| sum == 3));
}
