//! The choice between packets of 64 and of 256 lanes, and the ports that go in loopback for it.

use std::collections::BTreeMap;

use switchml_bfrt_switch::Switch;
use switchml_p4::tofino::{OF_256, PROGRAM};

use super::schema::{self, full};
use super::{Site, switch};

/// Ports of so many connectors, from this one on.
fn ports(first: u16, count: u16, speed: &str) -> String {
    let port = |connector| format!("[[port]]\nname = \"{connector}/0\"\nspeed = \"{speed}\"\n");
    (first..first + count).map(port).collect()
}

/// A folder with both programs, as `cargo xtask p4 build` leaves it.
fn site(ports: &str) -> Site {
    let site = Site::with(&schema::schema(), ports);
    let wide = site.path().join("256");
    std::fs::create_dir_all(wide.join("pipe")).expect("a folder");
    std::fs::write(wide.join("bf-rt.json"), schema::of_256_lanes().to_string()).expect("written");
    for folder in [site.path(), &wide] {
        for file in ["context.json", "tofino.bin"] {
            std::fs::write(folder.join("pipe").join(file), file).expect("written");
        }
    }
    site
}

fn wide_switch() -> Switch {
    Switch::start(Some((OF_256, &schema::of_256_lanes().to_string())))
}

/// The ports in loopback, by number, with their speed.
fn loops(switch: &Switch) -> BTreeMap<u64, String> {
    let text = |values: &[u64]| values.iter().map(|byte| *byte as u8 as char).collect::<String>();
    let ports = switch.entries("$PORT").into_iter();
    let in_loopback = ports.filter(|port| {
        let mode = text(&port.data["$LOOPBACK_MODE"]);
        assert!(mode == "BF_LPBK_NONE" || mode == "BF_LPBK_MAC_NEAR", "{mode}");
        mode == "BF_LPBK_MAC_NEAR"
    });
    in_loopback.map(|port| (port.key["$DEV_PORT"].0, text(&port.data["$SPEED"]))).collect()
}

/// The ports that exist, by number.
fn numbers(switch: &Switch) -> Vec<u64> {
    switch.entries("$PORT").into_iter().map(|port| port.key["$DEV_PORT"].0).collect()
}

/// The ports in loopback that the parser is told of.
fn believed(switch: &Switch) -> Vec<u64> {
    let told = switch.entries(schema::PORT_METADATA).into_iter();
    let told = told.inspect(|entry| assert_eq!(entry.data["recirculates"], [1]));
    told.map(|entry| entry.key["intrinsic.ingress_port"].0).collect()
}

/// How many classes of slots come to a part by each port.
fn slots_by_port(switch: &Switch, part: u64) -> BTreeMap<u64, usize> {
    let mut found = BTreeMap::new();
    let entries = switch.entries(&full(schema::RECIRCULATION)).into_iter();
    for entry in entries.filter(|entry| entry.key["part"] == (part, Some(3))) {
        *found.entry(entry.data["again"][0]).or_default() += 1;
    }
    found
}

/// The same, if it is the same for all parts.
fn slots_by_port_of_all(switch: &Switch) -> BTreeMap<u64, usize> {
    let [first, others @ ..] = [0, 1, 2, 3].map(|part| slots_by_port(switch, part));
    assert_eq!(others, [(); 3].map(|()| first.clone()));
    first
}

#[tokio::test(flavor = "multi_thread")]
async fn three_ports_of_10_gigabits_get_256_lanes_without_loopback() {
    let (site, switch) = (site(&ports(1, 3, "10G")), switch());
    let _served = site.start(switch.address).await.expect("a data plane");
    assert_eq!(switch.program().0.as_deref(), Some(OF_256), "sent in place of that for 64");
    assert_eq!(loops(&switch), BTreeMap::new());
    assert_eq!(believed(&switch), [0; 0]);
    assert_eq!(slots_by_port_of_all(&switch), BTreeMap::from([(68, 64)]));
    assert_eq!(switch.entries("$PORT").len(), 3);
}

