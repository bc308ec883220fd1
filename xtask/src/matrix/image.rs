//! Debian's kernels: found, downloaded and unpacked below the target folder, where they stay.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::output;
use crate::setup::debian::Apt;

/// The name that selects the newest kernel of all.
pub const NEWEST: &str = "newest";

/// The Debian suites that have kernels.
const SUITES: [&str; 5] = ["bookworm", "trixie", "trixie-backports", "testing", "unstable"];
const IMAGE: &str = "linux-image-";
/// The flavour with drivers for all NICs.
const FLAVOUR: &str = "-amd64";
/// Other flavours that also end in [`FLAVOUR`].
const OTHERS: [&str; 2] = ["-cloud-amd64", "-rt-amd64"];

/// A kernel, unpacked.
pub struct Kernel {
    /// The kernel's own name, such as `6.12.107+deb13-amd64`.
    pub release: String,
    folder: PathBuf,
}

impl Kernel {
    /// The folder with its `lib/modules`.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The folder for files that are made from the kernel.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file with the console output of the machine with such ports.
    pub fn console(&self, port: &str) -> PathBuf {
        self.folder.join(format!("{port}.log"))
    }

    /// Whether a module is a file rather than built in.
    pub fn has_module(&self, name: &str) -> bool {
        let dependencies = self.root().join(format!("lib/modules/{}/modules.dep", self.release));
        let listed = fs::read_to_string(dependencies).unwrap_or_default();
        listed.lines().any(|line| line.contains(&format!("/{name}.ko")))
    }

    /// Whether the kernel has this version or a later one.
    pub fn is_at_least(&self, version: [u32; 2]) -> bool {
        numbers(&self.release) >= version.to_vec()
    }

    /// The kernel's image, whose place differs between Debian's releases.
    pub fn image(&self) -> Result<PathBuf> {
        let (root, release) = (self.root(), &self.release);
        let places =
            [format!("boot/vmlinuz-{release}"), format!("usr/lib/modules/{release}/vmlinuz")];
        let found = places.iter().map(|place| root.join(place)).find(|image| image.is_file());
        found
            .with_context(|| format!("the package of {release} has no image where it was expected"))
    }
}

/// The newest kernels of these versions.
pub fn find(folder: &Path, selected: &[&str]) -> Result<Vec<Kernel>> {
    let apt = Apt::new(&folder.join("apt"), &SUITES)?;
    let names = apt.names("^linux-(image|binary|modules)-[0-9].*-amd64$")?;
    let releases = names.iter().filter_map(|name| name.strip_prefix(IMAGE));
    let releases: Vec<String> = releases.filter(|name| is_plain(name)).map(str::to_owned).collect();
    selected
        .iter()
        .map(|selected| {
            let release = newest(&releases, selected).with_context(|| {
                format!(
                    "Debian has no kernel {selected} in {}; such as 6.12, or {NEWEST}",
                    SUITES.join(", ")
                )
            })?;
            fetch(&apt, folder, release, &names)
        })
        .collect()
}

/// Whether a release has the plain flavour.
fn is_plain(release: &str) -> bool {
    !OTHERS.iter().any(|flavour| release.ends_with(flavour))
}

/// The newest release of a version.
fn newest<'a>(releases: &'a [String], version: &str) -> Option<&'a str> {
    let wanted = numbers(version);
    let of_version = |release: &&String| {
        version == NEWEST || numbers(release).starts_with(&wanted) && !wanted.is_empty()
    };
    releases.iter().filter(of_version).max_by_key(|release| numbers(release)).map(String::as_str)
}

/// The numbers in a release; the first ones order releases by age.
fn numbers(release: &str) -> Vec<u32> {
    let release = release.strip_suffix(FLAVOUR).unwrap_or(release);
    release
        .split(|character: char| !character.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

fn fetch(apt: &Apt, folder: &Path, release: &str, names: &[String]) -> Result<Kernel> {
    let kernel = Kernel { release: release.to_owned(), folder: folder.join(release) };
    if kernel.folder.is_dir() {
        return Ok(kernel);
    }
    eprintln!("kernels: downloading Debian's Linux {release} into {}", kernel.folder.display());
    // The folder has another name until it is complete.
    let partial =
        Kernel { release: release.to_owned(), folder: folder.join(format!("{release}.partial")) };
    if partial.folder.exists() {
        fs::remove_dir_all(&partial.folder)?;
    }
    fs::create_dir_all(partial.root())?;
    // Newer ones come in several packages.
    for part in ["image", "binary", "modules"] {
        let package = format!("linux-{part}-{release}");
        if names.contains(&package) {
            let file = apt.download(&package)?;
            output(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(partial.root()))?;
            fs::remove_file(file)?;
        }
    }
    if !partial.root().join("lib").exists() {
        symlink("usr/lib", partial.root().join("lib"))?;
    }
    output(Command::new("/sbin/depmod").arg("--basedir").arg(partial.root()).arg(release))?;
    ensure!(partial.image()?.is_file(), "no image");
    fs::rename(&partial.folder, &kernel.folder)?;
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_a_version_is_by_number_not_by_letter() {
        let releases = [
            "6.1.0-9",
            "6.1.0-50",
            "6.12.94+deb13",
            "6.12.107+deb13",
            "7.3.4+deb13",
            "7.2.13+deb14",
        ];
        let releases = releases.map(|release| format!("{release}{FLAVOUR}"));
        let of =
            |version| newest(&releases, version).and_then(|release| release.strip_suffix(FLAVOUR));
        assert_eq!(of("6.1"), Some("6.1.0-50"));
        assert_eq!(of("6.12"), Some("6.12.107+deb13"));
        assert_eq!(of("6.12.94"), Some("6.12.94+deb13"));
        assert_eq!(of(NEWEST), Some("7.3.4+deb13"));
        assert_eq!((of("6.2"), of("latest"), of("")), (None, None, None));
    }

    #[test]
    fn other_flavours_do_not_count() {
        assert!(is_plain("6.12.107+deb13-amd64"));
        assert!(!is_plain("6.12.107+deb13-cloud-amd64"));
        assert!(!is_plain("6.12.107+deb13-rt-amd64"));
    }
}
