//! A combiner's entries, compared with the arithmetic of the specification; and the jobs that its
//! data plane refuses.

use super::{below, jobs, spec};
use crate::data_plane::{NextHop, Role};
use crate::entries::Contents;
use crate::switch::{Entry, Match};
use crate::tests::changes::Bench;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::header::Kind;
use switchml_userspace_core::data_plane::{DataPlane, JobSpec, ServesJobs};

fn field(entry: &Entry, name: &str) -> Option<u64> {
    entry.key.iter().find(|(field, _)| *field == name).map(|(_, matched)| match *matched {
        Match::Exact(value) | Match::Ternary { value, .. } => value,
    })
}

/// A table's entries for packets of this rank.
fn entries_of(contents: &Contents, table: &str, rank: u64) -> Vec<Entry> {
    let entries = contents.entries.iter();
    let is_one = |entry: &&Entry| entry.table == table && field(entry, "rank") == Some(rank);
    entries.filter(is_one).cloned().collect()
}

/// Ranks 20 to 39 of job 3: 12 of one group, 8 of the next. Rule 3.5 for the check word, rule 27.2
/// for ports.
#[test]
fn contributions_know_what_is_below() {
    let contents = Contents::of(&[1, 2], &jobs([below(3, 20..40)]));
    for (rank, own, all, surplus) in [
        (20, 1 << 20, 0xFFF0_0000, 0xFFF0_0000),
        (31, 1 << 31, 0xFFF0_0000, 0xFFF0_0000),
        (32, 1, 0xFF, 0xFF + 32),
        (39, 1 << 7, 0xFF, 0xFF + 32),
    ] {
        let members = entries_of(&contents, "members", rank);
        let is_own = |entry: &&Entry| field(entry, "kind") == Some(Kind::Contribution as u64);
        let data = &members.iter().find(is_own).expect("an entry").data;
        let port = 48864 + 1 + rank + 3 * 64;
        let expected =
            [("own", own), ("rest", all - own), ("surplus", surplus), ("salts", 1), ("from", port)];
        assert_eq!(data[..], expected, "rank {rank}");
        let answers = entries_of(&contents, "answers", rank);
        assert_eq!(answers.len(), 1);
        assert_eq!((answers[0].action, field(&answers[0], "own_port")), ("to_rank", Some(port)));
    }
    let to_all = &entries_of(&contents, "answers", 0xFFFF)[0];
    assert_eq!((to_all.action, field(to_all, "own_port")), ("to_group", Some(48864 + 1025 + 3)));
    let odd = Contents::of(&[1, 2], &jobs([below(3, 4..7)]));
    let entry = &entries_of(&odd, "members", 5)[0];
    assert_eq!(entry.data[3], ("salts", 0));
}

/// A rank that is alone in its group goes by, and so do all ranks of an aborted job, which the root
/// answers.
#[test]
fn who_waits_for_nobody_goes_by() {
    let mut aborted = below(1, 0..2);
    aborted.is_aborted = true;
    let contents = Contents::of(&[1, 2], &jobs([below(0, 32..33), aborted]));
    let actions = contents.entries.iter().filter(|entry| entry.table == "members");
    assert!(actions.clone().count() > 3);
    assert!(actions.clone().all(|entry| entry.action == "pass_by"));
}

/// Another combiner would wait in vain for RESULTs to all: a switch sends these to the group alone.
#[test]
fn it_has_cells_and_is_no_parent() {
    let combiner = Bench::of(Role::Combiner(NextHop { port: 3, mac: [2; 6] }));
    assert_eq!(combiner.data_plane.cells(), 16384);
    assert_eq!(combiner.data_plane.limits().capabilities, Capabilities::empty());
    assert_eq!(Bench::of(Role::Root(Capabilities::empty())).data_plane.cells(), 0);
}

#[test]
fn what_does_not_fit_below_is_refused() {
    let bench = Bench::of(Role::Combiner(NextHop { port: 3, mac: [2; 6] }));
    let parent = Some(([10, 0, 1, 254], 48864).into());
    let spec = |number| JobSpec { secrets: vec![], parent, ..spec(number, 0, 0..512) };
    let refused = |spec: &JobSpec| bench.data_plane.open(spec).unwrap_err().to_string();
    let root = JobSpec { parent: None, ..spec(1) };
    assert_eq!(refused(&root), "open job 1 on the switch: its program has another role");
    let why = "there is room only for jobs below 4096, of up to 1024 slots";
    assert_eq!(refused(&spec(4096)), format!("open job 4096 on the switch: {why}"));
    let long = JobSpec { slots: 0..1025, ..spec(1) };
    assert_eq!(refused(&long), format!("open job 1 on the switch: {why}"));
    for number in 100..116 {
        bench.data_plane.open(&spec(number)).unwrap();
    }
    assert_eq!(refused(&spec(116)), "open job 116 on the switch: there is room for only 16 jobs");
    (0..32).for_each(|rank| bench.data_plane.admit(100, rank, 7).unwrap());
    bench.data_plane.admit(100, 31, 7).unwrap();
    let full = bench.data_plane.admit(100, 32, 7).unwrap_err().to_string();
    assert_eq!(full, "extend job 100 on the switch: there is room for only 32 ranks below it");
    bench.data_plane.close(107).unwrap();
    bench.data_plane.open(&spec(116)).unwrap();
}
