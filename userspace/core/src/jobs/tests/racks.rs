//! Ranks behind combiners: their place in log lines, how they get results, and the loss of a
//! combiner.

use switchml_control::Combiner;
use switchml_protocol::VERSION;

use super::*;

const PARENT_OF_RACKS: Limits = Limits {
    capabilities: Capabilities::CHECKED_MAXIMA
        .union(Capabilities::EMPTY_CONTRIBUTIONS)
        .union(Capabilities::PARTIAL_SUMS),
    ..LIMITS
};

fn racks() -> Table {
    Table::new(PARENT_OF_RACKS, None, 1)
}

/// The way of a rank through the combiner of a rack.
fn via(rack: u32, rank: u32) -> Vec<Combiner> {
    vec![Combiner {
        id: rack.into(),
        name: format!("tor{rack}"),
        address: format!("10.{rack}.0.254"),
        peer: format!("10.{rack}.0.{}", rank + 1),
        protocol_version: VERSION.into(),
    }]
}

/// Ranks 0 and 1 are in rack 1, rank 2 in rack 2, rank 3 is in none.
fn via_of(rank: u32) -> Vec<Combiner> {
    match rank {
        0 | 1 => via(1, rank),
        2 => via(2, rank),
        _ => Vec::new(),
    }
}

fn joined(table: &mut Table) -> (Vec<StreamId>, Vec<Effect>) {
    let mut streams = Vec::new();
    let mut effects = Vec::new();
    for rank in 0..4 {
        let joiner = Joiner { via: via_of(rank), ..joiner("train", rank, 4) };
        let (stream, new_effects) = table.join(&joiner).expect("a free place");
        streams.push(stream);
        effects = new_effects;
    }
    (streams, effects)
}

/// A started job of racks, and the effects of its last rank's `ready`.
fn started_in_racks(table: &mut Table) -> (Vec<StreamId>, Opened, Vec<Effect>) {
    let (streams, effects) = joined(table);
    let job = opened(&effects);
    let mut effects = Vec::new();
    for rank in 0..4 {
        effects = table.ready(member(&job, rank), 352, HEARD).expect("ready");
    }
    (streams, job, effects)
}

/// Rule 27.5, and one copy of each result for a combiner.
#[test]
fn a_job_with_combiners_has_no_empty_contributions_and_results_go_to_combiners() {
    let mut table = racks();
    let (_, _, effects) = started_in_racks(&mut table);
    let ways = [Way::Combiner, Way::Combiner, Way::Combiner, Way::Group];
    assert_eq!(effects[0], Effect::Start(0, (0..).zip(ways).collect()));

    let (_, effects) = joined(&mut racks());
    let told: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Tell(_, Event::Assigned(assigned)) => Some(assigned),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), 4);
    for assigned in told {
        let has = Capabilities::from_bits_truncate(assigned.capabilities);
        assert_eq!(has, Capabilities::CHECKED_MAXIMA | Capabilities::PARTIAL_SUMS);
        assert_eq!(assigned.world_size, 4);
    }
    let job = table.list().remove(0);
    let unused: Vec<_> =
        job.unused.iter().map(|unused| (&*unused.capability, &*unused.reason)).collect();
    let lacks = "the data plane lacks it";
    let expected = [
        ("EMPTY_CONTRIBUTIONS", "the job has combiners"),
        ("GROUP_HELLOS", lacks),
        ("TAGS", lacks),
        ("AUDIENCES", lacks),
        ("ROCE", lacks),
    ];
    assert_eq!(unused, expected);
    let racks: Vec<_> = job.members.into_iter().map(|member| member.rack).collect();
    assert_eq!(racks, ["tor1 at 10.1.0.254", "tor1 at 10.1.0.254", "tor2 at 10.2.0.254", ""]);
}

#[test]
fn a_rank_that_its_combiner_lost_is_named_with_its_rack() {
    let mut table = racks();
    let (streams, job, _) = started_in_racks(&mut table);
    let lost = "is gone: its process ended, or its connection broke";
    let effects = table.lose_below(member(&job, 1), lost, "").expect("a member");
    let news = aborted(&format!("rank 1 (10.1.0.2, rack tor1 at 10.1.0.254) {lost}"), &[1]);
    let others = [streams[0], streams[2], streams[3]];
    let mut expected = vec![Effect::Abort(0)];
    expected.extend(others.map(|stream| Effect::Tell(stream, news.clone())));
    expected.push(Effect::End(streams[1]));
    assert_eq!(effects, expected);
}

