//! Which rank makes a job slow, and why: the page says it in a sentence, and so does `status`.

use std::time::Duration;

use serde_json::Value;
use switchml_rack::{Faults, Impairment, RackOptions, Shaping, wait_until};

use crate::loops::Loops;
use crate::{Cluster, PATIENCE, in_words};

const DEADLINE: Duration = Duration::from_secs(20);

/// The job as the page's data shows it.
fn job(cluster: &Cluster) -> Value {
    let text = cluster.ask(&["status", "--connect", cluster.aggregator.control(), "--json"]);
    serde_json::from_str::<Value>(&text).unwrap()["jobs"][0].take()
}

/// What the page says of the slowness of the job.
fn slow(cluster: &Cluster) -> String {
    job(cluster)["slow"].as_str().unwrap_or_default().to_owned()
}

/// Of each 20 packets to and from rank 2 one is lost, one way and the other.
#[test]
fn a_rank_with_a_bad_link_is_named_with_what_it_loses() {
    let cluster = Cluster::new(RackOptions { workers: 4, wires: true, ..RackOptions::default() });
    let faults =
        |worker, _| Faults { loss: if worker == 2 { 0.05 } else { 0.0 }, ..Faults::default() };
    let impairment = Impairment::in_rack(&cluster.binaries, &cluster.rack, 1, faults).unwrap();
    let loops = Loops::start(&cluster, "train", DEADLINE);
    let expected = format!("{} loses ", in_words(2, "10.88.0.3"));
    wait_until!(PATIENCE, slow(&cluster).starts_with(&expected), "{}", job(&cluster));
    let told = slow(&cluster);
    // Of both ways together a tenth is lost: a packet and its result come in 0.95 × 0.95.
    let percent: u32 = told[expected.len()..].split(' ').next().unwrap().parse().unwrap();
    assert!((4..=12).contains(&percent), "{told}");
    let status = cluster.ask(&["status", "--connect", cluster.aggregator.control()]);
    assert!(status.contains(&format!("slow         job \"train\": {expected}")), "{status}");
    assert!(status.contains("packets      job \"train\": rank 2: "), "{status}");
    loops.stop();
    impairment.stop().unwrap();
}

/// The others' links have no bound.
#[test]
fn a_rank_with_a_slow_link_is_named_with_what_it_carries() {
    let cluster = Cluster::new(RackOptions { workers: 4, ..RackOptions::default() });
    let shaping = Shaping::of(cluster.rack.worker(3), 20_000_000).unwrap();
    let loops = Loops::start(&cluster, "train", DEADLINE);
    let expected = format!("{} is ", in_words(3, "10.88.0.4"));
    wait_until!(PATIENCE, slow(&cluster).starts_with(&expected), "{}", job(&cluster));
    let told = slow(&cluster);
    let (_, carried) = told.split_once("its link or processor carries ").expect("a rate");
    let (rate, unit) = carried.split_once(' ').expect("a unit");
    let rate: f64 = rate.parse().unwrap();
    // Nothing carries more than the link; calls without lanes in flight take some of the time.
    assert!(unit.starts_with("Mb/s") && (5.0..=22.0).contains(&rate), "{told}");
    loops.stop();
    drop(shaping);
}
