//! What torch's ranks report when one of them is lost, and after how many seconds, beside Gloo.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use switchml_rack::Signal;

use crate::site::{PATIENCE, Site, Torch};

const RANKS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// The rank's process is killed.
    Killed(usize),
    /// The cable of the rank's host is pulled.
    CutOff(usize),
}

impl Event {
    fn rank(self) -> usize {
        match self {
            Self::Killed(rank) | Self::CutOff(rank) => rank,
        }
    }

    /// How long others may take to name the rank, in seconds. A host counts as cut off after 5 s;
    /// the rest is for a busy machine.
    fn limit(self) -> f64 {
        match self {
            Self::Killed(_) => 10.0,
            Self::CutOff(_) => 20.0,
        }
    }
}

/// What a rank saw: seconds from the event to its error, and the error.
struct Seen {
    rank: usize,
    seconds: f64,
    text: String,
}

/// What the ranks that are left see.
fn seen(site: &Site, backend: &str, variables: &[(&str, &str)], event: Event) -> Vec<Seen> {
    let mut ranks = site.ranks(&["lost_rank.py", backend], variables);
    for rank in &mut ranks {
        rank.wait_for_line("adds up", PATIENCE).unwrap();
    }
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let lost = event.rank();
    match event {
        Event::Killed(_) => ranks[lost].signal(Signal::KILL).unwrap(),
        Event::CutOff(_) => link(site, lost, "down"),
    }
    let others = (0..RANKS).filter(|rank| *rank != lost);
    let seen = others.map(|rank| {
        let line = ranks[rank].wait_for_line("\"time\"", PATIENCE).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let text = said["text"].as_str().unwrap().to_owned();
        Seen { rank, seconds: said["time"].as_f64().unwrap() - begin, text }
    });
    let seen = seen.collect();
    drop(ranks);
    if let Event::CutOff(_) = event {
        link(site, lost, "up");
    }
    seen
}

/// Puts the cable of a rank's host in, or pulls it.
fn link(site: &Site, rank: usize, state: &str) {
    let mut command = Command::new("ip");
    command.args(["link", "set", &format!("p{rank}"), state]);
    assert!(site.rack.switch().output(command).unwrap().status.success());
}

#[test]
fn a_lost_rank_is_named_within_seconds_beside_gloo() {
    let name = "a_lost_rank_is_named_within_seconds_beside_gloo";
    let Some(site) = Site::new(Torch::Newest, name, RANKS) else { return };
    let alone = [("SWITCHML_AGGREGATOR", "")];
    let ways = [
        ("switchml", "an aggregator", &[][..]),
        ("switchml", "no aggregator", &alone[..]),
        ("gloo", "Gloo", &[][..]),
    ];
    for event in [Event::Killed(2), Event::Killed(0), Event::CutOff(2), Event::CutOff(0)] {
        for (backend, way, variables) in ways {
            for Seen { rank, seconds, text } in seen(&site, backend, variables, event) {
                println!("{event:?}, {way}: rank {rank} after {seconds:.2} s: {text}");
                if backend == "switchml" {
                    let named = format!("rank {} ", event.rank());
                    assert!(text.contains(&named), "{event:?}, {way}: {text}");
                    assert!(seconds < event.limit(), "{event:?}, {way}: {seconds} s");
                }
            }
        }
    }
}
