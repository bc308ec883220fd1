//! Whether gradients in 8 bits, with error feedback, train a model as well as f32.

use std::fmt::Write;

use anyhow::Result;
use switchml_rack::Training;

use super::{Backend, Example, Outcome, Site, plot};

/// Gradients in 8 bits, as in `examples/report.py`.
pub const COMPRESSED: [&str; 2] = ["--compression", "fixed8"];

/// Share of the test set that may be wrong beyond what is with f32.
const ACCURACY: f64 = 0.005;

/// Part of the loss of the test set by which it may be larger than with f32.
const LOSS: f64 = 0.01;

/// Trains in 8 bits, beside what came of f32 by Gloo. `noise` is that in another order.
pub fn compare(
    site: &Site,
    example: Example,
    gloo: &Training,
    noise: &Training,
) -> Result<Outcome> {
    let bits = site.train(example, Backend::Switchml, &COMPRESSED)?;
    let missed = judge(gloo, &bits)
        .into_iter()
        .map(|what| format!("{} in 8 bits: {what}", example.name()))
        .collect();
    Ok(Outcome {
        name: format!("train-{}-8-bits.svg", example.name()),
        text: table(
            example,
            &[("Gloo", gloo), ("Gloo in another order", noise), ("switchml, 8 bits", &bits)],
        ),
        plot: plot::bits(example, gloo, &bits)?,
        missed,
    })
}

fn judge(gloo: &Training, bits: &Training) -> Vec<String> {
    let mut missed = Vec::new();
    let percent = |training: &Training| 100.0 * training.accuracy.unwrap_or(f64::NAN);
    // A NaN keeps no promise.
    let is_right = percent(bits) >= percent(gloo) - 100.0 * ACCURACY;
    if !is_right {
        missed.push(format!("{:.2} % right, and {:.2} % with f32", percent(bits), percent(gloo)));
    }
    let loss = |training: &Training| training.test_loss.unwrap_or(f64::NAN);
    let is_near = loss(bits) <= (1.0 + LOSS) * loss(gloo);
    if !is_near {
        missed.push(format!(
            "the test's loss is {:.4}, and {:.4} with f32",
            loss(bits),
            loss(gloo)
        ));
    }
    missed
}

fn table(example: Example, trainings: &[(&str, &Training)]) -> String {
    /// Steps whose mean is told.
    const LAST: usize = 20;
    let mut text = format!(
        "{}.py in 8 bits, 4 ranks, from the same seed\n\n\
         | | right in the test | loss of the test | mean loss of the last {LAST} steps |\n\
         | --- | --- | --- | --- |\n",
        example.name()
    );
    for (name, training) in trainings {
        let last = &training.losses[training.losses.len().saturating_sub(LAST)..];
        let mean = last.iter().sum::<f64>() / last.len() as f64;
        let percent = 100.0 * training.accuracy.unwrap_or(f64::NAN);
        let loss = training.test_loss.unwrap_or(f64::NAN);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {name} | {percent:.2} % | {loss:.4} | {mean:.4} |");
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_worse_than_f32_is_named() {
        let of = |accuracy, test_loss| Training {
            accuracy: Some(accuracy),
            test_loss: Some(test_loss),
            ..Training::default()
        };
        let gloo = of(0.75, 1.0);
        assert_eq!(judge(&gloo, &of(0.746, 1.009)), Vec::<String>::new());
        assert_eq!(judge(&gloo, &of(0.9, 0.5)), Vec::<String>::new(), "better is as good");
        assert_eq!(judge(&gloo, &of(0.744, 1.0)), ["74.40 % right, and 75.00 % with f32"]);
        let larger = judge(&gloo, &of(0.75, 1.02));
        assert_eq!(larger, ["the test's loss is 1.0200, and 1.0000 with f32"]);
        assert_eq!(judge(&gloo, &Training::default()).len(), 2);
    }
}
