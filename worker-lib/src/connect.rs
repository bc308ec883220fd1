//! Connects a communicator: joins at each of the job's aggregators (rule 36.1), opens a path for
//! each shard, and makes its driver.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use switchml_protocol::capabilities::Capabilities;
use switchml_worker_core::call::Submission;
use switchml_worker_core::data_path::DataPath;
use switchml_worker_core::engine::Engine;
use switchml_worker_core::shards::Shards;
use switchml_worker_core::spin::Spin;
use switchml_worker_core::stripes;

use crate::builder::Builder;
use crate::commons::Commons;
use crate::communicator::{Communicator, Info, Shard, Stripe};
use crate::control::{Access, Assigned, Sessions, Wish};
use crate::driver::{Driver, DriverLock, Handover, InCalls, Moves, Shared, Unanswered};
use crate::error::Error;
use crate::failover::{self, Failover, Known, answer, hear_of_end, hear_of_peer};
use crate::identity::Identity;
use crate::local_sums::{Meeting, Service, Team};
use crate::paths::{Opened, Path};
use crate::peers::{OwnAggregator, Peers};
use crate::summary;
use crate::transport::Medium;
use crate::waker::{Waker, Wakers};
use crate::warning::warn;

impl Builder {
    /// Joins the job, waits until all its ranks have, and opens the data paths.
    ///
    /// # Errors
    /// [`Error::Setting`] for missing or impossible settings; [`Error::Control`] when an aggregator
    /// cannot be reached, refuses, or ranks are missing; [`Error::DataPathClosed`],
    /// [`Error::OwnHost`] or [`Error::PathMtu`] when packets do not pass.
    pub fn connect(self) -> Result<Communicator, Error> {
        let (rank, world_size) = self.check()?;
        let Identity { job, peers, host } = self.identify((rank as u16, world_size as u16))?;
        let communicator = self.connect_to(&job, (rank, world_size), peers)?;
        let summary = self.settings.summary();
        let adds_up = self.settings.local_sums();
        let communicator = self.with_own_hosts(communicator)?;
        if summary {
            summary::write(communicator.info(), adds_up);
        }
        Ok(match host {
            Some(host) => communicator.met_at(host),
            None => communicator,
        })
    }

