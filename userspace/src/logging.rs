//! How the log is written.

use std::env;
use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use switchml_userspace::traces;
use tracing::Level;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, registry};

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: an object in each line, with timestamp, level and message.
    Json,
}

/// Sends the log to standard error, at the level in RUST_LOG or at INFO, and spans to another
/// layer, if there is one.
pub fn start(format: LogFormat, spans: Option<impl Layer<Registry> + Send + Sync>) {
    let said = env::var("RUST_LOG").ok().and_then(|text| text.parse().ok());
    // The HTTP/2 library logs a line for each connection that breaks its rules: strangers could
    // flood the log.
    let usual = || Targets::new().with_default(Level::INFO).with_target("h2", Level::ERROR);
    let level = said.unwrap_or_else(usual);
    let level = level.and(filter_fn(|metadata| metadata.target() != traces::TARGET));
    let log = fmt::layer().with_target(false).with_writer(stderr);
    let log = match format {
        LogFormat::Text => log.with_ansi(stderr().is_terminal()).boxed(),
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    registry().with(spans).with(log.with_filter(level)).init();
}
