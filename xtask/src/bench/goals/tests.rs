use super::super::plan::{Item, networks, quick, racks};
use super::*;

fn goal(limit: Limit, low: f64, median: f64, high: f64) -> Verdict {
    Goal { what: String::new(), measured: Spread { low, median, high }, limit }.verdict()
}

#[test]
fn a_goal_is_missed_when_the_better_quartile_misses_it_too() {
    assert_eq!(goal(Limit::AtLeast(2.0), 1.8, 2.0, 2.1), Verdict::Met);
    assert_eq!(goal(Limit::AtLeast(2.0), 1.8, 1.9, 2.1), Verdict::WithinSpread);
    assert_eq!(goal(Limit::AtLeast(2.0), 1.8, 1.9, 1.99), Verdict::Missed);
    assert_eq!(goal(Limit::AtMost(0.5), 0.4, 0.5, 0.6), Verdict::Met);
    assert_eq!(goal(Limit::AtMost(0.5), 0.4, 0.6, 0.7), Verdict::WithinSpread);
    assert_eq!(goal(Limit::AtMost(0.5), 0.51, 0.6, 0.7), Verdict::Missed);
    // NaN meets no goal.
    assert_eq!(goal(Limit::AtLeast(2.0), f64::NAN, f64::NAN, f64::NAN), Verdict::Missed);
}

/// Ours takes a tenth of the peers' time and processor time, or ten times as much.
fn results(items: Vec<Item>, ours: f64, peers: f64) -> Results {
    let mut results = Results(Vec::new());
    for item in items {
        for method in item.methods {
            let size = item.cell.size as f64 * 8.0;
            let share_of_link = size
                / item.cell.rate.unwrap_or(1_000_000_000) as f64
                / item.cell.task.dense() as f64;
            let seconds = share_of_link * if method.is_ours() { ours } else { peers };
            let sample = Sample {
                seconds,
                cpu_seconds: seconds,
                process_seconds: seconds,
                softirq_seconds: 0.0,
                chunks: 0,
                resent: 0,
                uplink: None,
            };
            results.add(item.cell, method, sample);
        }
    }
    results
}

#[test]
fn every_goal_is_judged_by_what_the_quick_run_measures() {
    // Per number of workers: three sizes or links against two peers, the share, processor time
    // against two, zeros, two numbers of bits with and without shaping.
    let good = all(&results(quick(), 1.0, 10.0));
    assert_eq!(good.len(), 3 * (6 + 1 + 2 + 1 + 4) + 1);
    assert!(good.iter().all(|goal| goal.verdict() == Verdict::Met));
    let missed: Vec<String> = all(&results(quick(), 10.0, 1.0))
        .into_iter()
        .filter(|goal| goal.verdict() == Verdict::Missed)
        .map(|goal| goal.what)
        .collect();
    // Sparse to dense, and N=8 to N=2, compare ours with ours.
    assert_eq!(missed.len(), good.len() - 4, "{missed:?}");
}

#[test]
fn every_goal_in_networks_is_judged_by_what_their_run_measures() {
    let of = |goals: Vec<Goal>| -> Vec<String> {
        goals.into_iter().filter(|goal| goal.what.contains(" to ")).map(|goal| goal.what).collect()
    };
    let goals = of(all(&results(networks(), 1.0, 10.0)));
    for (_, what, ..) in IN_NETWORKS {
        assert!(goals.iter().any(|goal| goal.ends_with(what)), "{what}: {goals:?}");
    }
}

#[test]
fn every_goal_in_racks_is_judged_by_what_their_run_measures() {
    let goals = all(&results(racks(), 1.0, 10.0));
    for (_, what, ..) in IN_RACKS {
        assert!(goals.iter().any(|goal| goal.what.ends_with(what)), "{what}");
    }
    // Ours takes as long as ours, and these uplinks carried nothing.
    let missed = goals.iter().filter(|goal| goal.verdict() == Verdict::Missed);
    let missed: Vec<&str> = missed.map(|goal| goal.what.as_str()).collect();
    assert_eq!(missed, ["N=8, 16 MiB, 0.25 Gb/s: bytes of an uplink to a tensor's"]);
}

#[test]
fn the_share_of_the_link_counts_values_alone() {
    let sample = Sample {
        seconds: 0.5,
        cpu_seconds: 0.0,
        process_seconds: 0.0,
        softirq_seconds: 0.0,
        chunks: 0,
        resent: 0,
        uplink: None,
    };
    let cell = Cell { workers: 2, rate: Some(1_000_000_000), size: 50_000_000, task: Task::Sum };
    assert_eq!(goodput_share(cell, &sample), 0.8);
}
