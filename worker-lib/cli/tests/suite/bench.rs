//! `switchml-worker bench` and `doctor` from end to end, on loopback.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::thread;

use serde_json::Value;

use switchml_rack::daemon::{Daemon, PATIENCE, failure};

/// Runs a benchmark on `world_size` ranks, and returns rank 0's JSON.
fn bench(world_size: usize, arguments: &[&str]) -> Value {
    let daemon = Daemon::start();
    let arguments = [arguments, &["--json", "-"]].concat();
    let mut ranks: Vec<_> =
        (0..world_size).map(|rank| daemon.bench("bench", rank, world_size, &arguments)).collect();
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    for rank in &ranks[1..] {
        assert_eq!(rank.stdout(), "", "only rank 0 prints");
    }
    serde_json::from_str(&ranks[0].stdout()).unwrap()
}

/// All elements of all sizes must be right, and the figures must make sense together.
fn check(report: &Value, world_size: usize, sizes: &[u64], element: u64) {
    assert_eq!(report["out_of_bounds"], 0, "{report}");
    assert_eq!(report["differing"].as_array().unwrap().len(), 0, "{report}");
    assert_eq!(report["world_size"], world_size);
    assert!(report["sent"]["chunks"].as_u64().unwrap() >= 2 * sizes.len() as u64, "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["size"].as_u64().unwrap()).collect::<Vec<_>>(), sizes);
    for row in rows {
        assert_eq!(row["count"].as_u64().unwrap() * element, row["size"].as_u64().unwrap());
        for way in ["out_of_place", "in_place"] {
            let measured = &row[way];
            let number = |name: &str| measured[name].as_f64().unwrap();
            assert_eq!(measured["wrong"], 0, "{row}");
            assert!(number("time_us") > 0.0, "{row}");
            check_calls(&measured["sent"]);
            let algbw = row["size"].as_f64().unwrap() / number("time_us") / 1e3;
            assert!((number("algbw") / algbw - 1.0).abs() < 1e-9, "{row}");
            let ranks = world_size as f64;
            assert!((number("busbw") - algbw * 2.0 * (ranks - 1.0) / ranks).abs() < 1e-9, "{row}");
        }
    }
}

/// A rank's statistics must be consistent.
fn check_calls(calls: &Value) {
    let number = |name: &str| calls[name].as_u64().unwrap();
    assert!(number("calls") > 0 && number("chunks") >= number("calls"), "{calls}");
    // A rank that asks about a late rank gets an answer, except for lost packets, and loopback
    // loses none; the converse does not hold.
    let waited: u64 = calls["stragglers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|late| late["chunks"].as_u64().unwrap())
        .sum();
    assert!(waited == 0 || number("pending") > 0, "{calls}");
    let quantiles =
        ["p50", "p90", "p99", "p999", "max"].map(|name| calls["rtt_us"][name].as_f64().unwrap());
    assert!(quantiles[0] > 0.0 && quantiles.is_sorted(), "{calls}");
}

const QUICK: [&str; 4] = ["-n", "2", "-w", "1"];

#[test]
fn one_rank() {
    check(
        &bench(1, &[&QUICK[..], &["-b", "8", "-e", "64K", "-f", "8"]].concat()),
        1,
        &[8, 64, 512, 4096, 32_768],
        4,
    );
}

#[test]
fn two_ranks_with_every_type_and_operator() {
    for (dtype, element, ops) in [
        ("f32", 4, &["sum", "avg", "max", "min", "sum 16", "avg 16", "sum 8", "avg 8"][..]),
        ("f64", 8, &["sum", "avg"]),
        ("f16", 2, &["sum", "avg", "max", "min", "avg 8"]),
        ("bf16", 2, &["sum", "avg", "max", "min", "avg 8"]),
        ("i32", 4, &["sum", "max", "min"]),
        ("i64", 8, &["sum"]),
    ] {
        for reduction in ops {
            let (op, precision) = reduction.split_once(' ').unwrap_or((reduction, "exact"));
            let sizes = ["-b", "8", "-e", "9000", "-i", "8992"];
            let what = ["--dtype", dtype, "--op", op, "--precision", precision];
            let report = bench(2, &[&QUICK[..], &sizes, &what].concat());
            check(&report, 2, &[8, 9000], element);
            assert_eq!(report["redop"], reduction.replace(' ', ""));
        }
    }
}

#[test]
fn four_ranks_up_to_4_mib() {
    check(
        &bench(4, &[&QUICK[..], &["-b", "8", "-e", "4M", "-f", "64"]].concat()),
        4,
        &[8, 512, 32_768, 2_097_152],
        4,
    );
}

/// With this many ranks, 8 bits would leave too few steps for each, and each says that it takes 16
/// bits.
#[test]
fn so_many_ranks_that_8_bits_become_16() {
    let daemon = Daemon::start();
    let arguments = ["-b", "64K", "-e", "64K", "-n", "1", "-w", "0", "--precision", "8"];
    let mut ranks: Vec<_> = (0..33)
        .map(|rank| daemon.bench("many", rank, 33, &[&arguments[..], &["--json", "-"]].concat()))
        .collect();
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    check(&serde_json::from_str(&ranks[0].stdout()).unwrap(), 33, &[64 << 10], 4);
    let line = "switchml: rank 32 of job \"many\": calls in 8 bits travel in 16, because more than \
                32 ranks would leave too few steps for each\n";
    assert_eq!(ranks[32].stderr(), line, "once");
}

/// Chunks that are zero on all ranks are not sent, and their results are right all the same.
#[test]
fn sparse_tensors() {
    let chunks = |sparsity| {
        // Each data thread has its own exponent chunk, and the number of threads depends on the
        // machine.
        let one = ["-b", "1M", "-e", "1M", "--data-threads", "1", "--sparsity", sparsity];
        let report = bench(2, &[&QUICK[..], &one].concat());
        check(&report, 2, &[1 << 20], 4);
        let sent = &report["rows"][0]["in_place"]["sent"];
        sent["chunks"].as_u64().unwrap() / sent["calls"].as_u64().unwrap()
    };
    // 768 lanes: 342 data chunks, and one of exponents.
    assert_eq!(["0", "0.9", "1"].map(chunks), [343, 36, 1]);
}

#[test]
fn nothing_is_checked_when_told_so() {
    let report = bench(1, &["-b", "64", "-e", "64", "-c", "0"]);
    assert!(report["rows"][0]["in_place"]["wrong"].is_null());
}

#[test]
fn the_table_and_the_file() {
    let daemon = Daemon::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let arguments = ["-b", "1K", "-e", "4K", "-n", "2", "-w", "0", "--json", path];
    let mut ranks = [daemon.bench("a", 0, 2, &arguments), daemon.bench("a", 1, 2, &arguments)];
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    let table = ranks[0].stdout();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows.iter().map(|row| row[0]).collect::<Vec<_>>(),
        ["1024", "2048", "4096"],
        "{table}"
    );
    for row in &rows {
        assert_eq!(row.len(), 13, "{table}");
        assert_eq!(
            (row[2], row[3], row[4], row[8], row[12]),
            ("float", "sum", "-1", "0", "0"),
            "{table}"
        );
    }
    assert!(table.contains("# Out of bounds values : 0 OK"), "{table}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 3);
}

/// Weights 1 and 3 are quarters.
#[test]
fn the_table_names_the_shares_of_several_aggregators() {
    let daemons = [Daemon::start(), Daemon::start()];
    let all = format!("{},{}", daemons[0].address, daemons[1].address);
    let arguments = ["--aggregator", &all, "--weights", "1,3", "-b", "64", "-e", "64", "-n", "2"];
    let mut rank = daemons[0].bench("shares", 0, 1, &arguments);
    rank.wait_success(PATIENCE).unwrap();
    let table = rank.stdout();
    for (daemon, percent) in daemons.iter().zip(["25.0", "75.0"]) {
        let expected = format!("{} ({percent} %)", daemon.address);
        assert!(table.contains(&expected), "no {expected:?} in {table}");
    }
}

#[test]
fn the_doctor_finds_nothing() {
    the_doctor_is_content_with(&Daemon::start());
}

/// The control plane may be reached over IPv6; the data plane has its own address.
#[test]
fn the_doctor_finds_nothing_by_ipv6() {
    the_doctor_is_content_with(&Daemon::by_ipv6());
}

fn the_doctor_is_content_with(daemon: &Daemon) {
    let mut doctor = daemon.worker(&["doctor"]);
    doctor.wait_success(PATIENCE).unwrap();
    let text = doctor.stdout();
    assert_eq!(text.lines().count(), 10, "{text}");
    assert!(text.lines().all(|line| line.starts_with("ok ")), "{text}");
    assert_eq!(doctor.stderr(), "");
}

/// What `cargo xtask bench` asks of ranks: sums in three precisions, one of them sparse, a
/// broadcast, and sums for a given time.
#[test]
fn ranks_told_by_a_file() {
    let daemon = Daemon::start();
    let path = tempfile::NamedTempFile::new().unwrap();
    let commands = "1 3 5000 2 4 0 1 32\n2 1 50000 0 3 0 10 32\n3 2 5000 1 2 0 1 16\n\
                    4 2 5000 1 2 0 1 8\n5 2 5000 1 2 1 1 32\n6 50 1000 2 1\n";
    std::fs::write(&path, commands).unwrap();
    let file = path.path().to_str().unwrap();
    let start =
        |rank| daemon.worker(&["rank", "--job", "told", "--rank", rank, "--world-size", "2", file]);
    let mut ranks = ["0", "1"].map(start);
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    assert_eq!(ranks[1].stdout(), "", "only rank 0 prints");
    let reports = ranks[0].stdout();
    let reports: Vec<Value> =
        reports.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 6);
    for (report, number) in reports.iter().zip(1..) {
        assert_eq!((&report["command"], &report["wrong"]), (&number.into(), &0.into()), "{report}");
        assert!(report["seconds"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert!(reports[5]["bytes"].as_u64().unwrap() >= 4000, "{}", reports[5]);
}

/// Two buckets of f32: 262,144 elements, ready after 20 of 30 ms, and 1,001 in the end. A step
/// takes its computing at least, and is right in each precision.
#[test]
fn a_training_step_of_two_ranks() {
    let path = tempfile::NamedTempFile::new().unwrap();
    let step = "layer_index,numel,forward_pass_ns,backward_pass_ns\nfirst,1000,5000000,5000000\n\
                second,1,5000000,5000000\nthird,262144,5000000,5000000\n";
    std::fs::write(&path, step).unwrap();
    let file = path.path().to_str().unwrap();
    for (dtype, precision, element) in
        [("f32", "exact", 4), ("f32", "16", 4), ("f32", "8", 4), ("bf16", "exact", 2)]
    {
        let what = ["--dtype", dtype, "--precision", precision, "-n", "3", "-w", "1", "-c", "2"];
        let report = bench(2, &[&["--trace", file], &what[..]].concat());
        assert_eq!(report["out_of_bounds"], 0, "{report}");
        assert_eq!(report["differing"], false, "{report}");
        assert_eq!((&report["gradients"], &report["world_size"]), (&3.into(), &2.into()));
        assert_eq!(report["bytes"], 263_145 * element, "{report}");
        // 262,144 elements of 2 bytes do not fill the first bucket.
        assert_eq!(report["buckets"], if element == 4 { 2 } else { 1 }, "{report}");
        let times = |name: &str| -> Vec<f64> {
            report[name].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect()
        };
        assert_eq!(report["compute_ms"], 30.0);
        let (steps, alone) = (times("step_ms"), times("communication_ms"));
        assert_eq!((steps.len(), alone.len()), (3, 3), "{report}");
        assert!(steps.iter().all(|time| *time >= 30.0), "{report}");
        assert!(alone.iter().all(|time| *time > 0.0), "{report}");
    }
}

#[test]
fn the_text_of_a_training_step() {
    let daemon = Daemon::start();
    let arguments = ["--model", "resnet50", "--compute", "20", "-n", "1", "-w", "0"];
    let mut rank = daemon.bench("step", 0, 1, &arguments);
    rank.wait_success(PATIENCE).unwrap();
    let text = rank.stdout();
    let starts = [
        "# Training step: resnet50",
        "# 1 ranks, 161 gradients of 102228128 bytes in 5 buckets, ",
        "computing alone        20.0",
        "communication alone ",
        "step ",
        "communication hidden ",
        "# Out of bounds values : 0 OK",
    ];
    assert_eq!(text.lines().count(), starts.len(), "{text}");
    for (line, start) in text.lines().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn options_from_a_file() {
    let daemon = Daemon::start();
    let path = tempfile::NamedTempFile::new().unwrap();
    let options = "job = 'of-file'\nworld-size = 2\nminbytes = '4K'\nmaxbytes = '4K'\n\
                   iters = 3\nsparsity = '0.5'\njson = '-'\n";
    std::fs::write(&path, options).unwrap();
    let file = path.path().to_str().unwrap();
    let start = |rank| daemon.worker(&["bench", "--config", file, "--rank", rank, "-n", "2"]);
    let mut ranks = ["0", "1"].map(start);
    for rank in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    let report: Value = serde_json::from_str(&ranks[0].stdout()).unwrap();
    check(&report, 2, &[4096], 4);
    assert_eq!((&report["iters"], &report["sparsity"]), (&2.into(), &0.5.into()), "{report}");

    let mut doctor = daemon.worker(&["doctor", "--config", file]);
    let (code, line) = failure(&mut doctor);
    assert_eq!(code, 2);
    let told = "unknown option \"iters\"; options are aggregator, meeting, ";
    assert!(line.contains(told), "{line}");
}

/// Passes one connection on to a control plane, and refuses those that follow. Returns its address.
fn one_connection_to(control: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let there = TcpStream::connect(control).unwrap();
    thread::spawn(move || {
        let (here, _) = listener.accept().unwrap();
        drop(listener);
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Write);
            }
        };
        thread::spawn(pass(here.try_clone().unwrap(), there.try_clone().unwrap()));
        pass(there, here)();
    });
    address
}

#[test]
fn an_aggregator_that_does_not_tell_its_status_is_measured_all_the_same() {
    let daemon = Daemon::start();
    let arguments = ["-b", "8", "-e", "8", "--json", "-"];
    let mut ranks: Vec<_> = (0..2)
        .map(|rank| {
            let address = one_connection_to(&daemon.address);
            let arguments = [&["--aggregator", &address][..], &arguments].concat();
            (address.clone(), daemon.bench("without status", rank, 2, &arguments))
        })
        .collect();
    for (_, rank) in &mut ranks {
        rank.wait_success(PATIENCE).unwrap();
    }
    let (address, first) = &ranks[0];
    let report: Value = serde_json::from_str(&first.stdout()).unwrap();
    check(&report, 2, &[8], 4);
    assert_eq!(report["data_plane"], "unknown");
    assert_eq!(report["aggregator"], **address);
}
