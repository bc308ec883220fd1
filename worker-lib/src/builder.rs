//! Settings of a communicator.

use std::env::{self, VarError};
use std::sync::Arc;

use switchml_worker_core::engine::Limits;

use crate::communicator::Communicator;
use crate::control::{Access, ClientTls, Token};
use crate::error::Error;
use crate::meeting::UniqueId;
use crate::peers::{OwnAggregator, Peer};
use crate::settings::{Settings, builder_methods};
use crate::slurm;
use crate::values::variable;

/// The run id that torchrun gives to each job whose user gives none.
const RUN_ID_OF_ALL: &str = "none";
/// Ports between the one where torchrun listens and the one where ranks meet.
const FROM_TORCHRUN: u16 = 10_000;

/// Makes a [`Communicator`] of [`Settings`]. It has a method for each; what is not given has its
/// default.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    pub(crate) settings: Settings,
    pub(crate) unique_id: Option<UniqueId>,
    pub(crate) peers: Option<(Arc<OwnAggregator>, Vec<Peer>)>,
    /// The job token, if it isn't in a file.
    token: Option<String>,
}

impl Builder {
    builder_methods!();

    /// Gives all these settings. Those that are not among them keep their values.
    pub fn with(mut self, settings: Settings) -> Self {
        self.settings = settings.over(self.settings);
        self
    }

