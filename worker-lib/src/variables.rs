//! The environment variables of [`Builder::env`](crate::Builder::env).

use switchml_control::Variable;

use crate::settings::SETTINGS;

const WHOLE: &str = "a whole number";

/// Every variable that [`Builder::env`](crate::Builder::env) reads: those of the settings, then
/// [`OTHERS`]. An empty variable counts as not set.
pub const VARIABLES: [Variable; SETTINGS.len() + OTHERS.len()] = {
    let mut variables = [OTHERS[0]; SETTINGS.len() + OTHERS.len()];
    let mut i = 0;
    while i < variables.len() {
        variables[i] = match i.checked_sub(SETTINGS.len()) {
            Some(other) => OTHERS[other],
            None => SETTINGS[i].variable,
        };
        i += 1;
    }
    variables
};

/// The variables that are no setting's own.
const OTHERS: [Variable; 12] = [
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
    Variable {
        name: "SWITCHML_TOKEN",
        values: "a job token",
        default: "",
        meaning: "The job token itself.",
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
