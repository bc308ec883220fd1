//! Runs seeds: those that have failed once, and others for every test run.

use std::time::Duration;

use switchml_protocol::LANES_PER_BLOCK;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::wire::header::HEADER_LEN;
use switchml_sim::campaign::{self, Limits, Report};
use switchml_sim::changes;
use switchml_sim::program::{Elements, Step};
use switchml_sim::rng::Rng;
use switchml_sim::scaling::{self, Shape, Sharing};
use switchml_sim::scenario::{Incident, LinkPlan, MS, Manner, SECOND, Scenario};
use switchml_sim::stripes;
use switchml_sim::tally::{Fate, Fault, Tally};
use switchml_sim::{play, simulate};
use switchml_userspace_core::data_plane::Fanout;
use switchml_worker_core::call::{Call, Kind};
use switchml_worker_core::{DType, Precision, ReduceOp, Reduction};

/// Seeds in every test run; `cargo xtask sim` runs others, and more.
const SEEDS: u64 = 2_000;
/// The first of them. From here on even the rarest fault, a full socket, comes about often enough.
const FIRST: u64 = 0x2_0000;

/// Seeds with combiners in every test run.
const TREES: u64 = 750;
/// What goes wrong at combiners alone.
const OF_COMBINERS: [Fault; 5] =
    [Fault::CombinerCrash, Fault::CombinerStop, Fault::CutOff, Fault::Forgotten, Fault::LetPass];

fn assert_kept(report: &Report) {
    let failures = report.failures.iter().map(|(seed, violation)| {
        format!("seed {seed:#x}: {violation}\n    cargo xtask sim --seed {seed:#x} --trace\n")
    });
    let failures: String = failures.collect();
    assert!(failures.is_empty(), "promises were broken:\n{failures}");
}

#[test]
fn promises_are_kept_whatever_goes_wrong() {
    let report =
        campaign::run(&Limits { first: FIRST, seeds: SEEDS, trees: false, time: Duration::MAX });
    assert_kept(&report);
    assert_eq!(report.tally.runs, SEEDS);
    println!("{}", report.tally);
    // Promises mean little if nothing goes wrong.
    let flat = Fault::ALL.iter().filter(|fault| !OF_COMBINERS.contains(fault));
    let never: Vec<_> = flat.filter(|fault| report.tally.faults(**fault) < 10).collect();
    assert!(never.is_empty(), "hardly ever tried: {never:?}");
    let must_occur = [
        Fate::Within16,
        Fate::Within8,
        Fate::Finished,
        Fate::Resumed,
        Fate::WentOn,
        Fate::CutShort,
        Fate::Moved,
        Fate::NoMulticast,
        Fate::Missing,
        Fate::Silent,
        Fate::Damaged,
        Fate::WrongMaximum,
        Fate::Departed,
        Fate::Mismatch,
        Fate::Aborted,
        Fate::NotReady,
        Fate::NotJoined,
        Fate::Unreachable,
        Fate::Lost,
    ];
    let never: Vec<_> = must_occur.iter().filter(|fate| report.tally.fates(**fate) == 0).collect();
    assert!(never.is_empty(), "never came about: {never:?}");
    let served = |outcome: Outcome| report.tally.outcomes[outcome as usize];
    let must_occur = [
        Outcome::Replayed,
        Outcome::Pending,
        Outcome::Room,
        Outcome::Stale,
        Outcome::Mismatch,
        Outcome::Aborted,
        Outcome::BadCheck,
    ];
    let never: Vec<_> = must_occur.iter().filter(|outcome| served(**outcome) == 0).collect();
    assert!(never.is_empty(), "never served: {never:?}");
    assert_eq!(served(Outcome::WrongRound), 0);
    // Ranks have several shards, some of their calls are large enough for parts, and hosts add up.
    let tally = &report.tally;
    assert!(tally.wide > 1_000 && tally.cut > 50 && tally.local_sums > 10_000, "{tally}");
    assert!(tally.read_along > 10_000 && tally.in_memory > 1_000, "{tally}");
    assert!(
        0 < report.tally.ahead_in_vain && report.tally.ahead_in_vain < report.tally.ahead,
        "predictions: {}",
        report.tally
    );
    assert!(
        0 < report.tally.rooms && report.tally.rooms < report.tally.empty,
        "broadcasts: {}",
        report.tally
    );
}

