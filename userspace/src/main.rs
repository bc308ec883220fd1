//! `switchml-aggregator`, the daemon: see `--help`.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)]

mod cli;
mod daemon;
mod logging;
#[cfg(feature = "otlp")]
mod otlp;
mod report;
#[cfg(feature = "top")]
mod top;

use std::process::ExitCode;

use cli::service_file::Service;
use daemon::Exposed;
use switchml_control::tls::{TlsError, WrongSetting};
use switchml_userspace::data_plane::xdp::StartError;
use switchml_userspace::tokens::KeyError;

fn main() -> ExitCode {
    let (cli, matches) = cli::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("cannot start threads")),
    };
    let result = runtime.block_on(async {
        #[cfg(feature = "otlp")]
        let collector = {
            let endpoint = cli.options.otlp_endpoint.as_ref();
            endpoint.map(otlp::Collector::at).transpose()?
        };
        #[cfg(feature = "otlp")]
        let spans = collector.as_ref().map(otlp::Collector::layer);
        #[cfg(not(feature = "otlp"))]
        let spans = None::<tracing_subscriber::layer::Identity>;
        logging::start(cli.options.log_format, spans);
        match cli.command {
            None if cli.options.check_config => daemon::check::check(&cli.options),
            None => daemon::run(cli.options, matches).await,
            Some(cli::Command::Status { at, json }) => match aggregator(at) {
                Ok(to) if json => report::json(&to).await,
                Ok(to) => report::status(&to).await,
                Err(error) => Err(error),
            },
            #[cfg(feature = "top")]
            Some(cli::Command::Top { at }) => match aggregator(at) {
                Ok(of) => top::run(&of).await,
                Err(error) => Err(error),
            },
            Some(cli::Command::Jobs { at }) => match aggregator(at) {
                Ok(to) => report::jobs(&to).await,
                Err(error) => Err(error),
            },
            Some(cli::Command::Slots { job, at, json }) => match aggregator(at) {
                Ok(of) => report::slots(&of, job, json).await,
                Err(error) => Err(error),
            },
            Some(cli::Command::Token { token_key, tenant, jobs, expires }) => {
                daemon::token(&token_key, &tenant, &jobs, expires)
            }
            Some(cli::Command::Detach { pin_dir }) => daemon::detach(&pin_dir),
            Some(cli::Command::Pages { folder }) => {
                Ok(switchml_cli::pages::write::<cli::Cli>(&folder, &cli::MANUAL)?)
            }
            #[cfg(feature = "p4")]
            Some(cli::Command::Deploy { tofino_server, tofino_program }) => {
                daemon::p4::deploy(tofino_server, &tofino_program)
            }
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// The aggregator to ask.
fn aggregator(at: cli::At) -> anyhow::Result<report::Aggregator> {
    let service = match at.connect {
        Some(control) => Service { control, certificate: None },
        None => Service::of_this_host()?,
    };
    report::Aggregator::new(service, at.tls)
}

/// Prints the error and its causes in one line. The exit code is 2, as for other wrong options, if
/// options name no usable interfaces, files or addresses.
fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("switchml-aggregator: {error:#}");
    let is_usage = error.downcast_ref().is_some_and(StartError::is_usage)
        || error.is::<WrongSetting>()
        || error.is::<TlsError>()
        || error.is::<KeyError>()
        || error.is::<Exposed>();
    if is_usage { ExitCode::from(2) } else { ExitCode::FAILURE }
}
