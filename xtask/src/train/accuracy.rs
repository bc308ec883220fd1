//! The time until a model is right often enough, on links on which communication matters.

use anyhow::Result;

use super::ways::{WAYS, Way};
use super::{Backend, Example, Site, plot};
use crate::measure::{Report, Table, or_dash, rows_in_turn};
use crate::stats::Spread;

/// What is trained, until so much of the test set is right.
pub struct Goal {
    pub example: Example,
    share: &'static str,
    /// Of the widest layer: as wide as it takes for gradients to be worth compressing.
    width: &'static str,
}

/// A convolutional network and a transformer.
pub const GOALS: [Goal; 2] = [
    Goal { example: Example::Digits, share: "0.97", width: "8192" },
    Goal { example: Example::Text, share: "0.8", width: "256" },
];

/// How long a training took: one seed in one way.
#[derive(Clone, Copy)]
struct Trained {
    /// Until the goal was reached, if it was.
    seconds: Option<f64>,
    steps: usize,
}

/// Trains with all seeds in all ways, in turn, until the goal is reached, or as long as the example
/// trains.
pub fn compare(site: &Site, goal: &Goal, seeds: usize) -> Result<Report> {
    let _shaped = site.shape()?;
    let trained = rows_in_turn(seeds, [1, WAYS.len()], |_, way, seed| {
        train(site, goal, &WAYS[way], seed + 1)
    })?;
    let trained = &trained[0];
    let lines = WAYS.iter().map(|way| way.name).zip(trained);
    let reached = lines.filter_map(|(name, all)| Some((name, seconds(all)?)));
    let name = format!("accuracy-{}.svg", goal.example.name());
    Ok(Report {
        text: table(goal, trained),
        files: vec![(name, plot::durations(title(goal), reached)?)],
        missed: missed(goal, trained),
    })
}

/// Ways that must reach the goal with each seed, and did not: ours, and Gloo, with which all are
/// compared. Others may be too coarse for it.
fn missed(goal: &Goal, trained: &[Vec<Trained>]) -> Vec<String> {
    let (name, share) = (goal.example.name(), goal.share);
    let ways = WAYS.iter().zip(trained).enumerate();
    let must = ways.filter(|(turn, (way, _))| *turn == 0 || way.backend == Backend::Switchml);
    must.filter(|(_, (_, all))| seconds(all).is_none())
        .map(|(_, (way, _))| format!("{name}.py with {} did not get {share} right", way.name))
        .collect()
}

fn train(site: &Site, goal: &Goal, way: &Way, seed: usize) -> Result<Trained> {
    let seed = seed.to_string();
    let goals = ["--until", goal.share, "--width", goal.width, "--seed", &seed];
    let training = site.train(goal.example, way.backend, &[&goals, way.arguments].concat())?;
    Ok(Trained { seconds: training.seconds.first().copied(), steps: training.losses.len() })
}

/// The times of all seeds, if the goal was reached with each of them.
fn seconds(trained: &[Trained]) -> Option<Vec<f64>> {
    trained.iter().map(|trained| trained.seconds).collect()
}

fn title(goal: &Goal) -> String {
    let Goal { example, share, width } = goal;
    format!("{}.py, width {width}, until {share} of its test is right", example.name())
}

fn table(goal: &Goal, trained: &[Vec<Trained>]) -> String {
    let ratio = "Gloo's time to it, seed by seed: median (quartiles)";
    let mut table = Table::new(["", "seconds: median (each seed)", "steps", ratio]);
    let gloo = seconds(&trained[0]);
    for (way, all) in WAYS.iter().zip(trained) {
        let each =
            |show: &dyn Fn(&Trained) -> String| all.iter().map(show).collect::<Vec<_>>().join(", ");
        let times =
            each(&|one| one.seconds.map_or("never".to_owned(), |time| format!("{time:.1}")));
        let times = match seconds(all) {
            Some(all) => format!("{:.1} ({times})", Spread::of(all).median),
            None => times,
        };
        let ratio = gloo.as_deref().zip(seconds(all));
        let ratio = ratio.map(|(gloo, all)| Spread::of_ratios(gloo, &all));
        table.row(&[&way.name, &times, &each(&|one| one.steps.to_string()), &or_dash(ratio)]);
    }
    format!(
        "{}; 4 ranks, links of\n1 Gb/s; {} seeds, all ways in turn; 8 bits with error feedback\n\n\
         {table}\n",
        title(goal),
        trained[0].len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gloo takes 10 and 30 s, all others 5 and 10 s.
    #[test]
    fn ratios_are_taken_seed_by_seed() {
        let of = |times: [f64; 2]| {
            times.map(|seconds| Trained { seconds: Some(seconds), steps: 40 }).to_vec()
        };
        let trained: [_; WAYS.len()] =
            std::array::from_fn(|way| of(if way == 0 { [10.0, 30.0] } else { [5.0, 10.0] }));
        let text = table(&GOALS[0], &trained);
        let ours = text.lines().find(|line| line.starts_with("| switchml |")).unwrap();
        assert_eq!(ours, "| switchml | 7.5 (5.0, 10.0) | 40, 40 | 2.50 (2.25-2.75) |");
    }

    /// The second seed is not right after all steps.
    #[test]
    fn a_way_that_does_not_get_there_has_no_ratio() {
        let after = |seconds| Trained { seconds, steps: 40 };
        let trained: [_; WAYS.len()] = std::array::from_fn(|way| {
            vec![after(Some(9.0)), after(if way == 5 { None } else { Some(8.0) })]
        });
        let text = table(&GOALS[0], &trained);
        let last = text.trim_end().lines().last().unwrap();
        assert_eq!(last, "| Gloo, PowerSGD | 9.0, never | 40, 40 | – |");
        assert_eq!(missed(&GOALS[0], &trained), [""; 0]);
        let nobody: [_; WAYS.len()] = std::array::from_fn(|_| vec![after(None)]);
        let expected = ["Gloo", "switchml", "switchml, 16 bits", "switchml, 8 bits"]
            .map(|way| format!("digits.py with {way} did not get 0.97 right"));
        assert_eq!(missed(&GOALS[0], &nobody), expected);
        assert!(plot::durations("nobody".to_owned(), std::iter::empty()).is_ok());
    }
}
