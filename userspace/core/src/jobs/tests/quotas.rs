//! Quotas of tenants.

use super::*;

fn quotas(of_all: Quota, named: &[(&str, Quota)]) -> Quotas {
    let named = named.iter().map(|(tenant, quota)| ((*tenant).to_owned(), *quota)).collect();
    Quotas { of_all, named }
}

fn table_with(of_all: Quota, named: &[(&str, Quota)]) -> Table {
    Table::new(LIMITS, None, 1).with_quotas(quotas(of_all, named))
}

fn of(tenant: &str, name: &str, rank: u32, world_size: u32) -> Joiner {
    Joiner { tenant: tenant.to_owned(), ..joiner(name, rank, world_size) }
}

fn over(resource: Resource, [most, used, wanted]: [u32; 3]) -> JoinError {
    JoinError::OverQuota { tenant: "a".to_owned(), resource, most, used, wanted }
}

fn never(resource: Resource, [most, wanted]: [u32; 2]) -> JoinError {
    JoinError::NeverInQuota { tenant: "a".to_owned(), resource, most, wanted }
}

#[test]
fn jobs_of_a_tenant_are_bounded_until_their_last_rank_is_gone() {
    let quota = Quota { jobs: Some(2), ..Quota::default() };
    let large = Quota { jobs: Some(3), ..Quota::default() };
    let mut table = table_with(quota, &[("large", large)]);
    table.join(&of("a", "waits", 0, 2)).unwrap();
    let (stream, _) = table.join(&of("a", "runs", 0, 1)).unwrap();
    let refused = over(Resource::Jobs, [2, 2, 1]);
    assert_eq!(table.join(&of("a", "more", 0, 1)).unwrap_err(), refused);
    assert_eq!(
        refused.to_string(),
        "tenant \"a\" may have 2 jobs at once, has 2, and this job needs 1 more; wait for jobs of \
         the tenant to end, or ask the aggregator's operator for a larger quota"
    );
    // The quota does not bound other tenants, ranks without a tenant, or a rank that completes a
    // job.
    table.join(&of("b", "other", 0, 1)).unwrap();
    for job in ["x", "y", "z"] {
        table.join(&of("large", job, 0, 1)).unwrap();
        table.join(&of("", &format!("{job} of nobody"), 0, 1)).unwrap();
    }
    assert!(table.join(&of("large", "w", 0, 1)).is_err());
    table.join(&of("a", "waits", 1, 2)).unwrap();
    assert!(table.join(&of("a", "more", 0, 1)).is_err());
    table.disconnect(stream);
    table.join(&of("a", "more", 0, 1)).unwrap();
}

/// All ranks of a job count as soon as the first has joined, so two jobs cannot wait for each
/// other.
#[test]
fn ranks_of_a_tenant_are_bounded() {
    let mut table = table_with(Quota { ranks: Some(5), ..Quota::default() }, &[]);
    table.join(&of("a", "first", 0, 3)).unwrap();
    let refused = over(Resource::Ranks, [5, 3, 3]);
    assert_eq!(table.join(&of("a", "second", 0, 3)).unwrap_err(), refused);
    table.join(&of("a", "second", 0, 2)).unwrap();
    for (job, rank, world_size) in [("first", 1, 3), ("first", 2, 3), ("second", 1, 2)] {
        table.join(&of("a", job, rank, world_size)).unwrap();
    }
    assert_eq!(table.jobs.len(), 2);
}

/// The number of data threads that a job gets whose one rank can use four.
fn shards_of(table: &mut Table, name: &str) -> Result<usize, JoinError> {
    let threads = Threads { most: 4, host: String::new() };
    table.join(&Joiner { threads, ..of("a", name, 0, 1) })?;
    Ok(table.jobs.values().find(|job| job.name == name).unwrap().shards.len())
}

#[test]
fn a_job_gets_fewer_data_threads_if_its_tenant_has_no_slots_for_more() {
    // The quota is the slots of four data threads; a waiting job has the slots of one.
    let mut table = table_with(Quota { slots: Some(4 * 512), ..Quota::default() }, &[]);
    let wants_four = |rank| Joiner {
        threads: Threads { most: 4, host: String::new() },
        ..of("a", "waits", rank, 2)
    };
    table.join(&wants_four(0)).unwrap();
    assert_eq!(shards_of(&mut table, "two"), Ok(2), "a power of two of what is left, 3");
    let line = "job 0 \"two\": 2 data threads, not 4: its tenant's quota has no slots for more";
    assert_eq!(table.log.last(), Some(&(Level::Info, line.to_owned())));
    assert_eq!(shards_of(&mut table, "one"), Ok(1));
    assert_eq!(shards_of(&mut table, "none"), Err(over(Resource::Slots, [2048, 2048, 512])));
    table.join(&wants_four(1)).unwrap();
    assert_eq!(table.jobs[&2].shards.len(), 1);
    let tight = Quota { slots: Some(511), ..Quota::default() };
    let refused = shards_of(&mut table_with(tight, &[]), "none");
    assert_eq!(refused, Err(never(Resource::Slots, [511, 512])), "less than any job has");
}

