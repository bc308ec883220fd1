//! Public models: their gradients, in the order of their parameters in torchvision and
//! transformers, and how their work is spread over the layers.
//!
//! A layer's time is its share of the multiplications and additions; the backward pass takes twice
//! the forward pass, because it computes gradients of inputs and of weights.

mod images;
mod inception;
mod resnet;
mod text;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{Layer, Step};

/// Parameters that are used together, and the work of the forward pass with them.
struct Part {
    name: String,
    /// Elements of each tensor.
    tensors: Vec<usize>,
    /// Multiplications with an addition, for one example.
    work: f64,
}

/// A public model.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its parameters, as published.
    pub parameters: usize,
    parts: fn() -> Vec<Part>,
}

const fn model(name: &'static str, parameters: usize, parts: fn() -> Vec<Part>) -> Model {
    Model { name, parameters, parts }
}

/// All of them. Parameters of images' models are torchvision's (`num_params` of its weights), those
/// of text transformers' (`num_parameters()`; of BERT without heads).
pub const ALL: [Model; 15] = [
    model("alexnet", 61_100_840, images::alexnet),
    model("vgg11", 132_863_336, || images::vgg(&[1, 1, 2, 2, 2])),
    model("vgg16", 138_357_544, || images::vgg(&[2, 2, 3, 3, 3])),
    model("vgg19", 143_667_240, || images::vgg(&[2, 2, 4, 4, 4])),
    model("resnet50", 25_557_032, || resnet::resnet([3, 4, 6, 3])),
    model("resnet101", 44_549_160, || resnet::resnet([3, 4, 23, 3])),
    model("resnet152", 60_192_808, || resnet::resnet([3, 8, 36, 3])),
    model("inception3", 27_161_264, inception::inception3),
    model("bert-large", 335_141_888, text::bert_large),
    model("gpt2", 124_439_808, || text::gpt2(768, 12)),
    model("gpt2-medium", 354_823_168, || text::gpt2(1024, 24)),
    model("gpt2-large", 774_030_080, || text::gpt2(1280, 36)),
    model("gpt2-xl", 1_557_611_200, || text::gpt2(1600, 48)),
    model("llama-1b", 1_235_814_400, || text::llama(&text::LLAMA_1B)),
    model("llama-8b", 8_030_261_248, || text::llama(&text::LLAMA_8B)),
];

impl Model {
    /// A step on a processor that takes so long for its computing.
    pub fn step(self, compute: Duration) -> Step {
        let parts = (self.parts)();
        let work: f64 = parts.iter().map(|part| part.work).sum();
        let layers = parts.into_iter().flat_map(|part| {
            let forward = compute.mul_f64(part.work / work / 3.0);
            layers(part, forward)
        });
        Step { layers: layers.collect() }
    }
}

/// A layer for each tensor. All are ready at the part's end: the tensor that the backward pass
/// comes to first takes all the time.
fn layers(part: Part, forward: Duration) -> Vec<Layer> {
    let Part { name, mut tensors, .. } = part;
    if tensors.is_empty() {
        tensors.push(0);
    }
    let last = tensors.len() - 1;
    let layer = |(number, elements)| {
        let forward = if number == last { forward } else { Duration::ZERO };
        Layer { name: format!("{name}.{number}"), elements, forward, backward: 2 * forward }
    };
    tensors.into_iter().enumerate().map(layer).collect()
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unknown = || {
            let names: Vec<&str> = ALL.iter().map(|model| model.name).collect();
            format!("unknown model {name:?}: {} are known", names.join(", "))
        };
        ALL.into_iter().find(|model| model.name == name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_published() {
        for model in ALL {
            let step = model.step(Duration::from_secs(1));
            assert_eq!(step.elements(), model.parameters, "{model}");
        }
    }

    /// Multiplications with an addition for an image, as torchvision publishes them (`_ops` of its
    /// weights, in 10^9).
    #[test]
    fn the_work_is_that_published() {
        for (name, published) in [
            ("alexnet", 0.714),
            ("vgg11", 7.609),
            ("vgg16", 15.47),
            ("vgg19", 19.632),
            ("resnet50", 4.089),
            ("resnet101", 7.801),
            ("resnet152", 11.514),
            ("inception3", 5.713),
        ] {
            let parts = (name.parse::<Model>().unwrap().parts)();
            let work: f64 = parts.iter().map(|part| part.work).sum::<f64>() / 1e9;
            assert!((work / published - 1.0).abs() < 0.02, "{name}: {work}, not {published}");
        }
    }

    /// The backward pass is two thirds of a step, and ends with the first layer.
    #[test]
    fn a_step_takes_as_long_as_told() {
        for model in ALL {
            let step = model.step(Duration::from_millis(300));
            let forward: f64 = step.layers.iter().map(|layer| layer.forward.as_secs_f64()).sum();
            assert!((forward - 0.1).abs() < 1e-5, "{model}: {forward}");
            let last = step.ready().last().unwrap().at.as_secs_f64();
            assert!((last - 0.3).abs() < 1e-5, "{model}: {last}");
        }
    }

    /// The embedding of GPT-2 is its head, too, so its gradient is ready last.
    #[test]
    fn a_shared_embedding_is_ready_last() {
        let ready = "gpt2".parse::<Model>().unwrap().step(Duration::from_secs(1)).ready();
        assert_eq!(ready.last().unwrap().elements, 50_257 * 768);
    }

    #[test]
    fn an_unknown_model() {
        let line = "resnet18".parse::<Model>().unwrap_err();
        assert!(line.starts_with("unknown model \"resnet18\": alexnet, vgg11, "), "{line}");
    }
}
