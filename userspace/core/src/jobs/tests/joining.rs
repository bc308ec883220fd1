//! Joining, and waiting for the others.

use super::*;

#[test]
fn ranks_wait_for_each_other_and_are_assigned_together() {
    let mut table = table();
    let waiting =
        |missing: &[u32]| Event::Waiting(control::Waiting { missing_ranks: missing.to_vec() });
    let (a, effects) = table.join(&joiner("train", 2, 3)).unwrap();
    assert_eq!(effects, [Effect::Tell(a, waiting(&[0, 1]))]);
    let (b, effects) = table.join(&joiner("train", 0, 3)).unwrap();
    assert_eq!(effects, [Effect::Tell(b, waiting(&[1])), Effect::Tell(a, waiting(&[1]))]);
    let (c, effects) = table.join(&joiner("train", 1, 3)).unwrap();

    let spec = opened(&effects);
    assert_eq!((spec.number, spec.slots.clone(), spec.address), (0, 0..512, LOCAL.into()));
    assert_eq!(spec.group, (Ipv4Addr::new(239, 255, 0, 0), 48866));
    assert_ne!(spec.epoch, 0);
    // All are told the same.
    let &control::Assigned { aggregator, move_secret, .. } = told(&effects);
    assert!(move_secret != 0 && move_secret != aggregator);
    let assigned = |rank: usize, hello_secret| {
        Event::Assigned(control::Assigned {
            job: 0,
            epoch: spec.epoch,
            slots: 512,
            data_address: "10.0.0.254".to_owned(),
            data_port: 48864,
            group_address: "239.255.0.0".to_owned(),
            group_port: 48866,
            hello_secret,
            control_secret: spec.control_secrets[rank],
            max_lanes: 768,
            durable: false,
            capabilities: 0b1,
            further_shards: Vec::new(),
            world_size: 3,
            hosts: 3,
            aggregator,
            move_secret,
            ..control::Assigned::default()
        })
    };
    let [zero, one, two] = spec.secrets[..] else { panic!("{} secrets", spec.secrets.len()) };
    assert!(zero != one && one != two && zero != two);
    assert_eq!(spec.control_secrets.iter().collect::<HashSet<_>>().len(), 3);
    let expected = [
        Effect::Open(spec.spec.clone()),
        Effect::Tell(b, assigned(0, zero)),
        Effect::Tell(c, assigned(1, one)),
        Effect::Tell(a, assigned(2, two)),
    ];
    assert_eq!(effects, expected);
}

#[test]
fn a_rank_that_gives_up_waiting_frees_its_place() {
    let mut table = table();
    let (first, _) = table.join(&joiner("train", 0, 2)).unwrap();
    assert_eq!(table.disconnect(first), []);
    assert_eq!((table.list(), table.free_slots()), (vec![], POOL));
    let (again, _) = table.join(&joiner("train", 0, 3)).unwrap();
    let (gives_up, _) = table.join(&joiner("train", 1, 3)).unwrap();
    let waiting = Event::Waiting(control::Waiting { missing_ranks: vec![1, 2] });
    assert_eq!(table.disconnect(gives_up), [Effect::Tell(again, waiting)]);
}

#[test]
fn after_an_abort_the_name_starts_a_new_job_at_once() {
    let mut table = table();
    let (streams, old) = started(&mut table, "train", 2);
    table.disconnect(streams[0]);
    let (_, new) = started(&mut table, "train", 3);
    assert_ne!(new.epoch, old.epoch);
    assert_ne!(new.number, old.number);
    assert!(new.slots.end <= old.slots.start || old.slots.end <= new.slots.start);
    assert_eq!(table.disconnect(streams[1]), [Effect::Close(old.number)]);
    assert_eq!(table.list().len(), 1);
}

#[test]
fn while_ranks_of_a_finished_job_are_leaving_the_name_starts_a_new_one() {
    let mut table = table();
    let (_, old) = started(&mut table, "train", 2);
    table.leave(member(&old, 0), "", &[]).unwrap();
    let (_, new) = started(&mut table, "train", 2);
    assert_ne!(new.number, old.number);
}

