//! The journal of the control plane for the next daemon: a BPF map that is pinned with the
//! program's maps, and so exists as long as the state that it describes.
//!
//! An entry is JSON text, padded with zeros: `bpftool map dump` shows it. The kernel replaces an
//! entry in one system call: whenever this process dies, each entry is complete, either old or new.
//!
//! The data plane outlives the daemon: maps and links are pinned (`pins`). The next daemon puts its
//! own program into the links, and takes the jobs back (`JobTable::restore`). Their ranks come back
//! with `Resume`. Because maps and journal are in one folder, a reboot or `detach` clears both.
//!
//! No job is half there, whenever the daemon dies, because each step has this order:
//!
//! | step | order | if the daemon dies in between, the next daemon |
//! | --- | --- | --- |
//! | make the maps | make them in another folder, then rename that once | removes the other folder, and begins again |
//! | attach by a link | link, then pin | attaches |
//! | attach by a filter | one call; the filter's handle is the inode number of the folder | takes the filter over |
//! | open a job | epoch into the journal, then members, then the job | closes the job, and never uses the epoch |
//! | start or abort a job | journal, then data plane, then ranks | repeats the step, and tells the ranks that come back |
//! | close a job | journal, then data plane | closes the job |
//! | remove all | filters, then rename the maps' folder, then the rest | takes the links over, and makes new maps |

use std::collections::BTreeMap;
use std::path::Path;

use aya::maps::{Array, Map, MapData, MapError};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_ARRAY;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use switchml_protocol::VERSION;
use switchml_protocol::bpf_types::maps::MAX_JOBS;
use switchml_userspace_core::jobs::{Epochs, Job, MAX_SAVED_LEN};

use super::hook::Mode;

/// Bytes of an entry.
const ENTRY_LEN: usize = MAX_SAVED_LEN;
/// Index of the entry for [`Settings`], after the entries of jobs.
const SETTINGS: u32 = MAX_JOBS as u32;

/// Version of the layout of the maps and the journal; to be raised when a daemon would misread the
/// state of an earlier one.
const LAYOUT: u32 = 9;
// Ranks that come back do not tell their version (rule 22.14).
const _: () = assert!(VERSION == 1, "another version of packets needs another LAYOUT");

/// The journal's map.
pub struct Journal(Array<MapData, [u8; ENTRY_LEN]>);

/// The settings that a data plane was made with. A daemon with other settings cannot take it over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    layout: u32,
    mode: Mode,
    port: u16,
    /// Number of a combiner's cells; `None` for a root.
    pub cells: Option<u32>,
    /// Whether it takes ranks by RoCEv2.
    #[serde(default)]
    pub roce: bool,
}

impl Settings {
    /// The settings of this build.
    pub fn new(mode: Mode, port: u16, cells: Option<u32>, roce: bool) -> Self {
        Self { layout: LAYOUT, mode, port, cells, roce }
    }

    /// The differences, for people; `None` if there are none.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let differences = [
            (self.layout != other.layout)
                .then(|| format!("layout {}, not {}", self.layout, other.layout)),
            (self.mode != other.mode)
                .then(|| format!("{} mode, not {}", self.mode.name(), other.mode.name())),
            (self.port != other.port)
                .then(|| format!("data port {}, not {}", self.port, other.port)),
            (self.cells != other.cells)
                .then(|| format!("{}, not {}", role(self.cells), role(other.cells))),
            (self.roce != other.roce).then(|| {
                let with = |roce| if roce { "with RoCEv2" } else { "without RoCEv2" };
                format!("{}, not {}", with(self.roce), with(other.roce))
            }),
        ];
        let differences: Vec<_> = differences.into_iter().flatten().collect();
        (!differences.is_empty()).then(|| differences.join(", "))
    }
}

/// Root or combiner, for people.
fn role(cells: Option<u32>) -> String {
    cells.map_or("a root".to_owned(), |cells| format!("a combiner of {cells} cells"))
}

