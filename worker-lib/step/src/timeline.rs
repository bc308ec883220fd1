//! How long a step takes if links are all that all-reduces wait for.

use std::time::Duration;

use crate::buckets::Bucket;

/// The time of a step whose buckets travel one after the other, each once it is ready, beside the
/// computing. `cost` says how long one of so many elements takes.
pub fn step(buckets: &[Bucket], compute: Duration, cost: impl Fn(usize) -> Duration) -> Duration {
    let mut free = Duration::ZERO;
    for bucket in buckets {
        free = free.max(bucket.ready) + cost(bucket.elements);
    }
    free.max(compute)
}

/// The share of the communication that computing hid, from 0 to 1: of the time that all-reduces
/// take by themselves, what they did not add to the step. 1 where there is no communication.
pub fn hidden(step: f64, compute: f64, communication: f64) -> f64 {
    if communication <= 0.0 {
        return 1.0;
    }
    ((compute + communication - step) / communication).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bucket travels from 10 to 40 ms. The second, ready at 20, waits for it, and the
    /// third, ready at 100, for nobody.
    #[test]
    fn buckets_wait_for_links_and_for_gradients() {
        let ms = Duration::from_millis;
        let bucket = |elements, ready| Bucket { elements, ready: ms(ready) };
        let all = [bucket(30, 10), bucket(5, 20), bucket(7, 100)];
        let time = |count: usize| step(&all[..count], ms(100), |elements| ms(elements as u64));
        assert_eq!([time(0), time(2), time(3)], [ms(100), ms(100), ms(107)]);
        let slow = step(&all, ms(100), |elements| ms(10 * elements as u64));
        assert_eq!(slow, ms(10 + 420));
    }

    /// 50 ms of communication made 100 ms of computing 110 long: 40 of 50 were hidden.
    #[test]
    fn what_is_hidden() {
        assert_eq!(hidden(110.0, 100.0, 50.0), 0.8);
        assert_eq!(hidden(150.0, 100.0, 50.0), 0.0);
        assert_eq!(hidden(100.0, 100.0, 50.0), 1.0);
        // Noise.
        assert_eq!(hidden(99.0, 100.0, 50.0), 1.0);
        assert_eq!(hidden(170.0, 100.0, 50.0), 0.0);
        assert_eq!(hidden(100.0, 100.0, 0.0), 1.0);
    }
}
