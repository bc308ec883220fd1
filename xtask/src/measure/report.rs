//! Reports: tables in Markdown, and the files that go with them.

use std::fmt::{self, Display};
use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use switchml_cli::say;

/// What a measurement found.
#[derive(Default)]
pub struct Report {
    /// Markdown.
    pub text: String,
    /// The names and content of plots and of JSON.
    pub files: Vec<(String, String)>,
    /// The goals that are missed.
    pub missed: Vec<String>,
}

impl From<String> for Report {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

/// Where reports go: to the terminal and, if there is one, into a folder.
pub struct Output<'a> {
    folder: Option<&'a Path>,
    text: String,
    missed: Vec<String>,
}

impl<'a> Output<'a> {
    /// Begins with the machine.
    pub fn new(folder: Option<&'a Path>) -> Self {
        let text = format!("{}.\n\n", processor());
        say!("{}", text.trim_end());
        Self { folder, text, missed: Vec::new() }
    }

    /// Prints a report at once, in case a later measurement fails, and writes its files.
    pub fn add(&mut self, report: Report) -> Result<()> {
        let Report { text, files, missed } = report;
        say!("\n{}", text.trim_end());
        self.text += &text;
        self.missed.extend(missed);
        files.iter().try_for_each(|(name, content)| self.write(name, content))
    }

    /// Writes all texts into a file of this name. It is an error if a goal is missed.
    pub fn finish(self, name: &str) -> Result<()> {
        self.write(name, &self.text)?;
        ensure!(self.missed.is_empty(), "not as promised: {}", self.missed.join("; "));
        Ok(())
    }

    fn write(&self, name: &str, content: &str) -> Result<()> {
        let Some(folder) = self.folder else { return Ok(()) };
        let path = folder.join(name);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, content))
            .with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
        Ok(())
    }
}

/// The processors of this machine: how many, and their name.
pub fn processor() -> String {
    let count = available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!("{count} x {}", name.map_or("a processor without a name", |(_, name)| name))
}

/// A table in Markdown.
pub struct Table {
    text: String,
    pub is_empty: bool,
}

impl Table {
    /// A table without rows, with the heads of its columns.
    pub fn new<T: Display>(heads: impl IntoIterator<Item = T>) -> Self {
        let heads: Vec<String> = heads.into_iter().map(|head| format!(" {head} |")).collect();
        let text = format!("|{}\n|{}\n", heads.concat(), " --- |".repeat(heads.len()));
        Self { text, is_empty: true }
    }

    pub fn row(&mut self, cells: &[&dyn Display]) {
        self.cells(cells);
    }

    /// Adds a row of cells of one type.
    pub fn cells<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells: String = cells.into_iter().map(|cell| format!(" {cell} |")).collect();
        self.text += &format!("|{cells}\n");
        self.is_empty = false;
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A number, or a dash if there is none.
pub fn or_dash<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}
