//! The daemon's unit.

use std::fs;
use std::process::Command;

use super::deployed;

const UNIT: &str = "debian/switchml-aggregator.service";

/// The values of a setting of the unit.
pub fn settings(name: &str) -> Vec<String> {
    let unit = fs::read_to_string(deployed(UNIT)).expect("the unit");
    let lines = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.map(str::to_owned).collect()
}

#[test]
fn it_has_three_capabilities_and_survives_upgrades() {
    let three = ["CAP_BPF CAP_NET_ADMIN CAP_PERFMON"];
    assert_eq!(settings("CapabilityBoundingSet"), three);
    assert_eq!(settings("AmbientCapabilities"), three);
    assert_eq!(settings("User"), ["switchml"]);
    assert_eq!(settings("RestartKillSignal"), ["SIGKILL"]);
    assert_eq!(settings("KillSignal"), [] as [&str; 0]);
}

/// systemd's rating, from 0 (safe) to 100: "OK" begins below 50. The daemon's capabilities and its
/// use of the network give 20.
#[test]
fn systemd_finds_the_sandbox_tight() {
    let mut judge = Command::new("systemd-analyze");
    judge.args(["security", "--no-pager", "--offline=true", "--threshold=20"]);
    match judge.arg(deployed(UNIT)).output() {
        Err(error) => switchml_rack::skip(
            "service::systemd_finds_the_sandbox_tight",
            &format!("systemd-analyze: {error}"),
        ),
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{told}");
        }
    }
}
