//! The file to which tests that cannot run append `name: reason` before they return.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The file that tests append to. It is removed when this is dropped.
pub struct SkipFile(pub PathBuf);

impl SkipFile {
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("skipped-tests-{}", std::process::id()));
        File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    pub fn lines(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.0)
            .with_context(|| format!("cannot read {}", self.0.display()))?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

impl Drop for SkipFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
