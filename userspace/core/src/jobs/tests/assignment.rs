//! Numbers, slots and addresses of a job, and jobs that get none.

use super::*;

#[test]
fn a_job_has_a_shard_for_each_data_thread() {
    let mut table = table();
    let (one, effects) = join_all(&mut table, "other", 1);
    assert_eq!(opened(&effects).number, 0);
    table.join(&threaded("train", 0, 2, 4)).unwrap();
    let (last, effects) = table.join(&threaded("train", 1, 2, 2)).unwrap();
    let specs: Vec<_> = effects
        .iter()
        .filter_map(|effect| if let Effect::Open(spec) = effect { Some(spec) } else { None })
        .collect();
    let [first, second] = specs[..] else { panic!("{effects:?}") };
    let train = opened(&effects);
    assert_eq!(
        (first.number, first.slots.clone(), second.number, second.slots.clone()),
        (1, 512..1024, 1023, 1023 * 512..1024 * 512)
    );
    assert_eq!((first.epoch, &first.secrets), (second.epoch, &second.secrets));
    assert_ne!(first.group, second.group);
    let told = effects.iter().find_map(|effect| match effect {
        Effect::Tell(stream, Event::Assigned(assigned)) if *stream == last => Some(assigned),
        _ => None,
    });
    let told = told.expect("Assigned");
    let further =
        control::Shard { job: 1023, group_address: "239.255.3.255".to_owned(), group_port: 48866 };
    assert_eq!((told.job, told.slots, told.group_address.as_str()), (1, 512, "239.255.0.1"));
    assert_eq!(told.further_shards, [further]);

    let (id, other_id) = (member(&train, 0), member(&train, 1));
    let second_binding = Binding { ifindex: 7, ..BINDING };
    assert_eq!(table.shards(id), Ok(&[1, 1023][..]));
    assert_eq!(table.ready(id, 352, [BINDING]), Err(MemberError::NoHello(0)), "in one shard only");
    assert_eq!(table.ready(id, 352, [BINDING, second_binding]), Ok(vec![]));
    let effects = table.ready(other_id, 352, [BINDING; 2]).unwrap();
    assert!(
        matches!(
            &effects[..],
            [Effect::Start(1, _), Effect::Start(1023, _), Effect::Tell(..), Effect::Tell(..)]
        ),
        "{effects:?}"
    );
    // Each port carries a part of every sum.
    let effects = table.lose_port(7, "it is gone");
    assert!(
        matches!(
            &effects[..],
            [Effect::Abort(1), Effect::Abort(1023), Effect::Tell(..), Effect::Tell(..)]
        ),
        "{effects:?}"
    );
    table.leave(id, "", &[]).unwrap();
    let effects = table.leave(other_id, "", &[]).unwrap();
    assert_eq!(effects, [Effect::Close(1), Effect::Close(1023), Effect::End(last)]);
    table.disconnect(one[0]);
    assert_eq!((table.free_slots(), table.free_numbers().count()), (POOL, MAX_SHARDS));
}

/// The numbers that the effects open.
fn numbers(effects: &[Effect]) -> Vec<u16> {
    let open =
        |effect: &Effect| if let Effect::Open(spec) = effect { Some(spec.number) } else { None };
    effects.iter().filter_map(open).collect()
}

#[test]
fn further_data_threads_leave_a_number_for_every_job() {
    let mut table = Table::new(Limits { shards: 512, max_jobs: 256, ..LIMITS }, None, 1);
    // 8 threads each need 7 of the 256 further numbers. The 37th job finds 4 of them, and gets 4
    // threads.
    let counts: Vec<_> = (0..256)
        .map(|job| numbers(&table.join(&threaded(&job.to_string(), 0, 1, 8)).unwrap().1))
        .inspect(|numbers| {
            assert!(numbers[0] < 256 && numbers[1..].iter().all(|number| *number >= 256))
        })
        .map(|numbers| numbers.len())
        .collect();
    assert_eq!(counts[..36], [8; 36]);
    // 256 - 36 * 7 = 4 are left: 3 of them make 4 threads, and the last 2.
    assert_eq!(counts[36..39], [4, 2, 1]);
    assert_eq!(counts[38..], [1; 218]);
}

#[test]
fn too_few_numbers_make_fewer_shards() {
    let shards = |shards| {
        let limits = Limits { shards, max_jobs: shards, ..LIMITS };
        let mut table = Table::new(limits, None, 1);
        let (_, effects) = table.join(&threaded("train", 0, 1, 4)).unwrap();
        numbers(&effects)
    };
    let shards: fn(u16) -> Vec<u16> = shards;
    assert_eq!(shards(16), [0, 15, 14, 13]);
    assert_eq!(shards(6), [0, 5, 4, 3]);
    assert_eq!(shards(5), [0, 4]);
    assert_eq!(shards(2), [0, 1]);
    assert_eq!(shards(1), [0]);
}

