//! The settings of a communicator, each declared once: its meaning, form, default and variable.
//!
//! A setting has the same name everywhere: a method of [`Builder`](crate::Builder), an option of
//! `switchml-worker` (with `-` for `_`), a member of C's `switchml_settings`, and a keyword of
//! Python's `Communicator`. `cargo xtask gen` writes from this table what C, Python and the
//! reference need. C's struct has the order of the table, so new settings go to its end.

mod form;
pub(crate) mod table;

use std::path::PathBuf;
use std::time::Duration;

pub use form::{Form, Value};
use switchml_control::tls::WrongSetting;
use switchml_control::{MAX_DATA_THREADS, Variable};
use switchml_protocol::MAX_RANKS;
use table::settings;

use crate::control::ClientTls;
use crate::error::Error;

/// Longest wait: a time far ahead may be out of the clock's range, so that longer ones count as
/// this.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

const _: () = assert!(MAX_RANKS == 1024 && MAX_DATA_THREADS == 8, "as the table says");

/// A setting that users have.
#[derive(Debug)]
pub struct Setting {
    /// The name, in snake case.
    pub name: &'static str,
    /// The form of its values.
    pub form: Form,
    /// The environment variable, its values, the default and the meaning.
    pub variable: Variable,
    /// The settings with which users look for it.
    pub group: Group,
}

/// Settings that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The job, and the rank in it.
    Job,
    /// How an aggregator is known, and this side is known to it.
    Access,
    /// The times that a rank waits.
    Waits,
    /// Settings that few jobs need.
    Tuning,
}

settings! {
    /// The control plane of each aggregator, with commas between them; several share the work.
    /// Values travel over the same IP version.
    aggregator: Text("HOST[:PORT]", "host, host:port, an IP address or [IPv6]:port"),
        otherwise "none: the ranks serve each other, and meet at MASTER_ADDR:MASTER_PORT",
        "SWITCHML_AGGREGATOR", Job;

    /// The place where ranks meet, if they have no aggregator, or no name for their job: an address
    /// of rank 0's host that all others reach, with a port that is free there, and that no other
    /// job uses.
    meeting: Text("HOST:PORT", "host:port, IP:port or [IPv6]:port"),
        otherwise "MASTER_ADDR:MASTER_PORT",
        "SWITCHML_MEETING", Job;

    /// The job's name, the same on all ranks. As long as the job runs, no other job may have it at
    /// these aggregators.
    job: Text("NAME", "a name"),
        otherwise "TORCHELASTIC_RUN_ID, or Slurm's job and step, or a name that rank 0 makes up",
        "SWITCHML_JOB", Job;

    /// This process's rank, 0 to world size - 1, unique in the job. torchrun sets it.
    rank: Number(0, 1023),
        otherwise "SLURM_PROCID, if WORLD_SIZE is not set either",
        "RANK", Job;

    /// The number of ranks. torchrun sets it.
    world_size: Number(1, 1024),
        otherwise "SLURM_STEP_NUM_TASKS, if RANK is not set either",
        "WORLD_SIZE", Job;

    /// A call fails if the aggregator has given no answer for this time.
    deadline: Seconds, or 5, "SWITCHML_DEADLINE", Waits;

    /// A call fails if it has waited for this time for ranks that are connected; the error names
    /// them. It must be longer than the time by which ranks differ when they call.
    timeout: Seconds, or 1800, "SWITCHML_TIMEOUT", Waits;

    /// How long to wait for the other ranks to join.
    join_timeout: Seconds, or 60, "SWITCHML_JOIN_TIMEOUT", Waits;

    /// How long this process may be stopped, as in a debugger, before the other ranks treat it as
    /// dead. Its host has to answer meanwhile; a host that does not is dead within seconds.
    standstill: Seconds, otherwise "the timeout", "SWITCHML_STANDSTILL", Waits;

    /// SHA-256 fingerprint of the aggregator's certificate. Connections then use TLS.
    tls_fingerprint: Text("FINGERPRINT", "sha256: and 64 hexadecimal digits"), otherwise "",
        "SWITCHML_TLS_FINGERPRINT", Access;

    /// File of the CAs, in PEM, that sign the aggregator's certificate, instead of a fingerprint.
    /// Connections then use TLS.
    tls_ca: File, otherwise "", "SWITCHML_TLS_CA", Access;

    /// File with this side's certificate, in PEM, if the aggregator asks for one.
    tls_cert: File, otherwise "", "SWITCHML_TLS_CERT", Access;

    /// File with the private key of that certificate, in PEM.
    tls_key: File, otherwise "", "SWITCHML_TLS_KEY", Access;

    /// File with a job token, if the aggregator asks for one.
    token_file: File, otherwise "the token in SWITCHML_TOKEN", "SWITCHML_TOKEN_FILE", Access;

    /// Most threads for large calls. All ranks get the smallest number that any of them asks for,
    /// rounded down to a power of two, or fewer if the aggregator has few slots left.
    data_threads: Number(1, 8),
        otherwise "one for each processor, shared by the ranks of the host, up to the number that \
                   fills the link",
        "SWITCHML_DATA_THREADS", Tuning;

    /// The parts of large calls that several aggregators take, in proportion: a number of 1 or more
    /// for each aggregator, in their order. All ranks must give the same.
    weights: Numbers, otherwise "computed from the links", "SWITCHML_WEIGHTS", Tuning;

    /// Whether this rank adds up with the other ranks of its host before it sends. They have to
    /// share a network namespace and a user. Results are the same either way.
    local_sums: Switch, or true, "SWITCHML_LOCAL_SUMS", Tuning;

    /// Whether ranks' hosts help aggregators that are slower than a ring of the ranks: each process
    /// then adds up a part of every call. With weights, packet tags, TLS, a token or RDMA they do
    /// not. All ranks must give the same.
    own_hosts: Switch, or true, "SWITCHML_OWN_HOSTS", Tuning;

    /// Whether packets travel over RDMA (RoCEv2) instead of sockets. The host needs an RDMA device
    /// at the link and libibverbs, and the aggregator has to accept it. Results are the same either
    /// way, and a job may have ranks of both kinds.
    rdma: Switch, or false, "SWITCHML_RDMA", Tuning;

    /// Whether rank 0 of the process's first job writes a line about it to standard error: how many
    /// ranks and hosts there are, how they are joined, and what would make calls faster.
    summary: Switch, or true, "SWITCHML_SUMMARY", Tuning;
}

