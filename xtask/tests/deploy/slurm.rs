//! The scripts in `userspace/deploy/slurm`, with a folder of this test instead of the system's.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use tempfile::TempDir;

use super::deployed;

/// A folder for the files that the scripts read and write: `etc` and `run`.
struct Node(TempDir);

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for inner in ["etc", "run", "bin"] {
            fs::create_dir(folder.path().join(inner)).expect("a folder");
        }
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.file(file), text).expect("written");
    }

    /// Makes a program for the scripts.
    fn program(&self, name: &str, script: &str) {
        self.write(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
        let program = self.file("bin").join(name);
        fs::set_permissions(program, Permissions::from_mode(0o755)).expect("executable");
    }

    /// The output of a script for job 7 with additional variables.
    fn run(&self, script: &str, variables: &[(&str, &str)]) -> String {
        let text = fs::read_to_string(deployed("slurm").join(script));
        let here = |folder: &str| self.file(folder).display().to_string();
        let text = text.expect("the script").replace("/etc/switchml", &here("etc"));
        let text = text.replace("/run/switchml", &here("run"));
        // Programs of this test, and no others of this project, which this machine may have.
        let text = text.replace("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:", "PATH=");
        let text = text.replace("PATH=", &format!("PATH={}:", here("bin")));
        let mut shell = Command::new("sh");
        shell.env_clear().env("PATH", env::var_os("PATH").unwrap_or_default());
        shell.env("SLURM_JOB_ID", "7").envs(variables.iter().copied()).args(["-c", &text]);
        let output = shell.output().expect("sh starts");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }
}

#[test]
fn tasks_know_the_aggregator_and_their_token() {
    let node = Node::new();
    assert_eq!(node.run("task_prolog", &[]), "", "nothing is set up");
    node.write("etc/worker.env", "# Ours.\nSWITCHML_AGGREGATOR=10.0.0.254\nOTHER=1\n");
    node.write("run/7.token", "token");
    let token = format!("export SWITCHML_TOKEN_FILE={}/run/7.token\n", node.0.path().display());
    let printed = node.run("task_prolog", &[]);
    assert_eq!(printed, format!("export SWITCHML_AGGREGATOR=10.0.0.254\n{token}"));
    // Variables that the user has set stay.
    let own = [("SWITCHML_AGGREGATOR", "10.0.0.1"), ("SWITCHML_TOKEN", "own")];
    assert_eq!(node.run("task_prolog", &own), "");
}

#[test]
fn a_job_reads_once_why_a_node_has_no_token_for_it() {
    let node = Node::new();
    node.write("etc/token.key", "key");
    let user = [("SLURM_JOB_USER", "ada"), ("SLURM_JOB_UID", "0")];
    let of_task = |task| node.run("task_prolog", &[("SLURM_LOCALID", task)]);
    assert_eq!(node.run("prolog", &user), "");
    let told = of_task("0");
    assert!(told.starts_with("print switchml: node "), "{told}");
    let end =
        " has no job token: switchml-aggregator is not installed there; install its package\n";
    assert!(told.ends_with(end), "{told}");
    assert_eq!(of_task("1"), "", "once for each node");
    let own = [("SLURM_LOCALID", "0"), ("SWITCHML_TOKEN", "own")];
    assert_eq!(node.run("task_prolog", &own), "", "it needs none");
    node.program("switchml-aggregator", "echo 'a wrong key' >&2; exit 2");
    node.run("prolog", &user);
    assert!(of_task("0").ends_with(" has no job token: a wrong key\n"), "{}", of_task("0"));
    node.run("epilog", &[]);
    assert_eq!(of_task("0"), "");
}

#[test]
fn a_job_has_a_token_of_its_users_while_it_lasts() {
    let node = Node::new();
    let user = [("SLURM_JOB_USER", "ada"), ("SLURM_JOB_UID", "0")];
    node.run("prolog", &user);
    assert!(!node.file("run/7.token").exists(), "there is no key");
    node.write("etc/token.key", "key");
    node.program("switchml-aggregator", "echo \"$@\"");
    let is_root = rustix::process::geteuid().is_root();
    node.run("prolog", &user);
    // Only root can give a file away; other users make no file.
    assert_eq!(node.file("run/7.token").exists(), is_root);
    if is_root {
        let asked = fs::read_to_string(node.file("run/7.token")).expect("a token");
        assert!(asked.ends_with(" --tenant ada --jobs * --expires 7d\n"), "{asked}");
        assert!(asked.starts_with("token --token-key "), "{asked}");
    }
    node.run("epilog", &[]);
    assert!(!node.file("run/7.token").exists());
}
