//! A test that cannot build racks says so, by name.

use std::process::Command;
use switchml_rack::can_build_racks;

#[test]
fn a_test_without_the_privilege_is_listed_by_name() {
    // Where racks can be built, the capabilities are taken away first.
    let test = std::env::current_exe().unwrap();
    let mut command = if can_build_racks("a_test_without_the_privilege_is_listed_by_name") {
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-all").arg(test);
        command
    } else {
        Command::new(test)
    };
    let list = std::env::temp_dir().join(format!("switchml-skipped-{}", std::process::id()));
    std::fs::write(&list, "earlier: reason\n").unwrap();
    let output = command
        .args(["--exact", "needs_a_rack", "--ignored", "--nocapture"])
        .env("SWITCHML_SKIPPED", &list)
        .output()
        .expect("setpriv (util-linux) and this test's own executable");
    let listed = std::fs::read_to_string(&list).unwrap();
    std::fs::remove_file(&list).unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut lines = listed.lines();
    assert_eq!(lines.next(), Some("earlier: reason"));
    let line = lines.next().unwrap();
    assert!(line.starts_with("needs_a_rack: cannot make the network namespace of a trial: "), "{line}");
    assert_eq!(lines.next(), None);
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("skipped {line}")));
}

#[test]
#[ignore = "not a test: the process that another test runs without the privilege"]
fn needs_a_rack() {
    assert!(!can_build_racks("needs_a_rack"), "this runs without the privilege");
}