    /// Joins the job of this name at these aggregators, and opens the data paths.
    ///
    /// # Errors
    /// Those of [`Self::connect`] but for settings.
    pub(crate) fn connect_to(
        &self,
        job: &str,
        (rank, world_size): (u32, u32),
        Peers { own, aggregators }: Peers,
    ) -> Result<Communicator, Error> {
        let all: Vec<_> = aggregators.iter().map(|access| access.address.clone()).collect();
        let wish = Wish {
            job,
            rank,
            world_size,
            data_threads: self.settings.data_threads,
            aggregators: aggregators.len() as u32,
            timeout: self.settings.join_timeout(),
            standstill: self.settings.standstill(),
            has_others: has_lasting(&aggregators) && aggregators.len() > 1,
            all: &all,
            in_place_of: "",
        };
        let (sessions, joined) = Sessions::join(&aggregators, &wish)?;
        let me = (rank as u16, world_size as u16);
        let commons = Commons::here();
        let wakers = |_| {
            let driving = Waker::new(&commons.events);
            Wakers { driving, turns: commons.data_threads.turns() }
        };
        let opened = joined.into_iter().map(|(access, assigned)| {
            let own = own.as_deref().filter(|_| access.peer == Some(me.0));
            let medium = own.map_or_else(|| Medium::to(&access, self.settings.rdma()), Medium::Own);
            Opened::at(access, assigned, me, medium, wakers)
        });
        let opened = opened.collect::<Result<Vec<_>, _>>().and_then(|opened| {
            let shards = opened.iter().map(|opened| opened.paths.len()).sum();
            commons.keep_for(shards).map(|()| opened)
        });
        let mut opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                sessions.fail(&error.cause(), error.ranks());
                return Err(error);
            }
        };
        // Rule 11.6.
        let lanes = opened.iter().map(Opened::lanes).min().unwrap_or_default();
        let narrow = opened.iter().find_map(Opened::narrow);
        if let Some(narrow) = &narrow {
            warn(job, rank, format_args!(": {narrow}"));
        }
        let copies: Vec<_> = opened.iter_mut().map(Opened::needs_copies).collect();
        let meetings: Vec<_> =
            opened.iter().map(|opened| self.join_local_group(job, opened, me)).collect();
        let given = opened.iter().map(|opened| (opened.access.weight, opened.assigned.links));
        let weights = stripes::agreed_weights(&given.collect::<Vec<_>>());
        let takers: Vec<_> =
            meetings.iter().map(|meeting| meeting.as_ref().and_then(Meeting::taker)).collect();
        let chunk_lanes = sessions.ready(lanes, (&copies, &takers), &weights)?;
        let mut teams: Vec<_> = meetings.into_iter().map(|meeting| meeting?.end(me.1)).collect();
        let hello_rtts = opened.iter().flat_map(|opened| &opened.paths).map(|path| path.open.rtt);
        let info = Info {
            rank,
            world_size,
            job: job.to_owned(),
            chunk_lanes,
            hello_rtt: hello_rtts.min().unwrap_or_default(),
            narrow,
            stripes: stripes(&opened, &weights, &copies, &teams),
        };
        self.start(sessions, opened, info, &mut teams, (own, commons))
    }

    /// Comes to the other ranks of this host, if sums of theirs count. Without them it goes on.
    fn join_local_group(
        &self,
        job: &str,
        opened: &Opened,
        (rank, ranks): (u16, u16),
    ) -> Option<Meeting> {
        let assigned = &opened.assigned;
        let takes_sums = assigned.capabilities.contains(Capabilities::PARTIAL_SUMS);
        if !self.settings.local_sums() || ranks < 2 || !takes_sums {
            return None;
        }
        let by_peers = opened.access.peer.is_some();
        let service = Service { by_peers, by_copies: opened.gets_copies() };
        let meeting = Meeting::enter(assigned, rank, service);
        let alone = |error| {
            let what = format!(" sends apart from other ranks of its host: {error}");
            warn(job, rank.into(), what);
        };
        meeting.map_err(alone).ok()?
    }

    /// Makes the drivers.
    fn start(
        &self,
        sessions: Sessions,
        opened: Vec<Opened>,
        info: Info,
        teams: &mut [Option<Team>],
        (own, commons): (Option<Arc<OwnAggregator>>, Arc<Commons>),
    ) -> Result<Communicator, Error> {
        let shards = opened.iter().enumerate().flat_map(|(stripe, opened)| {
            opened.paths.iter().map(move |path| (stripe, path.wakers.clone()))
        });
        let shared = Shared::new(shards.collect(), &info.job, info.rank, self.settings.timeout());
        let shared = Arc::new(shared);
        let departed = sessions.departed();
        let failover = self.failover(&sessions, &opened, &info, &shared);
        for (stripe, (membership, opened)) in sessions.all().iter().zip(&opened).enumerate() {
            match opened.access.peer {
                Some(rank) => hear_of_peer(membership, &shared, rank, sessions.departed()),
                None => hear_of_end(membership, (stripe, 0), &shared, failover.as_ref()),
            }
            answer(membership, stripe, &shared);
        }
        let common = Common {
            failover,
            sessions: Arc::new(sessions),
            unanswered: Unanswered::default(),
            begin: Instant::now(),
            shared: Arc::clone(&shared),
        };
        let shares = info.shares();
        let mut drivers = Vec::with_capacity(info.data_threads());
        for (stripe, (opened, team)) in opened.into_iter().zip(teams).enumerate() {
            let Opened { access, assigned, paths } = opened;
            let is_peers = access.peer.is_some_and(|peer| u32::from(peer) != info.rank);
            let (share, lanes) = (shares[stripe], info.chunk_lanes);
            let mut at =
                At { stripe, share, assigned: &assigned, lanes, is_peers, team: team.as_mut() };
            for (place, path) in paths.into_iter().enumerate() {
                let wakers = path.wakers.clone();
                let (submissions, received) = mpsc::channel();
                let driver = self.driver(&common, &mut at, (drivers.len(), place), path, received);
                let driver = Arc::new(DriverLock::new(driver, wakers.turns.clone()));
                wakers.turns.begin(Arc::clone(&driver) as Arc<_>);
                drivers.push(Shard { submissions, wakers, driver });
            }
        }
        Ok(Communicator::new(drivers, shared, info, departed, (own, commons)))
    }

    /// Moves for the job, if it has several aggregators, not all of them ranks' own.
    fn failover(
        &self,
        sessions: &Sessions,
        opened: &[Opened],
        info: &Info,
        shared: &Arc<Shared>,
    ) -> Option<Arc<Failover>> {
        let accesses: Vec<_> = opened.iter().map(|opened| opened.access.clone()).collect();
        if opened.len() < 2 || !has_lasting(&accesses) {
            return None;
        }
        let rank = failover::Rank {
            job: info.job.clone(),
            rank: info.rank as u16,
            ranks: info.world_size as u16,
            join_timeout: self.settings.join_timeout(),
            standstill: self.settings.standstill(),
            limits: self.limits(),
            lanes: info.chunk_lanes,
            rdma: self.settings.rdma(),
            shares: info.shares(),
        };
        let known = |(access, opened): (Access, &Opened)| Known {
            access,
            move_secret: opened.assigned.move_secret,
            capabilities: opened.assigned.capabilities,
        };
        let handover = |path: &Path| Arc::new(Handover::new(path.wakers.clone()));
        let handovers = opened.iter().map(|opened| opened.paths.iter().map(handover).collect());
        let aggregators = accesses.into_iter().zip(opened).map(known).collect();
        Some(Failover::new(rank, aggregators, handovers.collect(), sessions.departed(), shared))
    }

    /// The driver of a shard: its index among all, and at its aggregator.
    fn driver(
        &self,
        common: &Common,
        at: &mut At<'_>,
        (shard, place): (usize, usize),
        path: Path,
        submissions: mpsc::Receiver<Submission>,
    ) -> Driver {
        let &mut At { stripe, share, assigned, lanes, is_peers, ref mut team } = at;
        let (config, batch) = path.config(assigned, lanes, self.limits(), share);
        let Path { secret, group, transport, open, .. } = path;
        let mut engine = Engine::new(config);
        engine.sample_rtt(0, open.rtt.as_nanos() as u64);
        let mut data_path = DataPath::new(engine, lanes, batch as u32);
        let moves = common.failover.as_ref().map(|failover| {
            data_path.keep_for_another(lanes);
            let handover = failover.handover(stripe, place);
            let failover = Arc::clone(failover);
            let lose = Box::new(move |count, error: &Error| failover.lose(stripe, count, error));
            Moves { lose, handover, count: 0 }
        });
        Driver {
            shard,
            stripe,
            is_peers,
            data_path,
            transport,
            submissions,
            membership: common.sessions.at(stripe),
            sessions: Arc::clone(&common.sessions),
            unanswered: Arc::clone(&common.unanswered),
            shared: Arc::clone(&common.shared),
            group,
            begin: common.begin,
            spin: Spin::default(),
            hellos: (secret, 0),
            shared_memory: team.as_mut().map(|team| team.share(place, batch)),
            moves,
            foreign: 0,
            in_calls: InCalls::default(),
        }
    }
}

