//! How long a step's computing takes on some processors, as published. What nobody published is not
//! here: such times are the user's to give.

use std::time::Duration;

use crate::models::Model;

/// A published speed of training on one processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// The model's name.
    pub model: &'static str,
    /// The processor's name on the command line.
    pub processor: &'static str,
    /// Examples, or tokens, of a step.
    pub batch: f64,
    /// As many a second.
    pub rate: f64,
    /// Where it is published.
    pub source: &'static str,
}

const fn speed(
    model: &'static str,
    processor: &'static str,
    batch: f64,
    rate: f64,
    source: &'static str,
) -> Speed {
    Speed { model, processor, batch, rate, source }
}

/// Synthetic data, f32, one GPU of a DGX-1 (May 2017), and one of Google's machines.
const TENSORFLOW: &str = "tensorflow/docs, site/en/r1/guide/performance/benchmarks.md";
/// SQuAD in f32 on one V100 of 32 GB.
const NVIDIA_BERT: &str = "NVIDIA/DeepLearningExamples, BERT's README of March 2019";
/// 600,000 steps, of 5 times 12 examples a processor, in about 4 days on 8 A100.
const NANO_GPT: &str = "karpathy/nanoGPT, README and train.py";
/// Llama 3 8B on 64 A100, and Llama 3.1 8B on 8 H100, both sharded; steps of 1 and 2 times 8192
/// tokens a processor.
const TITAN_A100: &str = "pytorch/torchtitan, docs/performance.md";
const TITAN_H100: &str = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md";

/// All of them; a model's first one is used unless a processor is named.
pub const ALL: [Speed; 14] = [
    speed("alexnet", "P100", 512.0, 2987.0, TENSORFLOW),
    speed("alexnet", "K80", 512.0, 656.0, TENSORFLOW),
    speed("vgg16", "P100", 64.0, 154.0, TENSORFLOW),
    speed("vgg16", "K80", 32.0, 35.4, TENSORFLOW),
    speed("resnet50", "P100", 64.0, 219.0, TENSORFLOW),
    speed("resnet50", "K80", 64.0, 51.9, TENSORFLOW),
    speed("resnet152", "P100", 64.0, 91.8, TENSORFLOW),
    speed("resnet152", "K80", 32.0, 20.0, TENSORFLOW),
    speed("inception3", "P100", 64.0, 142.0, TENSORFLOW),
    speed("inception3", "K80", 64.0, 30.5, TENSORFLOW),
    speed("bert-large", "V100", 7.0, 7.56, NVIDIA_BERT),
    speed("gpt2", "A100", 60.0, 60.0 * 600_000.0 / (4.0 * 86_400.0), NANO_GPT),
    speed("llama-8b", "A100", 8192.0, 2973.0, TITAN_A100),
    speed("llama-8b", "H100", 16_384.0, 5762.0, TITAN_H100),
];

impl Speed {
    /// The computing time of a step.
    pub fn compute(&self) -> Duration {
        Duration::from_secs_f64(self.batch / self.rate)
    }
}

/// The speed of a model on a processor, or on the first one that is known.
///
/// # Errors
/// Which processors there are.
pub fn find(model: Model, processor: Option<&str>) -> Result<Speed, String> {
    let of_model: Vec<Speed> = ALL.into_iter().filter(|speed| speed.model == model.name).collect();
    let fits = |speed: &Speed| {
        processor.is_none_or(|processor| speed.processor.eq_ignore_ascii_case(processor))
    };
    of_model.iter().copied().find(fits).ok_or_else(|| {
        let names: Vec<&str> = of_model.iter().map(|speed| speed.processor).collect();
        if names.is_empty() {
            format!("no computing time of {model} is known; give one with --compute MS")
        } else {
            format!(
                "no computing time of {model} on {:?} is known; {} are known, or give one with \
                 --compute MS",
                processor.unwrap_or_default(),
                names.join(" and ")
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(model: &str, processor: Option<&str>) -> Result<Duration, String> {
        find(model.parse().unwrap(), processor).map(|speed| speed.compute())
    }

    /// 64 images at 219 a second; 345,600 seconds over 600,000.
    #[test]
    fn a_batch_by_its_rate() {
        assert_eq!(of("resnet50", None).unwrap().as_micros(), 292_237);
        assert_eq!(of("resnet50", Some("k80")).unwrap().as_micros(), 1_233_140);
        assert_eq!(of("gpt2", Some("A100")).unwrap().as_micros(), 576_000);
    }

    #[test]
    fn every_speed_is_of_a_model() {
        assert!(ALL.iter().all(|speed| speed.model.parse::<Model>().is_ok()));
    }

    #[test]
    fn what_is_not_known() {
        let complaint = |model, processor| of(model, processor).unwrap_err();
        assert_eq!(
            complaint("vgg11", None),
            "no computing time of vgg11 is known; give one with --compute MS"
        );
        assert_eq!(
            complaint("resnet50", Some("T4")),
            "no computing time of resnet50 on \"T4\" is known; P100 and K80 are known, or give one \
             with --compute MS"
        );
    }
}
