//! The environment variables of [`Builder::env`](crate::Builder::env).

use switchml_control::Variable;
use switchml_control::tls::VARIABLES as TLS;

const ZERO_OR_ONE: &str = "0 or 1";
const WHOLE: &str = "a whole number";

/// Every variable that [`Builder::env`](crate::Builder::env) reads. An empty variable counts as not
/// set.
pub const VARIABLES: [Variable; 26] = [
    Variable {
        name: "SWITCHML_AGGREGATOR",
        values: "host, host:port, an IP address or [IPv6]:port",
        default: "none: the ranks serve each other, and meet at MASTER_ADDR:MASTER_PORT",
        meaning: "Host, or host:port, of each aggregator, with commas between them.",
    },
    Variable {
        name: "RANK",
        values: "0 to world size - 1",
        default: "SLURM_PROCID, if WORLD_SIZE is not set either",
        meaning: "This process's rank. torchrun sets it.",
    },
    Variable {
        name: "WORLD_SIZE",
        values: "1 to 1024",
        default: "SLURM_STEP_NUM_TASKS, if RANK is not set either",
        meaning: "The number of ranks. torchrun sets it.",
    },
    Variable {
        name: "SWITCHML_JOB",
        values: "a name that no other job has at these aggregators",
        default: "TORCHELASTIC_RUN_ID, or Slurm's job and step, or a name that rank 0 makes up",
        meaning: "The job's name, the same on all ranks.",
    },
    Variable {
        name: "MASTER_ADDR",
        values: "a host or an IP address of rank 0",
        default: "the first node of SLURM_STEP_NODELIST, if neither RANK nor WORLD_SIZE is set",
        meaning: "The host where ranks meet, if they have no aggregator, or no name for their job.",
    },
    Variable {
        name: "MASTER_PORT",
        values: "a port that is free on the host of rank 0",
        default: "10,000 + (12,361 x SLURM_JOB_ID + SLURM_STEP_ID) mod 20,000, if neither RANK nor \
                  WORLD_SIZE is set",
        meaning: "The TCP port at MASTER_ADDR. If torchrun listens there itself, ranks meet \
                  10,000 ports below; if that is less than 10,000, 10,000 ports above.",
    },
    TLS[0],
    TLS[1],
    TLS[2],
    TLS[3],
    Variable {
        name: "SWITCHML_TOKEN_FILE",
        values: "a file",
        default: "the token in SWITCHML_TOKEN",
        meaning: "The job token, for an aggregator that asks for one.",
    },
    Variable {
        name: "SWITCHML_TOKEN",
        values: "a job token",
        default: "",
        meaning: "The job token itself.",
    },
    Variable {
        name: "SWITCHML_STANDSTILL",
        values: "seconds, 0.1 or more",
        default: "the timeout of calls",
        meaning: "How long this process may be stopped before the other ranks treat it as dead.",
    },
    Variable {
        name: "SWITCHML_SUMMARY",
        values: ZERO_OR_ONE,
        default: "1",
        meaning: "With 0, rank 0 does not print a line about the process's first job.",
    },
    Variable {
        name: "SWITCHML_OWN_HOSTS",
        values: ZERO_OR_ONE,
        default: "1",
        meaning: "With 0, ranks' hosts do not help aggregators that are slower than a ring. Every \
                  rank must have the same.",
    },
    Variable {
        name: "SWITCHML_LOCAL_SUMS",
        values: ZERO_OR_ONE,
        default: "1",
        meaning: "With 0, this rank sends separately from the other ranks of its host, which \
                  otherwise add up first.",
    },
    Variable {
        name: "SWITCHML_RDMA",
        values: ZERO_OR_ONE,
        default: "0",
        meaning: "With 1, this rank sends and receives over RDMA (RoCEv2).",
    },
    Variable {
        name: "TORCHELASTIC_RUN_ID",
        values: "a name; none does not count",
        default: "",
        meaning: "The job's name, if SWITCHML_JOB is not set. torchrun sets it.",
    },
    Variable {
        name: "TORCHELASTIC_USE_AGENT_STORE",
        values: "True, or anything else",
        default: "",
        meaning: "Whether torchrun itself listens at MASTER_PORT. torchrun sets it.",
    },
    Variable {
        name: "SLURM_PROCID",
        values: WHOLE,
        default: "",
        meaning: "The rank of a task, if neither RANK nor WORLD_SIZE is set. srun sets it.",
    },
    Variable {
        name: "SLURM_STEP_NUM_TASKS",
        values: WHOLE,
        default: "",
        meaning: "The number of ranks, if neither RANK nor WORLD_SIZE is set. srun sets it.",
    },
    Variable {
        name: "SLURM_JOB_ID",
        values: WHOLE,
        default: "",
        meaning: "A part of the job's name, if no other variable names it. The port where ranks \
                  meet depends on it.",
    },
    Variable {
        name: "SLURM_STEP_ID",
        values: WHOLE,
        default: "",
        meaning: "A part of the job's name, if no other variable names it. The port where ranks \
                  meet depends on it.",
    },
    Variable {
        name: "SLURM_STEP_NODELIST",
        values: "a list of nodes, such as n[01-04]",
        default: "",
        meaning: "Ranks meet at its first node, unless MASTER_ADDR is set. srun sets it.",
    },
    Variable {
        name: "SLURM_CLUSTER_NAME",
        values: "a name",
        default: "",
        meaning: "A part of the job's name, if no other variable names it.",
    },
    Variable {
        name: "SLURM_RESTART_COUNT",
        values: WHOLE,
        default: "",
        meaning: "A part of the job's name, if no other variable names it.",
    },
];
