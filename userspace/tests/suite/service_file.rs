//! Commands that ask the service of their host, by its file of options.

use std::fs;
use std::process::{Command, Output};

use switchml_rack::{AGGREGATOR_ADDRESS, Mode, Namespace, needs_racks};

use crate::common::PATIENCE;
use crate::xdp::{rack, spawn, tool};

const FILE: &str = "/etc/switchml/aggregator.toml";

/// Makes this the file of the host's service.
fn configure(switch: &Namespace, options: String) {
    let written = switch.run(move || fs::write(FILE, options));
    written.expect("a file of the namespace");
}

fn status(switch: &Namespace, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_switchml-aggregator"));
    command.arg("status").args(arguments);
    command.env_remove("SWITCHML_TLS_FINGERPRINT").env_remove("SWITCHML_TLS_CA");
    switch.run(move || command.output()).expect("it starts")
}

/// What it prints, or the line that says why not.
fn text(output: Output) -> Result<String, String> {
    let text = |bytes| String::from_utf8(bytes).expect("text");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Step 2 of the page on deployment: its control plane is not at loopback, and may use TLS.
#[test]
fn status_finds_the_service_where_its_options_have_it() {
    needs_racks!();
    let rack = rack(1, Mode::Native);
    let switch = rack.switch();
    // The namespace has its own mounts.
    tool(switch, "mount -t tmpfs etc /etc");
    tool(switch, "mkdir /etc/switchml");
    let plain = format!("data-plane = 'software'\ncontrol = '{AGGREGATOR_ADDRESS}:48865'\n");
    let tls = "tls-self-signed = true\ntls-cert = '/etc/crt'\ntls-key = '/etc/key'\n";
    for options in [plain.clone(), plain.clone() + tls] {
        configure(switch, options);
        let mut daemon = spawn(switch, &["--config", FILE]);
        daemon.wait_for_line("ready: control ", PATIENCE).expect("ready");
        let shown = text(status(switch, &[])).expect("it answers");
        assert!(shown.contains("data plane   software: UDP socket"), "{shown}");
        // What is given goes before the file.
        let elsewhere = text(status(switch, &["--connect", "127.0.0.1:48865"]));
        let why = elsewhere.expect_err("nobody is there");
        assert!(why.contains("no aggregator answers at 127.0.0.1:48865"), "{why}");
        assert!(daemon.terminate(PATIENCE).expect("ends").success());
    }
    let why = text(status(switch, &[])).expect_err("it has ended");
    assert!(why.contains(&format!("no aggregator answers at {AGGREGATOR_ADDRESS}:48865")), "{why}");
    configure(switch, "contrl = 'a'\n".to_owned());
    let why = text(status(switch, &[])).expect_err("a wrong file");
    assert!(why.contains("aggregator.toml\": unknown option \"contrl\""), "{why}");
    assert!(why.contains("say with --connect where the aggregator is"), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
}