/// With up to 32 combiners in up to three levels, which forget, restart, give cells to other jobs,
/// and let contributions pass.
#[test]
fn promises_are_kept_behind_combiners() {
    let limits = Limits { first: FIRST, seeds: TREES, trees: true, time: Duration::MAX };
    let report = campaign::run(&limits);
    assert_kept(&report);
    println!("{}", report.tally);
    let never = OF_COMBINERS.iter().filter(|fault| report.tally.faults(**fault) < 10);
    assert_eq!(never.collect::<Vec<_>>(), Vec::<&Fault>::new());
    let at_combiners = |outcome: &Outcome| report.tally.combined[*outcome as usize];
    let must_occur = [
        Outcome::Held,
        Outcome::Combined,
        Outcome::Evicted,
        Outcome::Passed,
        Outcome::Flushed,
        Outcome::Duplicate,
        Outcome::HelloPassed,
        Outcome::ToRank,
        Outcome::ToAll,
        Outcome::BadCheck,
        Outcome::NoHello,
        Outcome::WrongPlace,
    ];
    let never: Vec<_> = must_occur.iter().filter(|outcome| at_combiners(outcome) == 0).collect();
    assert!(never.is_empty(), "never at a combiner: {never:?}");
    let must_occur = [Outcome::Overlap, Outcome::Completed, Outcome::Replayed, Outcome::Duplicate];
    let never = must_occur.iter().filter(|outcome| report.tally.outcomes[**outcome as usize] == 0);
    assert_eq!(never.collect::<Vec<_>>(), Vec::<&Outcome>::new());
}

#[test]
fn seeds_that_have_failed() {
    let lines = include_str!("../regressions.txt").lines().filter(|line| !line.starts_with('#'));
    for line in lines {
        let (trees, seed) = line.strip_prefix("trees ").map_or((false, line), |seed| (true, seed));
        let seed = seed.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let seed = seed.unwrap_or_else(|| panic!("{line:?} in regressions.txt is not a seed"));
        assert_kept(&campaign::run(&Limits { first: seed, seeds: 1, trees, time: Duration::MAX }));
    }
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 0..40 {
        let [first, second] = [simulate(seed), simulate(seed)];
        assert_eq!(first.tally, second.tally, "seed {seed:#x}");
        assert_eq!(first.verdict, second.verdict, "seed {seed:#x}");
    }
}

/// A scenario in which nothing goes wrong, except that the daemon is killed several times and is
/// back within a second or two. Its data plane continues.
fn restarts(seed: u64) -> Scenario {
    let mut scenario = Scenario::draw_at_one(seed);
    for link in scenario.links.iter_mut().flatten() {
        let LinkPlan { largest_packet, delay, .. } = *link;
        *link = LinkPlan { largest_packet, delay, ..LinkPlan::default() };
    }
    for job in &mut scenario.jobs {
        job.pause = 300 * MS;
        (job.mistake, job.quitter) = (None, None);
        job.socket_room = job.receive_room;
    }
    let narrowest = scenario.links.iter().flatten().map(|link| link.largest_packet).min();
    let blocks = (narrowest.unwrap_or_default() - HEADER_LEN) / (4 * LANES_PER_BLOCK);
    let incidents = [500, 2_500, 4_500].map(|at| {
        let after = [1, 300, 1_500][(seed % 3) as usize] * MS;
        (at * MS, Incident::Restart { aggregator: 0, after })
    });
    Scenario {
        durable: true,
        // All paths carry this many lanes, so jobs start at once.
        max_lanes: (blocks * LANES_PER_BLOCK) as u16,
        heals_at: None,
        attempts: 1,
        limits: switchml_worker_core::engine::Limits::default(),
        join_timeout: 60 * SECOND,
        control_delay: (MS / 10, MS / 10),
        control_loss: 0,
        open_fails: 0,
        incidents: incidents.into(),
        stranger: None,
        ..scenario
    }
}

