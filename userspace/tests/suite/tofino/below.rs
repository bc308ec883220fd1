//! A switch as a combiner: its entries for a job below a root, and what it refuses.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use switchml_bfrt_switch::{Entry, Switch};
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::join_event::Event;
use switchml_control::{Assigned, StatusRequest};
use switchml_p4::tofino::{COMBINER, deploy};
use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::Binding;

use super::jobs::learn;
use super::schema::{self, SETS, full};
use super::{PORTS, Site, TABLES_OF_PORTS, combiner, switch};
use crate::common::program::{Program, aggregator};
use crate::common::{Daemon, NOBODY, PATIENCE, Path, Rank};

/// The port towards the root, which is number 5, and the root's MAC.
const UPLINK: [&str; 4] = ["--uplink-port", "2/1", "--uplink-mac", "02:00:00:00:00:fe"];
const ROOTS_MAC: u64 = 0x0200_0000_00FE;

fn site() -> Site {
    Site::with(&schema::of_combiner(), PORTS)
}

/// The arguments of a combiner's daemon, without the way to its parent.
fn arguments(site: &Site, switch: &Switch, parent: &str) -> Vec<String> {
    let folder = site.path().display();
    let given = format!(
        "--control 127.0.0.1:0 --data-plane tofino --data-address 10.0.0.254 \
         --tofino-server {} --tofino-program {folder} --tofino-ports {folder}/ports.toml \
         --parent {parent}",
        switch.address
    );
    given.split(' ').map(str::to_owned).collect()
}

/// The daemon's command, with the uplink.
fn command(site: &Site, switch: &Switch, parent: &str) -> std::process::Command {
    let given = arguments(site, switch, parent);
    let given: Vec<_> = given.iter().map(String::as_str).chain(UPLINK).collect();
    aggregator(&given)
}

/// The place of a rank below: all are behind port 0.
fn binding(rank: u16) -> Binding {
    let low = rank as u8 + 1;
    Binding {
        ifindex: 0,
        ip: [10, 0, 0, low].into(),
        mac: [2, 0, 0, 0, 0, low],
        port: U16::new(40_000 + rank),
        ..Binding::default()
    }
}

/// Waits until a table has this many entries.
async fn until_it_has(switch: &Switch, table: &str, count: usize) {
    let there = async {
        while switch.entries(&full(table)).len() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, there).await.expect("written in time");
}

/// The data of the entry with this action and these values in its key; there is one.
fn data_of(
    switch: &Switch,
    table: &str,
    action: &str,
    key: &[(&str, u64)],
) -> BTreeMap<String, u64> {
    let is_meant = |entry: &Entry| {
        entry.action.ends_with(&format!(".{action}"))
            && key.iter().all(|(name, value)| entry.key[*name].0 == *value)
    };
    let mut found = switch.entries(&full(table));
    found.retain(is_meant);
    let [entry] = &found[..] else { panic!("{action} in {table}: {found:?}") };
    entry.data.iter().map(|(name, values)| (name.clone(), values[0])).collect()
}

