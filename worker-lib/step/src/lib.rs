//! A training step of a data-parallel job: its layers, with their gradients and computing times.
//! [`models`] knows those of public models, [`file`] reads others; [`buckets`] groups gradients as
//! torch's DistributedDataParallel does, and [`timeline`] says how long a step takes.

#![forbid(unsafe_code)]

pub mod buckets;
pub mod file;
pub mod models;
pub mod published;
pub mod timeline;

use std::time::Duration;

/// One gradient, or a layer that computes and has none.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its name, for people.
    pub name: String,
    /// Elements of the gradient; 0 for none.
    pub elements: usize,
    /// Computing time in the forward pass.
    pub forward: Duration,
    /// Computing time in the backward pass, at whose end the gradient is ready.
    pub backward: Duration,
}

/// A training step: its layers in the order of the forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The layers; the backward pass takes them from the last to the first.
    pub layers: Vec<Layer>,
}

/// A gradient and when it is ready, counted from the beginning of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Elements of the gradient.
    pub elements: usize,
    /// End of its layer's backward pass.
    pub at: Duration,
}

impl Step {
    /// The time of computing alone.
    pub fn compute(&self) -> Duration {
        self.layers.iter().map(|layer| layer.forward + layer.backward).sum()
    }

    /// Elements of all gradients.
    pub fn elements(&self) -> usize {
        self.layers.iter().map(|layer| layer.elements).sum()
    }

    /// The gradients in the order in which they get ready.
    pub fn ready(&self) -> Vec<Ready> {
        let mut at = self.layers.iter().map(|layer| layer.forward).sum();
        let mut ready = Vec::new();
        for layer in self.layers.iter().rev() {
            at += layer.backward;
            if layer.elements > 0 {
                ready.push(Ready { elements: layer.elements, at });
            }
        }
        ready
    }

    /// The same step on a processor that takes so long for it; a step that computes nothing stays
    /// as it is.
    #[must_use]
    pub fn with_compute(mut self, compute: Duration) -> Self {
        let now = self.compute();
        if !now.is_zero() {
            let factor = compute.as_secs_f64() / now.as_secs_f64();
            for layer in &mut self.layers {
                layer.forward = layer.forward.mul_f64(factor);
                layer.backward = layer.backward.mul_f64(factor);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(elements: usize, forward: u64, backward: u64) -> Layer {
        let [forward, backward] = [forward, backward].map(Duration::from_millis);
        Layer { name: "layer".to_owned(), elements, forward, backward }
    }

    /// Forward takes 1 + 2 + 3 ms; then the last layer is ready after 6 + 5 ms.
    #[test]
    fn gradients_are_ready_from_the_last_layer_to_the_first() {
        let step = Step { layers: vec![layer(10, 1, 2), layer(0, 2, 3), layer(30, 3, 5)] };
        let ready = |elements, ms| Ready { elements, at: Duration::from_millis(ms) };
        assert_eq!(step.ready(), [ready(30, 11), ready(10, 16)]);
        assert_eq!((step.compute(), step.elements()), (Duration::from_millis(16), 40));
        let twice = step.with_compute(Duration::from_millis(32));
        assert_eq!(twice.ready(), [ready(30, 22), ready(10, 32)]);
    }

    #[test]
    fn a_step_without_computing_stays_so() {
        let step = Step { layers: vec![layer(10, 0, 0)] };
        assert_eq!(step.clone().with_compute(Duration::from_secs(1)), step);
    }
}