/// Fates of a run without errors.
const GOOD: [Fate; 6] =
    [Fate::Exact, Fate::Within16, Fate::Within8, Fate::Finished, Fate::Resumed, Fate::NoMulticast];

#[test]
fn a_daemon_that_is_restarted_costs_no_job() {
    let mut sum = Tally::default();
    for seed in 0..200 {
        let run = play(restarts(seed));
        assert_eq!(run.verdict, Ok(()), "seed {seed}");
        let fates = |fate: &Fate| run.tally.fates(*fate);
        let errors = Fate::ALL.iter().filter(|fate| !GOOD.contains(fate));
        assert_eq!(errors.map(fates).sum::<u64>(), 0, "seed {seed}: {}", run.tally);
        sum += &run.tally;
    }
    assert!(sum.fates(Fate::Resumed) > 100, "{sum}");
}

/// A scenario like [`restarts`], in which one of several aggregators dies in the middle of the
/// calls, and is not back.
fn death(seed: u64) -> Scenario {
    let rng = &mut Rng::new(seed);
    let mut scenario = stripes::draw(rng, restarts(seed));
    let (first, capabilities) = (scenario.aggregator(0), Capabilities::all());
    for other in &mut scenario.others {
        (other.max_lanes, other.links) = (first.max_lanes, first.links.clone());
        other.capabilities = capabilities;
    }
    // An aggregator that takes nothing would not die.
    scenario.weights.iter_mut().for_each(|weight| *weight = (*weight).max(1));
    scenario.jobs.truncate(1);
    let job = &mut scenario.jobs[0];
    // Ranks that were done would have left, and nothing could go on without them.
    job.program = job.program.iter().copied().cycle().take(32).collect();
    let incident = Incident::Death {
        aggregator: rng.below(scenario.weights.len() as u64) as usize,
        contributions: rng.range(1, 4 * u64::from(job.ranks)) as u32,
        manner: rng.pick(&[Manner::Orderly, Manner::Killed, Manner::Silent]),
    };
    Scenario {
        fanout: Fanout::Auto,
        capabilities,
        limits: switchml_worker_core::engine::Limits::default(),
        join_timeout: 60 * SECOND,
        heals_at: None,
        incidents: vec![(0, incident)],
        ..scenario
    }
}

#[test]
fn an_aggregator_that_dies_costs_no_job() {
    let (mut deaths, mut moves) = (0, 0);
    let is_good = |fate: &&Fate| GOOD.contains(fate) || **fate == Fate::Moved;
    for seed in 0..100 {
        let run = play(death(seed));
        assert_eq!(run.verdict, Ok(()), "seed {seed}");
        let errors = Fate::ALL.iter().filter(|fate| !is_good(fate));
        let errors = errors.map(|fate| run.tally.fates(*fate)).sum::<u64>();
        assert_eq!(errors, 0, "seed {seed}: {}", run.tally);
        deaths += run.tally.faults(Fault::Death);
        moves += run.tally.fates(Fate::Moved);
    }
    assert!(deaths > 80 && moves > 2 * deaths, "{deaths} deaths, {moves} moves");
}

/// Ranks go on with others, in another job, where nothing else goes wrong: all finish, and hear of
/// nothing but who is left out or lost.
#[test]
fn ranks_that_go_on_with_others_finish() {
    let mut sum = Tally::default();
    for seed in 0..400 {
        let heals_at = Some(60 * SECOND);
        let scenario = Scenario { heals_at, incidents: Vec::new(), ..restarts(seed) };
        let run = play(changes::draw(scenario));
        assert_eq!(run.verdict, Ok(()), "seed {seed}");
        sum += &run.tally;
    }
    let is_expected = |fate: &&Fate| {
        let of_changes = [Fate::WentOn, Fate::CutShort, Fate::Aborted, Fate::Killed, Fate::Lost];
        GOOD.contains(fate) || of_changes.contains(fate) || **fate == Fate::NotJoined
    };
    let others = Fate::ALL.iter().filter(|fate| !is_expected(fate) && sum.fates(**fate) > 0);
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&Fate>::new(), "{sum}");
    assert!(sum.faults(Fault::Change) > 100 && sum.fates(Fate::CutShort) > 30, "{sum}");
}