fn named(values: &[(&str, u64)]) -> BTreeMap<String, u64> {
    values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// Expected values from rules 3.5 and 27.2, for ranks 0 and 1 of job 0 below, and rank 2 at the
/// root, whose data plane is at 127.0.0.1.
fn assert_what_is_below(switch: &Switch, assigned: &Assigned, root: u64) {
    let epoch = u64::from(assigned.epoch);
    let (group, to_all) = (1, 48864 + 1025);
    let up = data_of(switch, "uplinks", "up", &[("job", 0)]);
    let expected = [("mac", ROOTS_MAC), ("address", 0x7F00_0001), ("udp_port", root), ("port", 5)];
    assert_eq!(up, named(&expected));
    let mut ports: Vec<_> = switch
        .entries(&full("aggregators"))
        .iter()
        .map(|entry| {
            assert_eq!((entry.key["is_udp"].0, entry.key["aggregator"].0), (1, 0x0A00_00FE));
            entry.key["udp_port"].0
        })
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [48864, 48865, 48866, to_all], "the data port, of both ranks, of all");
    let from_root = |rank, own_port| {
        let parent = [("parent", 0x7F00_0001), ("parent_port", root)];
        let here = [("uplink", 5), ("aggregator", 0x0A00_00FE), ("own_port", own_port)];
        [&[("job", 0), ("epoch", epoch), ("rank", rank)], &parent[..], &here].concat()
    };
    for rank in [0, 1] {
        let key = [("kind", 1), ("rank", rank), ("udp_port", 40_000 + rank)];
        let (own, rest) = (1 << rank, 0b11 & !(1 << rank));
        // Two ranks, of the group that begins with rank 0: one more salt, their bitmap.
        let expected =
            [("own", own), ("rest", rest), ("surplus", 0b11), ("salts", 1), ("from", 48865 + rank)];
        assert_eq!(data_of(switch, "members", "admit", &key), named(&expected), "rank {rank}");
        let expected = [
            ("from", 48865 + rank),
            ("parent_mac", ROOTS_MAC),
            ("parent", 0x7F00_0001),
            ("parent_port", root),
            ("uplink", 5),
        ];
        let key = [("rank", rank), ("udp_port", 40_000 + rank)];
        assert_eq!(data_of(switch, "bindings", "greet", &key), named(&expected), "rank {rank}");
        let host = [("mac", 0x0200_0000_0001 + rank), ("address", 0x0A00_0001 + rank)];
        let expected = [&host[..], &[("udp_port", 40_000 + rank), ("port", 0)]].concat();
        let answers = data_of(switch, "answers", "to_rank", &from_root(rank, 48865 + rank));
        assert_eq!(answers, named(&expected), "rank {rank}");
    }
    let expected = [
        ("group", group),
        ("mac", 0x0100_5E7F_0000),
        ("address", 0xEFFF_0000),
        ("udp_port", 48866),
    ];
    let answers = data_of(switch, "answers", "to_group", &from_root(0xFFFF, to_all));
    assert_eq!(answers, named(&expected));
    let nodes = switch.entries("$pre.node");
    let node = nodes.iter().find(|node| node.key["$MULTICAST_NODE_ID"].0 == group);
    assert_eq!(node.expect("the job's group").data["$DEV_PORT"], [0], "not to the root");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_below_a_root_until_it_is_told_to_stop() {
    let (root, site, switch) = (Daemon::start(512).await, site(), combiner());
    let (mut daemon, log) = Program::start(&mut command(&site, &switch, &root.control.to_string()));
    let log = std::thread::spawn(move || log.collect::<Vec<_>>());
    let mut client =
        AggregatorClient::connect(format!("http://{}", daemon.control)).await.expect("connected");
    let status = client.status(StatusRequest {}).await.expect("a status").into_inner();
    assert_eq!((status.data_plane.as_str(), status.cells), ("tofino", SETS));
    assert_eq!(status.parent, root.control.to_string());
    let attached = "program switchml_combiner on the switch at 127.0.0.1:";
    assert!(status.attachment.starts_with(attached), "{}", status.attachment);

    let mut ranks = Vec::new();
    for (rank, at) in (0..).zip([daemon.control, daemon.control, root.control]) {
        ranks.push(Rank::join(at, "train", rank, 3).await);
    }
    let mut assigned = Vec::new();
    for rank in &mut ranks {
        assigned.push(rank.assigned().await);
    }
    let told = &assigned[0];
    assert_eq!((told.job, told.max_lanes), (0, 64));
    assert_eq!((told.data_address.as_str(), told.data_port), ("10.0.0.254", 48864));
    for rank in [0, 1] {
        learn(&switch, 0, told.epoch, rank, binding(rank));
    }
    until_it_has(&switch, "bindings", 2).await;
    // There is no pipeline that would pass their HELLOs on.
    let at_root = (assigned[2].data_address.clone(), assigned[2].data_port);
    for (rank, assigned) in ranks.iter_mut().zip(&assigned) {
        let (data_address, data_port) = at_root.clone();
        let passed = Assigned { data_address, data_port, ..assigned.clone() };
        let path = Path::new(passed, rank.rank as u16);
        path.hello();
        rank.ready(assigned, 64).await.expect("ready");
    }
    for rank in &mut ranks {
        assert!(matches!(rank.next().await, Event::Started(started) if started.lanes == 64));
    }
    assert_what_is_below(&switch, told, at_root.1.into());

    kill_process(Pid::from_child(&daemon.process), Signal::TERM).expect("signalled");
    assert!(daemon.process.wait().expect("ended").success());
    assert_eq!(switch.occupied().into_keys().collect::<Vec<_>>(), TABLES_OF_PORTS);
    let Event::Aborted(aborted) = ranks[0].next().await else { panic!("not aborted") };
    assert!(aborted.reason.ends_with(" failed: it stops"), "{}", aborted.reason);
    let log = log.join().expect("read");
    assert!(log.iter().any(|line| line.contains("stopping")), "{log:?}");
}

/// The parent may be behind the switch, so it is asked only once that forwards; if it does not
/// answer, the switch is left as it was.
#[test]
fn a_parent_that_does_not_answer_leaves_a_clean_switch() {
    let (site, switch) = (site(), combiner());
    let nobody = std::net::SocketAddr::from(NOBODY).to_string();
    let output = command(&site, &switch, &nobody).output().expect("started");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).expect("text");
    let last = error.lines().last().expect("a line");
    let expected = format!("no aggregator answers at the parent's address {nobody} (");
    assert!(last.contains(&expected), "{error}");
    assert_eq!(switch.occupied().into_keys().collect::<Vec<_>>(), TABLES_OF_PORTS);
}

