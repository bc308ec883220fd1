//! A test that cannot build racks says so, by name.

use std::process::Command;
use switchml_rack::can_build_racks;

/// Set for the process that has no privilege.
const DEPRIVED: &str = "SWITCHML_TEST_DEPRIVED";

#[test]
fn a_test_without_the_privilege_is_listed_by_name() {
    if std::env::var_os(DEPRIVED).is_some() {
        assert!(!can_build_racks("needs a rack"));
        return;
    }
    // Runs this test again in a process without capabilities.
    let test = std::env::current_exe().unwrap();
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-all").arg(test);
        command
    } else {
        Command::new(test)
    };
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&list, "earlier: reason\n").unwrap();
    let output = command
        .args(["--exact", "a_test_without_the_privilege_is_listed_by_name", "--nocapture"])
        .env(DEPRIVED, "")
        .env("SWITCHML_SKIPPED", list.path())
        .output()
        .expect("setpriv (util-linux) and this test's own executable");
    let listed = std::fs::read_to_string(&list).unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut lines = listed.lines();
    assert_eq!(lines.next(), Some("earlier: reason"));
    let line = lines.next().unwrap();
    assert!(
        line.starts_with("needs a rack: cannot make the network namespace of a trial: "),
        "{line}"
    );
    assert_eq!(lines.next(), None);
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("skipped {line}")));
}
