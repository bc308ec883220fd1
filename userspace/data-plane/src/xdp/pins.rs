//! The data plane's place in the BPF file system, where it outlives this process.
//!
//! ```text
//! <folder>/maps/<name>       the program's maps, and the journal; they come and go together
//! <folder>/links/<index>     the program's attachment to the interface of this index
//! <folder>/offloads/<index>-<feature>
//!                            a folder: the interface had this feature on, which is off while
//!                            XDP runs there
//! ```
//!
//! The maps are made under another name. One rename puts them in their place, and another removes
//! them: they are never incomplete there, whenever the process dies. A lock on the folder, which
//! the kernel releases with the process, keeps a second aggregator out. The module `journal` has
//! the order of all steps.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, PinnedLink};
use rustix::fs::statfs;

/// Number of the BPF file system (`BPF_FS_MAGIC` of linux/magic.h).
const BPF_FS_MAGIC: i64 = 0xCAFE_4A11;

/// The folder, locked.
pub struct Pins {
    folder: PathBuf,
    lock: File,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The folder is not in a BPF file system.
    #[error(
        "{0:?} is in no BPF file system, where the data plane is kept; `mount -t bpf bpf \
         /sys/fs/bpf`, or give a folder in one with --pin-dir"
    )]
    NotBpf(PathBuf),
    /// Another aggregator uses the folder.
    #[error(
        "another aggregator runs with {0:?}; stop it, or give this one a folder of its own with \
         --pin-dir"
    )]
    InUse(PathBuf),
    /// The system refused.
    #[error(
        "cannot {what} {path:?}: {why}; run as root, or give a folder in a BPF file system of \
         yours with --pin-dir"
    )]
    System {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: String,
    },
}

impl Pins {
    /// Makes the folder unless it exists, and locks it.
    ///
    /// # Errors
    ///
    /// [`PinError`].
    pub fn lock(folder: &Path) -> Result<Self, PinError> {
        let parent = folder
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        match statfs(parent) {
            #[allow(clippy::unnecessary_cast)] // its type differs between architectures
            Ok(stat) if stat.f_type as i64 == BPF_FS_MAGIC => {}
            Ok(_) => return Err(PinError::NotBpf(folder.to_owned())),
            Err(error) => return Err(refused("look at", parent)(error.into())),
        }
        loop {
            match fs::create_dir(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(refused("make", folder)(error));
                }
                _ => {}
            }
            let lock = File::open(folder).map_err(refused("open", folder))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(PinError::InUse(folder.to_owned())),
                Err(TryLockError::Error(error)) => return Err(refused("lock", folder)(error)),
            }
            // The previous holder of the lock may have removed the folder just before releasing it.
            let locked = lock.metadata().map_err(refused("look at", folder))?;
            if fs::metadata(folder).is_ok_and(|there| there.ino() == locked.ino()) {
                return Ok(Self { folder: folder.to_owned(), lock });
            }
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A number that no other folder has while this one exists.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn number(&self) -> Result<u32, PinError> {
        let folder = self.lock.metadata().map_err(refused("look at", &self.folder))?;
        // The BPF file system counts in 32 bits.
        Ok(folder.ino() as u32)
    }

    /// Whether the folder has a data plane.
    pub fn is_occupied(&self) -> bool {
        self.maps().exists()
    }

    /// Folder of the maps.
    pub fn maps(&self) -> PathBuf {
        self.folder.join("maps")
    }

    /// Makes an empty folder for new maps. [`Self::publish`] moves it to the maps' place.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn stage(&self) -> Result<PathBuf, PinError> {
        let staging = self.staging();
        remove(&staging)?;
        make(&staging)?;
        make(&self.links())?;
        Ok(staging)
    }

    /// Makes the staged maps the data plane's maps.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn publish(&self) -> Result<(), PinError> {
        fs::rename(self.staging(), self.maps()).map_err(refused("make", &self.maps()))
    }

    /// The indices of the interfaces with links.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn linked(&self) -> Result<Vec<u32>, PinError> {
        let links = self.links();
        let entries = fs::read_dir(&links).map_err(refused("read", &links))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }

    /// The link to the interface of this index, if there is one.
    pub fn link(&self, index: u32) -> Option<FdLink> {
        Some(PinnedLink::from_pin(self.link_path(index)).ok()?.into())
    }

    /// Has the link stay when this process ends, in place of an earlier one.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn keep_link(&self, index: u32, link: FdLink) -> Result<FdLink, PinError> {
        self.drop_link(index)?;
        let path = self.link_path(index);
        let pinned = link.pin(&path).map_err(|error| PinError::System {
            what: "pin",
            path,
            why: error.to_string(),
        })?;
        Ok(pinned.into())
    }

    /// Removes the pin of the link, if there is one, so that it ends when this process releases it.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn drop_link(&self, index: u32) -> Result<(), PinError> {
        let path = self.link_path(index);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(refused("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Notes that a feature of the interface was on.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn note_offload(&self, index: u32, feature: &str) -> Result<(), PinError> {
        make(&self.offloads())?;
        make(&self.offload_path(index, feature))
    }

    /// The notes: indices of interfaces, and features.
    pub fn noted_offloads(&self) -> Vec<(u32, String)> {
        let parse = |name: &str| {
            let (index, feature) = name.split_once('-')?;
            Some((index.parse().ok()?, feature.to_owned()))
        };
        // Without the folder there are no notes.
        let entries = fs::read_dir(self.offloads()).into_iter().flatten();
        entries.filter_map(|entry| parse(entry.ok()?.file_name().to_str()?)).collect()
    }

    /// Deletes a note.
    pub fn forget_offload(&self, index: u32, feature: &str) {
        // If this fails, the note is removed with everything else.
        let _ = fs::remove_dir(self.offload_path(index, feature));
    }

    /// Removes everything. Objects that this process holds open go when they are closed.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn remove(&self) -> Result<(), PinError> {
        if self.is_occupied() {
            remove(&self.staging())?;
            fs::rename(self.maps(), self.staging()).map_err(refused("remove", &self.maps()))?;
        }
        remove(&self.links())?;
        remove(&self.offloads())?;
        remove(&self.staging())?;
        fs::remove_dir(&self.folder).map_err(refused("remove", &self.folder))
    }

    fn staging(&self) -> PathBuf {
        self.folder.join("staging")
    }

    fn links(&self) -> PathBuf {
        self.folder.join("links")
    }

    fn offloads(&self) -> PathBuf {
        self.folder.join("offloads")
    }

    fn offload_path(&self, index: u32, feature: &str) -> PathBuf {
        self.offloads().join(format!("{index}-{feature}"))
    }

    fn link_path(&self, index: u32) -> PathBuf {
        self.links().join(index.to_string())
    }
}

/// Makes a folder unless it exists.
fn make(folder: &Path) -> Result<(), PinError> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(refused("make", folder)(error))
        }
        _ => Ok(()),
    }
}

/// Removes a folder and its contents. Does nothing if there is none.
fn remove(folder: &Path) -> Result<(), PinError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(refused("remove", folder)(error)),
        _ => Ok(()),
    }
}

fn refused(what: &'static str, path: &Path) -> impl Fn(io::Error) -> PinError {
    move |error| PinError::System { what, path: path.to_owned(), why: error.to_string() }
}