#[test]
fn without_a_way_to_the_parent_it_does_not_start() {
    let (site, switch) = (site(), combiner());
    let given = arguments(&site, &switch, "127.0.0.1:1");
    let given: Vec<_> = given.iter().map(String::as_str).collect();
    let output = aggregator(&given).output().expect("started");
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{error}");
    let expected =
        "error: --parent needs --uplink-port and --uplink-mac with --data-plane tofino, ";
    assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_s_program_is_no_combiner_s_and_the_other_way_round() {
    let (of_root, of_combiner) = (Site::new(), site());
    let line = |error: switchml_p4::tofino::StartError| {
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    };
    // Files of the other kind.
    let roots = switch();
    let error = line(of_root.start_below(roots.address, "2/1").await.err().expect("refused"));
    let words = "bf-rt.json is of tofino.p4, the root's program; with --parent it must be \
                 tofino_combiner.p4; give the folder of that one: ";
    assert!(error.contains(words), "{error}");
    let combiners = combiner();
    let error = line(of_combiner.start(combiners.address).await.err().expect("refused"));
    let words = "bf-rt.json is of tofino_combiner.p4, a combiner's program; without --parent it \
                 must be tofino.p4; give the folder of that one: ";
    assert!(error.contains(words), "{error}");
    // The right files, but a switch that runs the other program.
    let error = line(of_combiner.start_below(roots.address, "2/1").await.err().expect("refused"));
    let words = "Failed to find BfRtInfo for program switchml_combiner; deploy this version's \
                 tofino_combiner.p4 with `switchml-aggregator deploy`";
    assert!(error.ends_with(words), "{error}");
    let error = line(of_root.start(combiners.address).await.err().expect("refused"));
    let words = "for program switchml; deploy this version's tofino.p4 with ";
    assert!(error.contains(words), "{error}");
    assert!(roots.occupied().is_empty() && combiners.occupied().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_the_switch_does_not_have_is_named_with_those_that_it_has() {
    let (site, switch) = (site(), combiner());
    let error = site.start_below(switch.address, "31/0").await.err().expect("refused").to_string();
    let file = site.path().join("ports.toml").display().to_string();
    let expected = format!(
        "--uplink-port 31/0: {file} lists no such port, but 1/0, 2/1; give one of these, or add it \
         there"
    );
    assert_eq!(error, expected);
    assert!(switch.occupied().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn its_program_is_deployed_under_its_own_name() {
    let (site, switch) = (site(), Switch::start(None));
    for file in ["context.json", "tofino.bin"] {
        std::fs::write(site.path().join("pipe").join(file), file).expect("written");
    }
    let (server, folder) = (switch.address, site.path().to_owned());
    let deployed = tokio::task::spawn_blocking(move || deploy::deploy(server, &folder)).await;
    deployed.expect("no panic").expect("deployed");
    assert_eq!(switch.program().0.as_deref(), Some(COMBINER));
    while !switch.program().1.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    site.start_below(switch.address, "1/0").await.expect("a data plane");
}
