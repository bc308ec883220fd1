//! A container image, made without Docker. It contains only the static daemon and the worker's
//! command line, as an archive in the OCI's layout (image specification 1.1), which `podman load`,
//! `skopeo` and `ctr images import` accept. The same commit gives the same bytes.

use super::{build, static_worker};
use crate::command::{output, succeed};
use crate::setup::packages;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use switchml_cli::say;

const PROGRAMS: [&str; 2] = ["switchml-aggregator", "switchml-worker"];

/// Makes the image in the folder. Returns its path.
pub fn make(folder: &Path, version: &str) -> Result<PathBuf> {
    let built = static_worker::compile(
        &static_worker::AMD64,
        &["switchml-userspace", "switchml-worker-cli"],
    )?;
    let work = folder.join("image");
    let _ = fs::remove_dir_all(&work);
    let (root, layout) = (work.join("root"), work.join("layout"));
    for folder in [root.join("usr/bin"), layout.join("blobs/sha256")] {
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    for program in PROGRAMS {
        let place = root.join("usr/bin").join(program);
        fs::copy(built.join(program), &place).context("cannot copy the programs")?;
        static_worker::check(&place, &static_worker::AMD64)?;
    }
    let layer = work.join("layer.tar");
    pack(&root, &layer)?;
    let layer = Blob::store(&layout, &fs::read(&layer).context("cannot read the layer")?)?;
    let config = Blob::store(&layout, config(&layer).to_string().as_bytes())?;
    let manifest = Blob::store(&layout, manifest(&config, &layer).to_string().as_bytes())?;
    let mut entry = manifest.described("manifest.v1+json");
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": version });
    let write = |name: &str, value: Value| {
        fs::write(layout.join(name), value.to_string()).context("cannot write the image's layout")
    };
    write("index.json", json!({ "schemaVersion": 2, "manifests": [entry] }))?;
    write("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }))?;
    let image = folder.join(format!("switchml-{version}-x86_64-image.tar"));
    pack(&layout, &image)?;
    fs::remove_dir_all(&work).context("cannot clean up")?;
    Ok(image)
}

/// Packs a folder. All files belong to root, and have the commit's time.
fn pack(folder: &Path, archive: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(archive).arg("--directory").arg(folder);
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime=@{}", build::commit_time()?)).arg(".");
    succeed(&mut tar)
}

/// The image's configuration: architecture, entry point and ports.
fn config(layer: &Blob) -> Value {
    json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/switchml-aggregator"],
            "ExposedPorts": { "48865/tcp": {}, "48864/udp": {} },
        },
        "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
    })
}

fn manifest(config: &Blob, layer: &Blob) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": media_type("manifest.v1+json"),
        "config": config.described("config.v1+json"),
        "layers": [layer.described("layer.v1.tar")],
    })
}

fn media_type(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

/// A file of the layout, whose name is its digest.
struct Blob {
    digest: String,
    size: usize,
}

impl Blob {
    fn store(layout: &Path, bytes: &[u8]) -> Result<Self> {
        let blobs = layout.join("blobs/sha256");
        let new = blobs.join("new");
        fs::write(&new, bytes).context("cannot write the image's layout")?;
        let sum = output(Command::new("sha256sum").arg(&new))?;
        let sum = sum.split(' ').next().unwrap_or_default();
        fs::rename(&new, blobs.join(sum)).context("cannot write the image's layout")?;
        Ok(Self { digest: format!("sha256:{sum}"), size: bytes.len() })
    }

    /// The descriptor by which other files refer to this one.
    fn described(&self, kind: &str) -> Value {
        json!({ "mediaType": media_type(kind), "digest": self.digest, "size": self.size })
    }
}

/// Unpacks the image with skopeo and umoci, which share no code with this module. Then a daemon and
/// a rank from it add up, in a file system with nothing else.
pub fn check(image: &Path) -> Result<()> {
    packages::ensure(&[("skopeo", "skopeo"), ("umoci", "umoci")], "look into images")?;
    let folder = image.with_extension("unpacked");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).context("cannot make a folder")?;
    let copy = format!("oci:{}:image", folder.join("layout").display());
    let from = format!("oci-archive:{}", image.display());
    succeed(Command::new("skopeo").args(["--insecure-policy", "copy", "--quiet", &from, &copy]))?;
    let mut unpack = Command::new("umoci");
    unpack.args(["unpack", "--image"]).arg(format!("{}:image", folder.join("layout").display()));
    succeed(unpack.arg(folder.join("bundle")))?;
    let root = folder.join("bundle/rootfs");
    let inside = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("chroot");
        command.arg(&root).arg(format!("/usr/bin/{program}")).args(arguments);
        command
    };
    let mut daemon = inside(
        "switchml-aggregator",
        &["--data-plane", "software", "--control", "127.0.0.1:0", "--data-port", "0"],
    );
    let mut daemon = daemon.stderr(Stdio::piped()).spawn().context("cannot start the daemon")?;
    let log = BufReader::new(daemon.stderr.take().context("it has no log")?);
    let control = log
        .lines()
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("ready: control ")?.1.split(',').next()?.to_owned()));
    let control = control.context("the daemon of the image has ended")?;
    let bench = ["bench", "--rank", "0", "--world-size", "1", "-e", "1M", "--aggregator", &control];
    let rank = output(&mut inside("switchml-worker", &bench));
    daemon.kill().context("cannot end the daemon")?;
    daemon.wait().context("cannot end the daemon")?;
    ensure!(rank?.contains("# Out of bounds values : 0 OK"), "wrong sums in the image");
    fs::remove_dir_all(&folder).context("cannot clean up")?;
    say!("image: its daemon and its rank add up");
    Ok(())
}
