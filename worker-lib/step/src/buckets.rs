//! Gradients grouped into buckets, one all-reduce each, as torch's DistributedDataParallel does
//! with its defaults: in the order of readiness, and a bucket is closed by the gradient that fills
//! it. So a gradient larger than a bucket travels whole.

use std::time::Duration;

use crate::Step;

/// `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`: small, so that communication begins early.
const FIRST: usize = 1 << 20;
/// The default of `bucket_cap_mb`.
const OTHERS: usize = 25 << 20;

/// Gradients that are added up in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Elements of all of them.
    pub elements: usize,
    /// When the last of them is ready, counted from the beginning of the step.
    pub ready: Duration,
}

/// The buckets of a step whose gradients have elements of so many bytes, in the order in which they
/// are sent.
pub fn of(step: &Step, bytes: usize) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut is_open = false;
    for gradient in step.ready() {
        match buckets.last_mut().filter(|_| is_open) {
            Some(bucket) => {
                bucket.elements += gradient.elements;
                bucket.ready = gradient.at;
            }
            None => buckets.push(Bucket { elements: gradient.elements, ready: gradient.at }),
        }
        let cap = if buckets.len() == 1 { FIRST } else { OTHERS };
        is_open = buckets.last().is_some_and(|bucket| bucket.elements * bytes < cap);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layer;

    /// A step of gradients in the order of readiness, one ready after each millisecond.
    fn step(elements: &[usize]) -> Step {
        let backward = Duration::from_millis(1);
        let layer = |&elements: &usize| Layer {
            name: String::new(),
            elements,
            forward: Duration::ZERO,
            backward,
        };
        Step { layers: elements.iter().rev().map(layer).collect() }
    }

    fn buckets(elements: &[usize], bytes: usize) -> Vec<(usize, u128)> {
        let buckets = of(&step(elements), bytes);
        buckets.iter().map(|bucket| (bucket.elements, bucket.ready.as_millis())).collect()
    }

    /// 1 MiB are 262,144 elements of f32, and 25 MiB are 6,553,600.
    #[test]
    fn a_gradient_that_fills_a_bucket_closes_it() {
        // The first gradient is one element short, so the second one goes with it.
        assert_eq!(buckets(&[262_143, 1, 5], 4), [(262_144, 2), (5, 3)]);
        assert_eq!(buckets(&[262_144, 1, 5], 4), [(262_144, 1), (6, 3)]);
        assert_eq!(
            buckets(&[1_000, 300_000, 6_000_000, 553_599, 9_000_000, 7], 4),
            [(301_000, 2), (15_553_599, 5), (7, 6)]
        );
    }

    #[test]
    fn buckets_are_counted_in_bytes() {
        assert_eq!(buckets(&[262_144, 262_144, 1], 2), [(524_288, 2), (1, 3)]);
        assert_eq!(buckets(&[131_072, 131_072, 1], 8), [(131_072, 1), (131_073, 3)]);
    }

    #[test]
    fn a_gradient_larger_than_a_bucket_is_not_cut() {
        assert_eq!(buckets(&[102_760_448, 10], 4), [(102_760_448, 1), (10, 2)]);
        assert_eq!(buckets(&[], 4), []);
    }
}