/// The entry after the entries of jobs.
#[derive(Serialize, Deserialize)]
struct Head {
    settings: Settings,
    /// The epochs used so far, once one was.
    epochs: Option<Epochs>,
    /// Numbers and names of the interfaces that the last daemon served.
    #[serde(default)]
    ports: BTreeMap<u32, String>,
}

impl Journal {
    /// Makes the journal of a new data plane, and pins it.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn create(path: &Path, settings: Settings) -> Result<(), MapError> {
        let definition = aya_obj::Map::new_from_params(
            BPF_MAP_TYPE_ARRAY as u32,
            size_of::<u32>() as u32,
            ENTRY_LEN as u32,
            SETTINGS + 1,
            0,
        );
        let map = MapData::create(definition, "JOURNAL", None)?;
        map.pin(path)
            .map_err(|error| MapError::PinError { name: Some("JOURNAL".to_owned()), error })?;
        let mut journal = Self(Map::from_map_data(map)?.try_into()?);
        journal.write(SETTINGS, &Head { settings, epochs: None, ports: BTreeMap::new() })
    }

    /// Opens the journal that is pinned at `path`.
    ///
    /// # Errors
    ///
    /// When there is none, or another map.
    pub fn open(path: &Path) -> Result<Self, MapError> {
        Ok(Self(Map::from_map_data(MapData::from_pin(path)?)?.try_into()?))
    }

    /// The settings that the data plane was made with; `None` if they cannot be read.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn settings(&self) -> Result<Option<Settings>, MapError> {
        Ok(self.read::<Head>(SETTINGS)?.map(|head| head.settings))
    }

    /// The epochs that were used, if one was.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn epochs(&self) -> Result<Option<Epochs>, MapError> {
        Ok(self.read::<Head>(SETTINGS)?.and_then(|head| head.epochs))
    }

    /// Saves epochs, of which the last is about to be used.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn keep_epochs(&mut self, epochs: &Epochs) -> Result<(), MapError> {
        let head = self.head()?;
        self.write(SETTINGS, &Head { epochs: Some(epochs.clone()), ..head })
    }

    /// Numbers and names of the interfaces that were served last.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn ports(&self) -> Result<BTreeMap<u32, String>, MapError> {
        self.head().map(|head| head.ports)
    }

    /// Saves numbers and names of the interfaces that are served, if they have changed.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn keep_ports(&mut self, ports: BTreeMap<u32, String>) -> Result<(), MapError> {
        let head = self.head()?;
        if head.ports == ports {
            return Ok(());
        }
        self.write(SETTINGS, &Head { ports, ..head })
    }

    fn head(&self) -> Result<Head, MapError> {
        self.read(SETTINGS)?.ok_or(MapError::KeyNotFound)
    }

    /// The job that was saved under a number, if one was and can be read.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn job(&self, number: u16) -> Result<Option<Job>, MapError> {
        self.read(number.into())
    }

    /// Saves a job under its number, in place of another.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn save(&mut self, job: &Job) -> Result<(), MapError> {
        self.write(job.number.into(), job)
    }

    /// Forgets the job of a number, if it may be a job's.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget(&mut self, number: u16) -> Result<(), MapError> {
        if usize::from(number) < MAX_JOBS {
            self.0.set(number.into(), [0; ENTRY_LEN], 0)
        } else {
            Ok(())
        }
    }

    fn read<T: DeserializeOwned>(&self, entry: u32) -> Result<Option<T>, MapError> {
        let bytes = self.0.get(&entry, 0)?;
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(serde_json::from_slice(&bytes[..len]).ok())
    }

    fn write(&mut self, entry: u32, value: &impl Serialize) -> Result<(), MapError> {
        let mut bytes = [0; ENTRY_LEN];
        serde_json::to_writer(&mut bytes[..], value)
            .map_err(|error| MapError::IoError(error.into()))?;
        self.0.set(entry, bytes, 0)
    }
}
