//! The daemon's command line.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::schema::slots;
use super::{Site, TABLES_OF_PORTS, switch};
use crate::common::NOBODY;
use crate::common::program::aggregator;

/// The error line of a failing command.
fn failure(arguments: &[&str]) -> String {
    let output = aggregator(arguments).output().expect("started");
    assert!(!output.status.success());
    String::from_utf8(output.stderr).expect("text")
}

/// Arguments for a switch.
fn arguments<'a>(switch: &'a str, folder: &'a str, ports: &'a str) -> Vec<&'a str> {
    let control =
        ["--control", "127.0.0.1:0", "--data-plane", "tofino", "--data-address", "10.0.0.254"];
    let of_switch =
        ["--tofino-server", switch, "--tofino-program", folder, "--tofino-ports", ports];
    control.into_iter().chain(of_switch).collect()
}

#[test]
fn it_serves_until_it_is_told_to_stop_and_leaves_a_clean_switch() {
    let (site, switch) = (Site::new(), switch());
    let (address, folder) = (switch.address.to_string(), site.path().display().to_string());
    let ports = format!("{folder}/ports.toml");
    let mut command = aggregator(&arguments(&address, &folder, &ports));
    let mut child = command.stderr(Stdio::piped()).spawn().expect("started");
    let mut lines =
        BufReader::new(child.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
    let mut said = |words: &str| lines.find(|line| line.contains(words)).expect("said");
    let served = said("tofino: program switchml on the switch at");
    assert!(served.ends_with(&format!("; {} slots", slots())), "{served}");
    let ready = said("ready: control 127.0.0.1:");
    assert!(ready.ends_with("data port 48864"), "{ready}");
    assert!(switch.occupied().len() > TABLES_OF_PORTS.len());
    kill_process(Pid::from_child(&child), Signal::TERM).expect("signalled");
    assert!(child.wait().expect("ended").success());
    assert_eq!(switch.occupied().into_keys().collect::<Vec<_>>(), TABLES_OF_PORTS);
}

#[test]
fn what_is_missing_is_named() {
    let lacking = failure(&["--data-plane", "tofino"]);
    for flag in ["--data-address", "--tofino-server", "--tofino-program", "--tofino-ports"] {
        assert!(lacking.contains(flag), "{flag} in {lacking}");
    }
    let (site, switch) = (Site::new(), switch());
    let (address, folder) = (switch.address.to_string(), site.path().display().to_string());
    let ports = format!("{folder}/none.toml");
    let mut with_port = arguments(&address, &folder, &ports);
    let wrong = failure(&with_port);
    assert!(wrong.contains("none.toml: No such file"), "{wrong}");
    with_port.extend(["--data-port", "5000"]);
    assert_eq!(
        failure(&with_port),
        "error: --data-port has no effect with --data-plane tofino, only with xdp and software; \
         leave it out (see --help)\n"
    );
}

#[test]
fn a_program_that_cannot_be_deployed_is_one_line() {
    let site = Site::new();
    for file in ["context.json", "tofino.bin"] {
        std::fs::write(site.path().join("pipe").join(file), file).expect("written");
    }
    let folder = site.path().display().to_string();
    let gone = SocketAddr::from(NOBODY).to_string();
    let error = failure(&["deploy", "--tofino-server", &gone, "--tofino-program", &folder]);
    let last = error.lines().last().expect("a line");
    assert!(
        last.starts_with(&format!(
            "switchml-aggregator: the switch at {gone}: it cannot be reached; is bf_switchd"
        )),
        "{error}"
    );
}
