//! Where log and traces go, and how the log is written.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use anyhow::Context;
use axum::http::Uri;
use clap::ValueEnum;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use switchml_userspace::traces;
use tracing::Level;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, registry};

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: an object in each line, with timestamp, level and message.
    Json,
}

/// How long the last spans may take on their way when the daemon ends.
const GRACE: Duration = Duration::from_secs(2);

/// Sends what is left of the traces when it is dropped.
pub struct Logging(Option<SdkTracerProvider>);

impl Drop for Logging {
    fn drop(&mut self) {
        if let Some(provider) = &self.0 {
            // Whoever collects them may be gone; nobody is left to be told.
            let _ = provider.shutdown_with_timeout(GRACE);
        }
    }
}

/// Sends the log to standard error, from the level on that RUST_LOG says, or else from INFO on; and
/// traces to this collector. Call it in the runtime.
///
/// # Errors
///
/// When the collector's address is of no use.
pub fn start(format: LogFormat, collector: Option<&Uri>) -> anyhow::Result<Logging> {
    let level = EnvFilter::builder().with_default_directive(Level::INFO.into()).from_env_lossy();
    let level = level.and(filter_fn(|metadata| metadata.target() != traces::TARGET));
    let log = fmt::layer().with_target(false).with_writer(stderr);
    let log = match format {
        LogFormat::Text => log.with_ansi(stderr().is_terminal()).boxed(),
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    };
    let provider = collector.map(provider).transpose()?;
    let spans = provider.as_ref().map(|provider| {
        let tracer = provider.tracer(env!("CARGO_BIN_NAME"));
        let only = Targets::new().with_target(traces::TARGET, Level::INFO);
        tracing_opentelemetry::layer().with_tracer(tracer).with_filter(only)
    });
    registry().with(log.with_filter(level)).with(spans).init();
    Ok(Logging(provider))
}

fn provider(collector: &Uri) -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(collector.to_string());
    let exporter = exporter.build().with_context(|| format!("--otlp-endpoint {collector}"))?;
    let resource = Resource::builder().with_service_name(env!("CARGO_BIN_NAME")).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// The address of a collector.
///
/// # Errors
///
/// When it is none, or wants TLS.
pub fn collector(given: &str) -> Result<Uri, String> {
    let uri: Option<Uri> = given.parse().ok();
    let uri = uri.filter(|uri| uri.scheme_str() == Some("http") && uri.host().is_some());
    uri.ok_or_else(|| {
        format!("{given:?} is no address of a collector: http://127.0.0.1:4317 is; without TLS")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_reached_without_tls() {
        for good in ["http://127.0.0.1:4317", "http://[::1]:4317", "http://collector"] {
            assert!(collector(good).is_ok(), "{good}");
        }
        for bad in ["", "127.0.0.1:4317", "https://127.0.0.1:4317", "/traces", "http://"] {
            let why = collector(bad).expect_err(bad);
            assert!(why.starts_with(&format!("{bad:?} is no address of a collector")), "{why}");
        }
    }
}
