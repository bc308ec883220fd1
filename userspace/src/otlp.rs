//! A collector of traces, by OTLP over gRPC.

use std::time::Duration;

use anyhow::Context;
use axum::http::Uri;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use switchml_userspace::traces;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// Longest time to send the last spans when the daemon ends.
const GRACE: Duration = Duration::from_secs(2);

/// A collector of traces. Dropping this sends it the remaining spans.
pub struct Collector(SdkTracerProvider);

impl Drop for Collector {
    fn drop(&mut self) {
        // The collector may be gone; nobody is left to be told.
        let _ = self.0.shutdown_with_timeout(GRACE);
    }
}

impl Collector {
    /// The collector at this address. Call this in the runtime.
    pub fn at(address: &Uri) -> anyhow::Result<Self> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(address.to_string());
        let exporter = exporter.build().with_context(|| format!("--otlp-endpoint {address}"))?;
        let resource = Resource::builder().with_service_name(env!("CARGO_BIN_NAME")).build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
        Ok(Self(provider.with_resource(resource).build()))
    }

    /// The layer that sends the spans of traces to the collector.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let tracer = self.0.tracer(env!("CARGO_BIN_NAME"));
        let only = Targets::new().with_target(traces::TARGET, Level::INFO);
        tracing_opentelemetry::layer().with_tracer(tracer).with_filter(only)
    }
}

/// The address of a collector.
pub fn address(given: &str) -> Result<Uri, String> {
    let uri: Option<Uri> = given.parse().ok();
    let uri = uri.filter(|uri| uri.scheme_str() == Some("http") && uri.host().is_some());
    uri.ok_or_else(|| {
        format!(
            "{given:?} is not the address of a collector; use one like http://127.0.0.1:4317, \
             without TLS"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_reached_without_tls() {
        for good in ["http://127.0.0.1:4317", "http://[::1]:4317", "http://collector"] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in ["", "127.0.0.1:4317", "https://127.0.0.1:4317", "/traces", "http://"] {
            let why = address(bad).expect_err(bad);
            assert!(
                why.starts_with(&format!("{bad:?} is not the address of a collector")),
                "{why}"
            );
        }
    }
}
