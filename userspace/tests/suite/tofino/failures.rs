//! Failures: each is one line that says what to do.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;
use switchml_bfrt_switch::Switch;
use switchml_control::JoinRequest;
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::join_event::Event;
use switchml_p4::program::ProgramKind;
use switchml_p4::tofino::names::EXCLUSIONS;
use switchml_p4::tofino::{PROGRAM, deploy};
use switchml_userspace_core::data_plane::DataPlane;

use super::schema::{self, TABLES, full, schema};
use crate::common::{Daemon, NOBODY};

use super::{AGGREGATOR, PORTS, Site, join_request, switch, switch_with};

/// The error line of a data plane that does not start.
async fn refusal(site: &Site, switch: &Switch) -> String {
    let error = site.start(switch.address).await.err().expect("a refusal").to_string();
    assert!(!error.contains('\n'), "{error:?}");
    error
}

/// A schema without the object at the path of indices and names.
fn without(list: &str, name: &str) -> Value {
    let mut schema = schema();
    let list = schema.pointer_mut(list).and_then(Value::as_array_mut).expect("such a list");
    let before = list.len();
    list.retain(|item| item["name"] != *name);
    assert_eq!(list.len() + 1, before, "{name} was there");
    schema
}

/// The schema is the program's, whose tables another test compares with the P4 source.
#[test]
fn the_schema_has_the_tables_of_the_program() {
    has_the_tables(ProgramKind::Root, &TABLES.iter().collect::<Vec<_>>());
    has_the_tables(ProgramKind::Combiner, &schema::tables_of_combiner().collect::<Vec<_>>());
}

