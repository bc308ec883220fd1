//! The Python package and the backend for `torch.distributed`: ranks that are Python processes,
//! each in its own namespace, with the environment that torchrun gives. The scripts are in
//! `worker-lib/python/tests`.
//!
//! Tests that need torch run with its oldest and newest version, and many with one between:
//! `SWITCHML_PYTHON` and two more variables name interpreters that have the package and torch;
//! `cargo xtask test` makes them.

mod lost;
mod public;
mod site;
mod tutorials;
mod two_jobs;
mod warm;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use switchml_rack::{Ip, Process, Rack, RackOptions, Torchrun, Training, leave_out, needs_racks};

use crate::site::{Case, PATIENCE, Site, Torch, fresh_folder, run_module, scripts};

/// The limit for things that should happen soon, even on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Torch's own tests take a minute or two.
const SUITE_PATIENCE: Duration = Duration::from_secs(900);

/// Makes tests of functions, for these versions of torch. The middle one runs what is about its own
/// interface: how calls, errors, hooks and groups reach the backend. The rest takes long, and would
/// fail with the oldest or the newest version, too.
macro_rules! with_torches {
    (all: [$($all:ident,)*] oldest and newest: [$($name:ident,)*]) => {
        with_torches!(@ oldest, Oldest, $($all)* $($name)*);
        with_torches!(@ middle, Middle, $($all)*);
        with_torches!(@ newest, Newest, $($all)* $($name)*);
    };
    (@ $module:ident, $torch:ident, $($name:ident)*) => {
        mod $module {
            use crate::{Case, Torch};
            $(#[test] fn $name() { super::$name(Case::new(Torch::$torch, stringify!($name))); })*
        }
    };
}

with_torches! {
    all: [
        collectives_of_torch,
        reduce_scatters_and_all_gathers_in_the_network,
        a_fork_says_what_it_lacks_and_ends_as_usual,
        sharded_parameters_and_their_checkpoints,
        replicas_of_torchft_come_and_go,
        groups_join_the_aggregator_when_they_are_first_used,
        a_killed_rank_is_named_on_all_others,
        a_rank_that_is_lost_before_it_joins_is_named_at_once,
        ddps_backward_pass_raises_the_error_itself,
        the_timeout_of_torch_ends_the_wait_and_all_name_the_same_rank,
        a_timeout_that_is_set_later_ends_the_wait,
        a_rank_that_calls_gloo_instead_is_named_at_once,
        every_public_function,
        tensors_in_any_memory_and_in_inference_mode,
        calls_are_in_the_profilers_traces,
        callbacks_may_wait_for_calls,
        all_reduces_overlap_the_backward_pass,
        gradients_may_be_compressed_by_hooks,
        steps_end_at_their_deadline_without_late_ranks,
        calls_that_travel_alike_are_told_apart_by_their_types,
        small_calls_end_on_the_thread_that_waits,
        ranks_are_lost_and_join_by_torchs_own_interface,
    ]
    oldest and newest: [
        collectives_over_ipv6,
        collectives_while_torch_debugs_in_detail,
        the_host_name_may_be_an_address_of_the_loopback_interface,
        a_program_that_fails_ends_at_once_whatever_is_in_flight,
        pipelines_over_ranks,
        digits_by_torchrun,
        text_by_torchrun,
        a_script_that_fails_is_told_of_each_rank,
        a_job_that_is_given_up_leaves_no_process,
        a_job_whose_rank_is_killed_trains_on_when_torchrun_restarts_it,
        ranks_that_are_left_train_on_in_the_same_processes,
        a_rank_lost_while_others_regroup_is_left_out_at_once,
        replicas_of_sharded_parameters_sum_up_in_the_network,
        power_sgd_trains_as_with_gloo,
        a_language_model_cut_over_ranks_writes_what_the_whole_one_does,
        a_late_rank_is_waited_for_and_said_to_be,
        a_rank_that_starts_late_is_waited_for_and_said_to_be,
        ranks_with_other_settings_hear_what_differs,
        a_rank_that_chose_gloo_is_named,
        a_wait_with_a_timeout_names_the_late_rank,
        a_rank_that_never_uses_a_group_is_named,
        another_call_is_told_and_the_processes_go_on_in_another_job,
        a_failed_call_leaves_its_inputs_as_they_were,
        without_an_aggregator_ranks_serve_each_other,
        an_aggregator_that_does_not_answer_is_named_or_gloo_takes_its_place,
        collectives_by_way_of_copies,
        gradients_may_be_accumulated,
        error_feedback_loses_nothing_over_steps_and_in_checkpoints,
        late_gradients_are_given_exactly_once,
    ]
}

/// Makes functions that run a script, which checks itself, on so many ranks. At its end each says
/// this.
macro_rules! scripts {
    ($($name:ident: $ranks:literal, $arguments:expr, $says:literal;)*) => {
        $(fn $name(case: Case) {
            let Some(site) = case.site($ranks) else { return };
            site.run_and_hear(&$arguments, &[], $says);
        })*
    };
}

scripts! {
    collectives_by_way_of_copies: 3, ["collectives.py", "staged"], "all collectives are right";
    tensors_in_any_memory_and_in_inference_mode: 3, ["memory.py"], "all memory is right";
    calls_are_in_the_profilers_traces: 2, ["profiles.py"], "all calls are in the traces";
    gradients_may_be_accumulated: 2, ["accumulated_gradients.py"], "all of it works";
    callbacks_may_wait_for_calls: 3, ["callbacks.py"], "all callbacks were called";
    all_reduces_overlap_the_backward_pass: 2, ["overlap.py"], "all-reduces overlap";
    gradients_may_be_compressed_by_hooks: 2, ["hooks.py"], "";
    error_feedback_loses_nothing_over_steps_and_in_checkpoints: 3, ["feedback.py"], "";
    late_gradients_are_given_exactly_once: 1, ["ledger.py"], "all was given once";
    calls_that_travel_alike_are_told_apart_by_their_types: 2, ["mismatched_types.py"], "";
    small_calls_end_on_the_thread_that_waits: 3, ["small_calls.py"], "all small calls are right";
}

fn steps_end_at_their_deadline_without_late_ranks(case: Case) {
    let Some(site) = case.site(3) else { return };
    let folder = fresh_folder(&format!("deadline-{}", case.torch.version()));
    let arguments = ["deadline.py", folder.to_str().unwrap()];
    site.run_and_hear(&arguments, &[], "all that was late came once");
}

fn collectives_of_torch(case: Case) {
    let Some(site) = case.site(3) else { return };
    let right = format!("all collectives are right with torch {}", case.torch.version());
    site.run_and_hear(&["collectives.py"], &[], &right);
    assert!(site.counter("completed") > 1000, "the sums were made in the switch");
}

fn collectives_over_ipv6(case: Case) {
    let Some(site) = case.site_of(3, Ip::V6) else { return };
    site.run_and_hear(&["collectives.py"], &[], "all collectives are right");
    assert!(site.counter("completed") > 1000, "the sums were made in the switch");
}

fn reduce_scatters_and_all_gathers_in_the_network(case: Case) {
    let Some(site) = case.site(3) else { return };
    site.run_and_hear(&["parts.py"], &[], "all parts are right");
    let completed = site.counter("completed");
    assert!(completed > 3000, "{completed} rounds in the switch");
}

fn every_public_function(case: Case) {
    let Some(site) = case.site(3) else { return };
    site.run_and_hear(&["public_functions.py"], &[], "all of them work");
}

/// In this mode torch wraps the backend, and compares the calls of the ranks.
fn collectives_while_torch_debugs_in_detail(case: Case) {
    let Some(site) = case.site(2) else { return };
    site.run_and_hear(
        &["collectives.py"],
        &[("TORCH_DISTRIBUTED_DEBUG", "DETAIL")],
        "all collectives are right",
    );
}

/// A hosts file like Debian's, without a setting that names Gloo's interface.
fn the_host_name_may_be_an_address_of_the_loopback_interface(case: Case) {
    let Some(site) = case.site(2) else { return };
    let hosts = fresh_folder(&format!("hosts-{}", case.torch.version())).join("hosts");
    std::fs::write(&hosts, "127.0.0.1 localhost\n127.0.1.1 debian\n").unwrap();
    let start = |rank: usize, meets_by: &[&str]| {
        let script = site.command(rank, &[&["loopback_name.py"], meets_by].concat());
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--uts",
            "sh",
            "-c",
            "mount --bind \"$0\" /etc/hosts && hostname debian && exec \"$@\"",
        ]);
        command.arg(&hosts).arg(script.get_program()).args(script.get_args());
        command.envs(script.get_envs().filter_map(|(name, value)| Some((name, value?))));
        site.rack.worker(rank).spawn(&format!("rank {rank}"), command).unwrap()
    };
    for meets_by in [&[][..], &["address"]] {
        for mut rank in [0, 1].map(|rank| start(rank, meets_by)) {
            rank.wait_success(PATIENCE).unwrap();
            assert!(rank.stdout().contains("Gloo works"), "{}", rank.stdout());
        }
    }
}

