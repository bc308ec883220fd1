//! Settings of a communicator, and how it gets connected.

use std::env::{self, VarError};
use std::net::SocketAddrV4;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use switchml_control::MAX_DATA_THREADS;
use switchml_control::tls::WrongSetting;
use switchml_protocol::MAX_RANKS;
use switchml_protocol::capabilities::Capabilities;
use switchml_worker_core::data_path::DataPath;
use switchml_worker_core::engine::{Config, Engine, Identity, Limits};
use switchml_worker_core::hello::OpenPath;
use switchml_worker_core::packet::packet_len;
use switchml_worker_core::spin::Spin;

use crate::communicator::{self, Communicator, DataThread, Info};
use crate::control::{Access, Assigned, ClientTls, Membership, Token};
use crate::driver::{Driver, DriverLock, Shared, Unanswered, Wakers};
use crate::error::Error;
use crate::interface::Interface;
use crate::limits::check_wait;
use crate::local_sums::{Meeting, Team};
use crate::narrow_path::Narrow;
use crate::open_path::open_path;
use crate::transport::{Transport, Udp};
use crate::waker::Waker;
use crate::warning::warn;

/// Settings of a [`Communicator`].
#[derive(Clone, Debug)]
pub struct Builder {
    aggregator: Option<String>,
    tls: ClientTls,
    token: Option<Token>,
    job: String,
    rank: Option<u32>,
    world_size: Option<u32>,
    limits: Limits,
    join_timeout: Duration,
    data_threads: Option<u32>,
    local_sums: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            aggregator: None,
            tls: ClientTls::default(),
            token: None,
            job: "default".to_owned(),
            rank: None,
            world_size: None,
            limits: Limits::default(),
            join_timeout: Duration::from_secs(60),
            data_threads: None,
            local_sums: true,
        }
    }
}

impl Builder {
    /// Where the aggregator's control plane is: `host`, `host:port`, or an IP address; one of IPv6
    /// with a port is in brackets. Values travel over the same IP version. Required.
    pub fn aggregator(mut self, address: impl Into<String>) -> Self {
        self.aggregator = Some(address.into());
        self
    }

