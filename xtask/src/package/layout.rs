//! The packages' content, laid out as it is installed, together with debhelper's files.

use super::{Packed, build};
use crate::cargo;
use crate::command::{output, succeed};
use anyhow::{Context, Result};
use std::{fs, path::Path, process::Command};

/// The library's name for programs that are linked with it. Its number increases when existing
/// programs would no longer work with the library.
pub const SONAME: &str = "libswitchml.so.0";

/// Lays out the release's binaries in a new folder.
pub fn lay_out(packed: &Packed, folder: &Path, version: &str) -> Result<()> {
    let mut architecture = Command::new("dpkg-architecture");
    architecture.args(["--host-arch", packed.architecture, "--force"]);
    let multiarch = output(architecture.arg("-qDEB_HOST_MULTIARCH"))?;
    let (lib, man) = (folder.join("usr/lib").join(multiarch.trim()), folder.join("man"));
    fs::create_dir_all(&man)?;
    for program in ["switchml-aggregator", "switchml-worker"] {
        copy(&packed.folder.join(program), &folder.join("usr/bin").join(program))?;
        succeed(packed.start(program).arg("pages").arg(&man))?;
        for (written, place) in [
            (format!("{program}.bash"), format!("bash-completion/completions/{program}")),
            (format!("_{program}"), format!("zsh/vendor-completions/_{program}")),
            (format!("{program}.fish"), format!("fish/vendor_completions.d/{program}.fish")),
        ] {
            copy(&man.join(written), &folder.join("usr/share").join(place))?;
        }
    }
    copy(&packed.folder.join("libswitchml.so"), &lib.join(SONAME))?;
    std::os::unix::fs::symlink(SONAME, lib.join("libswitchml.so"))?;
    write(&lib.join("pkgconfig/switchml.pc"), &pkg_config(multiarch.trim(), version))?;
    let workspace = cargo::workspace();
    let header = "worker-lib/c/include/switchml.h";
    copy(&workspace.join(header), &folder.join("usr/include/switchml.h"))?;
    let debian = workspace.join("userspace/deploy/debian");
    copy(&debian.join("aggregator.toml"), &folder.join("etc/switchml/aggregator.toml"))?;
    for entry in fs::read_dir(&debian).context("userspace/deploy/debian")? {
        let entry = entry?;
        copy(&entry.path(), &folder.join("debian").join(entry.file_name()))?;
    }
    write(&folder.join("debian/changelog"), &changelog(version)?)
}

fn pkg_config(multiarch: &str, version: &str) -> String {
    format!(
        "Name: switchml\nDescription: In-network all-reduce\nVersion: {version}\n\
         Libs: -L/usr/lib/{multiarch} -lswitchml\nCflags: -I/usr/include\n"
    )
}

/// The changelog with the commit's date, which all files in the packages get.
fn changelog(version: &str) -> Result<String> {
    let seconds = build::commit_time()?;
    let date =
        output(Command::new("date").env("LC_ALL", "C").args(["-Rud", &format!("@{}", seconds)]))?;
    Ok(format!(
        "switchml ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n \
         -- The switchml-xdp authors <switchml@localhost.localdomain>  {date}"
    ))
}

fn write(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().context("no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Copies a file into a folder, which is made.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("no folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}
