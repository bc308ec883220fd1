//! The reports of ranks while their job runs.

use super::restart::used_epochs;
use super::*;

#[test]
fn a_rank_without_multicast_is_listed_and_its_job_goes_on() {
    let mut table = durable_table(1);
    let (_, spec) = started(&mut table, "train", 3);
    table.log.clear();
    assert_eq!(table.report_no_multicast(member(&spec, 1)), Ok(vec![]));
    let line = "job 0 \"train\": rank 1 (10.0.0.2) gets no results by multicast, and so makes all \
                ranks slow";
    assert_eq!(table.log, [(Level::Warn, line.to_owned())]);
    let jobs = table.list();
    let listed: Vec<_> = jobs[0].members.iter().map(|member| member.no_multicast).collect();
    assert_eq!(listed, [false, true, false]);
    assert_eq!(jobs[0].state(), control::JobState::Started);
    // The rank reports that once on each connection.
    assert_eq!(table.report_no_multicast(member(&spec, 1)), Ok(vec![]));
    assert_eq!(table.log.len(), 1);
    assert_eq!(table.list(), jobs);
}

/// If copies are allowed, the data plane starts copies in all shards, once; and the next daemon
/// knows.
#[test]
fn a_rank_that_multicast_stops_reaching_gets_copies() {
    let limits = Limits { fanout: Fanout::Auto, durable: true, ..LIMITS };
    let mut table = Table::new(limits, None, 1);
    let (_, spec) = started(&mut table, "train", 3);
    table.log.clear();
    let effects = table.report_no_multicast(member(&spec, 1)).unwrap();
    let [Effect::Save(saved), Effect::Start(0, started)] = &effects[..] else {
        panic!("{effects:?}")
    };
    let line = "job 0 \"train\": rank 1 (10.0.0.2) gets no results by multicast any more: it gets \
                copies of its own from now on";
    assert_eq!(table.log, [(Level::Warn, line.to_owned())]);
    let told = |table: &Table| -> Vec<_> {
        table.list()[0].members.iter().map(|rank| (rank.no_multicast, rank.copies())).collect()
    };
    let by_group = (false, control::Copies::Unspecified);
    assert_eq!(told(&table), [by_group, (false, control::Copies::GroupLost), by_group]);
    assert_eq!(table.report_no_multicast(member(&spec, 1)), Ok(vec![]));

    let mut next = Table::new(limits, None, 2);
    assert_eq!(*started, ways(3, 0b101));
    let restored = next.restore(vec![(**saved).clone()], used_epochs());
    assert_eq!(restored, [Effect::Start(0, ways(3, 0b101))]);
    next.log.clear();
    next.resume(member(&spec, 1), peer(1)).unwrap();
    assert_eq!(next.report_no_multicast(member(&spec, 1)), Ok(vec![]));
    assert_eq!(told(&next), [by_group, (false, control::Copies::GroupLost), by_group]);
}

/// The Aborted that a job's ranks get after these reports, `None` for a rank without one. `named`
/// are the ranks in the data plane's REJECT.
fn told(reports: &[Option<&[(u64, &str)]>], named: [u32; 2]) -> control::Aborted {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", reports.len() as u32);
    let mut effects = Vec::new();
    for (rank, report) in (0..).zip(reports) {
        if let Some(report) = report {
            effects.extend(table.report_calls(member(&spec, rank), calls(report), &named).unwrap());
        }
    }
    effects.extend(table.conclude(spec.number, spec.epoch));
    // After the first report, all others are asked.
    let first = reports.iter().position(Option::is_some).unwrap();
    let asked = streams.iter().enumerate().filter(|(rank, _)| *rank != first);
    let asked =
        asked.map(|(_, stream)| Effect::Tell(*stream, Event::CallsWanted(control::CallsWanted {})));
    let expected: Vec<_> =
        iter::once(Effect::Gather(0, spec.epoch)).chain(asked).chain([Effect::Abort(0)]).collect();
    let (before, news) = effects.split_at(expected.len());
    assert_eq!(before, expected);
    let Effect::Tell(_, Event::Aborted(aborted)) = &news[0] else { panic!("{news:?}") };
    // All ranks hear the same, also those that were in no call.
    let all: Vec<_> = streams
        .iter()
        .map(|stream| Effect::Tell(*stream, Event::Aborted(aborted.clone())))
        .collect();
    assert_eq!(news, all);
    aborted.clone()
}

