//! Software bills of materials: the components of each program and library, in CycloneDX's JSON.

use super::build;
use crate::cargo;
use crate::command::succeed;
use crate::python::tools;
use crate::setup::cargo_tool::CYCLONEDX;
use anyhow::{Context, Result, ensure};
use std::{fs, path::Path, process::Command};
use switchml_cli::say;

/// The shipped parts: the path of the file that the tool writes, and the name under which it is
/// kept. The daemon contains the BPF programs.
const SHIPPED: [(&str, &str); 5] = [
    ("userspace/switchml-aggregator_bin", "switchml-aggregator"),
    ("xdp-aggregator/xdp-aggregator_bin", "switchml-aggregator-bpf"),
    ("worker-lib/cli/switchml-worker_bin", "switchml-worker"),
    ("worker-lib/c/switchml_cdylib-rlib", "libswitchml"),
    ("worker-lib/python/_native_cdylib", "switchml-python"),
];

/// Validates files against CycloneDX's schema of their own version.
const VALIDATE: &str = "\
import json, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
for name in sys.argv[1:]:
    text = open(name).read()
    version = SchemaVersion.from_version(json.loads(text)['specVersion'])
    wrong = JsonStrictValidator(version).validate_str(text)
    if wrong:
        sys.exit(f'{name}: {wrong}')
";

/// Writes the bills of materials of the commit into the folder.
pub fn make(folder: &Path) -> Result<()> {
    let tool = CYCLONEDX.ensure(&cargo::target_folder()?)?;
    // The tool writes its files next to each Cargo.toml of a workspace.
    let copy = cargo::target_folder()?.join("sbom");
    let _ = fs::remove_dir_all(&copy);
    let mut clone = Command::new("git");
    succeed(clone.args(["clone", "--quiet"]).arg(cargo::workspace()).arg(&copy))?;
    let mut command = Command::new(tool);
    command.args(["cyclonedx", "--quiet", "--format=json", "--spec-version=1.5"]);
    command.args(["--describe=binaries", "--all-features", "--target", build::AMD64]);
    command.env("SOURCE_DATE_EPOCH", build::commit_time()?).current_dir(&copy);
    succeed(&mut command)?;
    let place = copy.canonicalize()?.display().to_string();
    for (written, name) in SHIPPED {
        let written = copy.join(format!("{written}.cdx.json"));
        let text = fs::read_to_string(&written).with_context(|| written.display().to_string())?;
        fs::write(folder.join(format!("{name}.cdx.json")), text.replace(&place, "/switchml"))?;
    }
    fs::remove_dir_all(&copy).context("cannot clean up")
}

/// Fails unless the bills of materials in the folder are valid, and name the expected components.
pub fn check(folder: &Path) -> Result<()> {
    let files = SHIPPED.map(|(_, name)| folder.join(format!("{name}.cdx.json")));
    let python =
        tools("cyclonedx", "cyclonedx-python-lib[json-validation]==11.7.0").interpreter()?;
    succeed(Command::new(python).args(["-c", VALIDATE]).args(&files))?;
    // One dependency of each part, which the tool would not find if it looked at another part.
    for (file, part) in files.iter().zip(["aya", "aya-ebpf", "indicatif", "half", "pyo3"]) {
        let text = fs::read_to_string(file)?;
        ensure!(text.contains(&format!("\"pkg:cargo/{part}@")), "{}: no {part}", file.display());
    }
    say!("bills of materials: valid");
    Ok(())
}
