//! Whether Gloo and the aggregator train alike: losses, accuracy, and bits.

use anyhow::Result;
use switchml_rack::Training;

use super::{Backend, Example, Site, plot};
use crate::measure::{Report, Table};

/// Small buckets make Gloo add up in another order: an element's place in its bucket decides at
/// which rank the ring begins with it.
const OTHER_ORDER: [&str; 2] = ["--bucket-cap-mb", "0.01"];

/// The largest difference of losses, as a multiple of the difference between Gloo's losses in two
/// orders of addition: a larger one is more than rounding.
const NOISE: f64 = 10.0;

/// A difference of losses that is always allowed. Noise grows from step to step, but not in the
/// same way each time: the noise of one order may be a hundred times less than that of another.
const UNSEEN: f64 = 1e-3;

/// The largest difference of accuracies, as a share of the test set.
const ACCURACY: f64 = 0.005;

/// Jobs that differ only in the backend and the order of addition.
struct Trainings<'a> {
    gloo: &'a Training,
    /// Gloo, in another order of addition.
    noise: &'a Training,
    ours: Training,
    /// A second run of `ours`.
    again: Training,
}

/// Trains like Gloo, and repeats both to find the noise.
pub fn compare(site: &Site, example: Example, gloo: &Training) -> Result<Report> {
    let noise = &site.train(example, Backend::Gloo, &OTHER_ORDER)?;
    let trainings = Trainings {
        gloo,
        noise,
        ours: site.train(example, Backend::Switchml, &[])?,
        again: site.train(example, Backend::Switchml, &[])?,
    };
    let name = example.name();
    let missed = judge(&trainings).into_iter().map(|what| format!("{name}: {what}"));
    let plot = plot::losses(example, gloo, noise, &trainings.ours)?;
    Ok(Report {
        text: table(example, &trainings),
        files: vec![(format!("train-{name}.svg"), plot)],
        missed: missed.collect(),
    })
}

/// The accuracy of the only seed.
fn accuracy(training: &Training) -> f64 {
    training.accuracies.first().copied().unwrap_or(f64::NAN)
}

fn judge(trainings: &Trainings<'_>) -> Vec<String> {
    let Trainings { gloo, noise, ours, again } = trainings;
    let mut missed = Vec::new();
    let mut promise = |kept: bool, broken: String| {
        if !kept {
            missed.push(broken);
        }
    };
    let steps = gloo.losses.len();
    promise(steps > 0 && ours.losses.len() == steps, "not the same number of steps".to_owned());
    promise(gloo.losses.last() < gloo.losses.first(), "it does not learn".to_owned());
    let (apart, noise) = (ours.apart(gloo), noise.apart(gloo));
    promise(
        apart <= (NOISE * noise).max(UNSEEN),
        format!("losses are {apart:.1e} apart, and Gloo's own noise is {noise:.1e}"),
    );
    let difference = (accuracy(ours) - accuracy(gloo)).abs();
    promise(
        difference <= ACCURACY,
        format!("accuracy differs by {:.1} points", 100.0 * difference),
    );
    promise(ours.parameters.len() == steps, "no parameters after every step".to_owned());
    promise(ours.parameters == again.parameters, "two runs do not have the same bits".to_owned());
    missed
}

fn table(example: Example, trainings: &Trainings<'_>) -> String {
    const ROWS: usize = 8;
    let Trainings { gloo, noise, ours, again } = trainings;
    let noise_of = "Gloo and Gloo in another order apart";
    let mut table = Table::new(["step", "loss with Gloo", "with switchml", "apart", noise_of]);
    let steps = gloo.losses.len();
    for i in (0..ROWS).map(|row| row * (steps - 1) / (ROWS - 1)) {
        let loss = |training: &Training| format!("{:.6}", training.losses[i]);
        let apart =
            |training: &Training| format!("{:.1e}", (training.losses[i] - gloo.losses[i]).abs());
        table.row(&[&(i + 1), &loss(gloo), &loss(ours), &apart(ours), &apart(noise)]);
    }
    let most = |training: &Training| format!("{:.1e}", training.apart(gloo));
    table.row(&[&"most", &"", &"", &most(ours), &most(noise)]);
    let percent = |training: &Training| 100.0 * accuracy(training);
    let bits = if ours.parameters == again.parameters { "the same" } else { "NOT the same" };
    format!(
        "{}.py, 4 ranks, from the same seed\n\n{table}\n\
         Accuracy in the end: {:.2} % with Gloo, {:.2} % in another order, {:.2} % with switchml.\n\
         Parameters: the same bits on all ranks after each of {steps} steps, and {bits}\n\
         in a second run with switchml.\n\n",
        example.name(),
        percent(gloo),
        percent(noise),
        percent(ours)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gloo's results of two steps, and its results in another order, with a noise of 0.001.
    fn of_gloo() -> [Training; 2] {
        let parameters = vec!["a".to_owned(), "b".to_owned()];
        let gloo = Training {
            losses: vec![2.0, 1.0],
            parameters,
            accuracies: vec![0.75],
            ..Training::default()
        };
        let noise = Training { losses: vec![2.0, 1.001], ..gloo.clone() };
        [gloo, noise]
    }

    /// Results that meet all goals, compared with these of Gloo.
    fn good([gloo, noise]: &[Training; 2]) -> Trainings<'_> {
        let ours = Training { losses: vec![2.0, 1.005], ..gloo.clone() };
        Trainings { gloo, noise, again: ours.clone(), ours }
    }

    #[test]
    fn what_is_not_as_promised_is_named() {
        let of_gloo = of_gloo();
        assert_eq!(judge(&good(&of_gloo)), Vec::<String>::new());
        let missed = |spoil: &dyn Fn(&mut Trainings<'_>)| {
            let mut trainings = good(&of_gloo);
            spoil(&mut trainings);
            judge(&trainings).join("; ")
        };
        let far = missed(&|trainings| trainings.ours.losses[1] = 1.02);
        assert_eq!(far, "losses are 2.0e-2 apart, and Gloo's own noise is 1.0e-3");
        let worse = missed(&|trainings| trainings.ours.accuracies = vec![0.74]);
        assert_eq!(worse, "accuracy differs by 1.0 points");
        assert_ne!(missed(&|trainings| trainings.ours.accuracies.clear()), "");
        let bits = missed(&|trainings| trainings.again.parameters[1] = "c".to_owned());
        assert_eq!(bits, "two runs do not have the same bits");
        let shorter = missed(&|trainings| trainings.ours.losses.truncate(1));
        assert!(shorter.contains("not the same number of steps"), "{shorter}");
        let flat = Training { losses: vec![0.5, 1.0], ..of_gloo[0].clone() };
        let flat = judge(&Trainings { gloo: &flat, ..good(&of_gloo) }).join("; ");
        assert!(flat.contains("it does not learn"), "{flat}");
    }

    #[test]
    fn what_is_no_table_has_at_most_100_columns() {
        let [gloo, noise] = of_gloo();
        let of_gloo = [Training { accuracies: vec![1.0], ..gloo }, noise];
        let mut trainings = good(&of_gloo);
        trainings.again.parameters.clear();
        let text = table(Example::Digits, &trainings);
        assert!(
            text.contains("100.00 % with Gloo, 75.00 % in another order, 100.00 % with"),
            "{text}"
        );
        for line in text.lines().filter(|line| !line.starts_with('|')) {
            assert!(line.len() <= 100, "{line}");
        }
    }
}
