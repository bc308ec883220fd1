//! Ready, and the start.

use super::*;

#[test]
fn the_smallest_path_gives_the_lanes() {
    let mut table = table();
    let (streams, effects) = join_all(&mut table, "train", 3);
    let spec = opened(&effects);
    assert_eq!(table.ready(member(&spec, 0), 768, HEARD), Ok(vec![]));
    assert_eq!(table.ready(member(&spec, 2), 352, HEARD), Ok(vec![]));
    let started = |stream| Effect::Tell(stream, Event::Started(control::Started { lanes: 352 }));
    let expected = vec![
        Effect::Start(0, ways(3, 7)),
        started(streams[0]),
        started(streams[1]),
        started(streams[2]),
    ];
    assert_eq!(table.ready(member(&spec, 1), 736, HEARD), Ok(expected));
}

/// Rule 38.3: a rank that needs copies gets those of another one, if that gets some itself.
#[test]
fn ranks_of_a_host_share_copies() {
    let mut table = Table::new(Limits { fanout: Fanout::Auto, ..LIMITS }, None, 1);
    let (_, effects) = join_all(&mut table, "train", 7);
    let spec = opened(&effects);
    // Of ranks 1 and 2 the taker is rank 0, of rank 4 it is one that the group reaches, rank 5
    // names one that names one itself, and rank 6 itself.
    let takers = [None, Some(0), Some(0), None, Some(3), Some(1), Some(6)];
    let mut effects = Vec::new();
    for (rank, taker) in (0..).zip(takers) {
        let id = member(&spec, rank);
        effects = table.ready_to_read(id, rank == 3, taker, HEARD).unwrap();
    }
    let copy = Way::Copy;
    let expected = [copy, Way::With(0), Way::With(0), Way::Group, copy, copy, copy];
    assert!(effects.contains(&Effect::Start(0, (0..).zip(expected).collect())), "{effects:?}");
}

#[test]
fn ready_that_is_refused_says_why() {
    let mut table = table();
    let (_, effects) = join_all(&mut table, "train", 2);
    let spec = opened(&effects);
    for lanes in [0, 31, 33, 769, 800, 65536 + 32] {
        let refused = MemberError::Lanes { lanes, max_lanes: 768 };
        assert_eq!(table.ready(member(&spec, 0), lanes, HEARD), Err(refused), "{lanes}");
    }
    assert_eq!(table.ready(member(&spec, 0), 352, None), Err(MemberError::NoHello(0)));
    assert_eq!(table.ready(member(&spec, 2), 352, HEARD), Err(no_member(2)));
    assert_eq!(table.ready(member(&spec, 0), 32, HEARD), Ok(vec![]));
    table.ready(member(&spec, 1), 768, HEARD).unwrap();
    let again = MemberError::NotAssigned { rank: 1, state: "started already" };
    assert_eq!(table.ready(member(&spec, 1), 768, HEARD), Err(again));
}

/// Starts jobs one after the other; how often it was said that results can be forged.
fn warnings(mut table: Table, jobs: &[&str]) -> usize {
    for name in jobs {
        let (_, effects) = join_all(&mut table, name, 2);
        let spec = opened(&effects);
        for rank in 0..2 {
            table.ready(member(&spec, rank), 352, HEARD).unwrap();
        }
    }
    let is_warning = |(level, line): &&(Level, String)| {
        *level == Level::Warn && line.contains("can forge its results; --packet-tags")
    };
    table.log.iter().filter(is_warning).count()
}

#[test]
fn that_results_can_be_forged_is_said_once() {
    let with = |capabilities| Table::new(Limits { capabilities, ..LIMITS }, None, 1);
    let jobs = ["one", "another"];
    assert_eq!(warnings(with(Capabilities::TAGS), &jobs), 1);
    assert_eq!(warnings(with(Capabilities::TAGS).with_tags(), &jobs), 0);
    // A data plane without tags leaves no choice.
    assert_eq!(warnings(with(Capabilities::empty()), &jobs), 0);
}
