//! Files of a test.

use std::path::PathBuf;

use tempfile::TempDir;

/// A new folder, removed when dropped.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file's name, as an option takes it.
    pub fn text(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }
}
