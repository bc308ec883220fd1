//! Where the log goes, and how it is written.

use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use tracing::Level;
use tracing_subscriber::EnvFilter;

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: an object in each line, with timestamp, level and message.
    Json,
}

/// Sends the log to standard error, from the level on that RUST_LOG says, or else from INFO on.
pub fn start(format: LogFormat) {
    let level = EnvFilter::builder().with_default_directive(Level::INFO.into()).from_env_lossy();
    let log = tracing_subscriber::fmt().with_env_filter(level).with_target(false);
    let log = log.with_writer(stderr);
    match format {
        LogFormat::Text => log.with_ansi(stderr().is_terminal()).init(),
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
        }
    }
}