const SAME_CALLS: &str = "; every rank must make the same calls in the same order";

#[test]
fn ranks_that_made_different_calls_hear_which() {
    let long: &[_] = &[(12, "all_reduce(sum, f32, 1000)")];
    let short: &[_] = &[(12, "all_reduce(sum, f32, 999)")];
    let aborted = told(&[Some(long), Some(long), Some(short), Some(long)], [0, 2]);
    let expected = "ranks made different calls: call 12 of rank 2 is all_reduce(sum, f32, 999); \
                    call 12 of ranks 0, 1 and 3 is all_reduce(sum, f32, 1000)";
    assert_eq!(aborted.reason, expected.to_owned() + SAME_CALLS);
    assert_eq!(aborted.ranks, [2]);
    let made = |ranks: &[u32], number, call: &str| control::MadeCall {
        ranks: ranks.to_vec(),
        number,
        call: call.to_owned(),
    };
    let expected = [
        made(&[2], 12, "all_reduce(sum, f32, 999)"),
        made(&[0, 1, 3], 12, "all_reduce(sum, f32, 1000)"),
    ];
    assert_eq!(aborted.calls, expected);
}

/// Rank 1 cuts the call otherwise; ranks 0 and 1 are named, because rank 0 came first.
#[test]
fn a_rank_that_cuts_a_call_otherwise_is_named() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 3);
    for (rank, cut) in [(0, 7), (1, 8), (2, 7)] {
        let call = control::Call { number: 5, call: "barrier()".to_owned(), cut };
        let named: &[u32] = if rank == 0 { &[0, 1] } else { &[] };
        let effects = table.report_calls(member(&spec, rank), vec![call], named).unwrap();
        if rank == 2 {
            let reason = "ranks cut the same call into different parts: call 5 of rank 1 is \
                          barrier(); call 5 of ranks 0 and 2 is barrier(); every rank needs the \
                          same aggregators, weights and version of the library";
            let Some(Effect::Tell(stream, Event::Aborted(aborted))) = effects.last() else {
                panic!("{effects:?}")
            };
            assert_eq!((*stream, aborted.reason.as_str()), (streams[2], reason));
            assert_eq!(aborted.ranks, [1]);
        }
    }
}

/// One that does not say how is no reason to blame anybody.
#[test]
fn a_rank_that_says_nothing_of_its_cut_has_cut_as_the_others() {
    let mut table = table();
    let (_, spec) = started(&mut table, "train", 2);
    for (rank, cut) in [(0, 7), (1, 0)] {
        let call = control::Call { number: 5, call: "barrier()".to_owned(), cut };
        table.report_calls(member(&spec, rank), vec![call], &[0, 1]).unwrap();
    }
    let reason = table.list()[0].reason.clone();
    assert!(reason.starts_with("a packet was damaged on its way"), "{reason}");
}

#[test]
fn of_two_ranks_that_the_data_plane_names_the_one_that_says_nothing_is_at_fault() {
    let call: &[_] = &[(3, "barrier()")];
    let aborted = told(&[Some(call), Some(call), None], [1, 2]);
    assert_eq!(aborted.ranks, [2], "{}", aborted.reason);
}

#[test]
fn nobody_is_in_the_right_without_a_majority() {
    let aborted =
        told(&[Some(&[(1, "a")]), Some(&[(1, "b")]), Some(&[(1, "b")]), Some(&[(1, "a")])], [0, 1]);
    let expected =
        "ranks made different calls: call 1 of ranks 0 and 3 is a; call 1 of ranks 1 and 2 is b";
    assert_eq!(aborted.reason, expected.to_owned() + SAME_CALLS);
    assert_eq!(aborted.ranks, [0, 1, 2, 3]);
}

