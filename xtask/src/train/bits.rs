//! Whether gradients in 8 bits, with error feedback, train a model as well as f32.
//!
//! This takes several seeds, because one tells little: rounding changes the course of training as
//! much as another seed does.

use anyhow::Result;
use switchml_rack::Training;

use super::{Backend, Example, Site, plot};
use crate::measure::{Report, Table};
use crate::stats::Mean;

/// Gradients in 8 bits, as in `examples/report.py`.
pub const COMPRESSED: [&str; 2] = ["--compression", "fixed8"];

/// The largest share of the test set that may be wrong in addition to what is wrong with f32.
const ACCURACY: f64 = 0.005;

/// The largest relative increase of the test set's loss over f32. The standard error of this
/// increase may be half as large.
const LOSS: f64 = 0.01;

/// Results of some seeds: with f32, and in 8 bits.
type Pair = [Training; 2];

/// Trains from the same seeds with f32 and Gloo, and in 8 bits.
pub fn compare(site: &Site, example: Example) -> Result<Report> {
    let seeds = seeds(example).to_string();
    let seeds = ["--seeds", &seeds];
    let pair = [
        site.train(example, Backend::Gloo, &seeds)?,
        site.train(example, Backend::Switchml, &[COMPRESSED, seeds].concat())?,
    ];
    let name = example.name();
    let missed = judge(&pair).into_iter().map(|what| format!("{name} in 8 bits: {what}"));
    Ok(Report {
        text: table(example, &pair),
        files: vec![(format!("train-{name}-8-bits.svg"), plot::bits(example, &pair)?)],
        missed: missed.collect(),
    })
}

/// The number of seeds that makes the standard error small enough.
fn seeds(example: Example) -> usize {
    if example == Example::Digits { 128 } else { 4 }
}

/// The share of the test set that is wrong in the second way, minus the share that is wrong in the
/// first one.
pub fn more_wrong([gloo, bits]: &Pair) -> Mean {
    let pairs = gloo.accuracies.iter().zip(&bits.accuracies);
    Mean::of(&pairs.map(|(gloo, bits)| gloo - bits).collect::<Vec<f64>>())
}

/// The relative increase of the loss in the second way.
pub fn larger_loss([gloo, bits]: &Pair) -> Mean {
    let pairs = gloo.test_losses.iter().zip(&bits.test_losses);
    Mean::of(&pairs.map(|(gloo, bits)| bits / gloo - 1.0).collect::<Vec<f64>>())
}

/// The goals that are missed.
fn judge(pair: &Pair) -> Vec<String> {
    let mut missed = Vec::new();
    // A NaN meets no goal.
    let keeps = |value: f64, limit: f64| value <= limit;
    let wrong = more_wrong(pair);
    if !keeps(wrong.mean, ACCURACY) {
        missed.push(format!("{} points more are wrong than with f32", percent(wrong)));
    }
    let larger = larger_loss(pair);
    if !keeps(larger.mean, LOSS) {
        missed.push(format!("the test's loss is {} % above f32's", percent(larger)));
    }
    if !keeps(larger.error, LOSS / 2.0) {
        missed
            .push(format!("too few seeds to tell: the loss is {} % above f32's", percent(larger)));
    }
    missed
}

/// A mean in percent, with its standard error.
pub fn percent(Mean { mean, error }: Mean) -> String {
    format!("{:.2} ± {:.2}", 100.0 * mean, 100.0 * error)
}

fn table(example: Example, pair: &Pair) -> String {
    let mut table = Table::new(["", "right in the test", "loss of the test"]);
    for (name, training) in ["Gloo, f32", "switchml, 8 bits"].iter().zip(pair) {
        let right = 100.0 * Mean::of(&training.accuracies).mean;
        let loss = Mean::of(&training.test_losses).mean;
        table.row(&[name, &format!("{right:.2} %"), &format!("{loss:.4}")]);
    }
    let (wrong, larger) = (percent(more_wrong(pair)), percent(larger_loss(pair)));
    table.row(&[&"8 bits beyond f32", &format!("{wrong} points wrong"), &format!("{larger} %")]);
    format!(
        "{}.py in 8 bits with error feedback, 4 ranks: means over {} seeds, and standard errors of \
         the\ndifferences seed by seed\n\n{table}\n",
        example.name(),
        pair[0].test_losses.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of two seeds: accuracy and loss.
    fn of(seeds: [(f64, f64); 2]) -> Training {
        Training {
            accuracies: seeds.map(|seed| seed.0).to_vec(),
            test_losses: seeds.map(|seed| seed.1).to_vec(),
            ..Training::default()
        }
    }

    /// Results with f32, and the given ones in 8 bits.
    fn pair(bits: [(f64, f64); 2]) -> Pair {
        [of([(0.75, 1.0); 2]), of(bits)]
    }

    #[test]
    fn what_is_worse_than_f32_is_named() {
        let judge = |bits| judge(&pair(bits));
        assert_eq!(judge([(0.746, 1.008), (0.746, 1.008)]), Vec::<String>::new());
        assert_eq!(judge([(0.9, 0.5), (0.9, 0.5)]), Vec::<String>::new(), "better is as good");
        // A mean of 0.8, and one of 1.5 %, with errors of 0.2.
        let worse = judge([(0.74, 1.0), (0.744, 1.0)]);
        assert_eq!(worse, ["0.80 ± 0.20 points more are wrong than with f32"]);
        let larger = judge([(0.75, 1.013), (0.75, 1.017)]);
        assert_eq!(larger, ["the test's loss is 1.50 ± 0.20 % above f32's"]);
        let just = judge([(0.75, 1.009), (0.75, 1.013)]);
        assert_eq!(just, ["the test's loss is 1.10 ± 0.20 % above f32's"], "within its error");
        let unsure = judge([(0.75, 0.99), (0.75, 1.008)]);
        assert_eq!(unsure, ["too few seeds to tell: the loss is -0.10 ± 0.90 % above f32's"]);
        assert_eq!(super::judge(&Pair::default()).len(), 3);
    }

    #[test]
    fn the_table_has_means_and_their_errors() {
        let text = table(Example::Text, &pair([(0.74, 1.0), (0.744, 1.02)]));
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
        assert_eq!(
            rows,
            [
                "| Gloo, f32 | 75.00 % | 1.0000 |",
                "| switchml, 8 bits | 74.20 % | 1.0100 |",
                "| 8 bits beyond f32 | 0.80 ± 0.20 points wrong | 1.00 ± 1.00 % |",
            ]
        );
    }
}
