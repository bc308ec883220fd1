//! Builds the BPF program that this binary embeds.

use std::process::ExitCode;

fn main() -> ExitCode {
    switchml_bpf_build::build("impairment-bpf", &[], &["tests/impairment/bpf", "protocol"])
}