fn a_fork_says_what_it_lacks_and_ends_as_usual(case: Case) {
    let Some(site) = case.site(2) else { return };
    for mut rank in site.ranks(&["forks.py"], &[]) {
        rank.wait_success(PATIENCE).unwrap();
        assert!(rank.stdout().contains("all forks have ended"), "{}", rank.stdout());
        assert!(!rank.stderr().contains("panicked"), "{}", rank.stderr());
    }
}

/// Rank 1's. Its own timeout, which it would wait for, is 30 minutes.
fn a_program_that_fails_ends_at_once_whatever_is_in_flight(case: Case) {
    let Some(site) = case.site(3) else { return };
    for how in [
        "raises",
        "raises while it joins",
        "raises while a thread waits",
        "destroys its group",
        "exits",
        "is interrupted",
        "without torch, is interrupted",
        "without torch, is interrupted in a barrier",
        "without torch, is interrupted while it joins",
    ] {
        let folder = fresh_folder(&format!("ends-{}", case.torch.version()));
        let mut ranks = site.ranks(&["ends.py", how, folder.to_str().unwrap()], &[]);
        ranks[1].wait_for_line("in flight", PATIENCE).unwrap();
        let status = ranks[1].wait(SOON).unwrap();
        assert!(!status.success(), "{how}: {status}");
        let told = if how.contains("interrupted") { "KeyboardInterrupt" } else { "out of memory" };
        assert!(how == "exits" || ranks[1].stderr().contains(told), "{how}: {}", ranks[1].stderr());
        std::fs::write(folder.join("ended"), "").unwrap();
        for rank in [0, 2] {
            ranks[rank].wait_success(SOON).unwrap();
        }
    }
}

/// The outcomes of torch's own tests with a backend, by test.
fn torchs_own_suite(site: &Site, backend: &str, tests: &[&str]) -> HashMap<String, String> {
    let arguments = [&["torchs_own_suite.py", backend], tests].concat();
    let mut ranks = site.rank(0, &arguments, &[]);
    ranks.wait_success(SUITE_PATIENCE).unwrap();
    let printed = ranks.stdout();
    let outcome = |line: &str| {
        let (word, rest) = line.split_once(' ')?;
        let is_outcome = ["pass", "fail", "skip"].contains(&word) && rest.starts_with("test_");
        is_outcome.then(|| (rest.split(' ').next().unwrap().to_owned(), word.to_owned()))
    };
    let outcomes: HashMap<_, _> = printed.lines().filter_map(outcome).collect();
    let count = |wanted: &str| outcomes.values().filter(|word| *word == wanted).count();
    let [passed, failed, skipped] = ["pass", "fail", "skip"].map(count);
    println!("{backend}: {passed} pass, {failed} fail, {skipped} skip\n{printed}");
    outcomes
}

/// Tests that pass with Gloo also pass in the network. This takes longest, and by its name starts
/// first.
#[test]
fn all_of_torchs_own_tests_pass() {
    let Some(site) = Site::new(Torch::Newest, "all_of_torchs_own_tests_pass", 1) else { return };
    let outcomes = torchs_own_suite(&site, "switchml", &[]);
    // All tests that need no GPU.
    assert!(outcomes.values().filter(|word| *word == "pass").count() > 80, "{outcomes:?}");
    let failed = outcomes.iter().filter(|(_, word)| *word == "fail").map(|(name, _)| name.as_str());
    // This test expects the backend's name, but torch calls every foreign backend "custom".
    let failed: Vec<_> = failed.filter(|name| *name != "test_ddp_logging_data_cpu").collect();
    if !failed.is_empty() {
        let by_gloo = torchs_own_suite(&site, "gloo", &failed);
        let ours: Vec<_> = by_gloo.iter().filter(|(_, word)| *word == "pass").collect();
        assert!(ours.is_empty(), "pass with Gloo alone: {ours:?}");
    }
    assert!(site.counter("completed") > 100, "the sums were made in the switch");
}