/// A scenario like [`restarts`], in which combiners restart or forget while calls continue.
fn restarts_of_combiners(seed: u64) -> Scenario {
    let mut scenario = Scenario { tree: Scenario::draw_tree(seed).tree, ..restarts(seed) };
    for link in scenario.tree.combiners.iter_mut().flat_map(|plan| &mut plan.uplink) {
        let delay = link.delay;
        *link = LinkPlan {
            largest_packet: 4_000,
            delay,
            loss: 20_000,
            duplication: 20_000,
            ..LinkPlan::default()
        };
    }
    for job in &mut scenario.jobs {
        job.origin = 0;
    }
    scenario.capabilities |= Capabilities::PARTIAL_SUMS;
    let combiner = seed as usize % scenario.tree.combiners.len();
    let after = [1, 300, 1_500][(seed % 3) as usize] * MS;
    scenario.incidents = vec![
        (500 * MS, Incident::Forget { combiner }),
        (1_000 * MS, Incident::CombinerCrash { combiner, orderly: false, after }),
        // By now all ranks have come back: a connection is tried again after one and three seconds.
        (4_500 * MS, Incident::CutOff { combiner }),
        (5_500 * MS, Incident::CombinerCrash { combiner, orderly: false, after }),
    ];
    scenario
}

#[test]
fn a_combiner_that_is_restarted_costs_no_job() {
    let mut sum = Tally::default();
    for seed in 0..200 {
        let run = play(restarts_of_combiners(seed));
        assert_eq!(run.verdict, Ok(()), "seed {seed}");
        let fates = |fate: &Fate| run.tally.fates(*fate);
        let errors = Fate::ALL.iter().filter(|fate| !GOOD.contains(fate));
        assert_eq!(errors.map(fates).sum::<u64>(), 0, "seed {seed}: {}", run.tally);
        // No packet is damaged: a wrong check word means that a rank was added twice.
        let bad = [run.tally.outcomes, run.tally.combined].map(|of| of[Outcome::BadCheck as usize]);
        assert_eq!(bad, [0, 0], "seed {seed}: {}", run.tally);
        sum += &run.tally;
    }
    assert!(sum.fates(Fate::Resumed) > 100, "{sum}");
}

/// Ranks that make the same call in different precision are told so, in any pair of precisions:
/// with more than 32 ranks, too, where 8 bits travel as 16.
#[test]
fn another_precision_is_another_call() {
    let mut told = 0;
    for seed in 0..120 {
        let mut scenario = restarts(seed);
        scenario.incidents.clear();
        for job in &mut scenario.jobs {
            let precision = |place| {
                [Precision::Exact, Precision::Bits16, Precision::Bits8][(seed as usize + place) % 3]
            };
            let step = |place| {
                let reduction = Reduction::new(ReduceOp::Avg, precision(place));
                let call =
                    Call { kind: Kind::AllReduce(reduction), dtype: DType::Bf16, count: 700 };
                Step { call, elements: Elements::Exact, waits: true }
            };
            job.program = vec![step(0)];
            let who = (seed % u64::from(job.ranks)) as u16;
            job.mistake = (job.ranks > 1).then(|| (who, 0, step(1 + seed as usize / 3 % 2)));
        }
        let jobs = scenario.jobs.iter().filter(|job| job.mistake.is_some());
        let ranks = jobs.map(|job| u64::from(job.ranks)).sum::<u64>();
        let run = play(scenario);
        assert_eq!(run.verdict, Ok(()), "seed {seed}");
        assert_eq!(run.tally.fates(Fate::Mismatch), ranks, "seed {seed}: {}", run.tally);
        told += ranks;
    }
    assert!(told > 300, "{told} ranks");
}

