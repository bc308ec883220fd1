//! The sections of the manual page switchml-worker(1) besides the options.

use switchml_cli::pages::{Manual, Section};

use crate::EXIT_CODES;

/// The manual of the program and its commands.
pub const MANUAL: Manual = Manual {
    section: "1",
    sections: &[ENVIRONMENT, EXIT_STATUS, EXAMPLES, SEE_ALSO],
    of_file: None,
};

const ENVIRONMENT: Section = ("ENVIRONMENT", &VARIABLES);

/// The library's variables: names and meanings.
const VARIABLES: [(&str, &str); switchml_worker::VARIABLES.len()] = {
    let mut entries = [("", ""); switchml_worker::VARIABLES.len()];
    let mut i = 0;
    while i < entries.len() {
        entries[i] = (switchml_worker::VARIABLES[i].name, switchml_worker::VARIABLES[i].meaning);
        i += 1;
    }
    entries
};

const EXIT_STATUS: Section = ("EXIT STATUS", &EXIT_CODES);

/// Command lines, and what each does; `--help` has them, too.
pub const EXAMPLES: Section = (
    "EXAMPLES",
    &[
        (
            "switchml-worker doctor --aggregator 10.0.0.254",
            "Checks the path step by step; names what is wrong, and the fix.",
        ),
        (
            "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 WORLD_SIZE=4 RANK=0 switchml-worker doctor",
            "Checks the ways between ranks without an aggregator, as the first of four ranks.",
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
            "switchml-worker trace --model bert-large > step.csv",
            "Writes a training step to a file, to change and to replay.",
        ),
        (
            "switchml-worker plan --model resnet50 --ranks 8 --rate 2.5G",
            "Says how long a training step takes, and how much faster it gets.",
        ),
        (
            "SWITCHML_AGGREGATOR=10.0.0.254 srun --nodes 4 --ntasks 4 switchml-worker bench",
            "Measures with the tasks of a step of Slurm as ranks.",
        ),
    ],
);

const SEE_ALSO: Section =
    ("SEE ALSO", &[("switchml-aggregator(8)", "The daemon on the host that adds up.")]);
