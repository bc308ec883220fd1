//! The command line, without privilege.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::{Output, Stdio};

use crate::common::NOBODY;
use crate::common::program::{IN_SOFTWARE, Program, aggregator};

fn run(arguments: &[&str]) -> Output {
    aggregator(arguments).output().expect("it starts")
}

#[test]
fn ports_in_use_are_named() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    let output = run(&["--data-plane", "software", "--control", &address]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    let line = format!("cannot serve the control plane at TCP {address}: it is in use; ");
    assert!(error.contains(&line), "{error}");

    let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = udp.local_addr().unwrap().port().to_string();
    let output =
        run(&["--data-plane", "software", "--control", "127.0.0.1:0", "--data-port", &port]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    let line = format!("cannot serve the data plane at UDP port {port}: it is in use; ");
    assert!(error.contains(&line), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");

    let address = "127.47.90.1";
    let _soft_roce = UdpSocket::bind((address, 4791)).unwrap();
    let software = ["--data-plane", "software", "--control", "127.0.0.1:0", "--data-port", "0"];
    let output = run(&[&software[..], &["--data-address", address, "--rocev2"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("cannot serve RoCEv2 at UDP port 4791: it is in use; "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_simple_switch_that_cannot_be_had_is_named() {
    let thrift = SocketAddr::from(NOBODY);
    let bmv2 =
        ["--data-plane", "bmv2", "--control", "127.0.0.1:0", "--bmv2-thrift", &thrift.to_string()];
    let output = run(&[&bmv2[..], &["--data-address", "10.88.0.253"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "switchml-aggregator: simple_switch at {thrift}: Connection refused (os error 111); start \
         it with --thrift-port {}, or give its port with --bmv2-thrift\n",
        thrift.port()
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
}

#[test]
fn values_out_of_range_are_refused_with_what_is_allowed() {
    for (arguments, expected) in [
        (&["--slots", "15"], "15 is not in 512..=524288"),
        (&["--data-plane", "p4"], "[possible values: xdp, software, tofino, bmv2]"),
        (&["--data-plane", "bmv2"], "--data-address <ADDRESS>"),
        (&["--data-plane", "tofino"], "--data-address <ADDRESS>"),
        (&["--mode", "fast"], "[possible values: auto, native, bundle]"),
        (&["--data-port", "65536"], "65536 is not in 0..=65535"),
        (&["--control", "localhost"], "invalid socket address syntax"),
        (&["--data-address", "host"], "invalid IP address syntax"),
        (&["--data-plane", "bmv2", "--data-address", "::1"], "a P4 program passes all IPv6 on"),
    ] as [(&[&str], &str); 9]
    {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    }
}

#[test]
fn a_running_daemon_reports_and_stops_on_sigterm() {
    let (mut daemon, log) = Program::start(&mut aggregator(&IN_SOFTWARE));
    let control = daemon.control.to_string();
    let status = run(&["status", "--connect", &control]);
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(
        status.status.success()
            && text.contains("software: UDP socket")
            && text.contains("524288 of 524288 free"),
        "{text}"
    );
    let jobs = run(&["jobs", "--connect", &control]);
    assert!(jobs.status.success());
    assert_eq!(String::from_utf8(jobs.stdout).unwrap().lines().count(), 1, "a heading and no job");

    let pid = rustix::process::Pid::from_child(&daemon.process);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(daemon.process.wait().unwrap().success());
    let rest: Vec<_> = log.collect();
    assert!(rest.iter().any(|line| line.contains("stopping")), "{rest:?}");
}

/// The daemon goes on when its output is closed, as by `status | head`.
#[test]
fn nobody_needs_to_read_what_is_printed() {
    let (daemon, _log) = Program::start(&mut aggregator(&IN_SOFTWARE));
    let control = daemon.control.to_string();
    for report in ["status", "jobs"] {
        let mut command = aggregator(&[report, "--connect", &control]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let mut errors = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
        assert_eq!(
            (child.wait().expect("ended").code(), errors.as_str()),
            (Some(0), ""),
            "{report}"
        );
    }
}

#[test]
fn status_without_a_daemon_says_so() {
    let nobody = SocketAddr::from(NOBODY).to_string();
    let output = run(&["status", "--connect", &nobody]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    let line = format!(
        "switchml-aggregator: no aggregator answers at {nobody} (Connection refused (os error \
         111)); start it, or give the address where it runs with --connect\n"
    );
    assert_eq!(error, line);
}

/// A daemon that hangs, or a server of something else that waits for its client to speak.
#[test]
fn status_of_who_does_not_answer_says_so() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let reports = ["status", "jobs"].map(|report| {
        let mut command = aggregator(&[report, "--connect", &address]);
        command.stderr(Stdio::piped()).spawn().expect("it starts")
    });
    for report in reports {
        let output = report.wait_with_output().expect("it ends");
        let error = String::from_utf8(output.stderr).unwrap();
        let line = format!("switchml-aggregator: {address} takes connections, but did not answer");
        assert!(error.starts_with(&line) && error.lines().count() == 1, "{error}");
        assert_eq!(output.status.code(), Some(1));
    }
}

/// Each is one line, with exit code 2, before anything is attached or served.
#[test]
fn tls_files_that_are_of_no_use() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let made = || rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
    let (one, other) = (made(), made());
    let file = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (cert, key) =
        (file("cert", &one.cert.pem()), file("key", &one.signing_key.serialize_pem()));
    let other = file("other", &other.signing_key.serialize_pem());
    let (empty, missing) = (file("empty", ""), folder.join("missing"));
    let missing = missing.to_str().unwrap();
    let tls = |cert: &str, key: &str| {
        let options = ["--tls-cert", cert, "--tls-key", key];
        options.map(str::to_owned).to_vec()
    };
    let mut with_ca = tls(&cert, &key);
    with_ca.extend(["--tls-client-ca".to_owned(), empty.clone()]);
    let mut half = tls(missing, &key);
    half.push("--tls-self-signed".to_owned());
    for (options, expected) in [
        (tls(missing, &key), format!("{missing} cannot be read: No such file")),
        (tls(&cert, &empty), format!("{empty} has no private key in PEM")),
        (tls(&empty, &key), format!("{empty} has no certificate in PEM")),
        (tls(&cert, &other), format!("{other} is not the key of {cert}; give the two that belong")),
        (with_ca, format!("{empty} has no certificate in PEM")),
        (half, format!("{key} exists without {missing}; remove it, or add that file")),
    ] {
        let software = ["--data-plane", "software", "--control", "127.0.0.1:0", "--data-port", "0"];
        let output = aggregator(&software).args(&options).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with(&format!("switchml-aggregator: {expected}")), "{error}");
        assert_eq!((error.lines().count(), output.status.code()), (1, Some(2)), "{error}");
    }
    let output = run(&["--tls-client-ca", &cert]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: --tls-client-ca has no effect without TLS; "), "{error}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn token_keys_and_tokens_that_are_of_no_use() {
    let folder = tempfile::tempdir().unwrap();
    let [short, missing] = ["short", "missing"].map(|name| folder.path().join(name));
    // 31 bytes: the space at the end does not count.
    std::fs::write(&short, format!("{} \n", "k".repeat(31))).unwrap();
    let (short, missing) = (short.to_str().unwrap(), missing.to_str().unwrap());
    let token = ["token", "--tenant", "a", "--jobs", "*", "--expires", "1h", "--token-key"];
    let serve = ["--data-plane", "software", "--control", "127.0.0.1:0", "--token-key"];
    for (key, expected) in [
        (short, format!("token key {short} has 31 bytes; at least 32 are needed; make one with")),
        (missing, format!("token key {missing}: No such file")),
    ] {
        for command in [&token[..], &serve[..]] {
            let output = run(&[command, &[key]].concat());
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(error.starts_with(&format!("switchml-aggregator: {expected}")), "{error}");
            assert_eq!((error.lines().count(), output.status.code()), (1, Some(2)), "{error}");
        }
    }
    let output = run(&["token", "--expires", "soon"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("\"soon\" is not a time; use 30m, 24h or 7d"), "{error}");
    let output = run(&["--parent", "10.0.0.1", "--token-key", short]);
    assert_eq!(output.status.code(), Some(2));
}

/// The commit is the repository's, if the tests run in one.
#[test]
fn the_version_names_commit_and_protocol() {
    let output = run(&["--version"]);
    let line = String::from_utf8(output.stdout).unwrap();
    let rest = line.strip_prefix("switchml-aggregator 0.1.0 (commit ").expect(&line);
    let commit = rest.strip_suffix(", protocol 1)\n").expect(&line);
    let commit = commit.strip_suffix("-dirty").unwrap_or(commit);
    let is_hash = commit.len() == 12 && commit.bytes().all(|digit| digit.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown", "{line}");
}

/// 198.51.100.0/24 is for documentation, too.
#[test]
fn options_may_be_in_a_file() {
    let path = tempfile::NamedTempFile::new().unwrap();
    let file = path.path().to_str().unwrap();
    std::fs::write(&path, "data-plane = 'software'\ncontrol = '198.51.100.1:0'\n").unwrap();
    let output = run(&["--config", file]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("198.51.100.1"), "{error}");
    let output = run(&["--config", file, "--control", "198.51.100.2:0"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("198.51.100.2"), "{error}");
    std::fs::write(&path, "iface = ['p0']\nslot = 512\n").unwrap();
    let output = run(&["--config", file]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    let start = format!("error: --config {file:?}: unknown option \"slot\"; options are ");
    assert!(error.starts_with(&start) && error.lines().count() == 1, "{error}");
}

/// Each line from the first to the last is an object; the times sort as text.
#[test]
fn a_log_for_programs_is_an_object_in_each_line() {
    let options = ["--data-plane", "software", "--control", "127.0.0.1:0", "--data-port", "0"];
    let mut command = aggregator(&options);
    command.args(["--log-format", "json"]).env_remove("RUST_LOG").stderr(Stdio::piped());
    let mut daemon = command.spawn().expect("it starts");
    let mut log = BufReader::new(daemon.stderr.take().expect("piped"));
    let mut line = String::new();
    let mut lines = Vec::new();
    while !line.contains("ready: control ") {
        line.clear();
        assert_ne!(log.read_line(&mut line).expect("text"), 0, "it ended: {lines:?}");
        lines.push(line.clone());
    }
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    lines.extend(log.lines().map(|line| line.expect("text")));
    assert!(daemon.wait().expect("ended").success());
    let lines = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line));
    let lines = lines.collect::<Result<Vec<_>, _>>().expect("JSON");
    let field = |line: &serde_json::Value, name: &str| line[name].as_str().unwrap_or("").to_owned();
    assert!(lines.iter().all(|line| field(line, "level") == "INFO"), "{lines:?}");
    assert!(lines.iter().all(|line| field(line, "timestamp").ends_with('Z')), "{lines:?}");
    assert!(lines.is_sorted_by_key(|line| field(line, "timestamp")), "{lines:?}");
    assert!(field(&lines[lines.len() - 2], "message").starts_with("ready: control "), "{lines:?}");
    assert_eq!(field(&lines[lines.len() - 1], "message"), "stopping");
}

#[test]
fn options_are_looked_through_without_a_daemon() {
    let (daemon, _log) = Program::start(&mut aggregator(&IN_SOFTWARE));
    let control = daemon.control.to_string();
    let folder = tempfile::tempdir().unwrap();
    let [file, certificate] = ["config", "certificate"].map(|name| folder.path().join(name));
    let (path, certificate) = (file.to_str().unwrap(), certificate.to_str().unwrap());
    // The address that is in use is the running daemon's.
    let right = format!("data-plane = 'software'\ncontrol = '{control}'\n");
    let made = format!(
        "{right}tls-self-signed = true\ntls-cert = '{certificate}'\ntls-key = '{certificate}.key'\n"
    );
    let unfit = format!("{right}token-key = '/no/such/key'\n");
    for (text, code, expected) in [
        (right.as_str(), 0, "the options are valid\n"),
        (&made, 0, "the options are valid\n"),
        (&unfit, 2, "token key /no/such/key: No such file"),
        ("slots = 15\n", 2, "15 is not in 512..=524288"),
        ("iface = ['lo', 'lo']\n", 2, "interface \"lo\" is given twice"),
        ("data-plane = 'software'\ncontrol = '192.0.2.1:1'\n", 2, "the public address 192.0.2.1"),
        ("iface = 'no-such0'\n", 0, "waiting for interface \"no-such0\""),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = run(&["--check-config", "--config", path]);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}: {said}");
        assert!(said.contains(expected), "{text}: {said}");
    }
    assert!(!std::fs::exists(certificate).unwrap(), "nothing is made");
}
