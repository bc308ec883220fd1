//! The contents of the switch as jobs come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use switchml_bfrt_switch::{Entry, Switch};
use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::join_event::Event;
use switchml_control::{Assigned, LeaveRequest, ListJobsRequest, ReadyRequest, StatusRequest};
use switchml_p4::entries::{Contents, OpenJob};
use switchml_p4::switch::Match;
use switchml_protocol::U16;
use switchml_protocol::bpf_types::job::Binding;
use switchml_protocol::outcome::Outcome;
use switchml_protocol::ranks::Ranks;
use switchml_protocol::wire::auth::Key;
use switchml_userspace_core::data_plane::{DataPlane, JobSpec, ServesJobs};
use switchml_userspace_core::oldest_round::{Alike, Newest, Progress, Unfinished};

use super::schema::{EXCLUSIONS, LEARN, OUTCOMES, RANKS, ROUNDS, TABLES, full, slots};
use super::{AGGREGATOR, Daemon, PORT_NUMBERS, Site, TABLES_OF_PORTS, switch};
use crate::common::{PATIENCE, Rank};

/// The place of a rank: two ranks are behind each port.
fn binding(rank: u16) -> Binding {
    let port = PORT_NUMBERS[usize::from(rank) / 2 % 2];
    let low = rank as u8 + 1;
    Binding {
        ifindex: port.into(),
        ip: [10, 0, 0, low].into(),
        mac: [2, 0, 0, 0, 0, low],
        port: U16::new(40_000 + rank),
        ..Binding::default()
    }
}

/// The pipeline has seen a HELLO, which came from `binding`.
pub fn learn(switch: &Switch, job: u16, epoch: u32, rank: u16, binding: Binding) {
    let Binding { ifindex, ip, mac, port, .. } = binding;
    let fields = [
        ("job", job.into()),
        ("epoch", epoch.into()),
        ("rank", rank.into()),
        ("port", ifindex.into()),
        ("mac", mac.iter().fold(0, |mac, byte| mac << 8 | u64::from(*byte))),
        ("address", u32::from_be_bytes(ip.low()).into()),
        ("udp_port", port.get().into()),
    ];
    switch.learn(LEARN, &fields);
}

/// Says HELLO, and is ready as soon as it is answered: the place is known then.
async fn become_ready(switch: &Switch, rank: &mut Rank, assigned: &Assigned) {
    let binding = binding(rank.rank as u16);
    become_ready_at(switch, rank, assigned, binding).await;
}

async fn become_ready_at(switch: &Switch, rank: &mut Rank, assigned: &Assigned, binding: Binding) {
    learn(switch, assigned.job as u16, assigned.epoch, rank.rank as u16, binding);
    let member = Some(assigned.member(rank.rank));
    let request = ReadyRequest { member, lanes: 64, needs_copies: false, ..Default::default() };
    let known = async {
        while rank.client.ready(request).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, known).await.expect("learned in time");
}

/// A job as the daemon has opened it.
fn open_job(ranks: &[Assigned], first_slot: u32) -> OpenJob {
    let first = &ranks[0];
    OpenJob::new(JobSpec {
        number: first.job as u16,
        epoch: first.epoch,
        secrets: ranks.iter().map(|assigned| assigned.hello_secret).collect(),
        keys: Vec::new(),
        key: Key::NONE,
        slots: first_slot..first_slot + first.slots,
        address: AGGREGATOR.into(),
        group: (first.group_address.parse().expect("an address"), first.group_port as u16),
        parent: None,
    })
}

/// Names without their prefixes.
fn short(name: &str) -> String {
    name.rsplit('.').next().unwrap_or_default().to_owned()
}

/// An entry in words, the same whether it was read from the switch or computed.
fn words(
    table: &str,
    key: BTreeMap<String, (u64, Option<u64>)>,
    action: &str,
    data: BTreeMap<String, u64>,
) -> String {
    format!("{table} {key:?} {} {data:?}", short(action))
}

