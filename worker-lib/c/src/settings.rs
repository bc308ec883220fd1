//! Made by `cargo xtask gen` from `worker-lib/src/settings.rs`: change it there.

use std::ffi::c_char;

use crate::given::{Given, Switch};

/// How to connect. What is zero or null comes from the environment, as torchrun and srun set it, or
/// is the default: `{ .size = sizeof(switchml_settings) }` takes all from there.
#[repr(C)]
pub struct Settings {
    /// `sizeof(switchml_settings)`, as in `switchml_settings settings = { .size = sizeof settings
    /// };`: a library that is newer than the program knows by it which settings the program has.
    pub size: usize,
    /// Where ranks meet, instead of meeting: the SWITCHML_UNIQUE_ID_BYTES bytes that
    /// switchml_unique_id gave one of them, or null.
    pub unique_id: *const u8,
    /// The control plane of each aggregator, with commas between them; several share the work.
    /// Values travel over the same IP version. Text: host, host:port, an IP address or [IPv6]:port.
    /// Null: SWITCHML_AGGREGATOR, or none: the ranks serve each other, and meet at
    /// MASTER_ADDR:MASTER_PORT.
    pub aggregator: *const c_char,
    /// The place where ranks meet, if they have no aggregator, or no name for their job: an address
    /// of rank 0's host that all others reach, with a port that is free there, and that no other
    /// job uses. Text: host:port, IP:port or [IPv6]:port. Null: SWITCHML_MEETING, or
    /// MASTER_ADDR:MASTER_PORT.
    pub meeting: *const c_char,
    /// The job's name, the same on all ranks. As long as the job runs, no other job may have it at
    /// these aggregators. Text: a name. Null: SWITCHML_JOB, or TORCHELASTIC_RUN_ID, or Slurm's job
    /// and step, or a name that rank 0 makes up.
    pub job: *const c_char,
    /// This process's rank, 0 to world size - 1, unique in the job. torchrun sets it. If world_size
    /// is 0, it does not count.
    pub rank: u32,
    /// The number of ranks. torchrun sets it. 1 to 1024. 0: WORLD_SIZE, or SLURM_STEP_NUM_TASKS, if
    /// RANK is not set either.
    pub world_size: u32,
    /// A call fails if the aggregator has given no answer for this time. In seconds, 0.1 or more.
    /// 0: SWITCHML_DEADLINE, or 5.
    pub deadline: f64,
    /// A call fails if it has waited for this time for ranks that are connected; the error names
    /// them. It must be longer than the time by which ranks differ when they call. In seconds, 0.1
    /// or more. 0: SWITCHML_TIMEOUT, or 1800.
    pub timeout: f64,
    /// How long to wait for the other ranks to join. In seconds, 0.1 or more. 0:
    /// SWITCHML_JOIN_TIMEOUT, or 60.
    pub join_timeout: f64,
    /// How long this process may be stopped, as in a debugger, before the other ranks treat it as
    /// dead. Its host has to answer meanwhile; a host that does not is dead within seconds. In
    /// seconds, 0.1 or more. 0: SWITCHML_STANDSTILL, or the timeout.
    pub standstill: f64,
    /// SHA-256 fingerprint of the aggregator's certificate. Connections then use TLS. Text: sha256:
    /// and 64 hexadecimal digits. Null: SWITCHML_TLS_FINGERPRINT.
    pub tls_fingerprint: *const c_char,
    /// File of the CAs, in PEM, that sign the aggregator's certificate, instead of a fingerprint.
    /// Connections then use TLS. Null: SWITCHML_TLS_CA.
    pub tls_ca: *const c_char,
    /// File with this side's certificate, in PEM, if the aggregator asks for one. Null:
    /// SWITCHML_TLS_CERT.
    pub tls_cert: *const c_char,
    /// File with the private key of that certificate, in PEM. Null: SWITCHML_TLS_KEY.
    pub tls_key: *const c_char,
    /// File with a job token, if the aggregator asks for one. Null: SWITCHML_TOKEN_FILE, or the
    /// token in SWITCHML_TOKEN.
    pub token_file: *const c_char,
    /// Most threads for large calls. All ranks get the smallest number that any of them asks for,
    /// rounded down to a power of two, or fewer if the aggregator has few slots left. 1 to 8. 0:
    /// SWITCHML_DATA_THREADS, or one for each processor, shared by the ranks of the host, up to the
    /// number that fills the link.
    pub data_threads: u32,
    /// The parts of large calls that several aggregators take, in proportion: a number of 1 or more
    /// for each aggregator, in their order. All ranks must give the same. Text: numbers of 1 or
    /// more, with commas between them. Null: SWITCHML_WEIGHTS, or computed from the links.
    pub weights: *const c_char,
    /// Whether this rank adds up with the other ranks of its host before it sends. They have to
    /// share a network namespace and a user. Results are the same either way. SWITCHML_DEFAULT:
    /// SWITCHML_LOCAL_SUMS, or yes.
    pub local_sums: Switch,
    /// Whether ranks' hosts help aggregators that are slower than a ring of the ranks: each process
    /// then adds up a part of every call. With weights, packet tags, TLS, a token or RDMA they do
    /// not. All ranks must give the same. SWITCHML_DEFAULT: SWITCHML_OWN_HOSTS, or yes.
    pub own_hosts: Switch,
    /// Whether packets travel over RDMA (RoCEv2) instead of sockets. The host needs an RDMA device
    /// at the link and libibverbs, and the aggregator has to accept it. Results are the same either
    /// way, and a job may have ranks of both kinds. SWITCHML_DEFAULT: SWITCHML_RDMA, or no.
    pub rdma: Switch,
    /// Whether rank 0 of the process's first job writes a line about it to standard error: how many
    /// ranks and hosts there are, how they are joined, and what would make calls faster.
    /// SWITCHML_DEFAULT: SWITCHML_SUMMARY, or yes.
    pub summary: Switch,
}

impl Settings {
    /// Each setting's name and what C gives.
    pub fn given(&self) -> [(&'static str, Given); 20] {
        [
            ("aggregator", Given::Text(self.aggregator)),
            ("meeting", Given::Text(self.meeting)),
            ("job", Given::Text(self.job)),
            ("rank", Given::Number(self.rank)),
            ("world_size", Given::Number(self.world_size)),
            ("deadline", Given::Seconds(self.deadline)),
            ("timeout", Given::Seconds(self.timeout)),
            ("join_timeout", Given::Seconds(self.join_timeout)),
            ("standstill", Given::Seconds(self.standstill)),
            ("tls_fingerprint", Given::Text(self.tls_fingerprint)),
            ("tls_ca", Given::File(self.tls_ca)),
            ("tls_cert", Given::File(self.tls_cert)),
            ("tls_key", Given::File(self.tls_key)),
            ("token_file", Given::File(self.token_file)),
            ("data_threads", Given::Number(self.data_threads)),
            ("weights", Given::Numbers(self.weights)),
            ("local_sums", Given::Switch(self.local_sums)),
            ("own_hosts", Given::Switch(self.own_hosts)),
            ("rdma", Given::Switch(self.rdma)),
            ("summary", Given::Switch(self.summary)),
        ]
    }
}