    /// How this rank verifies the aggregator, if its control plane speaks TLS, and the certificate
    /// that this rank shows. Settings left out here keep their values. Without any of these
    /// settings, there is no TLS.
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = tls.over(self.tls);
        self
    }

    /// The job token, for an aggregator that asks for one.
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Name of the job: ranks that give the same name at the same aggregator belong together.
    /// "default" unless given.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = name.into();
        self
    }

    /// This process's rank, from 0 to world size - 1, unique in the job. Required.
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Number of ranks of the job, 1 to 1024. Required.
    pub fn world_size(mut self, ranks: u32) -> Self {
        self.world_size = Some(ranks);
        self
    }

    /// A collective fails when the aggregator has given no answer for so long. 5 s unless given; at
    /// least 0.1 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.limits.deadline = deadline;
        self
    }

    /// A collective that has waited this long for connected ranks without a result fails, and names
    /// them. 30 minutes unless given, as in torch; at least 0.1 s. It must cover the time by which
    /// ranks may differ when they call. A rank that dies ends the wait within seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.limits.timeout = timeout;
        self
    }

    /// How long to wait for the other ranks to join. 60 s unless given.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout;
        self
    }

    /// Most data threads for large calls: 1 to 8. All ranks get the smallest number that any of
    /// them asks for, rounded down to a power of two, or fewer if the aggregator has few slots
    /// left. The default is what this host can use: one for each processor, shared by its ranks, up
    /// to the number that fills the link.
    pub fn data_threads(mut self, most: u32) -> Self {
        self.data_threads = Some(most);
        self
    }

    /// Whether this rank adds up with the other ranks of its host before it sends, where it can:
    /// they share a network namespace and a user, and the aggregator takes partial sums. The
    /// default is true, except over loopback. Results are the same either way.
    pub fn local_sums(mut self, wanted: bool) -> Self {
        self.local_sums = wanted;
        self
    }

    /// Takes settings from the environment, as torchrun and Slurm's srun set it; settings that are
    /// not there keep their values.
    ///
    /// | variable | setting |
    /// | --- | --- |
    /// | `RANK`, `WORLD_SIZE` | rank and number of ranks |
    /// | `SWITCHML_AGGREGATOR` | aggregator, `host` or `host:port`; `MASTER_ADDR`'s host unless set |
    /// | `SWITCHML_TLS_FINGERPRINT`, `SWITCHML_TLS_CA` | how the aggregator is verified, for TLS |
    /// | `SWITCHML_TLS_CERT`, `SWITCHML_TLS_KEY` | certificate and key that it is shown |
    /// | `SWITCHML_TOKEN_FILE`, or `SWITCHML_TOKEN` | job token |
    /// | `SWITCHML_JOB` | job; `TORCHELASTIC_RUN_ID`, or `MASTER_ADDR:MASTER_PORT`, unless set |
    /// | `SWITCHML_LOCAL_SUMS` | 0 or 1: [`Self::local_sums`] |
    ///
    /// Without `RANK` and `WORLD_SIZE`, the tasks of a step that `srun` has started are the ranks:
    /// `SLURM_PROCID` of `SLURM_STEP_NUM_TASKS`. Their job is `slurm-<job>.<step>` unless one of
    /// the variables above names it. A batch script by itself is no rank.
    ///
    /// # Errors
    /// [`Error::Setting`] when a variable is not what it must be.
    pub fn env(self) -> Result<Self, Error> {
        self.variables(|name| env::var(name))
    }

    fn variables(mut self, read: impl Fn(&str) -> Result<String, VarError>) -> Result<Self, Error> {
        let text = |name| variable(name, read(name));
        let slurm = match (text("RANK")?, text("WORLD_SIZE")?) {
            (None, None) => slurm_step(text)?,
            (rank, world_size) => {
                self.rank = number("RANK", rank)?.or(self.rank);
                self.world_size = number("WORLD_SIZE", world_size)?.or(self.world_size);
                None
            }
        };
        if let Some(SlurmStep { rank, world_size, .. }) = &slurm {
            (self.rank, self.world_size) = (Some(*rank), Some(*world_size));
        }
        let master = text("MASTER_ADDR")?;
        let meeting = match (&master, text("MASTER_PORT")?) {
            (Some(host), Some(port)) => Some(format!("{host}:{port}")),
            _ => None,
        };
        self.aggregator = text("SWITCHML_AGGREGATOR")?.or(self.aggregator).or(master);
        self = self.tls(ClientTls::from_variables(text)?);
        let file = text("SWITCHML_TOKEN_FILE")?.map(|file| Token::File(file.into()));
        self.token = file.or(text("SWITCHML_TOKEN")?.map(Token::Text)).or(self.token);
        let own = text("SWITCHML_JOB")?.or(text("TORCHELASTIC_RUN_ID")?).or(meeting);
        if let Some(job) = own.or(slurm.map(|step| step.job)) {
            self.job = job;
        }
        if let Some(given) = text("SWITCHML_LOCAL_SUMS")? {
            let allowed = "0 and 1 are allowed";
            self.local_sums = match given.as_str() {
                "0" => false,
                "1" => true,
                _ => return Err(Error::Setting { name: "SWITCHML_LOCAL_SUMS", given, allowed }),
            };
        }
        Ok(self)
    }

    /// The aggregator as set so far.
    pub fn get_aggregator(&self) -> Option<Access> {
        let address = self.aggregator.clone()?;
        Some(Access { address, tls: self.tls.clone(), token: self.token.clone() })
    }

    /// The rank as set so far.
    pub fn get_rank(&self) -> Option<u32> {
        self.rank
    }

    /// Joins the job, waits until all its ranks have, and opens the data path.
    ///
    /// # Errors
    /// [`Error::Setting`] for missing or impossible settings; [`Error::Control`] when the
    /// aggregator cannot be reached, refuses, or ranks are missing; [`Error::DataPathClosed`],
    /// [`Error::OwnHost`] or [`Error::PathMtu`] when packets do not pass.
    pub fn connect(self) -> Result<Communicator, Error> {
        let (aggregator, rank, world_size) = self.check()?;
        let (membership, assigned) = Membership::join(
            aggregator,
            &self.job,
            rank,
            world_size,
            self.data_threads,
            self.join_timeout,
        )?;
        let mut paths = match open_paths(&assigned, rank as u16, world_size as u16) {
            Ok(paths) => paths,
            Err(error) => {
                membership.fail(&error.to_string(), error.ranks());
                return Err(error);
            }
        };
        // Rule 11.6.
        let open = paths.iter().map(|path| path.open.lanes).min().unwrap_or_default();
        let is_narrow = paths.iter().any(|path| path.open.is_narrow);
        let tag_len = paths.first().map_or(0, |path| path.identity.tag_len());
        let narrow =
            is_narrow.then_some(Narrow { aggregator: assigned.data_address, lanes: open, tag_len });
        if let Some(narrow) = &narrow {
            warn(&self.job, rank, format_args!(": {narrow}"));
        }
        let needs_copies = paths.iter().any(|path| path.open.hears_group == Some(false));
        if needs_copies {
            for path in &mut paths {
                path.group = None;
                path.transport.leave_group();
            }
        }
        // Rule 7.14: partial sums have no tags.
        let may_meet = self.local_sums && tag_len == 0 && world_size > 1;
        let meeting = if may_meet { self.meet(&assigned, rank) } else { None };
        let lanes = membership.ready(open, needs_copies)?;
        let team = meeting.and_then(Meeting::end);
        let info = Info {
            rank,
            world_size,
            job: self.job.clone(),
            chunk_lanes: lanes,
            tag_len,
            data_threads: paths.len(),
            slots: assigned.slots,
            aggregator: assigned.data_address,
            transport: "udp",
            multicast: assigned.group.filter(|_| !needs_copies),
            capabilities: assigned.capabilities,
            narrow,
            hello_rtt: paths.iter().map(|path| path.open.rtt).min().unwrap_or_default(),
            local_ranks: team.as_ref().map(Team::ranks).unwrap_or_default(),
        };
        self.start(membership, paths, info, team.as_ref())
    }

    /// Comes to the other ranks of this host, if sums of theirs count. Without them it goes on.
    fn meet(&self, assigned: &Assigned, rank: u32) -> Option<Meeting> {
        if !assigned.capabilities.contains(Capabilities::PARTIAL_SUMS) {
            return None;
        }
        let meeting = Meeting::enter(assigned, rank as u16);
        let alone = |error| {
            let what = format!(" sends apart from other ranks of its host: {error}");
            warn(&self.job, rank, what);
        };
        meeting.map_err(alone).ok()?
    }

    /// Starts the data threads.
    fn start(
        self,
        membership: Membership,
        paths: Vec<Path>,
        info: Info,
        team: Option<&Team>,
    ) -> Result<Communicator, Error> {
        let wakers = paths.iter().map(|path| path.wakers.clone()).collect();
        let shared = Shared::new(wakers, &info.job, info.rank, self.limits.timeout);
        let shared = Arc::new(shared);
        let told = Arc::clone(&shared);
        // An earlier failure of this rank's own stays the reason.
        membership.on_end(move |error| told.fail(error.into()));
        let asked = Arc::clone(&shared);
        membership.on_calls_wanted(move |last| asked.open_calls(last));
        let asked = Arc::clone(&shared);
        membership.on_round_trips_wanted(move || asked.take_round_trips());
        let (membership, begin) = (Arc::new(membership), Instant::now());
        let unanswered = Unanswered::default();
        let mut threads = Vec::with_capacity(paths.len());
        for (shard, Path { identity, secret, group, transport, wakers, open }) in
            paths.into_iter().enumerate()
        {
            let packet = packet_len(info.chunk_lanes.into()) + info.tag_len;
            let room = transport.receive_room(packet) as u32;
            let config = Config::new(identity, info.slots, info.chunk_lanes, room, self.limits);
            let mut engine = Engine::new(Config { capabilities: info.capabilities, ..config });
            engine.sample_rtt(0, open.rtt.as_nanos() as u64);
            let batch = transport.batch(packet);
            let (submissions, received) = mpsc::channel();
            let driver = Driver {
                shard,
                data_path: DataPath::new(engine, info.chunk_lanes, batch as u32),
                transport,
                submissions: received,
                membership: Arc::clone(&membership),
                unanswered: Arc::clone(&unanswered),
                shared: Arc::clone(&shared),
                group,
                begin,
                spin: Spin::default(),
                hellos: (secret, 0),
                local_sums: team.map(|team| team.sums(shard, batch)),
            };
            let driver = Arc::new(DriverLock::new(driver, wakers.idle.clone()));
            let data_thread = Arc::clone(&driver);
            let thread = std::thread::Builder::new()
                .name("switchml-data".to_owned())
                .spawn(move || data_thread.serve());
            match thread.map_err(Error::system("cannot start a data thread")) {
                Ok(thread) => threads.push(DataThread { submissions, wakers, driver, thread }),
                Err(error) => {
                    shared.fail(error.clone());
                    communicator::end(threads);
                    return Err(error);
                }
            }
        }
        Ok(Communicator::new(threads, shared, info))
    }

    /// Aggregator, rank and world size, if they make sense together.
    fn check(&self) -> Result<(Access, u32, u32), Error> {
        let missing = |name, allowed| Error::Setting { name, given: "not set".to_owned(), allowed };
        let aggregator = self
            .get_aggregator()
            .ok_or_else(|| missing("aggregator", "give its host, or set SWITCHML_AGGREGATOR"))?;
        let wrong = |WrongSetting { name, given, allowed }| Error::Setting { name, given, allowed };
        self.tls.check().map_err(wrong)?;
        let rank = self.rank.ok_or_else(|| missing("rank", "give this process's, or set RANK"))?;
        let world_size = self
            .world_size
            .ok_or_else(|| missing("world size", "give the number of ranks, or set WORLD_SIZE"))?;
        if !(1..=MAX_RANKS as u32).contains(&world_size) {
            let given = world_size.to_string();
            return Err(Error::Setting {
                name: "world size",
                given,
                allowed: "1 to 1024 are allowed",
            });
        }
        if rank >= world_size {
            let given = format!("{rank} of {world_size}");
            return Err(Error::Setting {
                name: "rank",
                given,
                allowed: "0 to world size - 1 are allowed",
            });
        }
        if let Some(given) =
            self.data_threads.filter(|threads| !(1..=MAX_DATA_THREADS).contains(threads))
        {
            let given = given.to_string();
            return Err(Error::Setting {
                name: "data threads",
                given,
                allowed: "1 to 8 are allowed",
            });
        }
        check_wait("deadline", self.limits.deadline)?;
        check_wait("timeout", self.limits.timeout)?;
        Ok((aggregator, rank, world_size))
    }
}

