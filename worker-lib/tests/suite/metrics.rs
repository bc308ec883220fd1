//! Small tensors that hold numbers of different kinds, such as the metrics of a training. Their
//! sums are as good as in f64.

use std::thread;

use switchml_worker::{Communicator, ReduceOp};

use switchml_rack::daemon::{Daemon, PATIENCE};

/// A loss, a count of tokens, a step, a norm and another count.
#[expect(clippy::approx_constant, reason = "it is what a user summed, not pi")]
const METRICS: [f32; 5] = [0.001, 5e6, 1.0, 3.141_59, 12_345_678.0];
const RANKS: u32 = 3;
/// Elements that nearly cancel out, by rank, and their exact sums; f64 would lose the last one.
const CANCEL: [[f32; 3]; RANKS as usize] =
    [[1e9, 16_777_216.0, -1e-3], [3.0, -16_777_215.0, 1e9], [-1e9, -1.0, -1e9]];
const DIFFERENCES: [f32; 3] = [3.0, 0.0, -1e-3];

/// This rank's results: the sum and the average of the metrics, three times each, and the sum of
/// elements that cancel out.
fn rank(daemon: &Daemon, rank: u32) -> (Vec<[f32; 5]>, Vec<[f32; 5]>, [f32; 3]) {
    let settings =
        Communicator::builder().aggregator(&daemon.address).job("metrics").deadline(PATIENCE);
    let communicator = settings.rank(rank).world_size(RANKS).connect().unwrap();
    // From the second call on, the exponents are predicted.
    let reduce = |op| {
        let call = || {
            let mut metrics = METRICS;
            communicator.all_reduce(&mut metrics, op).unwrap();
            metrics
        };
        (0..3).map(|_| call()).collect()
    };
    let (sums, averages) = (reduce(ReduceOp::Sum), reduce(ReduceOp::Avg));
    let mut cancelled = CANCEL[rank as usize];
    communicator.all_reduce(&mut cancelled, ReduceOp::Sum).unwrap();
    communicator.close().unwrap();
    (sums, averages, cancelled)
}

#[test]
fn metrics_of_different_magnitudes_keep_their_digits() {
    let daemon = Daemon::start();
    let results = thread::scope(|scope| {
        let daemon = &daemon;
        let ranks: Vec<_> =
            (0..RANKS).map(|number| scope.spawn(move || rank(daemon, number))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    // Three times 24 bits are exact in f64.
    let sum = METRICS.map(|x| (f64::from(RANKS) * f64::from(x)) as f32);
    for (sums, averages, differences) in results {
        assert_eq!(sums, [sum; 3]);
        assert_eq!(averages, [METRICS; 3]);
        assert_eq!(differences, DIFFERENCES);
    }
}