fn has_the_tables(kind: ProgramKind, tables: &[&schema::Table]) {
    let short = |name: &'static str| name.rsplit('.').next().expect("a name");
    assert_eq!(tables.len(), kind.tables().count() + 1, "{kind:?}");
    for table in kind.tables().chain([&EXCLUSIONS]) {
        let (.., key, actions) =
            tables.iter().find(|(name, ..)| *name == table.name).expect("a table of that name");
        assert_eq!(
            key.iter().map(|(name, _)| short(name)).collect::<Vec<_>>(),
            table.key,
            "{}",
            table.name
        );
        for (action, parameters) in table.actions {
            let (_, found) =
                actions.iter().find(|(name, _)| name == action).expect("an action of that name");
            assert_eq!(
                found.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
                *parameters,
                "{action}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_another_program_is_refused_with_the_name_that_is_missing() {
    let switch = switch();
    for (list, name, missing) in [
        ("/tables", &*full("bindings"), "table bindings"),
        ("/tables", schema::ROUNDS, "table rounds"),
        ("/tables", schema::RANKS, "table ranks"),
        ("/tables", schema::OUTCOMES, "table outcomes"),
        ("/tables/0/key", "slot", "field slot in the table pipe.Ingress.aggregator.members"),
        ("/tables/1/action_specs", "Ingress.aggregator.misplaced", "action misplaced in the table"),
        ("/tables/0/action_specs/0/data", "own", "parameter of admit own in the table"),
        ("/learn_filters", schema::LEARN, "digest learn"),
        ("/learn_filters/0/fields", "mac", "field mac in the digest pipe.IngressDeparser.learn"),
    ] {
        let site = Site::with(&without(list, name), PORTS);
        let error = refusal(&site, &switch).await;
        assert!(error.contains(&format!("bf-rt.json has no {missing}")), "{error}");
        assert!(error.ends_with("build this version's with `cargo xtask p4 build`"), "{error}");
    }
    assert!(switch.occupied().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_with_another_program_is_refused() {
    let site = Site::new();
    let switch = switch_with(&without("/tables", &full("newcomers")));
    let error = refusal(&site, &switch).await;
    assert!(
        error.contains(
            "its program has no table pipe.Ingress.aggregator.newcomers; deploy this version's"
        ),
        "{error}"
    );
    let switch = Switch::start(Some(("tna_counter", &schema().to_string())));
    let error = refusal(&site, &switch).await;
    assert!(
        error.contains("Failed to find BfRtInfo for program switchml; deploy this version's"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_has_one_daemon() {
    let (site, switch) = (Site::new(), switch());
    let _first = site.start(switch.address).await.expect("the first");
    let error = refusal(&site, &switch).await;
    assert!(error.contains("already owns this P4"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_that_is_not_there_is_said_to_be() {
    let (site, address) = (Site::new(), SocketAddr::from(NOBODY));
    let error = site.start(address).await.err().expect("a refusal").to_string();
    assert_eq!(
        error,
        format!(
            "the switch at {address}: it cannot be reached; is bf_switchd running there, \
             with its BFRT server on that port?"
        )
    );
}

/// A job that begins when the switch has gone is told so; the daemon serves on.
#[tokio::test(flavor = "multi_thread")]
async fn a_switch_that_goes_fails_the_next_job_in_one_line() {
    let (site, switch) = (Site::new(), switch());
    let daemon = super::daemon(&site, &switch).await;
    drop(switch);
    for _ in 0..2 {
        let mut rank = daemon.join("train", 0, 1).await;
        let reason = loop {
            match rank.next().await {
                Event::Aborted(aborted) => break aborted.reason,
                Event::Waiting(_) | Event::Assigned(_) => {}
                other => panic!("{other:?}"),
            }
        };
        assert!(
            reason.starts_with("the aggregator failed: open job ") && !reason.contains('\n'),
            "{reason:?}"
        );
        assert!(reason.ends_with(" on the switch: it cannot be reached"), "{reason:?}");
    }
}

/// The watchdog asks for that: a daemon that waits for a switch lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_data_plane_whose_switch_does_not_answer_says_that_it_waits() {
    let (site, switch) = (Site::new(), switch());
    let data_plane = Arc::new(site.start(switch.address).await.expect("a data plane"));
    let daemon = Daemon::serve(data_plane.clone(), data_plane.limits(), Some(AGGREGATOR.into()));
    let daemon = daemon.await;
    assert!(!data_plane.is_waiting());
    let hanging = switch.hang();
    let mut client = daemon.client().await;
    let request = JoinRequest { job_name: "a".to_owned(), world_size: 1, ..join_request() };
    let joins = tokio::spawn(async move { client.join(request).await.map(drop) });
    while !data_plane.is_waiting() {
        assert!(!joins.is_finished(), "the job has opened");
        tokio::task::yield_now().await;
    }
    drop(hanging);
    joins.await.expect("no panic").expect("joined, whatever becomes of the job");
    while data_plane.is_waiting() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_brought_up_as_the_file_says() {
    let (site, switch) = (Site::new(), switch());
    let settings = |switch: &Switch| -> Vec<(u64, String, String, String, u64)> {
        let text =
            |values: &[u64]| values.iter().map(|byte| char::from(*byte as u8)).collect::<String>();
        let ports = switch.entries("$PORT").into_iter().map(|port| {
            let of = |name: &str| text(&port.data[name]);
            (
                port.key["$DEV_PORT"].0,
                of("$SPEED"),
                of("$FEC"),
                of("$AUTO_NEGOTIATION"),
                port.data["$PORT_ENABLE"][0],
            )
        });
        ports.collect()
    };
    let port = |number, speed: &str, fec: &str, auto: &str| {
        (
            number,
            format!("BF_SPEED_{speed}"),
            format!("BF_FEC_TYP_{fec}"),
            format!("PM_AN_{auto}"),
            1,
        )
    };
    let expected =
        [port(0, "100G", "REED_SOLOMON", "FORCE_DISABLE"), port(5, "25G", "NONE", "DEFAULT")];
    drop(site.start(switch.address).await.expect("the first"));
    assert_eq!(settings(&switch), expected);
    while !switch.program().1.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // Ports with the right settings are left alone, others are made again.
    let faster = Site::with(&schema(), &PORTS.replace("25G", "50G"));
    drop(faster.start(switch.address).await.expect("the second"));
    assert_eq!(settings(&switch), [expected[0].clone(), port(5, "50G", "NONE", "DEFAULT")]);
    let none = Site::with(&schema(), &PORTS.replace("2/1", "65/0"));
    while !switch.program().1.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let error = refusal(&none, &switch).await;
    assert!(error.contains("port 65/0: there is no port of that name"), "{error}");
}

/// A table that is full fails the job that finds it so, with the switch's words; the next one,
/// which fits, is served.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_table_fails_a_job_in_one_line() {
    let mut small = schema();
    // Two refusals are for all jobs; a job of two ranks has 8 more, a job of three 13.
    small["tables"][6]["size"] = 12.into();
    let (site, switch) = (Site::new(), switch_with(&small));
    let daemon = super::daemon(&site, &switch).await;
    let before = switch.occupied();
    let mut ranks = Vec::new();
    for rank in 0..3 {
        ranks.push(daemon.join("large", rank, 3).await);
    }
    let aborted = loop {
        if let Event::Aborted(aborted) = ranks[0].next().await {
            break aborted.reason;
        }
    };
    assert!(
        aborted.contains(
            "open job 0 on the switch: table:pipe.Ingress.aggregator.refusals \
             Table Add failed: no space"
        ),
        "{aborted}"
    );
    assert!(!aborted.contains('\n'));
    drop(ranks);
    let mut ranks = Vec::new();
    for rank in 0..2 {
        ranks.push(daemon.join("small", rank, 2).await);
    }
    ranks[0].assigned().await;
    drop(ranks);
    daemon.stop().await;
    assert!(
        before.contains_key(&full("refusals"))
            && !switch.occupied().contains_key(&full("refusals"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_too_large_or_too_many_are_refused() {
    let (site, switch) = (Site::new(), switch());
    let daemon = super::daemon(&site, &switch).await;
    let mut client =
        AggregatorClient::connect(format!("http://{}", daemon.control)).await.expect("connected");
    let request = |name: &str, world_size| JoinRequest {
        job_name: name.to_owned(),
        world_size,
        ..join_request()
    };
    let error = client.join(request("large", 33)).await.expect_err("too large");
    assert_eq!(error.message(), "world size 33; a job has 1 to 32 ranks");
    let mut ranks = Vec::new();
    for number in 0..16 {
        ranks.push(daemon.join(&format!("job {number}"), 0, 1).await);
        ranks[number].assigned().await;
    }
    let Event::Aborted(aborted) = daemon.join("one more", 0, 1).await.next().await else {
        panic!("not refused")
    };
    assert_eq!(aborted.reason, "the aggregator has 16 jobs already; wait for one to end");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_is_deployed_to_an_empty_switch() {
    let (site, switch) = (Site::new(), Switch::start(None));
    let deploy = |folder: std::path::PathBuf| {
        let server = switch.address;
        tokio::task::spawn_blocking(move || deploy::deploy(server, &folder))
    };
    let error =
        deploy(site.path().to_owned()).await.expect("no panic").expect_err("no binary").to_string();
    assert!(
        error.contains("context.json: No such file") && error.contains("cargo xtask p4 build"),
        "{error}"
    );
    for file in ["context.json", "tofino.bin"] {
        std::fs::write(site.path().join("pipe").join(file), file).expect("written");
    }
    deploy(site.path().to_owned()).await.expect("no panic").expect("deployed");
    assert_eq!(switch.program().0.as_deref(), Some(PROGRAM));
    // A daemon finds the deployed program.
    while !switch.program().1.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    site.start(switch.address).await.expect("a data plane");
}