#[test]
fn ranks_of_a_lost_combiner_have_time_to_come_back() {
    let mut table = racks();
    let (streams, job, _) = started_in_racks(&mut table);
    assert_eq!(table.disconnect(streams[0]), [Effect::Await(streams[0])]);
    assert_eq!(table.disconnect(streams[1]), [Effect::Await(streams[1])]);
    let awaited: Vec<_> =
        table.list().remove(0).members.into_iter().map(|member| member.awaited).collect();
    assert_eq!(awaited, [true, true, false, false]);
    for rank in [0, 1] {
        let origin = Origin { peer: peer(9), via: via(1, rank) };
        let (stream, effects) = table.resume_by(member(&job, rank), origin).expect("a member");
        // A restarted combiner knows only what these events tell it.
        let [Effect::Tell(to, Event::Assigned(told)), Effect::Tell(_, Event::Started(_))] =
            &effects[..]
        else {
            panic!("{effects:?}")
        };
        assert_eq!((*to, told.epoch, told.world_size), (stream, job.epoch, 4));
        assert_eq!(told.control_secret, job.control_secrets[rank as usize]);
        assert_eq!(told.hello_secret, job.secrets[rank as usize]);
    }
    assert_eq!(table.give_up_on(streams[0]), []);
    assert_eq!(table.give_up_on(streams[1]), []);
}

#[test]
fn a_combiner_that_does_not_come_back_is_named_with_its_ranks() {
    let mut table = racks();
    let (streams, _, _) = started_in_racks(&mut table);
    table.disconnect(streams[0]);
    table.disconnect(streams[1]);
    let reason = "rank 0 (10.1.0.1, rack tor1 at 10.1.0.254), rank 1 (10.1.0.2, rack tor1 at \
                  10.1.0.254) cannot be reached any more: combiner tor1 at 10.1.0.254 is gone: its \
                  process ended, or its connection broke, and they did not come back";
    let news = aborted(reason, &[0, 1]);
    let told = |stream| Effect::Tell(stream, news.clone());
    assert_eq!(
        table.give_up_on(streams[0]),
        [Effect::Abort(0), told(streams[2]), told(streams[3])]
    );
    assert_eq!(table.give_up_on(streams[1]), []);
}

#[test]
fn before_the_start_a_lost_combiner_ends_the_job() {
    let mut table = racks();
    let (streams, _) = joined(&mut table);
    let effects = table.disconnect(streams[2]);
    let reason = "rank 2 (10.2.0.3, rack tor2 at 10.2.0.254) cannot be reached any more: combiner \
                  tor2 at 10.2.0.254 is gone: its process ended, or its connection broke";
    assert!(effects.contains(&Effect::Tell(streams[0], aborted(reason, &[2]))), "{effects:?}");
}

#[test]
fn a_lost_combiner_below_another_is_named() {
    let mut table = racks();
    let (streams, job, _) = started_in_racks(&mut table);
    let effects = table.lose_below(member(&job, 0), "is gone", "leaf at 10.9.0.1").unwrap();
    assert_eq!(effects, [Effect::Await(streams[0]), Effect::End(streams[0])]);
    let effects = table.give_up_on(streams[0]);
    let reason = "rank 0 (10.1.0.1, rack tor1 at 10.1.0.254) cannot be reached any more: combiner \
                  leaf at 10.9.0.1 is gone, and they did not come back";
    assert!(effects.contains(&Effect::Tell(streams[3], aborted(reason, &[0]))), "{effects:?}");
}

/// RESULTs to all would go where it is not.
#[test]
fn nobody_comes_back_by_another_kind_of_way() {
    let mut table = racks();
    let (_, job, _) = started_in_racks(&mut table);
    assert!(table.resume(member(&job, 0), peer(0)).is_err());
    let origin = Origin { peer: peer(3), via: via(1, 3) };
    assert!(table.resume_by(member(&job, 3), origin).is_err());
}

#[test]
fn a_data_plane_without_partial_sums_takes_no_combiner() {
    let mut table = Table::new(LIMITS, None, 1);
    let refused = table.join(&Joiner { via: via(1, 0), ..joiner("train", 0, 4) }).unwrap_err();
    assert_eq!(refused, JoinError::NoPartialSums("tor1 at 10.1.0.254".to_owned()));
    let line = refused.to_string();
    assert!(
        line.starts_with("this aggregator's data plane does not accept partial sums, so tor1 at ")
    );
}
