//! Access to the control plane: a tree with mutual TLS, and control planes that the Internet could
//! reach.

use std::fs;
use std::process::Command;
use std::thread;

use switchml_rack::{Binaries, Namespace, Process, RackOptions, Racks, needs_racks};
use switchml_worker::control::{self, Access, ClientTls, TlsError, Token};
use switchml_worker::{Communicator, ReduceOp};
use tempfile::TempDir;

use crate::{Cluster, PATIENCE};

const RANKS: usize = 4;
const ROOT: &str = "10.88.0.254:48865";
const CONTROL: &str = "48865";
/// An address of the Internet.
const PUBLIC: &str = "8.8.8.8";

/// Files of a certificate that signs itself and of its key, removed when dropped.
struct Identity {
    _folder: TempDir,
    cert: String,
    key: String,
}

impl Identity {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["combiner".to_owned()]).unwrap();
        let write = |name: &str, text: String| {
            let file = folder.path().join(name);
            fs::write(&file, text).unwrap();
            file.to_str().unwrap().to_owned()
        };
        let cert = write("cert", made.cert.pem());
        let key = write("key", made.signing_key.serialize_pem());
        Self { _folder: folder, cert, key }
    }
}

fn daemon(host: &Namespace, ports: &[String], control: &str, options: &[&str]) -> Process {
    let binaries = Binaries::for_test().unwrap();
    let mut command = Command::new(binaries.aggregator);
    command.args(ports.iter().flat_map(|port| ["--iface", port]));
    command.args(["--control", control]).args(options);
    host.spawn("aggregator", command).unwrap()
}

/// A daemon's fingerprint, which it logs or prints, once it is ready.
fn fingerprint(daemon: &mut Process) -> String {
    daemon.wait_for_line("ready: control", PATIENCE).unwrap();
    let line = daemon.wait_for_line("sha256:", PATIENCE).unwrap();
    line.split_whitespace().last().unwrap().to_owned()
}

/// A job token for all jobs.
fn token(host: &Namespace, key: &str) -> Token {
    let mut command = Command::new(Binaries::for_test().unwrap().aggregator);
    command.args(["token", "--token-key", key, "--tenant", "a", "--jobs", "*", "--expires", "1h"]);
    Token::Text(String::from_utf8(host.output(command).unwrap().stdout).unwrap())
}

fn pinned(fingerprint: &str) -> ClientTls {
    ClientTls { fingerprint: Some(fingerprint.to_owned()), ..ClientTls::default() }
}

/// The root asks its combiners for certificates, which know it by its fingerprint, as their ranks
/// know them.
#[test]
fn a_tree_by_mutual_tls() {
    needs_racks!();
    let racks = Racks::new(2, RackOptions { workers: RANKS, ..RackOptions::default() }).unwrap();
    let Identity { cert, key, .. } = &Identity::new();
    // The key can be any file that is long enough.
    let options = ["--tls-self-signed", "--tls-client-ca", cert, "--token-key", key];
    let mut root = daemon(racks.root(), &racks.root_ports(), ROOT, &options);
    let of_root = fingerprint(&mut root);

    let with_parent = |parent: &str| {
        let options = ["--tls-cert", cert, "--tls-key", key, "--parent", ROOT];
        [&options[..], &["--parent-tls-fingerprint", parent]].concat().join(" ")
    };
    let start = |rack: usize, parent: &str| {
        let control = format!("{}:{CONTROL}", racks.host_address(rack));
        let options = with_parent(parent);
        let options: Vec<_> = options.split(' ').collect();
        daemon(&racks.hosts()[rack], &racks.host_ports(rack), &control, &options)
    };
    let mut mistaken = start(0, &"00".repeat(32));
    assert_eq!(mistaken.wait(PATIENCE).unwrap().code(), Some(1));
    let line = mistaken.stderr();
    let start_of_line = format!("no TLS connection to the parent at {ROOT}: its certificate has");
    assert!(line.lines().last().unwrap().contains(&start_of_line), "{line}");

    refuses_a_combiner_without_a_certificate(&racks, &mut root, &of_root);

    let mut combiners = [start(0, &of_root), start(1, &of_root)];
    let of_combiners = combiners.each_mut().map(fingerprint);
    assert_eq!(of_combiners[0], of_combiners[1]);
    let token = token(racks.root(), key);
    let settings = |rank: usize| {
        let aggregator = racks.host_address(racks.rack_of(rank)).to_string();
        let builder = Communicator::builder().aggregator(aggregator).tls(pinned(&of_combiners[0]));
        builder.job("tree").rank(rank as u32).world_size(RANKS as u32)
    };
    let ranks = (0..RANKS).map(|rank| {
        let builder = settings(rank).token(token.clone());
        let worker = &racks.workers()[rank];
        move || {
            worker.run(move || {
                let communicator = builder.connect().unwrap();
                let mut values = vec![rank as i32 + 1; 100_000];
                communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                communicator.close().unwrap();
                values
            })
        }
    });
    thread::scope(|scope| {
        let ranks: Vec<_> = ranks.map(|rank| scope.spawn(rank)).collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), vec![1 + 2 + 3 + 4; 100_000]);
        }
    });

    // The root asks for a token, even if a combiner brings the rank.
    let without = settings(0);
    let error = racks.workers()[0].run(move || without.connect().err().unwrap().to_string());
    assert!(error.starts_with("this aggregator requires a job token; "), "{error}");
    root.wait_for_line("refused: this aggregator requires a job token", PATIENCE).unwrap();

    // Past its combiner a rank, which has no certificate, does not get in.
    let access = Access { address: ROOT.to_owned(), tls: pinned(&of_root), ..Access::default() };
    let error = racks.workers()[0].run(move || control::status(access, PATIENCE)).unwrap_err();
    let why = TlsError::ClientCertificateRequired;
    assert_eq!(error, control::Error::Tls { address: ROOT.to_owned(), why });
    let options = ["--connect", ROOT, "--tls-fingerprint", &of_root];
    let options = [&options[..], &["--tls-cert", cert, "--tls-key", key]].concat();
    let certificates = refused(racks.root(), &options, "without a client certificate");
    assert!(certificates >= 2, "the combiner and the rank, not {certificates}");
    assert_eq!(refused(racks.root(), &options, "without a job token"), 1);
}

