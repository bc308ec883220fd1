//! What operators install from `userspace/deploy`: the unit of the service, manifests for
//! Kubernetes, and scripts for Slurm.

mod kubernetes;
mod service;
mod slurm;

use std::path::PathBuf;

/// A file or folder of `userspace/deploy`.
fn deployed(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../userspace/deploy")).join(path)
}
