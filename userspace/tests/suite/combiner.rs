//! A combiner over loopback, packet by packet: packets from strangers and from other racks' ranks,
//! to the combiner or in its name to the root, change nothing.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use switchml_control::aggregator_client::AggregatorClient;
use switchml_control::{JoinRequest, StatusReply};
use switchml_data_plane::software::combiner::SoftwareCombiner;
use switchml_protocol::capabilities::Capabilities;
use switchml_protocol::wire::header::{Header, Kind, flags};
use switchml_protocol::{U16, U32};
use switchml_userspace::combiner::CombinerService;
use switchml_userspace::combiner::parent::Parent;
use switchml_userspace::guard::Guard;
use switchml_userspace_core::data_plane::DataPlane;
use switchml_userspace_core::proxy::Proxy;
use tokio::net::TcpListener;

use crate::common::{
    Daemon, NOBODY, PATIENCE, Path, Rank, SILENCE, checked, join_request, packet, status_only,
};

/// A root, and a combiner below it.
struct Tree {
    root: Daemon,
    combiner: Arc<SoftwareCombiner>,
    control: SocketAddr,
}

impl Tree {
    async fn start() -> Self {
        let root = Daemon::start(512).await;
        let combiner = SoftwareCombiner::start(None, 0, 512, Box::new(drop)).expect("sockets");
        let combiner = Arc::new(combiner);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let control = listener.local_addr().expect("bound");
        let parent = Parent::new(vec![root.control]).check(control).await.expect("a parent");
        let above = parent.to_string();
        let proxy = Proxy::new(combiner.limits(), None, 1, "tor".to_owned(), above);
        let service = CombinerService::new(proxy, combiner.clone(), parent, Guard::default());
        tokio::spawn(service.serve(listener, std::future::pending()));
        Self { root, combiner, control }
    }

    fn counter(&self, name: &str) -> u64 {
        let place = switchml_protocol::outcome::Outcome::ALL
            .iter()
            .position(|outcome| outcome.name() == name)
            .expect("such a counter");
        self.combiner.counters().expect("counters")[place]
    }

    /// Ranks 0 and 1 are below the combiner, rank 2 at the root. All have started.
    async fn start_job(&self) -> Vec<(Rank, Path)> {
        let mut ranks = Vec::new();
        for (rank, at) in [self.control, self.control, self.root.control].into_iter().enumerate() {
            ranks.push(Rank::join(at, "train", rank as u32, 3).await);
        }
        let mut members = Vec::new();
        for mut rank in ranks {
            // Each rank has its own host address, because partial sums come from a host (rule 7.9).
            let local = Ipv4Addr::new(127, 0, 0, 2 + rank.rank as u8);
            let path = Path::bind(rank.assigned().await, rank.rank as u16, local);
            path.hello();
            rank.ready(&path.assigned, 352).await.expect("ready");
            members.push((rank, path));
        }
        for (rank, _) in &mut members {
            rank.next().await;
        }
        members
    }
}

