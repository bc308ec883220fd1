//! TLS of the control plane, between the real daemon and the library: connections that work, and
//! every attack and mistake, each refused in one line and counted.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};
use switchml_worker::control::{Access, ClientTls, Error, TlsError, status};
use switchml_worker::{Communicator, ReduceOp};

use crate::certificates::{Ca, Kind};
use crate::folder::Folder;
use switchml_rack::daemon::{Daemon, PATIENCE, failure};

/// A server's certificate is checked against this name.
const SERVER: &str = "127.0.0.1";

/// A daemon with a certificate that signs itself, and its fingerprint.
fn self_signed() -> (Daemon, String) {
    let daemon = Daemon::with_options(&["--tls-self-signed"]);
    let fingerprint = daemon.aggregator.fingerprint().to_owned();
    assert!(fingerprint.starts_with("sha256:") && fingerprint.len() == 71, "{fingerprint:?}");
    (daemon, fingerprint)
}

fn pinned(fingerprint: &str) -> ClientTls {
    ClientTls { fingerprint: Some(fingerprint.to_owned()), ..ClientTls::default() }
}

fn by_ca(ca: PathBuf) -> ClientTls {
    ClientTls { ca: Some(ca), ..ClientTls::default() }
}

/// Asks the daemon for its status with these settings.
fn ask(daemon: &Daemon, tls: ClientTls) -> Result<(), TlsError> {
    let address = daemon.address.clone();
    match status(Access { address, tls, ..Access::default() }, PATIENCE) {
        Ok(_) => Ok(()),
        Err(Error::Tls { address, why }) => {
            assert_eq!(address, daemon.address);
            Err(why)
        }
        Err(other) => panic!("{other}"),
    }
}