/// Ranks that the network's multicast does not reach find that out and get copies, next to other
/// ranks that it reaches, even behind the same port. No rank has to ask again for a result, or
/// complains.
#[test]
fn ranks_that_multicast_does_not_reach_get_copies() {
    let mut mixed = 0;
    for seed in 0..100 {
        let mut scenario = restarts(seed);
        scenario.incidents.clear();
        scenario.fanout = Fanout::Auto;
        scenario.capabilities |= Capabilities::GROUP_HELLOS;
        scenario.ports.iter_mut().for_each(|port| *port = 1 + *port % 2);
        for (worker, without) in scenario.without_multicast.iter_mut().enumerate() {
            *without = (worker as u64 + seed).is_multiple_of(2);
        }
        for job in &mut scenario.jobs {
            job.pause = 0;
            // Lanes that the aggregator asks for come late, and later results overtake them.
            let asks = |kind| matches!(kind, Kind::AllGather | Kind::Broadcast { .. });
            let steps = job.program.iter_mut().filter(|step| asks(step.call.kind));
            steps.for_each(|step| step.call.kind = Kind::AllReduce(Reduction::SUM));
        }
        let run = play(scenario);
        assert_eq!(run.verdict, Ok(()), "seed {seed}");
        assert_eq!(run.tally.fates(Fate::NoMulticast), 0, "seed {seed}: {}", run.tally);
        let replayed = run.tally.outcomes[Outcome::Replayed as usize];
        assert_eq!(replayed, 0, "seed {seed}: {}", run.tally);
        mixed += run.tally.faults(Fault::MixedFanout);
    }
    assert!(mixed > 50, "{mixed} sessions");
}

/// A tree takes a few packets' time more than its links, and sends one tensor over each uplink of a
/// group of ranks; without combiners an uplink carries the tensors of all its ranks.
#[test]
fn trees_take_little_more_than_their_links_alone() {
    const BYTES: usize = 1 << 18;
    for ranks in [8, 32] {
        for shape in [Shape::Flat, Shape::Racks, Shape::Parts] {
            let (time, _) = scaling::all_reduce(shape, ranks, BYTES).expect("right sums");
            let least = scaling::perfect(shape, BYTES);
            assert!((least..least * 11 / 10).contains(&time), "{shape:?}, {ranks}: {time} ns");
        }
        let [with, without] = [Shape::Racks, Shape::Routers]
            .map(|shape| scaling::all_reduce(shape, ranks, BYTES).expect("right sums"));
        let below = u64::from(ranks) / 2;
        assert!(without.0 > (below - 1) * with.0, "{with:?} {without:?}");
        assert!(4 * without.1 > 3 * below * with.1, "{with:?} {without:?}");
    }
}

/// Parts of two ranks alternate even if a superpacket does not divide their bundles. This data
/// plane sends each rank its own part back, so the whole tensor comes over its link.
#[test]
fn all_gathers_take_little_more_than_their_links_alone() {
    const BYTES: usize = 1 << 22;
    let least = scaling::perfect(Shape::Flat, BYTES);
    for ranks in [2, 3, 4, 8, 16, 32] {
        let time = scaling::all_gather(ranks, BYTES).expect("right parts");
        let bounds = least..least * 102 / 100;
        assert!(bounds.contains(&time), "{ranks}: {time} ns, {least} at least");
    }
}

/// If jobs pause, a combiner with cells for two of eight jobs serves more than a static partition
/// of its cells, and more than none.
#[test]
fn jobs_share_cells_by_best_effort() {
    let [shared, partition, none] =
        Sharing::ALL.map(|sharing| scaling::share(sharing, 8, 4, MS).expect("right sums").total);
    assert!(shared > partition && shared > none, "{shared} {partition} {none}");
}