    /// The settings given so far.
    pub fn settings(&self) -> &Settings {
        &self.settings
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
    pub fn tls(self, tls: ClientTls) -> Self {
        self.with(Settings::default().with_tls(tls))
    }

    /// The job token, for an aggregator that asks for one.
    pub fn token(mut self, token: Token) -> Self {
        (self.settings.token_file, self.token) = match token {
            Token::File(file) => (Some(file), None),
            Token::Text(text) => (None, Some(text)),
        };
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
        let mut given = Settings::from_variables(text)?;
        let (mut node, mut port, mut step_job) = (None, None, None);
        if given.rank.is_none()
            && given.world_size.is_none()
            && let Some(step) = slurm::Step::read(text)?
        {
            (given.rank, given.world_size) = (Some(step.rank), Some(step.world_size));
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
        let is_taken = text("TORCHELASTIC_USE_AGENT_STORE")?.as_deref() == Some("True");
        given.meeting = given.meeting.or(meeting.map(|place| free_place(place, is_taken)));
        let run_id = text("TORCHELASTIC_RUN_ID")?.filter(|id| id != RUN_ID_OF_ALL);
        given.job = given.job.or(run_id).or(step_job);
        if let Some(token) = text("SWITCHML_TOKEN")?.filter(|_| given.token_file.is_none()) {
            self = self.token(Token::Text(token));
        }
        Ok(self.with(given))
    }

    /// The aggregators as set so far.
    pub fn get_aggregators(&self) -> Vec<Access> {
        let given = self.settings.aggregator.iter().flat_map(|list| list.split(','));
        let addresses = given.map(str::trim).filter(|address| !address.is_empty());
        let weights = self.settings.weights.iter().flatten().copied().chain(std::iter::repeat(0));
        let access = |(address, weight)| Access { weight, ..self.access(address) };
        addresses.zip(weights).map(access).collect()
    }

    /// The aggregators as set so far, one at each address of a name that has several.
    pub(crate) fn aggregators_given(&self) -> Vec<Access> {
        self.get_aggregators().into_iter().flat_map(Access::each).collect()
    }

    /// How an aggregator at this address is reached.
    pub fn access(&self, address: &str) -> Access {
        let (tls, token) = (self.settings.tls(), self.get_token());
        Access { address: address.to_owned(), tls, token, ..Access::default() }
    }

    fn get_token(&self) -> Option<Token> {
        let file = self.settings.token_file.clone().map(Token::File);
        file.or(self.token.clone().map(Token::Text))
    }

    /// Whether ranks' hosts may help the aggregators given. Those hosts have no TLS and ask for no
    /// token, so jobs that want either do without.
    pub(crate) fn may_add_hosts(&self) -> bool {
        let is_open = self.settings.tls() == ClientTls::default() && self.get_token().is_none();
        self.settings.own_hosts() && is_open && self.settings.weights.is_none()
    }

    /// The longest waits of calls.
    pub(crate) fn limits(&self) -> Limits {
        Limits { deadline: self.settings.deadline(), timeout: self.settings.timeout() }
    }

    /// Rank and world size, if the settings make sense together.
    pub(crate) fn check(&self) -> Result<(u32, u32), Error> {
        let missing = |name, allowed| Error::Setting { name, given: "not set".to_owned(), allowed };
        let settings = &self.settings;
        settings.check()?;
        let aggregators = self.get_aggregators();
        if let Some(weights) = &settings.weights
            && weights.len() != aggregators.len()
        {
            return Err(Error::Setting {
                name: "weights",
                given: format!("{weights:?} of {} aggregators", aggregators.len()),
                allowed: "give one of 1 or more for each aggregator",
            });
        }
        if settings.rdma() && aggregators.is_empty() {
            return Err(Error::Setting {
                name: "RDMA",
                given: "asked for without an aggregator".to_owned(),
                allowed: "ranks that serve each other have sockets alone; give an aggregator, or \
                          unset SWITCHML_RDMA",
            });
        }
        let rank =
            settings.rank.ok_or_else(|| missing("rank", "give this process's, or set RANK"))?;
        let world_size = settings
            .world_size
            .ok_or_else(|| missing("world_size", "give the number of ranks, or set WORLD_SIZE"))?;
        if rank >= world_size {
            let given = format!("{rank} of {world_size}");
            return Err(Error::Setting {
                name: "rank",
                given,
                allowed: "0 to world size - 1 are allowed",
            });
        }
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
    use std::time::Duration;

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
        assert_eq!((builder.settings.rank, builder.settings.world_size), (Some(3), Some(8)));
        assert_eq!(
            (builder.settings.job, builder.settings.aggregator.as_deref()),
            (None, Some("given"))
        );
        assert_eq!(builder.settings.meeting.as_deref(), Some("host:29500"));

        let run = |id| with(&[("TORCHELASTIC_RUN_ID", id)]).unwrap().settings.job;
        assert_eq!(run("run").as_deref(), Some("run"));
        // torchrun's default says nothing of the job.
        assert_eq!(run("none"), None);
        let own = [
            ("TORCHELASTIC_RUN_ID", "run"),
            ("SWITCHML_JOB", "mine"),
            ("SWITCHML_AGGREGATOR", "switch:1"),
        ];
        let builder = with(&own).unwrap();
        let given = (builder.settings.job.as_deref(), builder.settings.aggregator.as_deref());
        assert_eq!(given, (Some("mine"), Some("switch:1")));

        let nothing = with(&[]).unwrap();
        assert_eq!(
            (nothing.settings.job, nothing.settings.rank, nothing.settings.world_size),
            (None, None, None)
        );
        assert_eq!(builder.settings.meeting, None);
    }

    #[test]
    fn ranks_without_an_aggregator_meet_at_rank_0s_host() {
        let meeting = |more: &[(&str, &str)]| {
            let given = [("MASTER_ADDR", "host"), ("MASTER_PORT", "29500")];
            with(&[&given[..], more].concat()).unwrap().settings.meeting.unwrap()
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
        assert_eq!(with(&by_ipv6).unwrap().settings.meeting.unwrap(), "[fd00::1]:29500");
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
        let set = |builder: Builder| {
            (builder.settings.rank, builder.settings.world_size, builder.settings.job)
        };
        let step = with(&SLURM).unwrap();
        assert_eq!(set(step), (Some(5), Some(8), Some("slurm-4711.0".to_owned())));
        let more = [("SLURM_CLUSTER_NAME", "north"), ("SLURM_RESTART_COUNT", "2")];
        let again = with(&[&SLURM[..], &more].concat()).unwrap();
        assert_eq!(again.settings.job.as_deref(), Some("slurm-north-4711.0-2"));
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
        let meeting =
            |more: &[(&str, &str)]| with(&[&SLURM[..], more].concat()).unwrap().settings.meeting;
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
        assert_eq!(with(&batch).unwrap().settings.meeting, None);
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
        let set = |value| {
            with(&[("SWITCHML_LOCAL_SUMS", value)]).map(|builder| builder.settings.local_sums())
        };
        assert_eq!(["0", "1", ""].map(|value| set(value).unwrap()), [false, true, true]);
        assert_eq!(
            set("no").unwrap_err().to_string(),
            "SWITCHML_LOCAL_SUMS is \"no\"; 0 and 1 are allowed"
        );
    }

    #[test]
    fn the_summary_may_be_turned_off() {
        let set =
            |value| with(&[("SWITCHML_SUMMARY", value)]).map(|builder| builder.settings.summary());
        assert_eq!(["0", "1", ""].map(|value| set(value).unwrap()), [false, true, true]);
    }

    #[test]
    fn rdma_is_used_if_asked_for() {
        let set = |value| with(&[("SWITCHML_RDMA", value)]).map(|builder| builder.settings.rdma());
        assert_eq!(["0", "1", ""].map(|value| set(value).unwrap()), [false, true, false]);
        assert_eq!(
            set("mlx5_0").unwrap_err().to_string(),
            "SWITCHML_RDMA is \"mlx5_0\"; 0 and 1 are allowed"
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
                format!("WORLD_SIZE is {value:?}; 1 to 1024 are allowed")
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
                "world_size is not set; give the number of ranks, or set WORLD_SIZE",
            ),
            (complete().world_size(0), "world_size is 0; 1 to 1024 are allowed"),
            (complete().world_size(1025), "world_size is 1025; 1 to 1024 are allowed"),
            (complete().world_size(4).rank(4), "rank is 4 of 4; 0 to world size - 1 are allowed"),
            (complete().data_threads(0), "data_threads is 0; 1 to 8 are allowed"),
            (complete().data_threads(9), "data_threads is 9; 1 to 8 are allowed"),
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