#[test]
fn the_first_call_that_differs_counts_whichever_was_refused() {
    // Rank 0's second call met the rest of rank 1's first, and rank 2 has a call before that in
    // flight.
    let aborted = told(
        &[
            Some(&[(7, "long"), (8, "next")]),
            Some(&[(7, "longer")]),
            Some(&[(6, "before"), (7, "longer")]),
        ],
        [0, 1],
    );
    let expected =
        "ranks made different calls: call 7 of rank 0 is long; call 7 of ranks 1 and 2 is longer";
    assert_eq!(aborted.reason, expected.to_owned() + SAME_CALLS);
}

#[test]
fn ranks_at_different_numbers_are_told_those() {
    let aborted = told(&[Some(&[(3, "barrier()")]), Some(&[(4, "barrier()")]), None], [0, 1]);
    let expected =
        "ranks made different calls: call 3 of rank 0 is barrier(); call 4 of rank 1 is barrier()";
    assert_eq!(aborted.reason, expected.to_owned() + SAME_CALLS);
    assert_eq!(aborted.ranks, [0, 1]);
}

#[test]
fn when_one_side_reports_the_data_plane_names_the_other() {
    // Rank 9 does not exist: a report that names it is not believed.
    let aborted = told(&[None, Some(&[(5, "a\nb")]), None], [2, 9]);
    assert_eq!(
        aborted.reason,
        format!("rank 2 made different calls: call 5 of rank 1 is a b{SAME_CALLS}")
    );
    assert_eq!(aborted.ranks, [2]);
    let aborted = told(&[None, Some(&[]), None], [1, 2]);
    assert_eq!(aborted.reason, format!("ranks 1 and 2 made different calls{SAME_CALLS}"));
}

/// Rule 22.11: a data plane that adds before it verifies refuses a packet whose fingerprint was
/// damaged, or the others' if it was the first. It is no call that differs.
#[test]
fn ranks_that_all_made_the_same_call_hear_of_a_damaged_packet() {
    let damaged = |reports: &[Option<&[(u64, &str)]>], call: &str| {
        let aborted = told(reports, [1, 1]);
        let expected = format!(
            "a packet was damaged on its way to the aggregator, or in it: it was refused as part \
             of another call, but all ranks made the same one, call {call}; restart the job"
        );
        assert_eq!(aborted, control::Aborted { reason: expected, ..Default::default() });
    };
    let call: &[_] = &[(5, "barrier()")];
    damaged(&[Some(call), Some(call), Some(call)], "5 is barrier()");
    // Rank 0 has made two more calls, rank 2 is a call behind, rank 3 in none.
    let ahead: &[_] = &[(5, "barrier()"), (6, "a"), (7, "b")];
    damaged(
        &[Some(ahead), Some(call), Some(&[(4, "c"), (5, "barrier()")]), Some(&[])],
        "5 is barrier()",
    );
    // A rank that was asked before it made the call is waited for.
    let mut asked = table();
    let (_, spec) = started(&mut asked, "train", 2);
    asked.report_calls(member(&spec, 1), calls(call), &[1, 1]).unwrap();
    assert_eq!(asked.report_calls(member(&spec, 0), calls(&[(4, "c")]), &[]), Ok(vec![]));
    let effects = asked.report_calls(member(&spec, 0), calls(call), &[0, 0]).unwrap();
    assert!(
        matches!(&effects[..], [Effect::Abort(0), Effect::Tell(..), Effect::Tell(..)]),
        "{effects:?}"
    );
    // A rank that does not report may have made another call.
    let aborted = told(&[Some(call), Some(call), None], [1, 1]);
    assert_eq!(aborted.ranks, [1]);
    // So may a rank that left before its report.
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 2);
    table.report_calls(member(&spec, 1), calls(call), &[1, 1]).unwrap();
    let effects = table.disconnect(streams[0]);
    let Effect::Tell(_, Event::Aborted(aborted)) = &effects[1] else { panic!("{effects:?}") };
    assert_eq!(aborted.ranks, [1]);
}