#[test]
fn a_job_without_a_number_is_refused_to_all_its_ranks_at_once() {
    let mut table = table();
    for job in 0..MAX_JOBS as u32 {
        let (_, effects) = join_all(&mut table, &job.to_string(), 1);
        assert_eq!((opened(&effects).number, opened(&effects).slots.len()), (job as u16, 512));
    }
    let (streams, effects) = join_all(&mut table, "one more", 3);
    let news = aborted("the aggregator has 512 jobs already; wait for one to end", &[]);
    let told = streams.iter().map(|stream| Effect::Tell(*stream, news.clone()));
    let ended = streams.iter().map(|stream| Effect::End(*stream));
    assert_eq!(effects, told.chain(ended).collect::<Vec<_>>());
    assert_eq!(table.list().len(), MAX_JOBS);
    assert_eq!(table.disconnect(streams[0]), []);
    // If memory is short, more slots help.
    let mut small = Table::new(Limits { shards: 1, ..LIMITS }, None, 1);
    join_all(&mut small, "first", 1);
    let (streams, effects) = join_all(&mut small, "second", 1);
    let news = aborted(
        "the aggregator has 1 job already; wait for it to end, or start it with more --slots",
        &[],
    );
    assert_eq!(effects, [Effect::Tell(streams[0], news), Effect::End(streams[0])]);
}

#[test]
fn unicast_fan_out_assigns_no_group() {
    let limits = Limits { fanout: Fanout::Unicast, ..LIMITS };
    let mut table = Table::new(limits, None, 1);
    let (_, effects) = join_all(&mut table, "train", 1);
    let Effect::Tell(_, Event::Assigned(assigned)) = &effects[1] else { panic!("{effects:?}") };
    assert_eq!((assigned.group_address.as_str(), assigned.group_port), ("", 0));
}

#[test]
fn a_configured_data_address_comes_before_that_of_the_connection() {
    let configured = Ipv4Addr::new(192, 0, 2, 7).into();
    let mut table = Table::new(LIMITS, Some(configured), 1);
    let over_ipv6 = Joiner { local: OVER_IPV6, ..joiner("train", 0, 1) };
    let (_, effects) = table.join(&over_ipv6).unwrap();
    assert_eq!(opened(&effects).address, configured);
}

#[test]
fn jobs_over_ipv6_lack_what_is_for_ipv4_alone() {
    let capabilities = Capabilities::CHECKED_MAXIMA | Capabilities::ROCE;
    let limits = Limits { capabilities, ipv4_only: Capabilities::ROCE, ..LIMITS };
    let told_at = |local| {
        let mut table = Table::new(limits, None, 1);
        let (_, effects) = table.join(&Joiner { local, ..joiner("train", 0, 1) }).unwrap();
        let told = effects.iter().find_map(|effect| match effect {
            Effect::Tell(_, Event::Assigned(assigned)) => Some(assigned.capabilities),
            _ => None,
        });
        Capabilities::from_bits_retain(told.expect("assigned"))
    };
    assert_eq!(told_at(Ipv4Addr::new(10, 0, 0, 254).into()), capabilities);
    assert_eq!(told_at(OVER_IPV6), Capabilities::CHECKED_MAXIMA);
}

/// An address of the daemon.
const OVER_IPV6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 0xFE));

/// The data address of a job whose ranks came by these addresses of the daemon, and its group.
fn assigned_to(locals: &[IpAddr]) -> (IpAddr, String) {
    let mut table = table();
    let mut effects = Vec::new();
    for (rank, &local) in (0..).zip(locals) {
        let joiner = Joiner { local, ..joiner("train", rank, locals.len() as u32) };
        effects = table.join(&joiner).unwrap().1;
    }
    let told = effects.iter().find_map(|effect| match effect {
        Effect::Tell(_, Event::Assigned(assigned)) => Some(assigned.clone()),
        _ => None,
    });
    let told = told.expect("assigned");
    let address = opened(&effects).address;
    assert_eq!(told.data_address, address.to_string());
    (address, told.group_address)
}

#[test]
fn a_job_over_ipv6_has_no_group() {
    assert_eq!(assigned_to(&[OVER_IPV6; 2]), (OVER_IPV6, String::new()));
}

#[test]
fn ranks_that_came_by_both_kinds_of_ip_meet_at_ipv6() {
    assert_eq!(assigned_to(&[OVER_IPV6, LOCAL.into()]), (OVER_IPV6, String::new()));
    assert_eq!(assigned_to(&[LOCAL.into(), OVER_IPV6]), (OVER_IPV6, String::new()));
    assert_eq!(assigned_to(&[LOCAL.into(); 2]), (LOCAL.into(), "239.255.0.0".to_owned()));
}