impl Settings {
    /// These settings, completed by those of `other`. A fingerprint and a CA replace each other.
    pub fn over(self, other: Self) -> Self {
        let tls = self.tls().over(other.tls());
        self.or(other).with_tls(tls)
    }

    /// How the aggregator is verified, and the certificate that is shown to it.
    pub fn tls(&self) -> ClientTls {
        ClientTls {
            fingerprint: self.tls_fingerprint.clone(),
            ca: self.tls_ca.clone(),
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
        }
    }

    pub(crate) fn with_tls(self, tls: ClientTls) -> Self {
        let ClientTls { fingerprint: tls_fingerprint, ca: tls_ca, cert: tls_cert, key: tls_key } =
            tls;
        Self { tls_fingerprint, tls_ca, tls_cert, tls_key, ..self }
    }

    /// How long this process may be stopped (rule 23.9): what is given, or the timeout.
    pub fn standstill(&self) -> Duration {
        self.standstill.unwrap_or(self.timeout())
    }

    /// The settings in the environment, whose variables `text` reads.
    pub(crate) fn from_variables(
        text: impl Fn(&'static str) -> Result<Option<String>, Error>,
    ) -> Result<Self, Error> {
        let mut settings = Self::default();
        for Setting { name, form, variable, .. } in SETTINGS {
            if let Some(given) = text(variable.name)? {
                let value = form.parse(&given).map_err(|allowed| Error::Setting {
                    name: variable.name,
                    given: format!("{given:?}"),
                    allowed,
                })?;
                settings.put(name, value);
            }
        }
        Ok(settings)
    }

    /// Makes sure that each value is in its range, and that they make sense together.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (Setting { name, form, .. }, value) in SETTINGS.iter().zip(self.values()) {
            value.iter().try_for_each(|value| form.check(name, value))?;
        }
        let wrong = |WrongSetting { name, given, allowed }| Error::Setting { name, given, allowed };
        self.tls().check().map_err(wrong)
    }
}

/// The setting of this name.
pub fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_goes_before_what_was() {
        let ca = || Some(PathBuf::from("ca.pem"));
        let before = Settings {
            job: Some("before".to_owned()),
            rank: Some(1),
            tls_fingerprint: Some("sha256:00".to_owned()),
            ..Settings::default()
        };
        let given = Settings { job: Some("given".to_owned()), tls_ca: ca(), ..Settings::default() };
        let expected = Settings {
            job: Some("given".to_owned()),
            rank: Some(1),
            tls_ca: ca(),
            ..Settings::default()
        };
        assert_eq!(given.over(before), expected);
    }

    #[test]
    fn defaults_are_what_the_table_says() {
        let settings = Settings::default();
        let seconds = |name| {
            let default = setting(name).expect("a setting").variable.default;
            Duration::from_secs(default.parse().expect("seconds"))
        };
        assert_eq!(settings.deadline(), seconds("deadline"));
        assert_eq!(settings.timeout(), seconds("timeout"));
        assert_eq!(settings.join_timeout(), seconds("join_timeout"));
        for (name, is_on) in [
            ("local_sums", settings.local_sums()),
            ("own_hosts", settings.own_hosts()),
            ("summary", settings.summary()),
            ("rdma", settings.rdma()),
        ] {
            let default = setting(name).expect("a setting").variable.default;
            assert_eq!(default, if is_on { "1" } else { "0" }, "{name}");
        }
    }

    #[test]
    fn a_wait_of_years_is_one_of_a_year() {
        let settings = Settings { timeout: Some(Duration::MAX), ..Settings::default() };
        assert_eq!(settings.timeout(), Duration::from_secs(31_536_000));
    }

    #[test]
    fn variables_have_the_names_of_settings() {
        for Setting { name, variable, .. } in SETTINGS {
            let upper = name.to_uppercase();
            let is_of_torchrun = ["RANK", "WORLD_SIZE"].contains(&variable.name);
            let own = format!("SWITCHML_{upper}");
            assert_eq!(variable.name, if is_of_torchrun { &upper } else { &own });
        }
    }
}
