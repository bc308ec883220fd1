//! Which training step a command is about: that of a model that is known, or one of a file.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use switchml_step::{Step, file, models::Model, published};

use super::Failure;

/// Heading of these options in `--help`.
const HEADING: &str = "Training step";

/// A training step.
#[derive(clap::Args, Clone, Default)]
pub struct StepOptions {
    /// Instead of one tensor: a training step of this model, with gradients in buckets as torch's
    /// DistributedDataParallel makes them; one of alexnet, vgg11, vgg16, vgg19, resnet50,
    /// resnet101, resnet152, inception3, bert-large, gpt2, gpt2-medium, gpt2-large, gpt2-xl,
    /// llama-1b, llama-8b
    #[arg(long, help_heading = HEADING, value_name = "NAME")]
    model: Option<Model>,
    /// Instead of one tensor: a training step from a file (CSV with the columns layer_index, numel,
    /// forward_pass_ns and backward_pass_ns)
    #[arg(long, help_heading = HEADING, value_name = "FILE", conflicts_with = "model")]
    trace: Option<PathBuf>,
    /// Processor whose published computing time the model takes [default: the model's first]
    #[arg(
        long, help_heading = HEADING, value_name = "NAME", requires = "model",
        conflicts_with = "compute"
    )]
    processor: Option<String>,
    /// Computing time of a step in milliseconds, instead of the published or the file's
    #[arg(long, help_heading = HEADING, value_name = "MS", value_parser = milliseconds)]
    compute: Option<Duration>,
}

/// A training step, and what it is.
#[derive(Clone)]
pub struct Chosen {
    /// One line for people.
    pub title: String,
    pub step: Step,
}

impl StepOptions {
    /// The step, if there is to be one.
    pub fn load(&self) -> Result<Option<Chosen>, Failure> {
        match (self.model, &self.trace) {
            (Some(model), _) => self.of_model(model).map(Some),
            (None, Some(path)) => {
                let usage =
                    |why: String| Failure::Usage(format!("--trace {}: {why}", path.display()));
                let text = fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
                let mut step = file::parse(&text).map_err(|error| usage(error.to_string()))?;
                if let Some(compute) = self.compute {
                    if step.compute().is_zero() {
                        let why = "all times are 0, so --compute has none to scale; give each \
                                   layer its share";
                        return Err(usage(why.to_owned()));
                    }
                    step = step.with_compute(compute);
                }
                Ok(Some(Chosen { title: path.display().to_string(), step }))
            }
            (None, None) if self.compute.is_some() => Err(Failure::Usage(
                "--compute is the time of a training step; give that with --model or --trace"
                    .to_owned(),
            )),
            (None, None) => Ok(None),
        }
    }

    fn of_model(&self, model: Model) -> Result<Chosen, Failure> {
        if let Some(compute) = self.compute {
            return Ok(Chosen { title: model.to_string(), step: model.step(compute) });
        }
        let speed = published::find(model, self.processor.as_deref()).map_err(Failure::Usage)?;
        let published::Speed { processor, batch, source, .. } = speed;
        let title = format!("{model} on {processor}, batch {batch} ({source})");
        Ok(Chosen { title, step: model.step(speed.compute()) })
    }
}

/// Parses milliseconds, whole or not, above zero and up to an hour.
fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds = text.parse::<f64>().ok().filter(|time| *time > 0.0 && *time <= 3.6e6);
    milliseconds
        .map(|time| Duration::from_secs_f64(time / 1e3))
        .ok_or_else(|| format!("{text:?} is not a time in milliseconds up to an hour; use 12.5"))
}
