//! The jobs that ended lately.

use super::*;

fn ended(table: &Table) -> Vec<(String, bool, &'static str, String)> {
    let ended = table.ended_lately();
    let ended =
        ended.map(|job| (job.name.clone(), job.number.is_some(), job.ending, job.reason.clone()));
    ended.collect()
}

#[test]
fn a_job_that_is_gone_is_remembered_with_the_reason() {
    let mut table = table();
    let (_, spec) = started(&mut table, "done", 2);
    for rank in 0..2 {
        assert_eq!(ended(&table), []);
        table.leave(member(&spec, rank), "", &[]).expect("a member");
    }
    let done = ("done".to_owned(), true, "finished", String::new());
    assert_eq!(ended(&table), std::slice::from_ref(&done));
    let (_, spec) = started(&mut table, "failed", 2);
    table.leave(member(&spec, 1), "no memory", &[]).expect("a member");
    assert_eq!(
        ended(&table),
        std::slice::from_ref(&done),
        "rank 0 is there, and sees that it was aborted"
    );
    table.leave(member(&spec, 0), "", &[]).expect("a member");
    let reason = "rank 1 (10.0.0.2) failed: no memory".to_owned();
    let failed = ("failed".to_owned(), true, "rank_failed", reason);
    assert_eq!(ended(&table), [failed.clone(), done.clone()]);
    let (stream, _) = table.join(&joiner("alone", 1, 3)).expect("joined");
    table.disconnect(stream);
    let reason = "rank 1, the last of those that had joined, gave up".to_owned();
    assert_eq!(ended(&table), [("alone".to_owned(), false, "incomplete", reason), failed, done]);
}

#[test]
fn sixteen_are_remembered_the_latest_first() {
    let mut table = table();
    for number in 0..20 {
        let (_, spec) = started(&mut table, &number.to_string(), 1);
        table.leave(member(&spec, 0), "", &[]).expect("a member");
    }
    let names: Vec<_> = ended(&table).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, (4..20).rev().map(|number| number.to_string()).collect::<Vec<_>>());
}