fn refuses_a_combiner_without_a_certificate(racks: &Racks, root: &mut Process, of_root: &str) {
    let options = ["--parent", ROOT, "--parent-tls-fingerprint", of_root];
    let control = format!("{}:{CONTROL}", racks.host_address(0));
    let mut nobody = daemon(&racks.hosts()[0], &racks.host_ports(0), &control, &options);
    assert_eq!(nobody.wait(PATIENCE).unwrap().code(), Some(1));
    let line = nobody.stderr();
    let expected =
        format!("no TLS connection to the parent at {ROOT}: it asks for a client certificate");
    assert!(line.lines().last().unwrap().contains(&expected), "{line}");
    root.wait_for_line("refused: it has no client certificate", PATIENCE).unwrap();
}

/// How often a daemon has refused something for this reason, according to its status.
fn refused(host: &Namespace, options: &[&str], what: &str) -> u64 {
    let mut command = Command::new(Binaries::for_test().unwrap().aggregator);
    command.arg("status").args(options);
    let report = String::from_utf8(host.output(command).unwrap().stdout).unwrap();
    let line = report.lines().find(|line| line.starts_with("refused") && line.ends_with(what));
    let times = line.unwrap_or_else(|| panic!("no {what}:\n{report}")).split_whitespace().nth(1);
    times.unwrap().parse().unwrap()
}

/// The status of a daemon at a public address of the namespace.
fn ask(host: &Namespace, port: &str, tls: ClientTls) -> Result<(), control::Error> {
    let access = Access { address: format!("{PUBLIC}:{port}"), tls, ..Access::default() };
    host.run(move || control::status(access, PATIENCE).map(drop))
}

#[test]
fn the_internet_is_not_believed() {
    let cluster = Cluster::of(1);
    let host = cluster.rack.switch();
    let add = || {
        let mut command = Command::new("ip");
        command.args(["address", "add", PUBLIC, "dev", "lo"]);
        assert!(host.output(command).unwrap().status.success());
    };
    let start = |control: &str, options: &[&str]| {
        let mut command = Command::new(&cluster.binaries.aggregator);
        command.args(["--data-plane", "software", "--data-port", "0", "--control", control]);
        command.args(options);
        host.spawn("aggregator", command).unwrap()
    };
    // A daemon that was started before the address was added.
    let mut early = start("[::]:0", &[]);
    let line = early.wait_for_line("ready: control", PATIENCE).unwrap();
    let port = line.split(',').next().unwrap().rsplit_once(':').unwrap().1.to_owned();
    let warnings = early.stderr().matches("the control plane trusts everybody").count();
    assert_eq!(warnings, 1, "{}", early.stderr());
    add();
    ask(host, &port, ClientTls::default()).expect_err("not let in");
    early.wait_for_line("the public address 8.8.8.8 accepts no connections", PATIENCE).unwrap();
    let private = format!("10.88.0.254:{port}");
    assert!(refused(host, &["--connect", &private], "to a public address, without TLS") >= 1);

    let mut refused = start("8.8.8.8:0", &[]);
    assert_eq!(refused.wait(PATIENCE).unwrap().code(), Some(2));
    let line = refused.stderr();
    let expected = "can be reached at the public address 8.8.8.8, and would trust everybody; give \
                    --tls-cert and --tls-key (or --tls-self-signed), or --token-key, or a private \
                    address with --control\n";
    assert!(line.ends_with(expected) && line.lines().count() == 1, "{line}");
    // Many hosts have a public address. A daemon that listens at all addresses starts, but lets
    // nobody in by that one.
    for control in ["[::]:0", "0.0.0.0:0"] {
        let mut late = start(control, &[]);
        let line = late.wait_for_line("ready: control", PATIENCE).unwrap();
        let port = line.split(',').next().unwrap().rsplit_once(':').unwrap().1;
        let warning = "refuses everybody at a public one, such as 8.8.8.8; ";
        assert_eq!(late.stderr().matches(warning).count(), 1, "{}", late.stderr());
        ask(host, port, ClientTls::default()).expect_err("not let in");
        late.wait_for_line("the public address 8.8.8.8 accepts no connections", PATIENCE).unwrap();
    }
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(&key, "k".repeat(32)).unwrap();
    let mut guarded = start("8.8.8.8:0", &["--token-key", key.path().to_str().unwrap()]);
    guarded.wait_for_line("ready: control", PATIENCE).unwrap();
    assert!(guarded.stderr().contains("job tokens travel in the clear"), "{}", guarded.stderr());
    // A daemon that listens only at the private address is served, like the rack's own daemon.
    let mut private = start("10.88.0.254:0", &[]);
    private.wait_for_line("ready: control", PATIENCE).unwrap();

    let mut open = start("8.8.8.8:0", &["--tls-self-signed"]);
    let own = fingerprint(&mut open);
    let line = open.wait_for_line("ready: control", PATIENCE).unwrap();
    let port = line.split(',').next().unwrap().rsplit_once(':').unwrap().1;
    assert_eq!(ask(host, port, pinned(&own)), Ok(()));
    assert!(!open.stderr().contains("trusts everybody"), "{}", open.stderr());
}
