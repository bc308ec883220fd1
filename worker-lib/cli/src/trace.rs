//! `switchml-worker trace`: a known model's training step as a file, to change and to replay.

use std::io::{self, Write};

use switchml_step::file;

use super::Failure;
use super::step::StepOptions;

/// Writes a training step of a model as CSV to standard output, for `bench --trace` and `plan
/// --trace`
#[derive(clap::Args)]
#[command(after_help = super::after_help("trace"))]
pub struct Trace {
    #[command(flatten)]
    step: StepOptions,
}

impl Trace {
    /// Writes it.
    pub fn run(&self) -> Result<(), Failure> {
        let nothing = || Failure::Usage("no model is given; use --model NAME".to_owned());
        let step = self.step.load()?.ok_or_else(nothing)?.step;
        // A reader that has enough may go.
        let _ = io::stdout().lock().write_all(file::write(&step).as_bytes());
        Ok(())
    }
}
