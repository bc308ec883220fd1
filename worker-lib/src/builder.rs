//! Settings of a communicator.

use std::env::{self, VarError};
use std::sync::Arc;
use std::time::Duration;

use switchml_control::MAX_DATA_THREADS;
use switchml_control::tls::WrongSetting;
use switchml_protocol::MAX_RANKS;
use switchml_worker_core::engine::Limits;

use crate::communicator::Communicator;
use crate::control::{Access, ClientTls, Token};
use crate::error::Error;
use crate::limits::check_wait;
use crate::meeting::UniqueId;
use crate::peers::{OwnAggregator, Peer};
use crate::slurm;
use crate::values::{number, seconds, switch, variable};

/// The run id that torchrun gives to each job whose user gives none.
const RUN_ID_OF_ALL: &str = "none";
/// Ports between the one where torchrun listens and the one where ranks meet.
const FROM_TORCHRUN: u16 = 10_000;

/// Settings of a [`Communicator`].
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) aggregator: Option<String>,
    pub(crate) weights: Vec<u32>,
    pub(crate) meeting: Option<String>,
    pub(crate) unique_id: Option<UniqueId>,
    pub(crate) peers: Option<(Arc<OwnAggregator>, Vec<Peer>)>,
    tls: ClientTls,
    token: Option<Token>,
    pub(crate) job: Option<String>,
    rank: Option<u32>,
    world_size: Option<u32>,
    pub(crate) limits: Limits,
    pub(crate) join_timeout: Duration,
    standstill: Option<Duration>,
    pub(crate) data_threads: Option<u32>,
    pub(crate) local_sums: bool,
    pub(crate) rdma: bool,
    pub(crate) own_hosts: bool,
    pub(crate) summary: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            aggregator: None,
            weights: Vec::new(),
            meeting: None,
            unique_id: None,
            peers: None,
            tls: ClientTls::default(),
            token: None,
            job: None,
            rank: None,
            world_size: None,
            limits: Limits::default(),
            join_timeout: Duration::from_secs(60),
            standstill: None,
            data_threads: None,
            local_sums: true,
            rdma: false,
            own_hosts: true,
            summary: true,
        }
    }
}

impl Builder {
    /// Where the aggregator's control plane is: `host`, `host:port`, or an IP address; one of IPv6
    /// with a port is in brackets. Values travel over the same IP version. Unless given, ranks
    /// serve each other; see [`Self::meeting`].
    ///
    /// Several aggregators, with commas between, share the job's work: `"10.0.0.5,10.0.0.6"`. Every
    /// rank gives all of them, in any order. A name with several addresses of IPv4 stands for an
    /// aggregator at each, unless there are weights or TLS.
    pub fn aggregator(mut self, address: impl Into<String>) -> Self {
        self.aggregator = Some(address.into());
        self
    }

    /// How much each of several aggregators takes of large calls, in proportion to the others: a
    /// number of 1 or more for each, in their order. Unless given, ranks compute it from the speed
    /// of the links, and of where aggregators run.
    pub fn weights(mut self, weights: impl IntoIterator<Item = u32>) -> Self {
        self.weights = weights.into_iter().collect();
        self
    }

    /// Where ranks meet that have no aggregator and serve each other, or have one and no name for
    /// their [job](Self::job): an address of rank 0's host, by which all others reach it, with a
    /// port that is free there, and where no other job meets. Without an aggregator each process
    /// adds up a part of every call.
    pub fn meeting(mut self, place: impl Into<String>) -> Self {
        self.meeting = Some(place.into());
        self
    }

    /// Where ranks meet, in place of a [meeting](Self::meeting): 128 bytes that one rank makes
    /// ([`UniqueId::new`]) and hands to all others, for one job.
    pub fn unique_id(mut self, id: UniqueId) -> Self {
        self.unique_id = Some(id);
        self
    }