/// Rule 22.11, where reports are missing.
#[test]
fn one_side_alone_proves_nothing_where_packets_are_not_verified() {
    let refused = || {
        let limits = Limits { capabilities: Capabilities::empty(), ..LIMITS };
        let mut table = Table::new(limits, None, 1);
        let (_, spec) = started(&mut table, "train", 2);
        table.report_calls(member(&spec, 1), calls(&[(5, "barrier()")]), &[1, 1]).unwrap();
        (table, spec)
    };
    let heard = |effects: &[Effect]| {
        let told = effects.iter().find_map(|effect| match effect {
            Effect::Tell(_, Event::Aborted(aborted)) => Some(aborted.clone()),
            _ => None,
        });
        told.unwrap_or_else(|| panic!("{effects:?}"))
    };
    let (mut table, spec) = refused();
    let aborted = heard(&table.conclude(spec.number, spec.epoch));
    assert!(
        aborted.reason.starts_with("a packet was damaged on its way to the aggregator, or ranks"),
        "{aborted:?}"
    );
    assert_eq!((aborted.ranks, aborted.calls), (vec![], vec![]));
    // If the job ends for another reason, that one is told, even if the other rank is at an earlier
    // call.
    for report in [vec![], vec![(4, "barrier()")]] {
        let (mut table, spec) = refused();
        if !report.is_empty() {
            table.report_calls(member(&spec, 0), calls(&report), &[]).unwrap();
        }
        let aborted = heard(&table.leave(member(&spec, 0), "no memory", &[]).unwrap());
        let told = (aborted.reason.as_str(), aborted.ranks);
        assert_eq!(told, ("rank 0 (10.0.0.1) failed: no memory", vec![0]), "{report:?}");
    }
}

#[test]
fn reports_end_the_job_once() {
    let mut table = table();
    let (streams, spec) = started(&mut table, "train", 3);
    let report = |table: &mut Table, rank, call| {
        table.report_calls(member(&spec, rank), calls(&[(1, call)]), &[0, 1])
    };
    assert_eq!(table.conclude(0, spec.epoch), [], "nothing was reported");
    let wanted = |stream| Effect::Tell(stream, Event::CallsWanted(control::CallsWanted {}));
    let expected = vec![Effect::Gather(0, spec.epoch), wanted(streams[1]), wanted(streams[2])];
    assert_eq!(report(&mut table, 0, "a"), Ok(expected));
    assert_eq!(table.conclude(0, spec.epoch ^ 1), [], "another job's time");
    assert_eq!(report(&mut table, 1, "b"), Ok(vec![]));
    assert_eq!(report(&mut table, 3, "b"), Err(no_member(3)));
    // All present ranks have reported: nobody waits for more.
    table.leave(member(&spec, 2), "", &[]).unwrap();
    let effects = report(&mut table, 0, "a").unwrap();
    assert!(
        matches!(&effects[..], [Effect::Abort(0), Effect::Tell(..), Effect::Tell(..)]),
        "{effects:?}"
    );
    assert_eq!(table.conclude(0, spec.epoch), []);
    assert_eq!(report(&mut table, 1, "b"), Ok(vec![]), "too late");
    // Whatever happens while reports come in, the mismatch is told as the cause.
    let (_, spec) = started(&mut table, "other", 2);
    table.report_calls(member(&spec, 0), calls(&[(1, "a")]), &[0, 1]).unwrap();
    let effects = table.leave(member(&spec, 1), "no progress for 5 s", &[]).unwrap();
    let Effect::Tell(_, Event::Aborted(aborted)) = &effects[1] else { panic!("{effects:?}") };
    assert_eq!(
        aborted.reason,
        format!("ranks 0 and 1 made different calls: call 1 of rank 0 is a{SAME_CALLS}")
    );
    drop(streams);
}
