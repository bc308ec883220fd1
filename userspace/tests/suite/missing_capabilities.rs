//! Ranks over a data plane without checks of maxima, as on Tofino: real sockets, by the API that
//! training jobs use.

use switchml_protocol::capabilities::Capabilities;
use switchml_userspace_core::data_plane::Limits;
use switchml_worker::{Communicator, Element, ReduceOp, Reduction};

use crate::common::Daemon;

const RANKS: u32 = 3;
/// Lanes of a chunk, as on Tofino.
const LANES: u16 = 64;

/// Element `i` of `rank`: an integer from -16 to 16, so that sums are exact in every type.
fn small(rank: u32, i: usize) -> i32 {
    ((i as i32).wrapping_mul(7919).wrapping_add(rank as i32 * 104_729)).rem_euclid(33) - 16
}

/// Reduces `count` elements, and checks them; packets that it took, and chunks that went ahead.
fn reduce<T: Element + PartialEq>(
    communicator: &Communicator,
    reduction: impl Into<Reduction>,
    count: usize,
    from: impl Fn(i32) -> T,
) -> (u64, u64) {
    let reduction = reduction.into();
    let mut tensor: Vec<T> = (0..count).map(|i| from(small(communicator.rank(), i))).collect();
    let stats = communicator.all_reduce(&mut tensor, reduction).expect("reduced");
    for (i, found) in tensor.iter().enumerate() {
        let values = (0..RANKS).map(|rank| small(rank, i));
        let expected = match reduction.op {
            ReduceOp::Max => values.max(),
            ReduceOp::Min => values.min(),
            _ => Some(values.sum()),
        };
        assert!(expected.map(&from).as_ref() == Some(found), "{reduction}, element {i} of {count}");
    }
    (stats.chunks, stats.speculative)
}

fn rank(communicator: Communicator) {
    assert_eq!(communicator.info().stripes[0].capabilities, Capabilities::empty());
    assert_eq!(communicator.info().chunk_lanes, LANES);
    for count in [1usize, 64, 65, 64 * 64, 100_000] {
        let data = count.div_ceil(64) as u64;
        // A small sum takes three lanes an element.
        let floats = if count <= 1024 { count.div_ceil(64 / 3) as u64 } else { data };
        let wide = count.div_ceil(32) as u64;
        // Each exponent chunk, and each chunk of a maximum, has a witness.
        let exponents = |data: u64| 2 * data.div_ceil(64);
        assert_eq!(
            reduce(&communicator, ReduceOp::Sum, count, |x| x as f32),
            (exponents(floats) + floats, 0)
        );
        assert_eq!(
            reduce(&communicator, ReduceOp::Sum, count, f64::from),
            (exponents(wide) + wide, 0)
        );
        assert_eq!(reduce(&communicator, ReduceOp::Max, count, |x| x as f32), (2 * data, 0));
        assert_eq!(reduce(&communicator, ReduceOp::Min, count, |x| x), (2 * data, 0));
        assert_eq!(reduce(&communicator, ReduceOp::Sum, count, |x| x), (data, 0));
        // Packed lanes are i32 to the data plane.
        let packed = count.div_ceil(128) as u64;
        assert_eq!(
            reduce(&communicator, Reduction::SUM16, count, |x| x as f32),
            (exponents(packed) + packed, 0)
        );
    }
    let mut packed = [1f32, -2.0, 3.0];
    communicator.all_reduce(&mut packed, Reduction::AVG16).expect("an average in 16 bits");
    assert_eq!(packed, [1.0, -2.0, 3.0]);
    communicator.barrier().expect("open");
    communicator.close().expect("closed");
}

#[tokio::test]
async fn what_tofino_lacks_is_made_up_for_or_refused() {
    let limits =
        |limits| Limits { capabilities: Capabilities::empty(), max_lanes: LANES, ..limits };
    let daemon = Daemon::start_with(1 << 18, limits).await;
    let address = daemon.control.to_string();
    let ranks = (0..RANKS).map(|number| {
        let settings =
            Communicator::builder().aggregator(&address).job("less").rank(number).world_size(RANKS);
        tokio::task::spawn_blocking(move || rank(settings.connect().expect("connected")))
    });
    for rank in ranks.collect::<Vec<_>>() {
        rank.await.expect("no panic");
    }
    daemon.stop().await;
}