/// At connectors 1 to 8, which are ports 0 to 28. Then fewer: the next daemon ends the loopback of
/// ports that it does not need. Then eight again.
#[tokio::test(flavor = "multi_thread")]
async fn eight_ports_of_25_gigabits_get_four_in_loopback_while_they_are_eight() {
    let (site, switch) = (site(&ports(1, 8, "25G")), wide_switch());
    let served = site.start(switch.address).await.expect("a data plane");
    let at_100 = |ports: &[u64]| -> BTreeMap<_, _> {
        ports.iter().map(|port| (*port, "BF_SPEED_100G".to_owned())).collect()
    };
    assert_eq!(loops(&switch), at_100(&[32, 36, 40, 44]));
    assert_eq!(believed(&switch), [32, 36, 40, 44]);
    let spread = BTreeMap::from([(32, 13), (36, 13), (40, 13), (44, 12), (68, 13)]);
    assert_eq!(slots_by_port_of_all(&switch), spread);
    drop(served);

    // The last of them is part of a connector that was in loopback.
    let split = "[[port]]\nname = \"9/1\"\nspeed = \"10G\"\n";
    std::fs::write(site.path().join("ports.toml"), ports(1, 3, "10G") + split).expect("written");
    until_it_is_free(&switch).await;
    let served = site.start(switch.address).await.expect("a data plane");
    // Connector 4 is the first that is free.
    assert_eq!(loops(&switch), at_100(&[12]));
    assert_eq!(believed(&switch), [12]);
    // What is no longer listed stays as it was, but for the connector that is taken.
    assert_eq!(numbers(&switch), [0, 4, 8, 12, 16, 20, 24, 28, 33]);
    drop(served);

    std::fs::write(site.path().join("ports.toml"), ports(1, 8, "25G")).expect("written");
    until_it_is_free(&switch).await;
    let _served = site.start(switch.address).await.expect("a data plane");
    // A port in loopback takes its whole connector, which was split.
    assert_eq!(numbers(&switch), [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44]);
}

/// Connector 9 and the second pipeline, which begins with connector 17, take what the first cannot.
#[tokio::test(flavor = "multi_thread")]
async fn eight_ports_of_100_gigabits_get_256_lanes_from_two_pipelines() {
    let (site, switch) = (site(&ports(1, 8, "100G")), switch());
    let _served = site.start(switch.address).await.expect("a data plane");
    assert_eq!(switch.program().0.as_deref(), Some(OF_256));
    let second: Vec<_> = (0..15).map(|place| 128 + 4 * place).collect();
    let all = [&[32][..], &second].concat();
    assert_eq!(loops(&switch).into_keys().collect::<Vec<_>>(), all);
    assert_eq!(believed(&switch), all);
    assert_eq!(slots_by_port(&switch, 0), BTreeMap::from([(32, 32), (68, 32)]));
    let spread: BTreeMap<_, _> = second.iter().chain(&[196]).map(|port| (*port, 4)).collect();
    for part in 1..4 {
        assert_eq!(slots_by_port(&switch, part), spread, "part {part}");
    }
}

/// The host's connector, 33, is never free.
#[tokio::test(flavor = "multi_thread")]
async fn full_pipelines_get_64_lanes() {
    let (site, switch) = (site(&ports(1, 32, "100G")), wide_switch());
    let _served = site.start(switch.address).await.expect("a data plane");
    assert_eq!(switch.program().0.as_deref(), Some(PROGRAM), "sent in place of that for 256");
    assert_eq!(loops(&switch), BTreeMap::new());
}

/// Each sends its own program, to a switch of its own.
#[tokio::test(flavor = "multi_thread")]
async fn daemons_that_start_at_once_send_what_each_has_chosen() {
    let start = |place: usize| async move {
        let (ports, switch, chosen) = if place.is_multiple_of(2) {
            (ports(1, 3, "10G"), switch(), OF_256)
        } else {
            (ports(1, 32, "100G"), wide_switch(), PROGRAM)
        };
        let _served = site(&ports).start(switch.address).await.expect("a data plane");
        assert_eq!(switch.program().0.as_deref(), Some(chosen));
    };
    for daemon in (0..8).map(|place| tokio::spawn(start(place))).collect::<Vec<_>>() {
        daemon.await.expect("the program that it has chosen");
    }
}

/// A folder with one program leaves no choice, and the switch must run it.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_alone_is_not_chosen() {
    let of_64 = Site::with(&schema::schema(), &ports(1, 3, "10G"));
    let wide = wide_switch();
    let error = of_64.start(wide.address).await.err().expect("refused").to_string();
    assert!(
        error.ends_with(
            "Failed to find BfRtInfo for program switchml; deploy this version's tofino.p4 with \
             `switchml-aggregator deploy`"
        ),
        "{error}"
    );
    let of_256 = Site::with(&schema::of_256_lanes(), &ports(1, 16, "100G"));
    let error = of_256.start(switch().address).await.err().expect("refused").to_string();
    assert!(error.contains("program switchml_256; deploy this version's tofino_256.p4"), "{error}");
    let _served = of_256.start(wide.address).await.expect("a data plane");
    assert_eq!(slots_by_port_of_all(&wide), BTreeMap::from([(68, 64)]));
}

/// Neither of the two programs runs there: nothing is sent in place of a third.
#[tokio::test(flavor = "multi_thread")]
async fn another_program_is_left_alone() {
    let (site, switch) = (site(&ports(1, 3, "10G")), super::combiner());
    let error = site.start(switch.address).await.err().expect("refused").to_string();
    assert!(error.contains("for program switchml; deploy this version's tofino.p4"), "{error}");
    assert_eq!(switch.program().0.as_deref(), Some(switchml_p4::tofino::COMBINER));
}

/// An earlier daemon's connection has ended.
async fn until_it_is_free(switch: &Switch) {
    while !switch.program().1.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