impl Communicator {
    /// A builder:
    /// `Communicator::builder().aggregator("10.0.0.1").job("train").rank(r).world_size(n).connect()?`.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Connects with the settings of the environment, see [`Builder::env`].
    ///
    /// # Errors
    /// The errors of [`Builder::env`] and [`Builder::connect`].
    pub fn from_env() -> Result<Self, Error> {
        Self::builder().env()?.connect()
    }
}

/// A shard's way to the aggregator and back.
struct Path {
    identity: Identity,
    /// The secret that the shard's HELLOs carry.
    secret: u32,
    /// The multicast group of results for all, if they come by multicast.
    group: Option<SocketAddrV4>,
    transport: Udp,
    wakers: Wakers,
    open: OpenPath,
}

/// Opens a path for each shard of the job.
fn open_paths(assigned: &Assigned, rank: u16, ranks: u16) -> Result<Vec<Path>, Error> {
    let mut paths = Vec::new();
    // Packets that the first path does not carry need not be tried on the others.
    let mut lanes = assigned.max_lanes;
    // Groups need not be tried again either if their packets do not reach this host.
    let mut asks_group = assigned.capabilities.contains(Capabilities::GROUP_HELLOS);
    for (job, group) in assigned.shards() {
        let identity = Identity { job, epoch: assigned.epoch, rank, ranks, keys: assigned.keys };
        let event = || Waker::new().map_err(Error::system("cannot make an event"));
        let wakers = Wakers { driving: event()?, idle: event()? };
        let mut transport = Udp::open(assigned.data_address, group, wakers.driving.clone())
            .map_err(Error::system("cannot open the data sockets"))?;
        let secret = assigned.hello_secret;
        let open =
            open_path(&mut transport, &identity, secret, lanes, asks_group && group.is_some())
                .map_err(|error| match error {
                    Error::DataPathClosed { aggregator, .. } if Interface::has(aggregator.ip()) => {
                        Error::OwnHost { aggregator }
                    }
                    error => error,
                })?;
        lanes = open.lanes;
        asks_group &= open.hears_group != Some(false);
        paths.push(Path { identity, secret, group, transport, wakers, open });
    }
    Ok(paths)
}