/// The entries in the program's tables.
fn held(switch: &Switch) -> BTreeSet<String> {
    let mut held = BTreeSet::new();
    for (table, ..) in TABLES.iter().filter(|(name, ..)| *name != EXCLUSIONS) {
        let entries =
            switch.entries(&full(table)).into_iter().chain(switch.default_entry(&full(table)));
        for Entry { key, action, data } in entries {
            let key = key.into_iter().map(|(name, matched)| (short(&name), matched)).collect();
            let data = data.into_iter().map(|(name, values)| (name, values[0])).collect();
            assert!(held.insert(words(table, key, &action, data)));
        }
    }
    held
}

/// The expected entries.
fn wanted(jobs: &[OpenJob]) -> BTreeSet<String> {
    let jobs = jobs.iter().map(|job| (job.spec.number, job.clone())).collect();
    let entries = Contents::of(&PORT_NUMBERS, &jobs).entries.into_iter().map(|entry| {
        let mut key: BTreeMap<_, _> = entry
            .key
            .iter()
            .map(|(name, matched)| match *matched {
                Match::Exact(value) => ((*name).to_owned(), (value, None)),
                Match::Ternary { value, mask } => ((*name).to_owned(), (value, Some(mask))),
            })
            .collect();
        if key.values().any(|(_, mask)| mask.is_some()) {
            key.insert("$MATCH_PRIORITY".to_owned(), (entry.priority.into(), None));
        }
        let data = entry.data.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        words(entry.table, key, entry.action, data)
    });
    entries.collect()
}

/// Ports of the multicast groups: each has one node.
fn groups(switch: &Switch) -> BTreeMap<u64, Vec<u64>> {
    let nodes: BTreeMap<u64, Vec<u64>> = switch
        .entries("$pre.node")
        .into_iter()
        .map(|node| (node.key["$MULTICAST_NODE_ID"].0, node.data["$DEV_PORT"].clone()))
        .collect();
    let groups = switch.entries("$pre.mgid").into_iter();
    let groups: BTreeMap<u64, Vec<u64>> = groups
        .map(|group| {
            let [node] = group.data["$MULTICAST_NODE_ID"][..] else {
                panic!("{group:?} has another number of nodes")
            };
            (group.key["$MGID"].0, nodes[&node].clone())
        })
        .collect();
    assert_eq!(nodes.len(), groups.len(), "no node without a group");
    groups
}

const FLOODING: (u64, [u64; 2]) = (17, [0, 5]);

/// Joins all ranks of a job.
async fn join_all(daemon: &Daemon, name: &str, world_size: u32) -> (Vec<Rank>, Vec<Assigned>) {
    let mut ranks = Vec::new();
    for rank in 0..world_size {
        ranks.push(daemon.join(name, rank, world_size).await);
    }
    let mut assigned = Vec::new();
    for rank in &mut ranks {
        assigned.push(rank.assigned().await);
    }
    (ranks, assigned)
}

async fn first_slot(daemon: &Daemon, job: u32) -> u32 {
    let mut client =
        AggregatorClient::connect(format!("http://{}", daemon.control)).await.expect("connected");
    let jobs = client.list_jobs(ListJobsRequest {}).await.expect("listed").into_inner().jobs;
    let listed = jobs.iter().find(|listed| listed.job == job).expect("the job");
    // Equal shares of the pool, in the order of numbers.
    listed.job * listed.slots / listed.shards.len() as u32
}