    /// This rank's own aggregator, and all ranks' own, in the order of ranks, for programs that
    /// exchange them in another way than at a [meeting](Self::meeting).
    pub fn peers(mut self, own: OwnAggregator, all: impl IntoIterator<Item = Peer>) -> Self {
        self.peers = Some((Arc::new(own), all.into_iter().collect()));
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

    /// Name of the job: ranks that give the same name at the same aggregator belong together. So
    /// no other job may have that name there as long as this one runs: the two would get each
    /// other's values. Unless given, rank 0 makes one up, if the ranks [meet](Self::meeting) or
    /// have a [unique id](Self::unique_id).
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = Some(name.into());
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

    /// How long this process may stand still, as in a debugger or while its virtual machine moves,
    /// before the other ranks take it for dead (rule 23.9): as long as [`timeout`](Self::timeout)
    /// unless given; at least 0.1 s. Its host has to answer meanwhile. A host that does not is dead
    /// within seconds.
    pub fn standstill(mut self, standstill: Duration) -> Self {
        self.standstill = Some(standstill);
        self
    }

    pub(crate) fn get_standstill(&self) -> Duration {
        self.standstill.unwrap_or(self.limits.timeout)
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

    /// Whether packets to and from aggregators go by RDMA (RoCEv2) instead of sockets. The host
    /// needs an RDMA device at the link and libibverbs, and the aggregator has to take it;
    /// otherwise [`connect`](Self::connect) fails and says what is missing. The default is false.
    /// Results are the same either way, and a job may have ranks of both kinds. Hosts of ranks do
    /// not help then ([`Self::own_hosts`]).
    pub fn rdma(mut self, wanted: bool) -> Self {
        self.rdma = wanted;
        self
    }

    /// Whether ranks' hosts help aggregators whose links are so slow that a ring of the ranks would
    /// be faster: each process then adds up a part of every call. The default is true, except with
    /// [weights](Self::weights), TLS, a token or tags; and where ranks cannot reach each other, or
    /// one has [RDMA](Self::rdma), the job goes on without. Every rank must give the same.
    pub fn own_hosts(mut self, may_help: bool) -> Self {
        self.own_hosts = may_help;
        self
    }

    /// Whether rank 0 of the process's first job writes a line to the standard error stream: how
    /// many ranks and hosts there are, how they are joined, what a link carries for a sum, and what
    /// would reduce that. The default is true.
    pub fn summary(mut self, wanted: bool) -> Self {
        self.summary = wanted;
        self
    }

    /// Takes settings from the environment, as torchrun and Slurm's srun set it; settings that are
    /// not there keep their values. The variables are [`VARIABLES`](crate::VARIABLES).
    ///
    /// `TORCHELASTIC_RUN_ID` is no name where it is torchrun's default, `none`: all jobs have that.
    /// If torchrun itself listens at `MASTER_PORT`, ranks meet 10,000 ports below (above, if that
    /// is less than 10,000).
    ///
    /// Without `RANK` and `WORLD_SIZE`, the tasks of a step that `srun` has started are the ranks:
    /// `SLURM_PROCID` of `SLURM_STEP_NUM_TASKS`. The name of their job is that of the cluster, the
    /// Slurm job, its step, and how often Slurm has restarted it, unless one of the variables above
    /// names it. They meet at the first node of the step, at a port from 10000 to 29999 that comes
    /// from the numbers of the job and the step; `MASTER_ADDR` and `MASTER_PORT` change either. A
    /// batch script by itself is no rank.
    ///
    /// # Errors
    /// [`Error::Setting`] when a variable is not what it must be.
    pub fn env(self) -> Result<Self, Error> {
        self.variables(|name| env::var(name))
    }

    fn variables(mut self, read: impl Fn(&str) -> Result<String, VarError>) -> Result<Self, Error> {
        let text = |name| variable(name, read(name));
        let slurm = match (text("RANK")?, text("WORLD_SIZE")?) {
            (None, None) => slurm::Step::read(text)?,
            (rank, world_size) => {
                self.rank = number("RANK", rank)?.or(self.rank);
                self.world_size = number("WORLD_SIZE", world_size)?.or(self.world_size);
                None
            }
        };
        let (mut node, mut port, mut step_job) = (None, None, None);
        if let Some(step) = slurm {
            (self.rank, self.world_size) = (Some(step.rank), Some(step.world_size));
            (node, port, step_job) = (step.node, step.port, Some(step.job));
        }
        let port = text("MASTER_PORT")?.or(port.map(|port| port.to_string()));
        let meeting = match (text("MASTER_ADDR")?.or(node), port) {
            // An address of IPv6, as torchrun sets it.
            (Some(host), Some(port)) if host.contains(':') && !host.starts_with('[') => {
                Some(format!("[{host}]:{port}"))
            }
            (Some(host), Some(port)) => Some(format!("{host}:{port}")),
            _ => None,
        };
        self.aggregator = text("SWITCHML_AGGREGATOR")?.or(self.aggregator);
        let is_taken = text("TORCHELASTIC_USE_AGENT_STORE")?.as_deref() == Some("True");
        self.meeting = meeting.map(|place| free_place(place, is_taken)).or(self.meeting);
        self = self.tls(ClientTls::from_variables(text)?);
        let file = text("SWITCHML_TOKEN_FILE")?.map(|file| Token::File(file.into()));
        self.token = file.or(text("SWITCHML_TOKEN")?.map(Token::Text)).or(self.token);
        let run_id = text("TORCHELASTIC_RUN_ID")?.filter(|id| id != RUN_ID_OF_ALL);
        let job = text("SWITCHML_JOB")?.or(run_id).or(step_job);
        self.job = job.or(self.job);
        let standstill = seconds("SWITCHML_STANDSTILL", text("SWITCHML_STANDSTILL")?)?;
        self.standstill = standstill.or(self.standstill);
        self.local_sums = switch("SWITCHML_LOCAL_SUMS", text)?.unwrap_or(self.local_sums);
        self.rdma = switch("SWITCHML_RDMA", text)?.unwrap_or(self.rdma);
        self.own_hosts = switch("SWITCHML_OWN_HOSTS", text)?.unwrap_or(self.own_hosts);
        self.summary = switch("SWITCHML_SUMMARY", text)?.unwrap_or(self.summary);
        Ok(self)
    }

    /// Whether packets are to go [by RDMA](Self::rdma), as set so far.
    pub fn get_rdma(&self) -> bool {
        self.rdma
    }

    /// The aggregators as set so far.
    pub fn get_aggregators(&self) -> Vec<Access> {
        let given = self.aggregator.iter().flat_map(|list| list.split(','));
        let addresses = given.map(str::trim).filter(|address| !address.is_empty());
        let weights = self.weights.iter().copied().chain(std::iter::repeat(0));
        let access = |(address, weight)| Access { weight, ..self.access(address) };
        addresses.zip(weights).map(access).collect()
    }

    /// The aggregators as set so far, one at each address of a name that has several.
    pub(crate) fn aggregators_given(&self) -> Vec<Access> {
        self.get_aggregators().into_iter().flat_map(Access::each).collect()
    }

    /// How an aggregator at this address is reached.
    pub fn access(&self, address: &str) -> Access {
        let (tls, token) = (self.tls.clone(), self.token.clone());
        Access { address: address.to_owned(), tls, token, ..Access::default() }
    }

    /// Whether ranks' hosts may help the aggregators given. Those hosts have no TLS and ask for no
    /// token, so jobs that want either do without.
    pub(crate) fn may_add_hosts(&self) -> bool {
        let is_open = self.tls == ClientTls::default() && self.token.is_none();
        self.own_hosts && is_open && self.weights.is_empty()
    }

    /// Where ranks [meet](Self::meeting), as set so far.
    pub fn get_meeting(&self) -> Option<&str> {
        self.meeting.as_deref()
    }

    /// The rank as set so far.
    pub fn get_rank(&self) -> Option<u32> {
        self.rank
    }

    /// Rank and world size, if the settings make sense together.
    pub(crate) fn check(&self) -> Result<(u32, u32), Error> {
        let missing = |name, allowed| Error::Setting { name, given: "not set".to_owned(), allowed };
        let aggregators = self.get_aggregators();
        if !self.weights.is_empty()
            && (self.weights.len() != aggregators.len() || self.weights.contains(&0))
        {
            return Err(Error::Setting {
                name: "weights",
                given: format!("{:?} of {} aggregators", self.weights, aggregators.len()),
                allowed: "give one of 1 or more for each aggregator",
            });
        }
        if self.rdma && aggregators.is_empty() {
            return Err(Error::Setting {
                name: "RDMA",
                given: "asked for without an aggregator".to_owned(),
                allowed: "ranks that serve each other have sockets alone; give an aggregator, or \
                          unset SWITCHML_RDMA",
            });
        }
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
        check_wait("standstill", self.get_standstill())?;
        Ok((rank, world_size))
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

/// Where ranks can meet, given `MASTER_ADDR:MASTER_PORT`, where torchrun may listen itself. The
/// next port would be that of another job of torchrun's, if a user counts them.
fn free_place(place: String, is_taken: bool) -> String {
    match place.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
        Some((host, Ok(port))) if is_taken => {
            let free = port.checked_sub(FROM_TORCHRUN).filter(|port| *port >= FROM_TORCHRUN);
            format!("{host}:{}", free.unwrap_or(port.saturating_add(FROM_TORCHRUN)))
        }
        _ => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

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
        assert_eq!((builder.job, builder.aggregator.as_deref()), (None, Some("given")));
        assert_eq!(builder.meeting.as_deref(), Some("host:29500"));

        let run = |id| with(&[("TORCHELASTIC_RUN_ID", id)]).unwrap().job;
        assert_eq!(run("run").as_deref(), Some("run"));
        // torchrun's default says nothing of the job.
        assert_eq!(run("none"), None);
        let own = [
            ("TORCHELASTIC_RUN_ID", "run"),
            ("SWITCHML_JOB", "mine"),
            ("SWITCHML_AGGREGATOR", "switch:1"),
        ];
        let builder = with(&own).unwrap();
        let given = (builder.job.as_deref(), builder.aggregator.as_deref());
        assert_eq!(given, (Some("mine"), Some("switch:1")));

        let nothing = with(&[]).unwrap();
        assert_eq!((nothing.job, nothing.rank, nothing.world_size), (None, None, None));
        assert_eq!(builder.meeting, None);
    }

    #[test]
    fn ranks_without_an_aggregator_meet_at_rank_0s_host() {
        let meeting = |more: &[(&str, &str)]| {
            let given = [("MASTER_ADDR", "host"), ("MASTER_PORT", "29500")];
            with(&[&given[..], more].concat()).unwrap().meeting.unwrap()
        };
        assert_eq!(meeting(&[]), "host:29500");
        // torchrun listens there itself.
        assert_eq!(meeting(&[("TORCHELASTIC_USE_AGENT_STORE", "True")]), "host:19500");
        let at = |port| free_place(format!("host:{port}"), true);
        assert_eq!(at(60_000), "host:50000");
        assert_eq!(at(20_000), "host:10000");
        assert_eq!(at(19_999), "host:29999");
        assert_eq!(at(1), "host:10001");
        assert_eq!(meeting(&[("TORCHELASTIC_USE_AGENT_STORE", "False")]), "host:29500");
        let by_ipv6 = [("MASTER_ADDR", "fd00::1"), ("MASTER_PORT", "29500")];
        assert_eq!(with(&by_ipv6).unwrap().meeting.unwrap(), "[fd00::1]:29500");
    }

    /// The variables that `srun` sets for the sixth of eight tasks.
    const SLURM: [(&str, &str); 6] = [
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "8"),
        ("SLURM_STEP_NUM_TASKS", "8"),
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "n[01-04]"),
    ];

    #[test]
    fn variables_of_slurm() {
        let set = |builder: Builder| (builder.rank, builder.world_size, builder.job);
        let step = with(&SLURM).unwrap();
        assert_eq!(set(step), (Some(5), Some(8), Some("slurm-4711.0".to_owned())));
        let more = [("SLURM_CLUSTER_NAME", "north"), ("SLURM_RESTART_COUNT", "2")];
        let again = with(&[&SLURM[..], &more].concat()).unwrap();
        assert_eq!(again.job.as_deref(), Some("slurm-north-4711.0-2"));
        // A batch script, before it calls srun.
        let batch: Vec<_> =
            SLURM.into_iter().filter(|(name, _)| !name.starts_with("SLURM_STEP")).collect();
        assert_eq!(set(with(&batch).unwrap()), (None, None, None));
        // torchrun as the only task of each node.
        let torchrun =
            [("RANK", "3"), ("WORLD_SIZE", "64"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        let both = with(&[&SLURM[..], &torchrun].concat()).unwrap();
        assert_eq!(set(both), (Some(3), Some(64), None));
        let named = with(&[&SLURM[..], &[("SWITCHML_JOB", "mine")]].concat()).unwrap();
        assert_eq!(set(named), (Some(5), Some(8), Some("mine".to_owned())));
    }

    #[test]
    fn tasks_of_slurm_meet_without_other_variables() {
        let meeting = |more: &[(&str, &str)]| with(&[&SLURM[..], more].concat()).unwrap().meeting;
        // 10,000 + (12,361 x 4711) mod 20,000.
        assert_eq!(meeting(&[]).as_deref(), Some("n01:22671"));
        let (host, port) = (("MASTER_ADDR", "login"), ("MASTER_PORT", "29500"));
        assert_eq!(meeting(&[host, port]).as_deref(), Some("login:29500"));
        assert_eq!(meeting(&[host]).as_deref(), Some("login:22671"));
        assert_eq!(meeting(&[port]).as_deref(), Some("n01:29500"));
        // torchrun's ranks meet where torchrun says.
        let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2")];
        assert_eq!(meeting(&torchrun), None);
        // A batch script, before it calls srun.
        let batch: Vec<_> =
            SLURM.into_iter().filter(|(name, _)| !name.starts_with("SLURM_STEP")).collect();
        assert_eq!(with(&batch).unwrap().meeting, None);
    }

    #[test]
    fn every_variable_that_is_read_is_declared_and_no_other() {
        let read = RefCell::new(BTreeSet::new());
        let note = |name: &str| {
            read.borrow_mut().insert(name.to_owned());
            let known = SLURM.into_iter().find(|(known, _)| *known == name);
            known.map(|(_, value)| value.to_owned()).ok_or(VarError::NotPresent)
        };
        Builder::default().variables(note).unwrap();
        let declared: BTreeSet<_> = crate::VARIABLES.map(|each| each.name.to_owned()).into();
        assert_eq!(read.into_inner(), declared);
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
    fn the_summary_may_be_turned_off() {
        let set = |value| with(&[("SWITCHML_SUMMARY", value)]).map(|builder| builder.summary);
        assert_eq!(["0", "1", ""].map(|value| set(value).unwrap()), [false, true, true]);
    }

    #[test]
    fn rdma_is_used_if_asked_for() {
        let set = |value| with(&[("SWITCHML_RDMA", value)]).map(|builder| builder.rdma);
        assert_eq!(["0", "1", ""].map(|value| set(value).unwrap()), [false, true, false]);
        assert_eq!(
            set("mlx5_0").unwrap_err().to_string(),
            "SWITCHML_RDMA is mlx5_0; 0 and 1 are allowed"
        );
    }

    #[test]
    fn rdma_needs_an_aggregator() {
        let error = Builder::default().rank(0).world_size(1).rdma(true).check().unwrap_err();
        assert!(error.to_string().starts_with("RDMA is asked for without an aggregator; "));
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
                Builder::default().rank(0).world_size(2),
                "aggregator is not set; give its host, or set SWITCHML_AGGREGATOR; or set \
                 MASTER_ADDR and MASTER_PORT, where ranks meet that serve each other",
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