/// A variable's value; an empty one is as good as none.
fn variable(name: &'static str, value: Result<String, VarError>) -> Result<Option<String>, Error> {
    match value {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(value)) => {
            Err(Error::Setting { name, given: format!("{value:?}"), allowed: "it must be UTF-8" })
        }
    }
}

/// Slurm's settings for a task that `srun` has started.
struct SlurmStep {
    rank: u32,
    world_size: u32,
    /// The name of the job, equal for all tasks of this step and for no others.
    job: String,
}

/// The step that this process is a task of, if it is one. Slurm sets the number of a step's tasks
/// only for tasks of a step.
fn slurm_step(
    text: impl Fn(&'static str) -> Result<Option<String>, Error>,
) -> Result<Option<SlurmStep>, Error> {
    let rank = number("SLURM_PROCID", text("SLURM_PROCID")?)?;
    let world_size = number("SLURM_STEP_NUM_TASKS", text("SLURM_STEP_NUM_TASKS")?)?;
    let (Some(rank), Some(world_size)) = (rank, world_size) else { return Ok(None) };
    let (Some(id), Some(step)) = (text("SLURM_JOB_ID")?, text("SLURM_STEP_ID")?) else {
        return Ok(None);
    };
    Ok(Some(SlurmStep { rank, world_size, job: format!("slurm-{id}.{step}") }))
}

fn number(name: &'static str, value: Option<String>) -> Result<Option<u32>, Error> {
    let wrong = |given: &str| Error::Setting {
        name,
        given: format!("{given:?}"),
        allowed: "it must be a whole number, 0 or more",
    };
    value.map(|value| value.parse().map_err(|_| wrong(&value))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Builder, Error> {
        let find = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        };
        Builder::default()
            .aggregator("given")
            .variables(|name| find(name).ok_or(VarError::NotPresent))
    }

    #[test]
    fn variables_of_torchrun() {
        let builder = with(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("MASTER_ADDR", "host"),
            ("MASTER_PORT", "29500"),
            ("SWITCHML_AGGREGATOR", ""),
        ])
        .unwrap();
        assert_eq!((builder.rank, builder.world_size), (Some(3), Some(8)));
        assert_eq!(
            (builder.job.as_str(), builder.aggregator.as_deref()),
            ("host:29500", Some("given"))
        );

        let elastic =
            [("MASTER_ADDR", "host"), ("MASTER_PORT", "1"), ("TORCHELASTIC_RUN_ID", "run")];
        assert_eq!(with(&elastic).unwrap().job, "run");
        let own = [
            ("TORCHELASTIC_RUN_ID", "run"),
            ("SWITCHML_JOB", "mine"),
            ("SWITCHML_AGGREGATOR", "switch:1"),
        ];
        let builder = with(&own).unwrap();
        assert_eq!(
            (builder.job.as_str(), builder.aggregator.as_deref()),
            ("mine", Some("switch:1"))
        );

        let nothing = with(&[]).unwrap();
        assert_eq!(
            (nothing.job.as_str(), nothing.rank, nothing.world_size),
            ("default", None, None)
        );
        let master = Builder::default().variables(|name| match name {
            "MASTER_ADDR" => Ok("host".to_owned()),
            _ => Err(VarError::NotPresent),
        });
        assert_eq!(master.unwrap().aggregator.as_deref(), Some("host"));
    }

    /// The variables that `srun` sets for the sixth of eight tasks.
    const SLURM: [(&str, &str); 5] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_STEP_NUM_TASKS", "8"),
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_ID", "0"),
    ];

    #[test]
    fn variables_of_slurm() {
        let set = |builder: Builder| (builder.rank, builder.world_size, builder.job);
        let step = with(&SLURM).unwrap();
        assert_eq!(set(step), (Some(5), Some(8), "slurm-4711.0".to_owned()));
        // A batch script, before it calls srun.
        let batch: Vec<_> =
            SLURM.into_iter().filter(|(name, _)| !name.starts_with("SLURM_STEP")).collect();
        assert_eq!(set(with(&batch).unwrap()), (None, None, "default".to_owned()));
        // torchrun as the only task of each node.
        let torchrun =
            [("RANK", "3"), ("WORLD_SIZE", "64"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        let both = with(&[&SLURM[..], &torchrun].concat()).unwrap();
        assert_eq!(set(both), (Some(3), Some(64), "a:1".to_owned()));
        let named = with(&[&SLURM[..], &[("SWITCHML_JOB", "mine")]].concat()).unwrap();
        assert_eq!(set(named), (Some(5), Some(8), "mine".to_owned()));
    }

    #[test]
    fn sums_of_a_host_may_be_turned_off() {
        let set = |value| with(&[("SWITCHML_LOCAL_SUMS", value)]).map(|builder| builder.local_sums);
        assert_eq!(["0", "1", ""].map(|value| set(value).unwrap()), [false, true, true]);
        assert_eq!(
            set("no").unwrap_err().to_string(),
            "SWITCHML_LOCAL_SUMS is no; 0 and 1 are allowed"
        );
    }

    #[test]
    fn numbers_that_are_none() {
        for value in ["-1", "x", "4294967296", "1.0"] {
            let error = with(&[("WORLD_SIZE", value)]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("WORLD_SIZE is {value:?}; it must be a whole number, 0 or more")
            );
        }
    }

    #[test]
    fn settings_that_make_no_sense() {
        let complete = || Builder::default().aggregator("127.0.0.1:1").rank(0).world_size(1);
        for (builder, expected) in [
            (
                Builder::default(),
                "aggregator is not set; give its host, or set SWITCHML_AGGREGATOR",
            ),
            (
                Builder::default().aggregator("a"),
                "rank is not set; give this process's, or set RANK",
            ),
            (
                Builder::default().aggregator("a").rank(0),
                "world size is not set; give the number of ranks, or set WORLD_SIZE",
            ),
            (complete().world_size(0), "world size is 0; 1 to 1024 are allowed"),
            (complete().world_size(1025), "world size is 1025; 1 to 1024 are allowed"),
            (complete().world_size(4).rank(4), "rank is 4 of 4; 0 to world size - 1 are allowed"),
            (complete().data_threads(0), "data threads is 0; 1 to 8 are allowed"),
            (complete().data_threads(9), "data threads is 9; 1 to 8 are allowed"),
            (
                complete().deadline(Duration::from_millis(99)),
                "deadline is 0.099 s; it must be 0.1 s or more",
            ),
            (complete().timeout(Duration::ZERO), "timeout is 0 s; it must be 0.1 s or more"),
        ] {
            assert_eq!(builder.connect().err().unwrap().to_string(), expected);
        }
    }
}