#[test]
fn tensors_of_a_gpu() {
    let name = "tensors_of_a_gpu";
    let Some(site) = Site::new(Torch::Newest, name, 2) else { return };
    let mut command = Command::new(&site.python);
    command.args(["-W", "ignore", "-c", "import torch; print(torch.cuda.is_available())"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    if output.stdout != b"True\n" {
        leave_out(name, "no GPU");
        return;
    }
    for backend in ["switchml", "cpu:switchml,cuda:switchml", "cpu:gloo,cuda:switchml"] {
        for printed in site.run(&["gpu_tensors.py", backend], &[]) {
            assert!(printed.contains("all tensors of the GPU are right"), "{backend}: {printed}");
        }
    }
}

#[test]
fn types_are_right_and_stubs_are_those_of_the_native_module() {
    let name = "types_are_right_and_stubs_are_those_of_the_native_module";
    let Some(python) = Torch::Newest.interpreter(name) else { return };
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker-lib/python");
    run_module(&python, &sources, &["mypy", "--cache-dir", "/dev/null"]);
    // Runs in another folder, because it must compare the installed package, not the sources.
    run_module(&python, &std::env::temp_dir(), &["mypy.stubtest", "switchml._native"]);
}

fn pipelines_over_ranks(case: Case) {
    if case.torch == Torch::Oldest {
        return case.leave_out("its pipelines hang on CPUs with Gloo, too");
    }
    let Some(site) = case.site(2) else { return };
    site.run_and_hear(&["pipelines.py"], &[], "all of it works");
}

fn sharded_parameters_and_their_checkpoints(case: Case) {
    if case.torch == Torch::Oldest {
        return case.leave_out("its fully_shard needs a GPU");
    }
    let Some(site) = case.site(2) else { return };
    let folder = fresh_folder(&format!("checkpoint-{}", case.torch.version()));
    site.run_and_hear(
        &["sharded_parameters.py"],
        &[("FOLDER", folder.to_str().unwrap())],
        "all of it works",
    );
}

#[test]
fn a_compiled_model_runs_what_is_behind_its_group_as_it_is() {
    let name = "a_compiled_model_runs_what_is_behind_its_group_as_it_is";
    let Some(site) = Site::new(Torch::Newest, name, 2) else { return };
    site.run_and_hear(&["compiled.py"], &[], "nothing was traced");
}

#[test]
fn arrays_of_numpy() {
    let Some(site) = Site::new(Torch::Newest, "arrays_of_numpy", 2) else { return };
    site.run_and_hear(&["numpy_arrays.py"], &[], "all arrays are right");
}

#[test]
fn settings_by_keyword() {
    let Some(site) = Site::new(Torch::Newest, "settings_by_keyword", 2) else { return };
    site.run_and_hear(&["keywords.py"], &[], "all keywords are right");
}

/// A job by torchrun, of a script that users are shown.
fn training(site: &Site, arguments: &[&str]) -> Torchrun {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker-lib/python/examples");
    let script = folder.join(arguments[0]);
    Torchrun::start(&site.rack, &site.python, Some(&site.aggregator), &script, &arguments[1..])
        .unwrap()
}

/// Trains for a while: twice with this backend, and once with Gloo. The script checks that ranks
/// have the same bits after every step.
fn trains_as_with_gloo_and_twice_the_same(
    site: &Site,
    script: &str,
    epochs: &str,
    most_apart: f64,
) {
    let arguments = |backend, bucket| {
        [script, "--epochs", epochs, "--backend", backend, "--bucket-cap-mb", bucket]
    };
    // Small buckets: several are in flight during each backward pass.
    let ours = training(site, &arguments("switchml", "0.05")).finish(PATIENCE).unwrap();
    assert!(site.counter("completed") > 200, "gradients were summed in the switch");
    assert_eq!(ours.parameters.len(), ours.losses.len(), "a digest for every step");
    // Torchrun imports torch, and so do its ranks: ours start sooner.
    let train = |backend, bucket| {
        let script = format!("../examples/{script}");
        let arguments = [&[&*script], &arguments(backend, bucket)[1..]].concat();
        Training::of(&site.run(&arguments, &[])).unwrap()
    };
    assert_eq!(train("switchml", "0.05"), ours);
    let gloo = train("gloo", "25");
    let (first, last) = (gloo.losses[0], *gloo.losses.last().unwrap());
    assert!(last < 0.6 * first, "it learns: from {first} to {last}");
    assert_eq!(ours.losses.len(), gloo.losses.len());
    // After so short a training, losses differ by 2e-6; noise grows from step to step.
    assert!(ours.apart(&gloo) < most_apart, "{} apart", ours.apart(&gloo));
    assert!(
        (ours.accuracies[0] - gloo.accuracies[0]).abs() <= 0.005,
        "{ours:?} and Gloo's {gloo:?}"
    );
}

fn digits_by_torchrun(case: Case) {
    let Some(site) = case.site(2) else { return };
    trains_as_with_gloo_and_twice_the_same(&site, "digits.py", "1", 1e-4);
}

fn text_by_torchrun(case: Case) {
    let Some(site) = case.site(2) else { return };
    // 1.02e-4 with the oldest torch on an AMD EPYC.
    let most_apart = if case.torch == Torch::Oldest { 2e-4 } else { 1e-4 };
    trains_as_with_gloo_and_twice_the_same(&site, "text.py", "1", most_apart);
}

/// A job by torchrun and a sharded optimizer, with the bits of jobs at the switch; and sharded
/// parameters.
#[test]
fn models_train_without_an_aggregator() {
    let name = "models_train_without_an_aggregator";
    let Some(site) = Site::new(Torch::Newest, name, 2) else { return };
    let script = scripts().join("../examples/digits.py");
    let options = ["--epochs", "1", "--backend", "switchml", "--bucket-cap-mb", "0.05"];
    let train = |aggregator| {
        let job = Torchrun::start(&site.rack, &site.python, aggregator, &script, &options);
        job.unwrap().finish(PATIENCE).unwrap()
    };
    let alone = train(None);
    assert!(!site.told(&["status"]).contains("added"), "the switch has nothing to do with it");
    assert_eq!(alone, train(Some(&site.aggregator)));
    let nothing = [("SWITCHML_AGGREGATOR", "")];
    let losses = |variables: &[(&str, &str)]| {
        Training::of(&site.run(&["../examples/sharded.py", "zero"], variables)).unwrap().losses
    };
    assert_eq!(losses(&nothing), losses(&[]));
    let folder = fresh_folder("checkpoint-without-an-aggregator");
    let variables = [("SWITCHML_AGGREGATOR", ""), ("FOLDER", folder.to_str().unwrap())];
    site.run_and_hear(&["sharded_parameters.py"], &variables, "all of it works");
}

fn a_script_that_fails_is_told_of_each_rank(case: Case) {
    let Some(site) = case.site(2) else { return };
    let job = training(&site, &["digits.py", "--epochs", "nonsense"]);
    let told = job.finish(PATIENCE).unwrap_err().to_string();
    for rank in 0..2 {
        let head = format!("rank {rank} (exit status: 1):\n");
        let said = told
            .split_once(&head)
            .map(|(_, lines)| lines.split("rank ").next().unwrap_or_default());
        assert!(said.is_some_and(|lines| lines.contains("nonsense")), "{told}");
    }
    assert!(!told.contains("ChildFailedError"), "{told}");
}

#[test]
fn where_torchrun_should_be_is_told() {
    needs_racks!();
    let rack = Rack::new(RackOptions { workers: 1, ..RackOptions::default() }).unwrap();
    let told =
        Torchrun::start(&rack, Path::new("/nowhere/python"), None, Path::new("digits.py"), &[])
            .err()
            .unwrap();
    let expected = "/nowhere/torchrun does not exist; torchrun comes with torch: `pip install \
                    torch` in that environment";
    assert_eq!(told.to_string(), expected);
}

fn a_job_that_is_given_up_leaves_no_process(case: Case) {
    let Some(site) = case.site(2) else { return };
    // The number of epochs is unique to this test, to find its processes.
    let epochs = format!("{}{}", 1_000_000_000 + u64::from(std::process::id()), case.torch as u8);
    let there = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        lines
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .filter(|line| line.contains(&epochs))
            .collect()
    };
    let wait_until = |what: &dyn Fn(&[String]) -> bool| {
        let end = Instant::now() + PATIENCE;
        loop {
            let processes: Vec<String> = there();
            if what(&processes) {
                return;
            }
            assert!(Instant::now() < end, "{processes:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let job = training(&site, &["digits.py", "--epochs", &epochs]);
    // Torchrun's lines have the script, too; the script's have no torchrun.
    wait_until(&|processes| {
        processes.iter().filter(|line| !line.contains("torchrun")).count() == 2
    });
    drop(job);
    wait_until(&|processes| processes.is_empty());
}

/// A job that was cut off in a step, and one that was not, come to the same parameters.
fn a_job_whose_rank_is_killed_trains_on_when_torchrun_restarts_it(case: Case) {
    let Some(site) = case.site(2) else { return };
    let train = |killed_in: &str| -> Vec<Value> {
        let folder = fresh_folder(&format!("elastic-{}{killed_in}", case.torch.version()));
        let arguments = case.torch.script(&["elastic.py", folder.to_str().unwrap(), killed_in]);
        let job = Torchrun::start_elastic(
            &site.rack,
            &site.python,
            &site.aggregator,
            2,
            &scripts().join(arguments[0]),
            &arguments[1..],
        );
        let printed = job.unwrap().printed(PATIENCE).unwrap();
        printed.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    };
    let (whole, cut) = (train("never"), train("3"));
    for (ranks, begin) in [(&whole, 0), (&cut, 3)] {
        for rank in ranks {
            assert_eq!(rank["begin"], begin, "{rank}");
            assert_eq!(rank["sum"], whole[0]["sum"], "{rank}");
        }
    }
}

/// Runs under torchft's own lighthouse and managers. The script says what a replica contributes.
fn replicas_of_torchft_come_and_go(case: Case) {
    if case.torch == Torch::Oldest {
        return case.leave_out("torchft needs a newer one");
    }
    let Some(site) = case.site(3) else { return };
    let lighthouse = format!("{}:29510", Rack::worker_address(0));
    let begin = fresh_folder(&format!("replicas-{}", case.torch.version())).join("begin");
    let begin = begin.to_str().unwrap();
    let start = |replica: usize, killed_after: &str| {
        let script = site.command(replica, &["replicas.py", &lighthouse, begin, killed_after]);
        // Torchft tells other replicas its host's name, which all in a rack share.
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\""]);
        command.arg(Rack::worker_address(replica).to_string());
        command.arg(script.get_program()).args(script.get_args());
        command.envs(script.get_envs().filter_map(|(name, value)| Some((name, value?))));
        site.rack.worker(replica).spawn(&format!("replica {replica}"), command).unwrap()
    };
    let (mut first, mut second) = (start(0, "never"), start(1, "5"));
    let mut third = start(2, "never");
    for replica in [&mut first, &mut second, &mut third] {
        replica.wait_for_line("ready", PATIENCE).unwrap();
    }
    std::fs::write(begin, "").unwrap();
    assert!(!second.wait(PATIENCE).unwrap().success(), "it is killed");
    first.wait_for_line("\"replicas\": 2", PATIENCE).unwrap();
    for (rank, replica) in [first, start(1, "never"), third].into_iter().enumerate() {
        let steps = steps_of_replica(replica);
        for step in &steps {
            let averaged = replicas_of_mean(step);
            assert_eq!(step["replicas"], averaged.len(), "{step}");
            assert_eq!(step["takes_part"], averaged.contains(&rank), "{step}");
        }
        assert!(replicas_of_mean(steps.last().unwrap()).contains(&1), "all end when it is back");
    }
}

/// The replicas whose average that is, of 1, 2 and 6. After the kill it is usually that of 0 and 2,
/// but torchft leaves any replica out for a step after a call that failed on that one alone.
fn replicas_of_mean(step: &Value) -> &'static [usize] {
    let means: [(f64, &[usize]); 4] =
        [(3.0, &[0, 1, 2]), (1.5, &[0, 1]), (3.5, &[0, 2]), (4.0, &[1, 2])];
    let found = means.iter().find(|(mean, _)| step["means"] == serde_json::json!([mean]));
    found.unwrap_or_else(|| panic!("no replicas have that mean: {step}")).1
}

/// The steps that a replica says it committed; it must end successfully.
fn steps_of_replica(mut replica: Process) -> Vec<Value> {
    replica.wait_success(PATIENCE).unwrap();
    let said = replica.stdout();
    let lines = said.lines().filter(|line| *line != "ready");
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The last rank kills itself after every four steps. Batches do not depend on who shares them, so
/// losses are those of ranks none of which was lost.
fn ranks_that_are_left_train_on_in_the_same_processes(case: Case) {
    let Some(site) = case.site(3) else { return };
    let train = |lose: &str, left: usize| -> Vec<Value> {
        let arguments = ["../examples/survivors.py", "--steps", "10", "--lose", lose];
        let mut ranks = site.ranks(&arguments, &[]);
        for lost in &mut ranks[left..] {
            assert!(!lost.wait(PATIENCE).unwrap().success(), "it kills itself");
        }
        ranks[0].wait_success(PATIENCE).unwrap();
        let said = ranks[0].stdout();
        let lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| !line["step"].is_null()).collect()
    };
    let (whole, left) = (train("0", 3), train("4", 1));
    let ranks_of = |steps: &[Value]| -> Vec<u64> {
        steps.iter().map(|step| step["ranks"].as_u64().unwrap()).collect()
    };
    assert_eq!(ranks_of(&whole), [3; 10]);
    assert_eq!(ranks_of(&left), [3, 3, 3, 3, 2, 2, 2, 2, 1, 1]);
    let loss = |step: &Value| step["loss"].as_f64().unwrap();
    for (step, (whole, left)) in whole.iter().zip(&left).enumerate() {
        assert_eq!(left["step"].as_u64(), Some(step as u64 + 1), "none is left out or repeated");
        assert!((loss(whole) - loss(left)).abs() < 1e-5, "{whole} and {left}");
    }
    assert!(loss(&left[9]) < 0.9 * loss(&left[0]), "it learns: {left:?}");
}

fn a_rank_lost_while_others_regroup_is_left_out_at_once(case: Case) {
    let Some(site) = case.site(4) else { return };
    let mut ranks = site.ranks(&["regrouping.py"], &[]);
    ranks[0].wait_success(PATIENCE).unwrap();
    assert!(ranks[0].stdout().contains("went on"), "{}", ranks[0].stdout());
}

/// The first of four ranks kills itself in the end, and another process takes its place.
fn ranks_are_lost_and_join_by_torchs_own_interface(case: Case) {
    if case.torch == Torch::Oldest {
        return case.leave_out("it has no such interface");
    }
    let Some(site) = case.site(4) else { return };
    let folder = fresh_folder(&format!("reconfigure-{}", case.torch.version()));
    let start = |host: usize, name: &str| {
        site.rank(host, &["reconfigure.py", folder.to_str().unwrap(), name], &[])
    };
    let mut first = start(0, "0");
    let others = [start(1, "1"), start(2, "2"), start(3, "3"), start(0, "joins")];
    assert!(!first.wait(PATIENCE).unwrap().success(), "it kills itself");
    for mut rank in others {
        rank.wait_success(PATIENCE).unwrap();
        assert!(rank.stdout().contains("all sums are right"), "{}", rank.stdout());
    }
}

/// The same processes find no aggregator, use Gloo instead, serve each other, and find one.
#[test]
fn groups_whose_ranks_change_find_an_aggregator_as_others_do() {
    let name = "groups_whose_ranks_change_find_an_aggregator_as_others_do";
    let Some(site) = Site::new(Torch::Newest, name, 3) else { return };
    let nowhere = format!("{}:4", switchml_rack::AGGREGATOR_ADDRESS);
    let folder = fresh_folder("reconfigure-fallback");
    let arguments = ["reconfigure_fallback.py", folder.to_str().unwrap(), &nowhere];
    site.run_and_hear(&arguments, &[], "all sums are right");
    assert!(site.counter("completed") > 0, "the last ones were made in the switch");
}

/// Four groups of two ranks in a mesh, and the group of all ranks.
fn groups_join_the_aggregator_when_they_are_first_used(case: Case) {
    let Some(site) = case.site(4) else { return };
    let folder = fresh_folder(&format!("meshes-{}", case.torch.version()));
    let mut ranks = site.ranks(&["meshes.py", folder.to_str().unwrap()], &[]);
    for (line, next, jobs) in [("made", "go", 1), ("summed", "end", 1 + 4)] {
        for rank in &mut ranks {
            rank.wait_for_line(line, PATIENCE).unwrap();
        }
        assert_eq!(site.jobs(), jobs, "{line}");
        std::fs::write(folder.join(next), "").unwrap();
    }
    for mut rank in ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
}

/// By sums in the model, and by torch's plan.
fn a_language_model_cut_over_ranks_writes_what_the_whole_one_does(case: Case) {
    let Some(site) = case.site(2) else { return };
    let written = |cut: &[&str]| {
        let small = ["--width", "128", "--layers", "2", "--prompt", "8", "--tokens", "8"];
        let arguments = [&["../examples/generate.py", "--cut"], cut, &small].concat();
        let said: Value = serde_json::from_str(&site.run(&arguments, &[])[0]).unwrap();
        said["written"].clone()
    };
    let whole = written(&["not"]);
    assert_eq!(whole.as_array().unwrap().len(), 8);
    // The plan of the oldest torch has no matrix products in inference mode, with Gloo neither.
    let cuts = if case.torch == Torch::Oldest { &["by-hand"][..] } else { &["by-hand", "dtensor"] };
    for cut in cuts {
        assert_eq!(written(&[cut]), whole, "{cut}");
        assert_ne!(written(&[cut, "--silent"]), whole, "{cut}: the sums matter");
    }
    // Two layers sum up twice for each of 8 tokens, which are written twice.
    let sums = (cuts.len() * 2 * 2 * 8 * 2) as u64;
    assert!(site.counter("completed") > sums, "sums were made in the switch");
}

/// Two hosts of two ranks each. Shards go through Gloo, which replaces NCCL on CPUs.
fn replicas_of_sharded_parameters_sum_up_in_the_network(case: Case) {
    if case.torch == Torch::Oldest {
        return case.leave_out("its meshes have one backend for all dimensions");
    }
    let Some(site) = case.site(4) else { return };
    let losses = |backend: &str| -> Vec<Vec<f64>> {
        let arguments = ["../examples/hsdp.py", "--backend", backend];
        let printed = site.run(&arguments, &[("LOCAL_WORLD_SIZE", "2")]);
        let loss = |line: &str| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64();
        printed.iter().map(|text| text.lines().map(|line| loss(line).unwrap()).collect()).collect()
    };
    let ours = losses("switchml");
    // 20 steps, each with 800,000 parameters in packets of about 350.
    assert!(site.counter("completed") > 20 * 1000, "gradients were summed in the switch");
    for (ours, gloos) in ours.iter().zip(losses("gloo")) {
        assert_eq!(ours.len(), 20);
        assert!(ours[19] < 0.9 * ours[0], "it learns: {ours:?}");
        let apart = ours.iter().zip(&gloos).map(|(ours, gloos)| (ours - gloos).abs());
        assert!(apart.fold(0.0, f64::max) < 1e-5, "{ours:?} and Gloo's {gloos:?}");
    }
}

/// The callbacks of PowerSGD's hook wait for two calls each.
fn power_sgd_trains_as_with_gloo(case: Case) {
    let Some(site) = case.site(2) else { return };
    let losses = |backend: &str| -> Vec<Vec<f64>> {
        let printed = site.run(&["powersgd.py", backend, "25"], &[]);
        printed.iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    };
    let (ours, gloos) = (losses("switchml"), losses("gloo"));
    for (ours, gloos) in ours.iter().zip(&gloos) {
        assert!(gloos.last() < Some(&(0.8 * gloos[0])), "it learns: {gloos:?}");
        assert_eq!(ours.len(), gloos.len());
        let apart =
            ours.iter().zip(gloos).map(|(ours, gloos)| (ours - gloos).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-4, "{apart} apart: {ours:?} and Gloo's {gloos:?}");
    }
}

/// The error that a rank of `failing_rank.py` saw.
fn seen(rank: &mut Process) -> Value {
    serde_json::from_str(&rank.wait_for_line("\"seconds\"", PATIENCE).unwrap()).unwrap()
}

fn a_killed_rank_is_named_on_all_others(case: Case) {
    a_killed_rank_is_named(case, &[]);
}

/// The error keeps its type and ranks, instead of the RuntimeError that torch's futures make of it.
fn ddps_backward_pass_raises_the_error_itself(case: Case) {
    for hook in ["none", "bf16_compress_hook", "fixed16_compress_hook", "deadline_hook"] {
        a_killed_rank_is_named(case, &[hook]);
    }
}

fn a_killed_rank_is_named(case: Case, calls: &[&str]) {
    let Some(site) = case.site(3) else { return };
    let mut ranks = site.ranks(&[&["failing_rank.py", "killed"], calls].concat(), &[]);
    for rank in [0, 2] {
        let seen = seen(&mut ranks[rank]);
        assert_eq!(seen["ranks"], serde_json::json!([1]), "{seen}");
        // The error came before a timeout, which is 30 minutes.
        assert!(seen["seconds"].as_f64().unwrap() < 60.0, "{seen}");
        let text = seen["text"].as_str().unwrap();
        assert!(text.contains("rank 1 ") && text.contains(" (in all_reduce of "), "{seen}");
        assert!(!calls.is_empty() || text.contains(" of 4000 bytes, "), "1000 of f32: {seen}");
    }
}

/// In the job of the group's all-gathers, and in that of another group, which numbers it anew.
fn a_rank_that_is_lost_before_it_joins_is_named_at_once(case: Case) {
    let Some(site) = case.site(4) else { return };
    for (lost, how, aggregator) in [
        (2, "dies", site.aggregator.control()),
        (0, "dies", site.aggregator.control()),
        (2, "dies", ""),
        (0, "dies", ""),
        (2, "leaves", ""),
        (2, "cannot", site.aggregator.control()),
    ] {
        let variables = [("SWITCHML_AGGREGATOR", aggregator)];
        let mut ranks = site.ranks(&["lost_before.py", &lost.to_string(), how], &variables);
        for rank in (0..4).filter(|rank| *rank != lost) {
            ranks[rank].wait_success(PATIENCE).unwrap();
            let printed = ranks[rank].stdout();
            let seen: Vec<Value> =
                printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            // Rank 0 is not in the other group, unless it is lost.
            let groups: &[usize] =
                if rank == 0 { &[lost] } else { &[lost, lost.saturating_sub(1)] };
            assert_eq!(seen.len(), groups.len(), "{printed}");
            for (seen, lost) in seen.iter().zip(groups) {
                assert_eq!(seen["ranks"], serde_json::json!([lost]), "{how}: {seen}");
                // The timeout, which is 30 minutes, did not end the wait.
                assert!(seen["seconds"].as_f64().unwrap() < 60.0, "{how}: {seen}");
                let text = seen["text"].as_str().unwrap();
                assert!(text.contains(&format!("rank {lost} ")), "{how}: {text}");
                assert!(!text.contains("reset by peer"), "{how}: {text}");
            }
        }
    }
}

/// Older versions of torch record only calls of their own backends.
#[test]
fn torchs_analyser_names_the_rank_at_fault_from_what_torch_recorded() {
    let name = "torchs_analyser_names_the_rank_at_fault_from_what_torch_recorded";
    let Some(site) = Site::new(Torch::Newest, name, 3) else { return };
    for (how, told) in [
        ("other", "Culprit rank 1; Error type: SIZE_OR_SYNTAX_MISMATCH"),
        ("none", "missing ranks: {1}"),
        ("killed", "we missed FR dumps from ranks ({1})"),
    ] {
        let folder = fresh_folder(&format!("recorded-{how}"));
        let arguments = |how| ["flight_recorder.py", how, folder.to_str().unwrap()];
        for (number, mut rank) in site.ranks(&arguments(how), &[]).into_iter().enumerate() {
            let status = rank.wait(PATIENCE).unwrap();
            let is_killed = how == "killed" && number == 1;
            assert_ne!(status.success(), is_killed, "{how}, rank {number}: {}", rank.stderr());
        }
        let mut analyser = site.rank(0, &arguments("read"), &[]);
        analyser.wait_success(PATIENCE).unwrap();
        let read = analyser.stderr();
        assert!(read.contains(told), "{how}: {read}");
        let is_placed = read.contains("flight_recorder.py:") && read.contains("number: 6");
        assert!(is_placed || how == "killed", "the sixth call, and its line: {read}");
    }
}

/// Out of place, what was given stays as it was, so that a step can be repeated. In place, each
/// element is what was given or the result.
fn a_failed_call_leaves_its_inputs_as_they_were(case: Case) {
    let Some(site) = case.site(3) else { return };
    for call in [
        "all_reduce",
        "broadcast",
        "reduce_scatter_tensor",
        "all_gather_into_tensor",
        "functional all_reduce",
    ] {
        let mut ranks = site.ranks(&["inputs.py", call], &[]);
        for rank in [0, 2] {
            ranks[rank].wait_success(PATIENCE).unwrap();
            let said = ranks[rank].stdout();
            assert!(said.contains("all elements are as they should be"), "{call}: {said}");
        }
    }
}

/// The output of each rank of `late_rank.py`, and its standard error.
fn after_waiting(case: Case, arguments: [&str; 3]) -> Option<Vec<(Value, String)>> {
    let site = case.site(3)?;
    let arguments = [&["late_rank.py"], &arguments[..]].concat();
    let finish = |mut rank: Process| {
        rank.wait_success(PATIENCE).unwrap();
        let stdout = rank.stdout();
        let line = stdout.lines().find(|line| line.starts_with('{')).expect("a line of JSON");
        (serde_json::from_str(line).unwrap(), rank.stderr())
    };
    Some(site.ranks(&arguments, &[]).into_iter().map(finish).collect())
}

fn a_late_rank_is_waited_for_and_said_to_be(case: Case) {
    let Some(ranks) = after_waiting(case, ["8", "1800", "used"]) else { return };
    for (rank, (said, stderr)) in ranks.into_iter().enumerate() {
        assert_eq!(said["sums"], serde_json::json!([3.0]), "{said}");
        let waits =
            stderr.contains("has waited 5 s for rank 1 in its call 2, all_reduce(sum, f32, 1000)");
        assert_eq!(waits, rank != 1, "rank {rank}: {stderr}");
    }
}

/// Rank 1 starts 5 s after the others, whose clocks run 20 times as fast: after 100 s. Rank 0 waits
/// in torch's own store meanwhile.
fn a_rank_that_starts_late_is_waited_for_and_said_to_be(case: Case) {
    let Some(site) = case.site(3) else { return };
    let start = |rank: usize, late: &str| site.rank(rank, &["late_start.py", late], &[]);
    for mut rank in [start(2, "0"), start(0, "0"), start(1, "5")] {
        rank.wait_success(PATIENCE).unwrap();
        assert_eq!(rank.stdout(), "{\"sum\": 3.0}\n");
        let waits = " s for rank 1 of 3 to form a group\n";
        assert_eq!(rank.stderr().contains(waits), rank.name() == "rank 2", "{}", rank.stderr());
    }
    // It does not start at all.
    let variables = [("SWITCHML_JOIN_TIMEOUT", "40")];
    let start = |rank| site.rank(rank, &["late_start.py", "0"], &variables);
    let (_first, mut last) = (start(0), start(2));
    last.wait_success(PATIENCE).unwrap();
    let seen: Value = serde_json::from_str(&last.stdout()).unwrap();
    assert_eq!(seen["ranks"], serde_json::json!([1]), "{seen}");
    let text = seen["text"].as_str().unwrap();
    assert!(
        text.starts_with("switchml: rank 1 of 3 did not come within the timeout of 40 s"),
        "{text}"
    );
}

/// Each rank hears at once which rank has set what.
fn ranks_with_other_settings_hear_what_differs(case: Case) {
    let Some(site) = case.site(3) else { return };
    let folder = fresh_folder(&format!("settings-{}", case.torch.version()));
    let aggregator = site.aggregator.control();
    let nowhere = format!("{}:4", switchml_rack::AGGREGATOR_ADDRESS);
    let unset = format!("SWITCHML_AGGREGATOR is not set on rank 0, {aggregator} on ranks 1 and 2;");
    let silent = format!("no aggregator answers at {nowhere}");
    let another = format!("SWITCHML_AGGREGATOR is {aggregator} on ranks 0 and 2, ");
    let cases = [
        (0, "SWITCHML_AGGREGATOR", "", &[&*unset][..]),
        (1, "SWITCHML_AGGREGATOR", &*nowhere, &[&*silent]),
        (1, "SWITCHML_AGGREGATOR", "own", &[&*another]),
        (2, "SWITCHML_OWN_HOSTS", "0", &["SWITCHML_OWN_HOSTS is 1 on ranks 0 and 1, 0 on rank 2;"]),
        (
            1,
            "SWITCHML_FALLBACK",
            "gloo",
            &["SWITCHML_FALLBACK is not set on ranks 0 and 2, gloo on"],
        ),
        // Rank 0 or 1: the first that has found it out tells all.
        (2, "WORLD_SIZE", "4", &["WORLD_SIZE is 3 on rank ", ", and 4 on rank 2;"]),
    ];
    for (index, (other, name, value, says)) in cases.into_iter().enumerate() {
        let end = folder.join(index.to_string());
        let start = |rank| {
            let (arguments, variables) = (["settings.py", end.to_str().unwrap()], [(name, value)]);
            site.rank(rank, &arguments, if rank == other { &variables } else { &[] })
        };
        let mut ranks = [0, 1, 2].map(start);
        // Others wait long for a rank that fails otherwise.
        seen(&mut ranks[other]);
        for (number, rank) in ranks.iter_mut().enumerate() {
            let seen = seen(rank);
            let text = seen["text"].as_str().unwrap();
            assert!(says.iter().all(|part| text.contains(part)), "{seen}");
            // A rank's own failure names no rank on that rank.
            let is_own = number == other && seen["ranks"] == serde_json::json!([]);
            assert!(is_own || seen["ranks"] == serde_json::json!([other]), "{seen}");
            assert!(seen["seconds"].as_f64().unwrap() < 60.0, "{seen}");
        }
        std::fs::write(&end, "").unwrap();
        for rank in &mut ranks {
            rank.wait_success(PATIENCE).unwrap();
        }
    }
}

/// As a node of vLLM does that lacks the plugin's setting.
fn a_rank_that_chose_gloo_is_named(case: Case) {
    let Some(site) = case.site(3) else { return };
    let printed = site.run(&["other_backend.py"], &[]);
    for text in &printed[..2] {
        assert!(text.contains("rank 2 formed this group with Gloo; choose switchml"), "{text}");
    }
    assert!(printed[2].contains("nobody came"), "{}", printed[2]);
}

/// The timeout raises an error that names the late rank; the call goes on.
fn a_wait_with_a_timeout_names_the_late_rank(case: Case) {
    let Some(site) = case.site(3) else { return };
    let printed = site.run(&["late_rank.py", "12", "1800", "tried"], &[]);
    for (rank, printed) in printed.iter().enumerate() {
        let mut lines = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        if rank != 1 {
            let tried = lines.next().unwrap();
            let text = tried["tried"].as_str().unwrap();
            let head = "switchml: not done after 7.0 s; it waits for rank 1 (in all_reduce of \
                        4000 bytes, ";
            assert!(text.starts_with(head), "{text}");
            assert_eq!(tried["ranks"], serde_json::json!([1]));
        }
        assert_eq!(lines.next().unwrap()["sums"], serde_json::json!([3.0]), "rank {rank}");
    }
}

/// Whichever rank times out first, all ranks name the late one, including the late one itself.
fn the_timeout_of_torch_ends_the_wait_and_all_name_the_same_rank(case: Case) {
    let Some(ranks) = after_waiting(case, ["25", "15", "used"]) else { return };
    for (said, _) in ranks {
        assert_eq!(said["ranks"], serde_json::json!([1]), "{said}");
        assert!(said["text"].as_str().unwrap().contains("no contribution from rank 1"), "{said}");
    }
}

/// Replaces a timeout of 30 minutes, after the group's first call or before it.
fn a_timeout_that_is_set_later_ends_the_wait(case: Case) {
    for when in ["lowered", "early"] {
        let Some(ranks) = after_waiting(case, ["25", "15", when]) else { return };
        for (said, _) in ranks {
            assert_eq!(said["ranks"], serde_json::json!([1]), "{said}");
            let text = said["text"].as_str().unwrap();
            assert!(text.contains("within the timeout of 15"), "{said}");
        }
    }
}

/// In a group's first call its ranks wait for each other to join the job. The late rank hears that
/// the others have given up because of it.
fn a_rank_that_never_uses_a_group_is_named(case: Case) {
    let Some(ranks) = after_waiting(case, ["12", "7", "unused"]) else { return };
    for (rank, (said, stderr)) in ranks.into_iter().enumerate() {
        assert_eq!(said["ranks"], serde_json::json!([1]), "{said}");
        let text = said["text"].as_str().unwrap();
        assert!(
            text.contains("rank 1 of 3 did not come within the timeout of 7 s to join its job"),
            "{said}"
        );
        let waits = stderr.contains("has waited 5 s for rank 1 of 3 to join its job");
        assert_eq!(waits, rank != 1, "rank {rank}: {stderr}");
    }
}

/// The other call has elements of a type that the network does not add.
fn a_rank_that_calls_gloo_instead_is_named_at_once(case: Case) {
    let Some(site) = case.site(3) else { return };
    for mut rank in site.ranks(&["failing_rank.py", "type"], &[]) {
        let seen = seen(&mut rank);
        assert_eq!(seen["ranks"], serde_json::json!([1]), "{seen}");
        // The error came before a timeout, which is 30 minutes.
        assert!(seen["seconds"].as_f64().unwrap() < 60.0, "{seen}");
        let text = seen["text"].as_str().unwrap();
        assert!(text.contains("of rank 1 is barrier()"), "{text}");
        assert!(text.contains("of ranks 0 and 2 is all_reduce(sum, f32, 1000)"), "{text}");
        rank.wait_success(PATIENCE).unwrap();
        assert!(rank.stdout().contains("and again"));
    }
}

fn another_call_is_told_and_the_processes_go_on_in_another_job(case: Case) {
    let Some(site) = case.site(3) else { return };
    // Four times 250 numbers of 16 bits would pass for 1000 of 32.
    for (wrong, own, others) in
        [("shape", "f32, 7", "f32, 1000"), ("long", "i64, 250", "i32, 1000")]
    {
        let mut ranks = site.ranks(&["failing_rank.py", wrong], &[]);
        for rank in &mut ranks {
            let seen = seen(rank);
            assert_eq!(seen["ranks"], serde_json::json!([1]), "{seen}");
            let text = seen["text"].as_str().unwrap();
            assert!(text.contains(&format!("of rank 1 is all_reduce(sum, {own})")), "{text}");
            let others = format!("of ranks 0 and 2 is all_reduce(sum, {others})");
            assert!(text.contains(&others), "{text}");
        }
        for mut rank in ranks {
            rank.wait_success(PATIENCE).unwrap();
            assert!(rank.stdout().contains("and again"));
        }
    }
}

fn without_an_aggregator_ranks_serve_each_other(case: Case) {
    let Some(site) = case.site(3) else { return };
    let nothing = [("SWITCHML_AGGREGATOR", "")];
    site.run_and_hear(&["collectives.py"], &nothing, "all collectives are right");
    // A status has the counters that are not 0.
    assert!(!site.told(&["status"]).contains("added"), "the daemon has nothing to do with it");
}

/// Of four ranks. A group has one of Gloo's, whose 7 files and 3 threads are among these.
#[test]
fn further_groups_take_few_files_and_threads() {
    let name = "further_groups_take_few_files_and_threads";
    let Some(site) = Site::new(Torch::Newest, name, 4) else { return };
    // The soft limit of 1024 files alone would do for 90 groups without an aggregator.
    for (groups, variables) in [("2", &[][..]), ("100", &[("SWITCHML_AGGREGATOR", "")])] {
        for printed in site.run(&["files_and_threads.py", groups], variables) {
            let counts: Value = serde_json::from_str(&printed).unwrap();
            let [files, threads] = [0, 1].map(|i| counts["switchml"][i].as_u64().unwrap());
            assert!(files <= 16 && threads <= 4, "{counts}");
            assert_eq!(counts["groups"].to_string(), groups);
        }
    }
}

fn an_aggregator_that_does_not_answer_is_named_or_gloo_takes_its_place(case: Case) {
    let Some(site) = case.site(2) else { return };
    let nowhere = format!("{}:4", switchml_rack::AGGREGATOR_ADDRESS);
    for printed in site.run(&["no_answer.py"], &[("SWITCHML_AGGREGATOR", &nowhere)]) {
        // A rank may hear it of another one first.
        let head = "refused: switchml: ";
        let what = format!("no aggregator answers at {nowhere}");
        let why = format!("(SWITCHML_AGGREGATOR is '{nowhere}'; give host or host:port)\n");
        assert!(printed.starts_with(head) && printed.contains(&what), "{printed}");
        assert!(printed.ends_with(&why), "{printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
    // Only one of the two cannot reach it.
    let variables = [("SWITCHML_FALLBACK", "gloo"), ("SWITCHML_JOIN_TIMEOUT", "3")];
    let first = site.rank(0, &["no_answer.py"], &variables);
    let second = site.rank(
        1,
        &["no_answer.py"],
        &[&variables[..], &[("SWITCHML_AGGREGATOR", &nowhere)]].concat(),
    );
    for mut rank in [first, second] {
        rank.wait_success(PATIENCE).unwrap();
        let expected =
            "fell back: [2.0, 2.0] by gloo, cpu:gloo,cuda:gloo\nagain: [4.0, 4.0] by gloo\n";
        assert_eq!(rank.stdout(), expected);
        assert!(rank.stderr().contains("rank 1: no aggregator answers"), "{}", rank.stderr());
    }
}