/// A partial sum of these ranks of group 0, in round 0 of slot 0.
fn partial(path: &Path, ranks: u32, lanes: &[u32]) -> Vec<u8> {
    let header = Header {
        rank: U16::new(0),
        aux: U32::new(ranks),
        lanes: U16::new(lanes.len() as u16),
        flags: flags::CHECKED,
        ..path.header(Kind::Partial)
    };
    let sum = lanes.iter().fold(0u32, |sum, lane| sum.wrapping_add(*lane));
    let share = switchml_protocol::wire::share::Share::of(&header);
    let check = header.check_of(sum, share.count()).wrapping_add(share.surplus(&header));
    packet(&Header { check: U32::new(check), ..header }, lanes)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_contributions_go_up_as_one_and_the_result_comes_down_to_both() {
    let tree = Tree::start().await;
    let members = tree.start_job().await;
    for (rank, (_, path)) in (1u32..).zip(&members) {
        path.contribute(0, 0, &[rank; 64]);
    }
    for (_, path) in &members {
        // 1 + 2 + 3
        assert_eq!(path.receive().lanes, vec![6; 64]);
        assert_eq!(path.receive_within(SILENCE), None, "one RESULT, once");
    }
    assert_eq!((tree.counter("held"), tree.counter("combined")), (1, 1));
    assert_eq!((tree.counter("to_all"), tree.counter("to_rank")), (1, 2));
    assert_eq!((tree.root.counter("started").await, tree.root.counter("completed").await), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_partial_sums_change_nothing() {
    let tree = Tree::start().await;
    let members = tree.start_job().await;
    let [(_, zero), (_, one), (_, two)] = &members[..] else { panic!("three ranks") };
    let stranger = UdpSocket::bind("127.0.0.9:0").expect("a socket");
    let send = |path: &Path, ranks, to| {
        stranger.send_to(&partial(path, ranks, &[1000; 64]), to).expect("sent");
    };
    // The stranger knows the session, but is at another place.
    send(zero, 0b011, zero.aggregator);
    send(zero, 0b011, two.aggregator);
    // Rank 2 is not below the combiner, and at another place than ranks 0 and 1.
    two.socket.send_to(&partial(two, 0b100, &[1000; 64]), zero.aggregator).expect("sent");
    two.socket.send_to(&partial(two, 0b111, &[1000; 64]), two.aggregator).expect("sent");
    // Answers that are not the parent's, to all of the combiner's ports for the job.
    let result = Header { kind: Kind::Result as u8, ..zero.header(Kind::Result) };
    let result = packet(&checked(Header { lanes: U16::new(64), ..result }, &[9; 64]), &[9; 64]);
    let base = zero.aggregator.port();
    for port in [base + 1, base + 2, base + 1025] {
        stranger.send_to(&result, ("127.0.0.1", port)).expect("sent");
    }
    // A rank of the rack in its neighbour's name.
    let header = Header { rank: U16::new(1), ..zero.header(Kind::Contribution) };
    zero.send(checked(Header { lanes: U16::new(64), ..header }, &[9; 64]), &[9; 64]);
    switchml_rack::wait_until!(
        PATIENCE,
        tree.counter("wrong_place") >= 4,
        "{}",
        tree.counter("wrong_place")
    );
    for (rank, path) in (1u32..).zip([zero, one, two]) {
        path.contribute(0, 0, &[rank; 64]);
    }
    for path in [zero, one, two] {
        assert_eq!(path.receive().lanes, vec![6; 64]);
        assert_eq!(path.receive_within(SILENCE), None, "nothing else has come");
    }
    assert_eq!(tree.root.counter("wrong_place").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_a_parent_is_refused_in_one_line() {
    let refusal = |addresses: Vec<SocketAddr>, here: &'static str| async move {
        let here = here.parse().expect("an address");
        Parent::new(addresses).check(here).await.expect_err("refused").to_string()
    };
    let nobody = NOBODY.into();
    let line = refusal(vec![nobody], "[::]:1").await;
    let expected = format!("no aggregator answers at the parent's address {nobody} (");
    assert!(line.starts_with(&expected), "{line}");

    let root = Daemon::start(512).await;
    let own = Parent::new(vec![root.control]).check(root.control).await.expect_err("itself");
    let expected = format!("--parent {} is this aggregator itself; ", root.control);
    assert!(own.to_string().starts_with(&expected), "{own}");

    // A combiner whose parent is the root, as parent of the root.
    let tree = Tree::start().await;
    let circle = Parent::new(vec![tree.control]).check(tree.root.control).await;
    let line = circle.expect_err("a circle").to_string();
    let expected = format!("--parent {} leads back here, by {}: ", tree.control, tree.control);
    assert!(line.starts_with(&expected), "{line}");
}

/// A combiner compares its own build with its parent's when it starts: release, and packets.
#[tokio::test(flavor = "multi_thread")]
async fn a_parent_of_another_version_is_refused_in_one_line() {
    let check = |version: &str, protocol_version| {
        let version = version.to_owned();
        let capabilities = Capabilities::PARTIAL_SUMS.bits();
        let status =
            StatusReply { version, protocol_version, capabilities, ..StatusReply::default() };
        async move {
            let address = status_only::start(status).await;
            let here = "127.0.0.1:1".parse().expect("an address");
            let checked = Parent::new(vec![address]).check(here).await;
            (address, checked.map(drop).map_err(|error| error.to_string()))
        }
    };
    let release = env!("CARGO_PKG_VERSION");
    assert_eq!(check(release, 1).await.1, Ok(()));
    for (theirs, packets) in [(release, 2), (release, 0), ("99.0.0", 1)] {
        let (address, checked) = check(theirs, packets).await;
        let line = format!(
            "the aggregator at {address} has version {theirs} (protocol {packets}), this one \
             {release} (protocol 1); run the same version on all hosts"
        );
        assert_eq!(checked, Err(line));
    }
}

/// Rule 22.14: the combiner itself refuses it, since it reads the rank's packets.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_of_another_version_is_refused_by_the_combiner() {
    let tree = Tree::start().await;
    let mut client =
        AggregatorClient::connect(format!("http://{}", tree.control)).await.expect("connected");
    let other = JoinRequest { world_size: 1, protocol_version: 2, ..join_request() };
    let status = client.join(other).await.expect_err("refused");
    let line = "rank 0 from 127.0.0.1 has version 2 of the protocol, this aggregator version 1 (";
    assert!(status.message().starts_with(line), "{status}");
    assert_eq!(status.message().lines().count(), 1);
}