/// A job that can never fit is not told to wait for others.
#[test]
fn a_job_that_can_never_start_is_told_so() {
    let quota = Quota { ranks: Some(4), ..Quota::default() };
    let mut table = table_with(quota, &[("locked", Quota { jobs: Some(0), ..quota })]);
    table.join(&of("a", "fits", 0, 4)).unwrap();
    let refused = table.join(&of("a", "large", 0, 5)).unwrap_err();
    assert_eq!(refused, never(Resource::Ranks, [4, 5]));
    assert_eq!(
        refused.to_string(),
        "tenant \"a\" may have 4 ranks at once, and this job alone needs 5: it can never start; \
         ask the aggregator's operator for a larger quota"
    );
    let locked = table.join(&of("locked", "any", 0, 1)).unwrap_err().to_string();
    assert!(locked.contains("may have 0 jobs at once, and this job alone needs 1: "), "{locked}");
}

#[test]
fn joins_of_a_tenant_are_bounded_in_a_minute() {
    let none = Quota { joins: Some(0), ..Quota::default() };
    let mut table = table_with(Quota { joins: Some(3), ..Quota::default() }, &[("nobody", none)]);
    let begin = Instant::now();
    let at = |seconds, joiner| Joiner { at: begin + Duration::from_secs(seconds), ..joiner };
    table.join(&at(0, of("a", "train", 0, 4))).unwrap();
    assert!(table.join(&at(1, of("a", "train", 0, 4))).is_err(), "its place is taken");
    table.join(&at(2, of("a", "train", 1, 4))).unwrap();
    let refused = table.join(&at(59, of("a", "train", 2, 4))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "tenant \"a\" may join 3 times a minute, and has done so; try again in a minute, or ask \
         the aggregator's operator for a larger quota"
    );
    table.join(&at(59, of("b", "other", 0, 2))).unwrap();
    assert!(table.join(&at(59, of("nobody", "own", 0, 2))).is_err());
    table.join(&at(60, of("a", "train", 2, 4))).unwrap();
}

/// A saved job keeps its tenant.
#[test]
fn the_next_daemon_knows_whose_a_job_is() {
    let quotas = quotas(Quota { jobs: Some(1), ..Quota::default() }, &[]);
    let mut first = durable_table(1).with_quotas(quotas.clone());
    let effects = first.join(&of("a", "train", 0, 1)).unwrap().1;
    let effects = first.ready(member(&opened(&effects), 0), 352, HEARD).unwrap();
    let Some(Effect::Save(job)) = effects.first() else { panic!("{effects:?}") };
    let text = serde_json::to_string(&job).unwrap();
    let mut second = durable_table(2).with_quotas(quotas);
    second.restore(vec![serde_json::from_str(&text).unwrap()], restart::used_epochs());
    let refused = over(Resource::Jobs, [1, 1, 1]);
    assert_eq!(second.join(&of("a", "more", 0, 1)).unwrap_err(), refused);
    let stranger = JoinError::OtherTenant { name: "train".to_owned() };
    assert_eq!(second.join(&of("b", "train", 0, 1)).unwrap_err(), stranger);
    // A job of a daemon without tenants has no tenant.
    let before = text.replace("\"tenant\":\"a\",", "");
    assert_ne!(before, text);
    assert_eq!(serde_json::from_str::<Job>(&before).unwrap().tenant, "");
}

/// Tenants that have anything are listed, also without quotas.
#[test]
fn what_tenants_have_is_told() {
    let mut table = table_with(Quota::default(), &[]);
    let (stream, _) = table.join(&of("c", "ends", 0, 1)).unwrap();
    for (tenant, job, world_size) in [("b", "waits", 3), ("a", "one", 1), ("a", "two", 1)] {
        table.join(&of(tenant, job, 0, world_size)).unwrap();
    }
    table.join(&of("", "of nobody", 0, 1)).unwrap();
    table.disconnect(stream);
    let slots = LIMITS.slots_per_shard;
    let expected = [
        ("a", Used { jobs: 2, ranks: 2, slots: 2 * slots }),
        ("b", Used { jobs: 1, ranks: 3, slots }),
    ];
    assert_eq!(table.used().collect::<Vec<_>>(), expected);
}