/// What all drivers share.
struct Common {
    sessions: Arc<Sessions>,
    unanswered: Unanswered,
    /// When the data paths' time starts.
    begin: Instant,
    shared: Arc<Shared>,
    failover: Option<Arc<Failover>>,
}

/// The aggregator of a driver.
struct At<'a> {
    stripe: usize,
    /// Its share of large calls.
    share: f64,
    assigned: &'a Assigned,
    lanes: u16,
    /// Whether it is in another rank's process.
    is_peers: bool,
    team: Option<&'a mut Team>,
}

/// Whether some of the job's aggregators are no ranks' own.
fn has_lasting(aggregators: &[Access]) -> bool {
    aggregators.iter().any(|access| access.peer.is_none())
}

/// What there is to know of each aggregator.
fn stripes(
    opened: &[Opened],
    weights: &[u32],
    copies: &[bool],
    teams: &[Option<Team>],
) -> Vec<Stripe> {
    let stripe = |(((opened, weight), copies), team): (((&Opened, &u32), &bool), &Option<Team>)| {
        let Opened { access, assigned, paths } = opened;
        Stripe {
            control: access.address.clone(),
            peer: access.peer,
            aggregator: assigned.data_address,
            weight: *weight,
            links: assigned.links,
            data_threads: paths.len(),
            slots: assigned.slots,
            tag_len: opened.tag_len(),
            multicast: assigned.group.filter(|_| !copies && opened.device().is_none()),
            device: opened.device().map(str::to_owned),
            capabilities: assigned.capabilities,
            local_ranks: team.as_ref().map(Team::ranks).unwrap_or_default(),
            is_in_memory: team.as_ref().is_some_and(Team::is_whole),
        }
    };
    opened.iter().zip(weights).zip(copies).zip(teams).map(stripe).collect()
}

impl Info {
    /// Data threads of this rank: shards of the job.
    pub fn data_threads(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.data_threads).sum()
    }

    /// How calls are cut among the shards.
    pub(crate) fn shards(&self) -> Shards {
        let shards = |stripe: &Stripe| (stripe.data_threads, stripe.weight);
        let links: Vec<_> = self.stripes.iter().map(|stripe| stripe.links).collect();
        let shards: Vec<_> = self.stripes.iter().map(shards).collect();
        let peers: Vec<_> = self.stripes.iter().map(|stripe| stripe.peer).collect();
        Shards::new(&shards, stripes::least_part(&links)).of_peers(&peers)
    }
}
