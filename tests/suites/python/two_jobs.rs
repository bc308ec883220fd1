//! Two jobs of two ranks start at the same time, in every order, by each way to start one. None
//! gets the other's values: each has its own identity, or all hear that two jobs have met.

use std::path::Path;

use serde_json::Value;
use switchml_rack::Process;

use crate::site::{PATIENCE, Site, Torch, fresh_folder};

/// The ranks of both jobs: job and rank.
const RANKS: [(usize, usize); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];
/// What each rank of a job adds.
const VALUES: [&str; 2] = ["100", "1"];

/// All orders in which the ranks can start.
fn orders() -> Vec<Vec<(usize, usize)>> {
    let mut orders = vec![Vec::new()];
    for _ in RANKS {
        let longer = |order: &Vec<_>| {
            let next = RANKS.into_iter().filter(|rank| !order.contains(rank));
            next.map(|rank| [&order[..], &[rank]].concat()).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}

/// What a rank said at its end.
struct Outcome {
    sums: Vec<f64>,
    error: Option<String>,
}

/// The outcomes of both jobs' ranks, as in [`RANKS`], for these orders, by a kind of program. A
/// rank has the variables that `variables` gives for the order's index, its job and its number. The
/// orders run beside each other, and each rank starts once the one before has begun to.
fn outcomes(
    site: &Site,
    kind: &str,
    end: &Path,
    orders: &[Vec<(usize, usize)>],
    variables: impl Fn(usize, usize, usize) -> Vec<(&'static str, String)>,
) -> Vec<[Outcome; 4]> {
    let mut started: Vec<Vec<((usize, usize), Process)>> = orders.iter().map(|_| vec![]).collect();
    for turn in 0..RANKS.len() {
        for (index, order) in orders.iter().enumerate() {
            let (job, rank) = order[turn];
            let arguments = ["two_jobs.py", VALUES[job], kind, end.to_str().unwrap()];
            let mut command = site.command(rank, &arguments);
            command.env("GLOO_SOCKET_IFNAME", "eth0");
            for (name, value) in variables(index, job, rank) {
                command.env(name, value);
            }
            let name = format!("job {job}, rank {rank}");
            let process = site.rack.worker(rank).spawn(&name, command).unwrap();
            started[index].push(((job, rank), process));
        }
        for processes in &mut started {
            processes[turn].1.wait_for_line("starts", PATIENCE).unwrap();
        }
    }
    for (_, process) in started.iter_mut().flatten() {
        process.wait_for_line("settled", PATIENCE).unwrap();
    }
    std::fs::write(end, "").unwrap();
    let finish = |((job, rank), mut process): ((usize, usize), Process)| {
        process.wait_success(PATIENCE).unwrap();
        let printed = process.stdout();
        let said: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        let sums = said["sums"].as_array().unwrap().iter().map(|sum| sum.as_f64().unwrap());
        let error = said["error"].as_str().map(str::to_owned);
        ((job, rank), Outcome { sums: sums.collect(), error })
    };
    let finish_all = |processes: Vec<_>| {
        let mut all: Vec<_> = processes.into_iter().map(finish).collect();
        all.sort_by_key(|(rank, _)| *rank);
        let all: Vec<_> = all.into_iter().map(|(_, outcome)| outcome).collect();
        all.try_into().ok().unwrap()
    };
    started.into_iter().map(finish_all).collect()
}

/// No rank takes a wrong sum for right: it has its own job's, or an error.
fn none_is_wrong(all: &[[Outcome; 4]]) {
    for (index, four) in all.iter().enumerate() {
        for ((job, rank), outcome) in RANKS.into_iter().zip(four) {
            let right = vec![2.0 * VALUES[job].parse::<f64>().unwrap()];
            let Outcome { sums, error } = outcome;
            assert!(
                error.is_some() || *sums == right,
                "order {index}, job {job}, rank {rank}: {sums:?}"
            );
        }
    }
}

/// All jobs are right.
fn all_are_right(all: &[[Outcome; 4]]) {
    none_is_wrong(all);
    for (index, four) in all.iter().enumerate() {
        for outcome in four {
            assert_eq!(outcome.error, None, "order {index}");
        }
    }
}

/// A port for each order and job; those of an order's jobs follow each other.
fn port(order: usize, job: usize) -> (&'static str, String) {
    ("MASTER_PORT", (29500 + 2 * order + job).to_string())
}

fn site(name: &str) -> Option<(Site, impl Fn(&str) -> std::path::PathBuf)> {
    let site = Site::new(Torch::Newest, name, 2)?;
    let folder = fresh_folder(name);
    Some((site, move |way: &str| folder.join(way)))
}

#[test]
fn jobs_with_a_place_or_a_name_of_their_own_are_right_in_every_order() {
    let name = "jobs_with_a_place_or_a_name_of_their_own_are_right_in_every_order";
    let Some((site, end)) = site(name) else { return };
    let by_hand =
        outcomes(&site, "alone", &end("hand"), &orders(), |order, job, _| vec![port(order, job)]);
    all_are_right(&by_hand);
    // As torchrun sets it, whose user gives no run id.
    let by_torchrun = outcomes(&site, "alone", &end("torchrun"), &orders(), |order, job, _| {
        let own = [("TORCHELASTIC_RUN_ID", "none"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
        let own = own.map(|(name, value)| (name, value.to_owned()));
        [&own[..], &[port(order, job)]].concat()
    });
    all_are_right(&by_torchrun);
    let by_srun = outcomes(&site, "alone", &end("srun"), &orders(), |order, job, rank| {
        let nothing = ["RANK", "WORLD_SIZE", "MASTER_ADDR"].map(|name| (name, String::new()));
        let own = [
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_STEP_NUM_TASKS", "2".to_owned()),
            ("SLURM_JOB_ID", order.to_string()),
            ("SLURM_STEP_ID", job.to_string()),
        ];
        [&nothing[..], &own].concat()
    });
    all_are_right(&by_srun);
    let by_name = outcomes(&site, "alone", &end("name"), &orders(), |order, job, _| {
        vec![("SWITCHML_JOB", format!("{order}-{job}")), ("MASTER_ADDR", String::new())]
    });
    all_are_right(&by_name);
}

#[test]
fn jobs_of_torch_with_a_store_of_their_own_are_right_in_every_order() {
    let name = "jobs_of_torch_with_a_store_of_their_own_are_right_in_every_order";
    let Some((site, end)) = site(name) else { return };
    let all = outcomes(&site, "torch", &end("torch"), &orders(), |order, job, _| {
        vec![port(order, job), ("TORCHELASTIC_RUN_ID", "none".to_owned())]
    });
    all_are_right(&all);
}

#[test]
fn jobs_at_one_place_are_right_or_hear_of_each_other_in_every_order() {
    let name = "jobs_at_one_place_are_right_or_hear_of_each_other_in_every_order";
    let Some((site, end)) = site(name) else { return };
    // Each order with the aggregator, and without: ranks that come in vain wait at the same time.
    let twice = [orders(), orders()].concat();
    let all = outcomes(&site, "alone", &end("place"), &twice, |order, _, _| {
        let without = (order >= twice.len() / 2).then(|| ("SWITCHML_AGGREGATOR", String::new()));
        [port(order, 0)].into_iter().chain(without).collect()
    });
    none_is_wrong(&all);
    // Two processes of one rank, or two that want to listen, are never both right.
    for four in &all {
        let told: Vec<_> = four.iter().filter_map(|outcome| outcome.error.as_ref()).collect();
        assert!(told.iter().any(|error| error.contains("twice")), "{told:?}");
    }
}
