//! Ranks by RoCEv2: entries and groups of a job in which some ranks have queue pairs.

use std::collections::{BTreeMap, HashMap};

use super::{binding, job, jobs};
use crate::entries::{Contents, MAX_JOBS, MAX_RANKS, OpenJob};
use crate::roce;
use crate::switch::{Entry, Match, Node};

/// The number of a rank's queue pair. Its low 16 bits are the UDP port that the rank would have.
fn queue_pair(rank: u16) -> u32 {
    0x00AB_0000 + 5000 + u32::from(rank)
}

/// A job of ranks with sockets, of which these have queue pairs instead.
fn mixed(number: u16, ranks: u16, by_roce: &[u16]) -> OpenJob {
    let mut job = OpenJob { takes_roce: true, ..job(number, ranks, true) };
    for rank in by_roce {
        job.bindings.insert(*rank, binding(*rank).at_queue_pair(queue_pair(*rank)));
    }
    job
}

fn of_table<'a>(contents: &'a Contents, table: &str) -> Vec<&'a Entry> {
    contents.entries.iter().filter(|entry| entry.table == table).collect()
}

fn field(entry: &Entry, name: &str) -> Option<Match> {
    entry.key.iter().find(|(field, _)| *field == name).map(|(_, matched)| *matched)
}

#[test]
fn a_rank_is_where_it_is_bound_alone() {
    let contents = Contents::of(&[1, 2], &jobs([mixed(0, 3, &[1])]));
    let sender = Match::Ternary { value: 0x00AB_1389, mask: 0x00FF_FFFF };
    let ranks = |table: &str| -> Vec<_> {
        of_table(&contents, table).iter().map(|entry| field(entry, "rank")).collect()
    };
    let rank = |value| Some(Match::Ternary { value, mask: 0xFFFF });
    assert_eq!(ranks("members"), [rank(0), rank(0), rank(2), rank(2)]);
    assert_eq!(ranks("members_by_roce"), [rank(1), rank(1)]);
    for entry in of_table(&contents, "members_by_roce") {
        assert_eq!((field(entry, "queue_pair"), field(entry, "udp_port")), (Some(sender), None));
    }
    let exact = |value| Some(Match::Exact(value));
    assert_eq!(ranks("bindings"), [exact(0), exact(2)]);
    let by_roce = of_table(&contents, "bindings_by_roce");
    assert_eq!(by_roce.len(), 1);
    assert_eq!(field(by_roce[0], "queue_pair"), exact(0x00AB_1389));
}

#[test]
fn each_queue_pair_has_a_copy_and_ports_with_sockets_the_groups() {
    let mut job = mixed(2, 4, &[1, 3]);
    // Behind the port of rank 0.
    for rank in [1, 2] {
        job.bindings.get_mut(&rank).unwrap().ifindex = 8;
    }
    let contents = Contents::of(&[1, 2], &jobs([job]));
    let node = |number| Node { group: 3, number };
    let flooding = (Node { group: MAX_JOBS + 1, number: 0 }, vec![1, 2]);
    let expected = [(node(0), vec![8]), (node(2), vec![8]), (node(4), vec![11]), flooding];
    assert_eq!(contents.groups, BTreeMap::from(expected));
    let copies = of_table(&contents, "copies");
    let expected = [
        (2, 0x0200_0000_0001, 0x0A00_0001, 0x00AB_1389),
        (4, 0x0200_0000_0003, 0x0A00_0003, 0x00AB_138B),
    ];
    assert_eq!(copies.len(), expected.len());
    for (entry, (node, mac, address, number)) in copies.into_iter().zip(expected) {
        assert_eq!(entry.key, [("job", Match::Exact(2)), ("node", Match::Exact(node))]);
        assert_eq!(entry.data, [("mac", mac), ("address", address), ("queue_pair", number)]);
    }
}

/// A group has no node without ports.
#[test]
fn a_job_of_queue_pairs_alone_has_no_group_of_ports() {
    let contents = Contents::of(&[1, 2], &jobs([mixed(0, 2, &[0, 1])]));
    let nodes: Vec<_> = contents.groups.keys().filter(|node| node.group == 1).collect();
    assert_eq!(nodes, [&Node { group: 1, number: 1 }, &Node { group: 1, number: 2 }]);
}

/// Without entries the program takes no messages.
#[test]
fn messages_are_taken_only_if_the_daemon_does() {
    for takes_roce in [false, true] {
        let job = OpenJob { takes_roce, ..job(0, 2, false) };
        let contents = Contents::of(&[1, 2], &jobs([job]));
        assert_eq!(of_table(&contents, "queue_pairs").len(), usize::from(takes_roce));
    }
}

/// What an aborted job's ranks send is turned away, however it comes.
#[test]
fn an_aborted_job_turns_messages_away() {
    let aborted = OpenJob { is_aborted: true, ..mixed(0, 2, &[0, 1]) };
    let contents = Contents::of(&[1, 2], &jobs([aborted]));
    let members = of_table(&contents, "members_by_roce");
    assert_eq!(members.len(), 4);
    assert!(members.iter().all(|entry| entry.action == "turn_away"), "{members:?}");
}

/// The most jobs and ranks, all by RoCEv2.
#[test]
fn all_jobs_by_roce_find_room() {
    let text = super::source::source("bmv2.p4");
    let ranks: Vec<_> = (0..MAX_RANKS).collect();
    let all = jobs((0..MAX_JOBS).map(|number| mixed(number, MAX_RANKS, &ranks)));
    let mut used: HashMap<_, u64> = HashMap::new();
    for entry in &Contents::of(&[1, 2], &all).entries {
        *used.entry(entry.table).or_default() += 1;
    }
    for table in roce::TABLES {
        let (used, size) = (used[table.name], super::source::size_of(&text, table.name));
        assert!(used <= size, "{used} entries of {size} in {}", table.name);
    }
}