/// Waits until the job is known to wait for ranks; for how long it did for each, in ms.
async fn await_waiting(daemon: &Daemon, job: u32) -> Vec<u64> {
    let mut client =
        AggregatorClient::connect(format!("http://{}", daemon.control)).await.expect("connected");
    let known = async {
        loop {
            let jobs =
                client.list_jobs(ListJobsRequest {}).await.expect("listed").into_inner().jobs;
            let listed = jobs.into_iter().find(|listed| listed.job == job).expect("the job");
            let waited: Vec<_> =
                listed.members.iter().map(|member| member.lacked_total_ms).collect();
            if waited.iter().any(|waited| *waited > 0) {
                return waited;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, known).await.expect("a look in time")
}

async fn until_gone(daemon: &Daemon, jobs: usize) {
    let mut client =
        AggregatorClient::connect(format!("http://{}", daemon.control)).await.expect("connected");
    let gone = async {
        while client.list_jobs(ListJobsRequest {}).await.expect("listed").into_inner().jobs.len()
            > jobs
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("ended in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_from_join_to_leave() {
    let (site, switch) = (Site::new(), switch());
    let daemon = super::daemon(&site, &switch).await;
    assert_eq!(
        (held(&switch), groups(&switch)),
        (wanted(&[]), [FLOODING].map(|(group, ports)| (group, ports.to_vec())).into())
    );

    let (mut ranks, assigned) = join_all(&daemon, "train", 3).await;
    let told = &assigned[0];
    assert_eq!((told.max_lanes, told.durable), (64, false));
    // EMPTY_CONTRIBUTIONS (rule 22.13).
    assert_eq!(told.capabilities, 1 << 1);
    assert_eq!((told.data_address.as_str(), told.data_port), ("10.0.0.254", 48864));
    let first = first_slot(&daemon, told.job).await;
    let mut job = open_job(&assigned, first);
    assert_eq!(held(&switch), wanted(std::slice::from_ref(&job)));

    // Every set of the job, and no other, holds the round before the first of its parity.
    let rounds: BTreeMap<u64, u64> = switch
        .entries(ROUNDS)
        .iter()
        .map(|entry| {
            (entry.key["$REGISTER_INDEX"].0, entry.data["Ingress.aggregator.slot.tag.rounds.f1"][0])
        })
        .collect();
    let (begin, slots) = (2 * u64::from(first), u64::from(told.slots));
    let before = |set: u64| if set < begin + slots { 0xFFFF_FFFE } else { 0xFFFF_FFFF };
    assert_eq!(rounds, (begin..begin + 2 * slots).map(|set| (set, before(set))).collect());

    for rank in [2, 0, 1] {
        become_ready(&switch, &mut ranks[rank], &assigned[rank]).await;
        job.bindings.insert(rank as u16, binding(rank as u16));
        job.is_started = job.bindings.len() == job.secrets.len();
        assert_eq!(held(&switch), wanted(std::slice::from_ref(&job)), "rank {rank} is known");
    }
    for rank in &mut ranks {
        assert!(matches!(rank.next().await, Event::Started(started) if started.lanes == 64));
    }
    // Ranks 0 and 1 are behind one port, which gets one frame.
    assert_eq!(groups(&switch)[&(u64::from(told.job) + 1)], [0, 5]);
    assert_what_rank_1_has(&switch, told, first);

    for (rank, assigned) in (0..).zip(&assigned) {
        let member = Some(assigned.member(rank));
        let request = LeaveRequest { member, ..LeaveRequest::default() };
        ranks[rank as usize].client.leave(request).await.expect("left");
    }
    until_gone(&daemon, 0).await;
    assert_eq!(held(&switch), wanted(&[]));
    assert_eq!(groups(&switch).len(), 1);
    daemon.stop().await;
    let occupied: Vec<_> = switch.occupied().into_keys().collect();
    assert_eq!(occupied, TABLES_OF_PORTS, "links stay up, nothing else is left");
    assert_eq!(
        switch.default_entry(&full("stations")).expect("set").action,
        "Ingress.aggregator.nowhere"
    );
}

/// A flooded frame does not return: the copy for its own port has the exclusion id that the program
/// gives the frame.
#[tokio::test(flavor = "multi_thread")]
async fn each_port_is_kept_from_what_came_in_by_it() {
    let (site, switch) = (Site::new(), switch());
    let data_plane = site.start(switch.address).await.expect("a data plane");
    let pruned: BTreeMap<u64, Vec<u64>> = switch
        .entries("$pre.prune")
        .into_iter()
        .map(|entry| (entry.key["$MULTICAST_L2_XID"].0, entry.data["$DEV_PORT"].clone()))
        .collect();
    // 0 is the id of frames from anywhere else.
    assert!(pruned.keys().all(|id| (1..288).contains(id)), "{pruned:?}");
    let ids_of_ports = switch.entries(&full(EXCLUSIONS)).into_iter();
    let ids_of_ports: BTreeMap<u64, Vec<u64>> =
        ids_of_ports.map(|entry| (entry.data["id"][0], vec![entry.key["port"].0])).collect();
    assert_eq!(ids_of_ports, pruned);
    let mut ports: Vec<u64> = pruned.into_values().flatten().collect();
    ports.sort_unstable();
    assert_eq!(ports, PORT_NUMBERS.map(u64::from));
    let flooding = &switch.default_entry(&full("stations")).expect("set").data["group"];
    let nodes = switch.entries("$pre.node");
    let node = nodes
        .iter()
        .find(|node| node.key["$MULTICAST_NODE_ID"].0 == flooding[0])
        .expect("a node of that number");
    assert_eq!(
        node.data["$MULTICAST_RID"], *flooding,
        "the program takes the group's number for it"
    );
    data_plane.stop();
}

/// All ranks are told why, in one line: they would wait forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_across_pipelines_is_refused() {
    let (site, switch) = (Site::new(), switch());
    let daemon = super::daemon(&site, &switch).await;
    let (mut ranks, assigned) = join_all(&daemon, "train", 2).await;
    for (rank, port) in [(0, 0), (1, 130)] {
        let there = Binding { ifindex: port, ..binding(rank) };
        become_ready_at(
            &switch,
            &mut ranks[usize::from(rank)],
            &assigned[usize::from(rank)],
            there,
        )
        .await;
    }
    for rank in &mut ranks {
        let reason = loop {
            if let Event::Aborted(aborted) = rank.next().await {
                break aborted.reason;
            }
        };
        let expected = "the aggregator failed: start job 0 on the switch: all ranks must be at \
                        ports of one pipeline, but found rank 0 at port 0 of pipeline 0, rank 1 at \
                        port 130 of pipeline 1";
        assert_eq!(reason, expected);
    }
    daemon.stop().await;
}

/// Even sets begin at twice a job's first slot. The driver's copies of registers are old until they
/// are renewed, and other pipelines hold what is not the job's.
#[tokio::test(flavor = "multi_thread")]
async fn slots_that_lack_a_rank_are_those_of_the_ranks_pipeline() {
    let (site, switch) = (Site::new(), switch());
    let data_plane = Arc::new(site.start(switch.address).await.expect("a data plane"));
    let limits = data_plane.limits();
    let daemon = Daemon::serve(data_plane.clone(), limits, Some(AGGREGATOR.into())).await;
    let (mut ranks, assigned) = join_all(&daemon, "train", 3).await;
    let job = assigned[0].job;
    let unfinished = || data_plane.unfinished(job as u16).expect("shown");
    assert_eq!(unfinished(), Some(vec![]), "nothing has begun");
    let even = 2 * u64::from(first_slot(&daemon, job).await);
    for (rank, assigned) in ranks.iter_mut().zip(&assigned) {
        let there = Binding { ifindex: 130, ..binding(rank.rank as u16) };
        become_ready_at(&switch, rank, assigned, there).await;
    }
    let hold = |pipeline, slot: u64, ranks| {
        switch.hold(RANKS, pipeline, even + slot, ranks);
        switch.hold(ROUNDS, pipeline, even + slot, 0);
    };
    hold(1, 0, 0b111);
    hold(1, 1, 0b111);
    hold(1, 2, 0b101);
    hold(0, 3, 0b001);
    let lacks = Ranks::from([1]);
    let progress = || data_plane.progress(job as u16).expect("shown").expect("a root's job");
    let unfinished_chunk = Some(Unfinished { chunk: 2, lacks });
    assert_eq!(progress(), Progress { begun: 3, unfinished: unfinished_chunk });
    let newest = Newest { round: 0, lacks, operation: None };
    assert_eq!(unfinished(), Some(vec![Alike { slots: 2..3, newest }]));
    let waited = await_waiting(&daemon, job).await;
    assert!(waited[1] > 0 && (waited[0], waited[2]) == (0, 0), "{waited:?} ms for each rank");
    hold(1, 2, 0b111);
    assert_eq!(unfinished(), Some(vec![]), "rank 1 has come");
    assert_eq!(progress(), Progress { begun: 3, unfinished: None });
    daemon.stop().await;
}

/// Expected values by hand, from docs/research/tofino.md: computed and written entries might agree
/// and both be wrong.
fn assert_what_rank_1_has(switch: &Switch, told: &Assigned, first_slot: u32) {
    let of_rank = |table: &str| -> Vec<Entry> {
        let mut entries = switch.entries(&full(table));
        entries.retain(|entry| entry.key["rank"].0 == 1 && entry.key["rank"].1 != Some(0));
        entries
    };
    let slots = u64::from(told.slots);
    let exact = |value: u64, bits: u32| (value, Some((1u64 << bits) - 1));
    for (parity, base) in [(0, 2 * u64::from(first_slot)), (1, 2 * u64::from(first_slot) + slots)] {
        let key = BTreeMap::from(
            [
                ("m.is_contribution", exact(1, 1)),
                ("m.bad_ip_checksum", exact(0, 1)),
                ("flags", (4, Some(4))),
                ("job", exact(told.job.into(), 16)),
                ("epoch", exact(told.epoch.into(), 32)),
                ("rank", exact(1, 16)),
                ("slot", (0, Some(0x1_0000 - slots))),
                ("parity", exact(parity, 1)),
                ("port", exact(0, 9)),
                ("mac", exact(0x0200_0000_0002, 48)),
                ("address", exact(0x0A00_0002, 32)),
                ("aggregator", exact(0x0A00_00FE, 32)),
                ("udp_port", exact(40_001, 16)),
                ("$MATCH_PRIORITY", (0, None)),
            ]
            .map(|(name, matched)| (name.to_owned(), matched)),
        );
        let data = [("base", base), ("own", 2), ("rest", 0b101), ("others", 2)];
        let data = data.map(|(name, value)| (name.to_owned(), vec![value]));
        let entry = Entry { key, action: "Ingress.aggregator.admit".to_owned(), data: data.into() };
        assert!(of_rank("members").contains(&entry), "{entry:?}");
    }
    assert_eq!(of_rank("members").len(), 2);
    let [newcomer] = &of_rank("newcomers")[..] else { panic!("one entry") };
    assert_eq!(newcomer.action, "Ingress.aggregator.misplaced");
    let audience = switch.entries(&full("jobs"));
    let data =
        [("group", 1), ("mac", 0x0100_5E7F_0000), ("address", 0xEFFF_0000), ("udp_port", 48866)];
    assert_eq!(audience[0].data, data.map(|(name, value)| (name.to_owned(), vec![value])).into());
    let station = switch
        .entries(&full("stations"))
        .into_iter()
        .find(|entry| entry.key["mac"].0 == 0x0200_0000_0002);
    assert_eq!(station.expect("a station").data["port"], [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_job_is_refused_and_another_goes_on() {
    let (site, switch) = (Site::new(), switch());
    let daemon = super::daemon(&site, &switch).await;
    let mut jobs = Vec::new();
    for name in ["one", "two"] {
        let (mut ranks, assigned) = join_all(&daemon, name, 2).await;
        let mut job = open_job(&assigned, first_slot(&daemon, assigned[0].job).await);
        for (rank, assigned) in ranks.iter_mut().zip(&assigned) {
            become_ready(&switch, rank, assigned).await;
            job.bindings.insert(rank.rank as u16, binding(rank.rank as u16));
        }
        job.is_started = true;
        jobs.push((ranks, job));
    }
    let [(mut first, mut one), (second, two)] =
        <[_; 2]>::try_from(jobs).map_err(drop).expect("two");
    drop(first.pop());
    while !matches!(first[0].next().await, Event::Aborted(_)) {}
    one.is_aborted = true;
    assert_eq!(held(&switch), wanted(&[one, two.clone()]));
    drop(first);
    until_gone(&daemon, 1).await;
    assert_eq!(held(&switch), wanted(&[two]));
    drop(second);
    until_gone(&daemon, 0).await;
    assert_eq!(held(&switch), wanted(&[]));
}

/// Every fourth packet: those whose time, in nanoseconds, is a multiple of four.
#[tokio::test(flavor = "multi_thread")]
async fn losses_on_purpose_are_entries() {
    let (site, switch) = (Site::new(), switch());
    let data_plane = site.start(switch.address).await.expect("a data plane");
    let losses = || -> Vec<_> {
        let entries = switch.entries(&full("losses"));
        entries.into_iter().map(|entry| (entry.key["draw"], entry.action)).collect()
    };
    assert_eq!(losses(), []);
    data_plane.set_drop_rate("0.25".parse().expect("a rate")).expect("written");
    assert_eq!(losses(), [((0, Some(3)), "Ingress.losses.lose".to_owned())]);
    let said = data_plane.attachment();
    assert!(said.ends_with("; FOR TESTS, it loses 25 % of the packets that reach it"), "{said}");
    data_plane.stop();
    assert_eq!(losses(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_are_those_of_the_pipeline() {
    let (site, switch) = (Site::new(), switch());
    let daemon = super::daemon(&site, &switch).await;
    let mut client =
        AggregatorClient::connect(format!("http://{}", daemon.control)).await.expect("connected");
    for (outcome, packets) in
        [(Outcome::Added, 1 << 40), (Outcome::Spoofed, 3), (Outcome::Added, 2)]
    {
        switch.count(OUTCOMES, outcome as u64, packets);
        let status = client.status(StatusRequest {}).await.expect("a status").into_inner();
        assert_eq!((status.data_plane.as_str(), status.slots_total), ("tofino", slots() as u32));
        assert!(
            status.attachment.starts_with("program switchml on the switch at 127.0.0.1:"),
            "{}",
            status.attachment
        );
        let counted = status.counters.iter().filter(|counter| counter.packets > 0);
        let counted: BTreeMap<_, _> =
            counted.map(|counter| (&*counter.name, counter.packets)).collect();
        let added = if outcome == Outcome::Added && packets == 2 { (1 << 40) + 2 } else { 1 << 40 };
        let expected = [("added", added), ("spoofed", 3)];
        assert_eq!(
            counted,
            expected.into_iter().take(if packets == 1 << 40 { 1 } else { 2 }).collect()
        );
    }
}

/// The next daemon clears the switch after a daemon that was killed.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_daemon_finds_a_clean_switch() {
    let (site, switch) = (Site::new(), switch());
    let first = site.start(switch.address).await.expect("a data plane");
    let spec = JobSpec {
        number: 0,
        epoch: 7,
        secrets: vec![1, 2],
        keys: Vec::new(),
        key: Key::NONE,
        slots: 0..512,
        address: AGGREGATOR.into(),
        group: ([239, 255, 0, 0].into(), 48866),
        parent: None,
    };
    first.open(&spec).expect("opened");
    // A process that is killed does not stop its data plane; its connection ends.
    drop(first);
    let unbound = async {
        while !switch.program().1.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, unbound).await.expect("unbound in time");
    assert_ne!(held(&switch), wanted(&[]));
    let _second = super::daemon(&site, &switch).await;
    assert_eq!((held(&switch), groups(&switch).len()), (wanted(&[]), 1));
}
