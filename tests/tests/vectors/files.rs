//! The files of the vectors.

use crate::folder;
use std::process::Command;
use switchml_rack::skip;

/// Whoever changes a file by hand, or the generator alone, hears of it.
#[test]
fn the_files_are_what_their_generator_writes() {
    let output = Command::new("python3")
        .arg(folder().join("generate.py"))
        .arg("--check")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    match output {
        Err(error) => skip("files::the_files_are_what_their_generator_writes", &format!("no python3: {error}")),
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
    }
}
