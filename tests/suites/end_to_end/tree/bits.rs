//! Trees as large as those of `cargo xtask run` give the same bits as one rack.

use std::thread;

use switchml_rack::{Aggregator, Binaries, Namespace, Plane, Rack, RackOptions, Racks, Tree};
use switchml_worker::{Communicator, ReduceOp};

/// Elements of the calls; each rank has different ones.
const SIZES: [usize; 4] = [1, 352, 5_000, 200_000];

pub fn eight_ranks_in_two_racks_have_the_bits_of_one_rack(plane: Plane, options: RackOptions) {
    bits_of_one_rack(2, plane, &RackOptions { workers: 8, ..options });
}

pub fn sixteen_ranks_in_four_racks_have_the_bits_of_one_rack(plane: Plane, options: RackOptions) {
    bits_of_one_rack(4, plane, &RackOptions { workers: 16, ..options });
}

fn bits_of_one_rack(number: usize, plane: Plane, options: &RackOptions) {
    let binaries = Binaries::for_test().unwrap();
    let by_combiners = {
        let racks = Racks::new(number, options.clone()).unwrap();
        let tree = Tree::new(&binaries, &racks, plane).unwrap();
        let bits = bits_of_sums(racks.workers(), |rank| tree.control(rank));
        tree.stop().unwrap();
        bits
    };
    let rack = Rack::new(options.clone()).unwrap();
    let aggregator = match plane {
        Plane::Software => Aggregator::software_in_rack(&binaries, &rack).unwrap(),
        Plane::Programs => Aggregator::in_rack(&binaries, &rack).unwrap(),
    };
    let in_one_rack = bits_of_sums(rack.workers(), |_| aggregator.control());
    aggregator.stop().unwrap();
    assert_eq!(by_combiners.len(), SIZES.iter().sum::<usize>());
    assert!(by_combiners == in_one_rack, "bits differ");
}

/// Sums of floats of different magnitudes, which must be the same on all ranks.
fn bits_of_sums<'a>(workers: &[Namespace], control: impl Fn(usize) -> &'a str) -> Vec<u32> {
    let ranks: Vec<Vec<u32>> = thread::scope(|scope| {
        let start = |rank: usize| {
            let worker = &workers[rank];
            let builder = Communicator::builder()
                .aggregator(control(rank))
                .job("bits")
                .rank(rank as u32)
                .world_size(workers.len() as u32);
            scope.spawn(move || {
                worker.run(move || {
                    let communicator = builder.connect().expect("connected");
                    let sums = SIZES.map(|elements| sum(rank, elements, &communicator));
                    communicator.close().unwrap();
                    sums.concat()
                })
            })
        };
        let threads: Vec<_> = (0..workers.len()).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ranks.iter().all(|bits| *bits == ranks[0]), "ranks differ");
    ranks[0].clone()
}

fn sum(rank: usize, elements: usize, communicator: &Communicator) -> Vec<u32> {
    let scale = 10f32.powi(rank as i32 % 5 - 2);
    let mut values: Vec<f32> = (0..elements).map(|i| ((i + rank) as f32).sin() * scale).collect();
    communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    values.iter().map(|value| value.to_bits()).collect()
}