#[test]
fn joins_that_are_refused_say_what_to_do() {
    let mut table = table();
    table.join(&joiner("train", 2, 4)).unwrap();
    let refused =
        |table: &mut Table, joiner: &Joiner| table.join(joiner).expect_err("refused").to_string();
    let cases = [
        (joiner("", 0, 1), "job name of 0 bytes; give all ranks the same name of 1 to 200 bytes"),
        (joiner("train", 0, 0), "world size 0; a job has 1 to 1024 ranks"),
        (joiner("train", 0, 1025), "world size 1025; a job has 1 to 1024 ranks"),
        (joiner("train", 4, 4), "rank 4 of world size 4; ranks are 0 to 3"),
        (
            joiner("train", 2, 4),
            "job \"train\" already has rank 2, from 10.0.0.3; give each process a rank of its \
             own, or each job a name",
        ),
        (
            joiner("train", 0, 3),
            "job \"train\" has world size 4, not 3; give all ranks the same world size, or each \
             job a name",
        ),
    ];
    for (joiner, expected) in cases {
        assert_eq!(refused(&mut table, &joiner), expected);
    }
    // Rule 15.3: a byte of a witness cannot count more ranks.
    let unchecked = Limits { capabilities: Capabilities::empty(), ..LIMITS };
    assert_eq!(
        refused(&mut Table::new(unchecked, None, 1), &joiner("train", 0, 256)),
        "world size 256; a job has 1 to 255 ranks"
    );
    let local = "fe80::fe".parse().unwrap();
    let of_a_link = Joiner { local, ..joiner("train", 0, 4) };
    assert_eq!(table.join(&of_a_link).unwrap_err(), JoinError::LinkLocal(local));
    assert_eq!(table.join(&joiner(&"x".repeat(201), 0, 1)).unwrap_err(), JoinError::Name(201));
    let threads = Threads { most: 1, host: "h".repeat(65) };
    assert_eq!(
        table.join(&Joiner { threads, ..joiner("train", 0, 4) }).unwrap_err(),
        JoinError::Host(65)
    );
    let tenant = "t".repeat(65);
    assert_eq!(
        table.join(&Joiner { tenant, ..joiner("new", 0, 4) }).unwrap_err(),
        JoinError::Tenant(65)
    );
    assert_eq!(table.list().len(), 1, "a refused rank leaves nothing behind");
}

#[test]
fn jobs_that_wait_hold_nothing() {
    let mut table = table();
    for job in 0..200 {
        table.join(&joiner(&format!("idle {job}"), 0, 2)).unwrap();
    }
    assert_eq!(table.free_slots(), POOL);
    let (_, spec) = started(&mut table, "train", 2);
    assert_eq!((spec.number, spec.slots.clone()), (0, 0..512));
}

#[test]
fn jobs_that_wait_are_bounded_in_all_and_of_one_host() {
    let mut table = table();
    let from = |host: u32, job: u32| Joiner {
        peer: Ipv4Addr::from_bits(0x0A00_0000 + host).into(),
        ..joiner(&format!("{host} {job}"), 0, 2)
    };
    for (host, job) in (0..15).flat_map(|host| (0..256).map(move |job| (host, job))) {
        table.join(&from(host, job)).unwrap();
    }
    let refused = JoinError::TooManyWaiting { waiting: 3840, of_host: 256, peer: from(3, 0).peer };
    assert_eq!(table.join(&from(3, 256)).unwrap_err(), refused);
    assert_eq!(
        refused.to_string(),
        "3840 jobs are waiting for ranks, 256 of them started from 10.0.0.3; at most 4096 may \
         wait, and 256 of one host: start all ranks of a job, or end waiting jobs"
    );
    // A rank that completes a job is let in.
    table.join(&Joiner { rank: 1, ..from(3, 7) }).unwrap();
    (0..256).for_each(|job| drop(table.join(&from(15, job)).unwrap()));
    table.join(&from(16, 0)).unwrap();
    assert!(matches!(
        table.join(&from(17, 0)),
        Err(JoinError::TooManyWaiting { waiting: 4096, of_host: 0, .. })
    ));
}

/// Whatever else is wrong, another tenant learns nothing about the job.
#[test]
fn ranks_of_different_tenants_are_never_in_the_same_job() {
    let mut table = table();
    let of = |tenant: &str, rank, world_size| Joiner {
        tenant: tenant.to_owned(),
        ..joiner("train", rank, world_size)
    };
    table.join(&of("a", 0, 2)).unwrap();
    let refused = JoinError::OtherTenant { name: "train".to_owned() };
    for stranger in [of("b", 1, 2), of("b", 0, 2), of("b", 1, 3), of("", 1, 2)] {
        assert_eq!(table.join(&stranger).unwrap_err(), refused);
    }
    table.join(&of("a", 1, 2)).unwrap();
    assert_eq!(table.join(&of("b", 0, 2)).unwrap_err(), refused, "it runs");
}
