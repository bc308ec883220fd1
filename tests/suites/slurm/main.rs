//! Jobs of Slurm: what the pages say of them, in a cluster of four nodes on this machine, with
//! Debian's Slurm, the real aggregator, TLS and job tokens.

mod cluster;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use cluster::{Cluster, LOGIN, PATIENCE, USER};
use switchml_rack::page::Block;
use switchml_rack::skip;

/// The scripts' settings do not apply: ranks serve each other.
const ALONE: &str = "export SWITCHML_AGGREGATOR=";
/// A step that goes on until it is ended.
const ENDLESS: &str = "exec srun switchml-worker bench -b 64K -e 64K -n 100000000";
/// What a rank prints that has lost another one.
const LOST: &str = "error: the job was aborted: rank ";

/// The blocks of code of the page's section.
fn blocks() -> Vec<String> {
    blocks_of("deploy.md", "\n## Slurm\n")
}

/// The blocks of code of a page's part, which begins with this line.
fn blocks_of(page: &str, part: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let text = fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once(part).unwrap_or_else(|| panic!("{page} has no {part:?}"));
    let code = rest.split("\n```").skip(1).step_by(2);
    code.map(|block| block.split_once('\n').unwrap().1.to_owned()).collect()
}

/// A cluster whose nodes have the scripts.
fn set_up(name: &str, bare: Option<&'static str>) -> Option<Cluster> {
    let cluster = Cluster::new(name, bare)?;
    let blocks = blocks();
    cluster.set_up(&blocks[1], &blocks[2]);
    Some(cluster)
}

#[test]
fn the_pages_commands_do_what_the_page_says() {
    let name = "the_pages_commands_do_what_the_page_says";
    let Some(cluster) = Cluster::new(name, None) else { return };
    let blocks = blocks();
    follow(&cluster, &blocks[0]);
    cluster.set_up(&blocks[1], &blocks[2]);
    // The aggregator's address and port, or the address alone.
    let address = cluster.address();
    follow(&cluster, &blocks[3].replace("10.0.0.254. …", &format!("{address}…")));
}

/// Runs a command of the page, and checks what it prints.
fn follow(cluster: &Cluster, block: &str) {
    let block = Block::new(LOGIN, false, &block.lines().collect::<Vec<_>>());
    let told = cluster.run(USER, &block.commands[0]);
    assert_eq!(told.code, Some(0), "{}", told.text);
    // A terminal shows the line about the job first.
    let (first, then): (Vec<_>, Vec<_>) =
        told.text.lines().partition(|line| line.starts_with("switchml: "));
    block.check(&[first, then].concat().join("\n"));
}

#[test]
fn a_token_is_its_users_and_is_gone_after_the_job() {
    let name = "a_token_is_its_users_and_is_gone_after_the_job";
    let Some(cluster) = set_up(name, None) else { return };
    let job =
        cluster.submit("-N4 -n4", "srun stat -c '%U %a of %n' /run/switchml/$SLURM_JOB_ID.token");
    job.wait_until_it_is_over();
    let expected = format!("ada 600 of /run/switchml/{}.token\n", job.id);
    assert_eq!(job.text(), expected.repeat(4));
    let told = cluster.run(USER, &format!("srun -N4 -n4 ls /run/switchml/{}.token", job.id));
    assert_eq!(told.text.matches("No such file or directory").count(), 4, "{}", told.text);
}

#[test]
fn a_job_reads_once_which_node_has_no_token() {
    let name = "a_job_reads_once_which_node_has_no_token";
    let Some(cluster) = set_up(name, Some("n04")) else { return };
    let told = cluster.run(USER, "srun -N4 -n8 switchml-worker bench -e 1K --join-timeout 5");
    let why = "switchml: node n04 has no job token: switchml-aggregator is not installed there; \
               install its package";
    let text = told.text;
    assert_eq!(text.lines().filter(|line| *line == why).count(), 1, "{text}");
    assert!(text.contains("error: this aggregator requires a job token; "), "{text}");
}

/// Two tasks of an array run on the same nodes at the same time, with two steps each.
#[test]
fn tasks_of_an_array_and_steps_on_the_same_nodes_do_not_meet() {
    let name = "tasks_of_an_array_and_steps_on_the_same_nodes_do_not_meet";
    let Some(cluster) = Cluster::new(name, None) else { return };
    let step = "srun -N4 -n4 --exact switchml-worker bench -b 64K -e 64K -n 500 &";
    let array = cluster.submit("-N4 -n8 --array=1-2", &format!("{step}\n{step}\nwait"));
    array.wait_until_it_is_over();
    let text = array.text();
    assert_eq!(text.matches("# Out of bounds values : 0 OK").count(), 4, "{text}");
    assert!(!text.contains("error"), "{text}");
    // They ran at the same time, or the test says nothing.
    let times = array.times();
    assert_eq!(times.len(), 2, "{times:?}");
    assert!(times[0].0 <= times[1].1 && times[1].0 <= times[0].1, "{times:?}");
}

