//! The sections of the manual page switchml-worker(1) besides the options.

use switchml_cli::pages::{Manual, Section};

use crate::EXIT_CODES;

/// The manual of the program and its commands.
pub const MANUAL: Manual = Manual {
    section: "1",
    sections: &[ENVIRONMENT, EXIT_STATUS, EXAMPLES, SEE_ALSO],
    of_file: None,
};

const ENVIRONMENT: Section = (
    "ENVIRONMENT",
    &[
        ("SWITCHML_AGGREGATOR", "The aggregators, as host or host:port, with commas between."),
        (
            "RANK, WORLD_SIZE",
            "This rank, and how many there are, as torchrun sets them. Without both, the tasks of \
             a step of Slurm are the ranks: SLURM_PROCID of SLURM_STEP_NUM_TASKS.",
        ),
        (
            "SWITCHML_JOB",
            "Name of the job, which no other job has at these aggregators; else \
             TORCHELASTIC_RUN_ID, or the job and step of Slurm.",
        ),
        (
            "MASTER_ADDR, MASTER_PORT",
            "Where ranks meet that have no aggregator, or no name for their job: at rank 0's host.",
        ),
        ("SWITCHML_TLS_FINGERPRINT, SWITCHML_TLS_CA", "How the aggregator is known, for TLS."),
        ("SWITCHML_TLS_CERT, SWITCHML_TLS_KEY", "What it is shown if it asks for a certificate."),
        ("SWITCHML_TOKEN_FILE, SWITCHML_TOKEN", "A job token, in a file or itself."),
        (
            "SWITCHML_LOCAL_SUMS",
            "0 if this rank is to send apart from the other ranks of its host, to compare.",
        ),
        ("SWITCHML_RDMA", "1 to send and receive by RDMA (RoCEv2)."),
    ],
);

const EXIT_STATUS: Section = ("EXIT STATUS", &EXIT_CODES);

const EXAMPLES: Section = (
    "EXAMPLES",
    &[
        (
            "switchml-worker doctor --aggregator 10.0.0.254",
            "Checks the path step by step; names what is wrong, and the fix.",
        ),
        (
            "switchml-worker bench --aggregator 10.0.0.254 --job try --rank 0 --world-size 4",
            "Measures, as the first of four ranks. The others give --rank 1, 2 and 3.",
        ),
        (
            "switchml-worker plan --ranks 4 --rate 1G --spare 1 --spare-rate 10G",
            "Says how long an all-reduce takes with these machines, and what to start.",
        ),
        (
            "switchml-worker plan --model resnet50 --ranks 8 --rate 2.5G",
            "Says how long a training step takes, and how much faster it gets.",
        ),
        (
            "SWITCHML_AGGREGATOR=10.0.0.254 srun --nodes 4 --ntasks 4 switchml-worker bench",
            "The same in Slurm.",
        ),
    ],
);

const SEE_ALSO: Section =
    ("SEE ALSO", &[("switchml-aggregator(8)", "The daemon on the host that adds up.")]);
