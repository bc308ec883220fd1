//! Other programs, run to their ends.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Runs a command, which must succeed. What it says is shown.
pub fn succeed(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot start {program}"))?;
    ensure!(status.success(), "{program} failed ({status}); what it said is above");
    Ok(())
}

/// Runs a command, which must succeed, and returns its standard output. On failure, the error ends
/// with the last line of its standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let reason =
            stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says no more");
        bail!("{program} failed ({}): {}", output.status, reason.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