#[test]
fn a_job_at_another_ones_port_is_refused() {
    let name = "a_job_at_another_ones_port_is_refused";
    let Some(cluster) = Cluster::new(name, None) else { return };
    let first = cluster.submit("-N4 -n4 --export=ALL,MASTER_PORT=12345", ENDLESS);
    first.wait_for("serve each other", 1);
    let line = "MASTER_PORT=12345 srun -N4 -n4 switchml-worker bench -e 1K";
    let told = cluster.run(USER, line).text;
    let meets = format!("meets where job \"slurm-trial-{}.0\" does, ", first.id);
    assert_eq!(told.matches(&meets).count(), 4, "{told}");
    assert_eq!(first.state(), "RUNNING", "{}", first.text());
    assert_eq!(cluster.run(USER, &format!("scancel {}", first.id)).code, Some(0));
}

#[test]
fn jobs_that_end_early_end_whole() {
    let Some(cluster) = set_up("jobs_that_end_early_end_whole", None) else { return };
    let limited = cluster.submit("-N4 -n4 --time=1", ENDLESS);
    for alone in ["", ALONE] {
        // Rank 2 dies once there is a file.
        let wait = "until [ -e dies.$SLURM_JOB_ID ]; do sleep 0.1; done";
        let dies =
            format!("[ $SLURM_PROCID = 2 ] && ({wait}; touch dead.$SLURM_JOB_ID; kill -9 $$) &");
        let rank = ENDLESS.replace("exec srun ", "exec ");
        let job = cluster.submit("-N4 -n4", &format!("{alone}\nexec srun sh -c '{dies} {rank}'"));
        job.wait_for(" ranks on ", 1);
        fs::write(cluster.file(&format!("home/dies.{}", job.id)), "").unwrap();
        job.wait_until_it_is_over();
        let text = job.text();
        // Slurm may end the step before it has read what the last rank prints.
        let mut lost = text.lines().filter(|line| line.starts_with(LOST));
        assert!(text.contains(LOST), "{text}");
        assert!(lost.all(|line| line.starts_with(&format!("{LOST}2 "))), "{text}");
        // Slurm may say that it has terminated the task itself, which it does once others end.
        assert!(cluster.file(&format!("home/dead.{}", job.id)).exists(), "{text}");
        assert!(text.contains("task 2: "), "{text}");

        let job = cluster.submit("-N4 -n4", &format!("{alone}\n{ENDLESS}"));
        job.wait_for(" ranks on ", 1);
        assert_eq!(cluster.run(USER, &format!("scancel {}", job.id)).code, Some(0));
        job.wait_until_it_is_over();
        assert_eq!(job.state(), "CANCELLED");

        let large = "exec srun switchml-worker bench -b 64M -e 64M -n 100000";
        let job = cluster.submit("-N4 -n4 --mem-per-cpu=60M", &format!("{alone}\n{large}"));
        job.wait_until_it_is_over();
        assert!(job.text().contains("exceeded memory limit"), "{}", job.text());
    }
    is_requeued(&cluster);
    limited.wait_until_it_is_over();
    assert_eq!(limited.state(), "TIMEOUT");
    assert!(limited.text().contains(" DUE TO TIME LIMIT "), "{}", limited.text());
    let running = cluster.running();
    assert!(!running.contains("slurm-trial-"), "no job stays: {running}");
}

/// A job that is put back into the queue starts again, under another name.
fn is_requeued(cluster: &Cluster) {
    let job = cluster.submit("-N4 -n4 --requeue", ENDLESS);
    job.wait_for(" ranks on ", 1);
    let name = |more| format!("job \"slurm-trial-{}.0{more}\"", job.id);
    let running = cluster.running();
    assert!(running.contains(&name("")), "its first name: {running}");
    assert_eq!(cluster.run(USER, &format!("scontrol requeue {}", job.id)).code, Some(0));
    job.wait_for(" ranks on ", 2);
    let running = cluster.running();
    assert!(running.contains(&name("-1")) && !running.contains(&name("")), "its second: {running}");
    assert_eq!(cluster.run(USER, &format!("scancel {}", job.id)).code, Some(0));
    job.wait_until_it_is_over();
}

/// Two jobs of the page's command for torchrun, with one first node.
#[test]
fn jobs_of_torchrun_on_the_same_nodes_do_not_meet() {
    let name = "jobs_of_torchrun_on_the_same_nodes_do_not_meet";
    let Some(python) = env::var_os("SWITCHML_PYTHON").map(PathBuf::from) else {
        skip(name, "SWITCHML_PYTHON is not set; `cargo xtask test --all` sets it");
        return;
    };
    let Some(cluster) = Cluster::new(name, None) else { return };
    let script = cluster.file("home/train.py");
    fs::write(script, include_str!("train.py")).unwrap();
    let blocks = blocks_of("pytorch.md", "In Slurm, start one torchrun");
    // The environment of Python may be in a folder that only its user can read.
    let line = |job: usize| {
        let command = blocks[0].replace("train.py", &format!("train.py {job}"));
        let path = python.parent().unwrap().display();
        format!(
            "PATH={path}:$PATH OMP_NUM_THREADS=1 {}",
            command.replace("srun ", "srun -N2 --mem-per-cpu=1500M ")
        )
    };
    let mut jobs = [1, 2].map(|job| cluster.start(LOGIN, "root", &line(job)));
    for (job, process) in (1..).zip(&mut jobs) {
        process.wait_success(PATIENCE).unwrap();
        assert!(process.stdout().contains(&format!("job {job} is right")), "{}", process.stdout());
    }
}
