//! What all ranks find out together about a result.

use switchml_pattern::{Pattern, Tested, all_equal, digest, digest_words, wrong_elements};
use switchml_worker::{Communicator, Error, ReduceOp, Reduction};

/// A count of wrong elements that all ranks can add up in an i32.
const MOST_WRONG: usize = (i32::MAX / 1024) as usize;

/// Wrong elements of all ranks' results of one call, and whether two ranks have different bits.
pub fn on_result<T: Tested>(
    communicator: &Communicator,
    pattern: &Pattern,
    op: Reduction,
    result: &[T],
) -> Result<(u64, bool), Error> {
    let here = wrong_elements(pattern, op, communicator.world_size() as usize, result);
    let mut everywhere = [here.min(MOST_WRONG) as i32];
    let mut words = digest_words(digest(result));
    communicator.all_reduce(&mut everywhere, ReduceOp::Sum)?;
    communicator.all_reduce(&mut words, ReduceOp::Max)?;
    Ok((everywhere[0] as u64, !all_equal(words)))
}

/// A time of the slowest rank, in seconds.
pub fn on_time(communicator: &Communicator, seconds: f64) -> Result<f64, Error> {
    let mut slowest = [seconds as f32];
    communicator.all_reduce(&mut slowest, ReduceOp::Max)?;
    Ok(slowest[0].into())
}