/// Waits until the daemon has refused something `times` times for this reason: it counts after it
/// has answered the client.
fn wait_for_refusals(daemon: &Daemon, options: &[&str], what: &str, times: u64) {
    let begin = Instant::now();
    loop {
        let report = daemon.status(options);
        let line = report.lines().find(|line| line.starts_with("refused") && line.ends_with(what));
        let count = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        if count == Some(times) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "not {times} {what}:\n{report}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Joins a job of one rank, and adds up.
fn sum(daemon: &Daemon, tls: ClientTls) {
    let builder = Communicator::builder().aggregator(&daemon.address).job("a").tls(tls);
    let communicator = builder.rank(0).world_size(1).connect().unwrap();
    let mut values = [3, -4];
    communicator.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    assert_eq!(values, [3, -4]);
    communicator.close().unwrap();
}

#[test]
fn a_pinned_certificate_that_signs_itself() {
    let (daemon, fingerprint) = self_signed();
    sum(&daemon, pinned(&fingerprint));
    let mut rank = daemon.worker(&[
        "bench",
        "--rank",
        "0",
        "--world-size",
        "1",
        "-b",
        "8",
        "-e",
        "8",
        "--tls-fingerprint",
        &fingerprint,
    ]);
    rank.wait_success(PATIENCE).unwrap();
    let mut doctor = daemon.worker(&["doctor", "--tls-fingerprint", &fingerprint]);
    doctor.wait_success(PATIENCE).unwrap();
}

#[test]
fn a_wrong_fingerprint() {
    let (daemon, seen) = self_signed();
    let given = format!("sha256:{}", "5a".repeat(32));
    let expected =
        TlsError::Fingerprint { given: given.parse().unwrap(), seen: seen.parse().unwrap() };
    assert_eq!(ask(&daemon, pinned(&given)), Err(expected.clone()));
    let line = expected.to_string();
    assert!(line.contains(&given) && line.contains(&seen), "{line}");
    let options = ["--tls-fingerprint", &seen];
    wait_for_refusals(&daemon, &options, "connections whose TLS handshake failed", 1);

    let mut rank =
        daemon.worker(&["bench", "--rank", "0", "--world-size", "1", "--tls-fingerprint", &given]);
    let (code, line) = failure(&mut rank);
    let start = format!("error: no TLS connection to the aggregator at {}: ", daemon.address);
    assert_eq!((code, line), (3, start + &expected.to_string()));
}

#[test]
fn a_worker_without_tls_at_a_daemon_with_it() {
    let (daemon, fingerprint) = self_signed();
    assert_eq!(ask(&daemon, ClientTls::default()), Err(TlsError::Required));
    let builder = Communicator::builder().aggregator(&daemon.address).rank(0).world_size(1);
    let line = builder.connect().err().unwrap().to_string();
    let start = format!("no TLS connection to the aggregator at {}: ", daemon.address);
    assert_eq!(line, start + &TlsError::Required.to_string());
    let options = ["--tls-fingerprint", &fingerprint];
    wait_for_refusals(&daemon, &options, "connections without TLS", 2);
}

#[test]
fn a_worker_with_tls_at_a_daemon_without_it() {
    let daemon = Daemon::start();
    assert_eq!(ask(&daemon, pinned(&"00".repeat(32))), Err(TlsError::Plain));
}

#[test]
fn a_certificate_of_a_ca() {
    let folder = Folder::new();
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let (cert, key) = (folder.file("cert"), folder.file("key"));
    ours.write(&folder.file("ca"));
    theirs.write(&folder.file("other"));
    ours.issue(SERVER, Kind::Server, &cert, &key);
    let options = ["--tls-cert", &folder.text("cert"), "--tls-key", &folder.text("key")];
    let daemon = Daemon::with_options(&options);
    let (ca, other) = (folder.file("ca"), folder.file("other"));
    sum(&daemon, by_ca(ca.clone()));
    assert_eq!(ask(&daemon, by_ca(other.clone())), Err(TlsError::UnknownCa { ca: other }));
    Ca::new("ours").write(&folder.file("namesake"));
    assert_eq!(ask(&daemon, by_ca(folder.file("namesake"))), Err(TlsError::Forged));

    ours.issue("switch.example", Kind::Server, &cert, &key);
    let (given, names) = (SERVER.to_owned(), "DnsName(\"switch.example\")".to_owned());
    assert_eq!(ask(&daemon, by_ca(ca.clone())), Err(TlsError::Name { given, names }));

    ours.issue(SERVER, Kind::Expired, &cert, &key);
    let Err(TlsError::Expired { days }) = ask(&daemon, by_ca(ca)) else { panic!("not expired") };
    // The certificate has been expired since 2002, and this test was written in 2026.
    assert!(days > 24 * 365, "{days}");
}

/// The signature of the handshake is by another key than the certificate's.
#[test]
fn somebody_who_shows_the_certificate_but_lacks_its_key() {
    let address = impostor();
    let ask = |fingerprint: &str| {
        let access =
            Access { address: address.clone(), tls: pinned(fingerprint), ..Access::default() };
        match status(access, PATIENCE) {
            Err(Error::Tls { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    };
    let TlsError::Fingerprint { seen, .. } = ask(&"00".repeat(32)) else {
        panic!("no certificate")
    };
    assert_eq!(ask(&seen.to_string()), TlsError::Forged);
}

/// Answers two connections with a certificate, and another's key.
fn impostor() -> String {
    let certificate = rcgen::generate_simple_self_signed([SERVER.to_owned()]).unwrap().cert;
    let other = rcgen::KeyPair::generate().unwrap().serialize_der();
    let key = rustls::crypto::ring::sign::any_ecdsa_type(&PrivateKeyDer::try_from(other).unwrap());
    let shown = CertifiedKey::new(vec![certificate.der().clone()], key.unwrap());
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(config.with_cert_resolver(Arc::new(SingleCertAndKey::from(shown))));
    let listener = TcpListener::bind((SERVER, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let _ = connection.complete_io(&mut stream.unwrap());
        }
    });
    address
}

#[test]
fn client_certificates() {
    let folder = Folder::new();
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    ours.write(&folder.file("ca"));
    let file = |name: &str| folder.file(name);
    ours.issue("rank", Kind::Client, &file("cert"), &file("key"));
    ours.issue("rank", Kind::Expired, &file("old"), &file("old-key"));
    ours.issue("rank", Kind::Server, &file("server"), &file("server-key"));
    theirs.issue("rank", Kind::Client, &file("foreign"), &file("foreign-key"));
    Ca::new("ours").issue("rank", Kind::Client, &file("forged"), &file("forged-key"));
    let daemon =
        Daemon::with_options(&["--tls-self-signed", "--tls-client-ca", &folder.text("ca")]);
    let pin = pinned(daemon.aggregator.fingerprint());
    let with = |cert: &str, key: &str| ClientTls {
        cert: Some(file(cert)),
        key: Some(file(key)),
        ..pin.clone()
    };
    sum(&daemon, with("cert", "key"));
    assert_eq!(ask(&daemon, pin.clone()), Err(TlsError::ClientCertificateRequired));
    for (cert, key, why) in [
        ("forged", "forged-key", "its signature is wrong"),
        ("foreign", "foreign-key", "none of the CAs that it knows has signed it"),
        ("old", "old-key", "it is not valid now; renew it, or set the clocks"),
        ("server", "server-key", "it is not one for clients"),
    ] {
        let refused = TlsError::ClientCertificateRefused { cert: file(cert), why };
        assert_eq!(ask(&daemon, with(cert, key)), Err(refused), "{cert}");
    }
    let pair = TlsError::Pair { cert: file("cert"), key: file("old-key") };
    assert_eq!(ask(&daemon, with("cert", "old-key")), Err(pair));

    let fingerprint = daemon.aggregator.fingerprint();
    let (cert, key) = (folder.text("cert"), folder.text("key"));
    let options = ["--tls-fingerprint", fingerprint, "--tls-cert", &cert, "--tls-key", &key];
    wait_for_refusals(&daemon, &options, "without a client certificate", 1);
    wait_for_refusals(&daemon, &options, "not valid, or from another CA", 4);
}

/// The list counts past its own date, too: forgetting to renew it does not free revoked
/// certificates.
#[test]
fn certificates_that_were_revoked() {
    let folder = Folder::new();
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let file = |name: &str| folder.file(name);
    let mut stolen = ours.issue("rank", Kind::Client, &file("stolen"), &file("stolen-key"));
    ours.issue("rank", Kind::Client, &file("cert"), &file("key"));
    theirs.issue("rank", Kind::Client, &file("other"), &file("other-key"));
    ours.write(&file("ca"));
    theirs.write(&file("other-ca"));
    let both = [fs::read(file("ca")).unwrap(), fs::read(file("other-ca")).unwrap()].concat();
    fs::write(file("ca"), both).unwrap();
    ours.revoke(&[], &file("crl"));
    let (ca, crl) = (folder.text("ca"), folder.text("crl"));
    let options = ["--tls-self-signed", "--tls-client-ca", &ca, "--tls-client-crl", &crl];
    let mut daemon = Daemon::with_options(&options);
    let pin = pinned(daemon.aggregator.fingerprint());
    let with = |cert: &str, key: &str| ClientTls {
        cert: Some(file(cert)),
        key: Some(file(key)),
        ..pin.clone()
    };
    let refused =
        |cert: &str, why| Err(TlsError::ClientCertificateRefused { cert: file(cert), why });
    assert_eq!(ask(&daemon, with("stolen", "stolen-key")), Ok(()));
    sum(&daemon, with("cert", "key"));

    // Connections from now on see the new list.
    ours.revoke(&[stolen], &file("crl"));
    let revoked = refused("stolen", "its CA has revoked it; get another one");
    assert_eq!(ask(&daemon, with("stolen", "stolen-key")), revoked);
    let line = "its client certificate was revoked, says --tls-client-crl";
    daemon.aggregator.process().wait_for_line(line, PATIENCE).unwrap();
    sum(&daemon, with("cert", "key"));
    // This certificate is signed by a CA without a list. The log has at most one line a second for
    // refusals.
    thread::sleep(Duration::from_millis(1100));
    let unknown = refused("other", "none of the CAs that it knows has signed it");
    assert_eq!(ask(&daemon, with("other", "other-key")), unknown);
    let line = "--tls-client-crl has no list of the CA that has signed its client certificate";
    daemon.aggregator.process().wait_for_line(line, PATIENCE).unwrap();
    // A file without a list changes nothing.
    fs::write(file("crl"), "").unwrap();
    assert_eq!(ask(&daemon, with("stolen", "stolen-key")), revoked);
    let line = "has no list of revoked certificates (CRL) in PEM";
    daemon.aggregator.process().wait_for_line(line, PATIENCE).unwrap();

    stolen = theirs.issue("rank", Kind::Client, &file("stolen"), &file("stolen-key"));
    ours.revoke(&[], &file("crl"));
    theirs.revoke(&[stolen], &file("other-crl"));
    let both = [fs::read(file("crl")).unwrap(), fs::read(file("other-crl")).unwrap()].concat();
    fs::write(file("crl"), both).unwrap();
    assert_eq!(ask(&daemon, with("other", "other-key")), Ok(()));
    assert_eq!(ask(&daemon, with("stolen", "stolen-key")), revoked);
}

/// The log and the status show when the certificate expires.
#[test]
fn a_certificate_that_expires() {
    let folder = Folder::new();
    let ca = Ca::new("ours");
    let (cert, key) = (folder.file("cert"), folder.file("key"));
    ca.write(&folder.file("ca"));
    ca.issue(SERVER, Kind::Expired, &cert, &key);
    let options = ["--tls-cert", &folder.text("cert"), "--tls-key", &folder.text("key")];
    let mut daemon = Daemon::with_options(&options);
    let process = daemon.aggregator.process();
    process.wait_for_line("TLS: the certificate has expired; renew it", PATIENCE).unwrap();
    let line = process.wait_for_line("TLS: the certificate is ", PATIENCE).unwrap();
    let fingerprint = line.split("the certificate is ").nth(1).unwrap().to_owned();
    let report = daemon.status(&["--tls-fingerprint", &fingerprint]);
    assert!(report.contains("\ncertificate  expires 2002-01-01T00:00:00Z\n"), "{report}");
    let log = daemon.aggregator.process().stderr();
    assert_eq!(log.matches("has expired").count(), 1, "{log}");
}

#[test]
fn files_of_the_workers_that_are_of_no_use() {
    let (daemon, fingerprint) = self_signed();
    let folder = Folder::new();
    fs::write(folder.file("empty"), "").unwrap();
    let none = folder.text("none");
    let error = ask(&daemon, by_ca(folder.file("none"))).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{none} cannot be read: No such file")), "{error}");
    let error = ask(&daemon, by_ca(folder.file("empty"))).unwrap_err().to_string();
    assert_eq!(error, format!("{} has no certificate in PEM", folder.text("empty")));
    let (cert, key) = (Some(folder.file("empty")), Some(folder.file("empty")));
    let tls = ClientTls { cert, key, ..pinned(&fingerprint) };
    let error = ask(&daemon, tls).unwrap_err().to_string();
    assert!(error.contains("has no private key in PEM"), "{error}");
}

/// New connections use the changed files; open connections, and their jobs, continue.
#[test]
fn files_that_change() {
    let folder = Folder::new();
    let ca = Ca::new("ours");
    ca.write(&folder.file("ca"));
    let (cert, key) = (folder.file("cert"), folder.file("key"));
    ca.issue(SERVER, Kind::Server, &cert, &key);
    let options = ["--tls-cert", &folder.text("cert"), "--tls-key", &folder.text("key")];
    let mut daemon = Daemon::with_options(&options);
    let line = daemon.aggregator.process().wait_for_line("TLS: the certificate is ", PATIENCE);
    let old = line.unwrap().split("the certificate is ").nth(1).unwrap().to_owned();
    let builder = Communicator::builder().aggregator(&daemon.address).tls(pinned(&old));
    let running = builder.rank(0).world_size(1).connect().unwrap();

    // A pair that is broken while one of its files is written.
    ca.issue(SERVER, Kind::Server, &cert, &folder.file("next"));
    assert_eq!(ask(&daemon, pinned(&old)), Ok(()));
    daemon.aggregator.process().wait_for_line("the old ones stay in use: ", PATIENCE).unwrap();
    let Err(TlsError::Fingerprint { seen, .. }) = ask(&daemon, pinned(&"00".repeat(32))) else {
        panic!("taken")
    };
    assert_eq!(seen.to_string(), old);

    fs::rename(folder.file("next"), &key).unwrap();
    let Err(TlsError::Fingerprint { given, seen: new }) = ask(&daemon, pinned(&old)) else {
        panic!("the old one")
    };
    assert_eq!(given.to_string(), old);
    assert_eq!(ask(&daemon, pinned(&new.to_string())), Ok(()));
    assert_eq!(ask(&daemon, by_ca(folder.file("ca"))), Ok(()));
    let log = daemon.aggregator.process().stderr();
    assert_eq!(log.matches("the old ones stay in use").count(), 1, "{log}");
    running.barrier().unwrap();
    running.close().unwrap();
}

/// The page, its files and the metrics are at the same port.
#[test]
fn browsers_and_prometheus_by_https() {
    let folder = Folder::new();
    let ca = Ca::new("ours");
    ca.write(&folder.file("ca"));
    ca.issue(SERVER, Kind::Server, &folder.file("cert"), &folder.file("key"));
    let options = ["--tls-cert", &folder.text("cert"), "--tls-key", &folder.text("key")];
    let daemon = Daemon::with_options(&options);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.file("ca")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let get = |path: &str| {
        let name = ServerName::try_from(SERVER).unwrap();
        let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let socket = TcpStream::connect(&daemon.address).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for (path, text) in [
        ("/", "<!doctype html>"),
        ("/healthz", "ok\n"),
        ("/metrics", "switchml_refusals_total{reason=\"no_tls\"} 0"),
        ("/status.json", "{\"tls\":true,\"client_certificates\":false,\"tokens\":false,"),
    ] {
        let answer = get(path);
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(text), "{path}: {answer}");
    }
}

/// The next daemon has the same certificate, and workers recognise it.
#[test]
fn a_certificate_that_signs_itself_can_be_kept() {
    let folder = Folder::new();
    let (cert, key) = (folder.text("cert"), folder.text("key"));
    let options = ["--tls-self-signed", "--tls-cert", &cert, "--tls-key", &key];
    let first = Daemon::with_options(&options).aggregator.fingerprint().to_owned();
    let next = Daemon::with_options(&options);
    assert_eq!(next.aggregator.fingerprint(), first);
    assert_eq!(ask(&next, pinned(&first)), Ok(()));
    let mode = fs::metadata(folder.file("key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Silent connections do not keep other connections from the daemon.
#[test]
fn silent_connections_are_closed() {
    let (daemon, fingerprint) = self_signed();
    let mut silent = TcpStream::connect(&daemon.address).unwrap();
    // The beginning of a handshake.
    silent.write_all(&[22, 3, 1, 2, 0]).unwrap();
    assert_eq!(ask(&daemon, pinned(&fingerprint)), Ok(()));
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    silent.read_to_end(&mut Vec::new()).unwrap();
    let options = ["--tls-fingerprint", &fingerprint];
    wait_for_refusals(&daemon, &options, "connections whose TLS handshake failed", 1);
}

#[test]
fn what_makes_no_sense_together() {
    let daemon = Daemon::start();
    let rank = ["bench", "--rank", "0", "--world-size", "1"];
    for (options, expected) in [
        (
            &["--tls-fingerprint", "sha256:12"][..],
            "error: TLS fingerprint is \"sha256:12\"; sha256: and 64 hexadecimal digits are \
             allowed",
        ),
        (
            &["--tls-ca", "a", "--tls-fingerprint", &format!("sha256:{:064}", 0)],
            "error: TLS CA is given together with a fingerprint; give one of them",
        ),
        (
            &["--tls-cert", "a", "--tls-key", "b"],
            "error: TLS certificate is given alone; give the fingerprint of the aggregator's \
             certificate or its CA, too",
        ),
    ] {
        let (code, line) = failure(&mut daemon.worker(&[&rank[..], options].concat()));
        assert_eq!(line, expected);
        assert_eq!(code, 2);
    }
}
